// setup_blocks.cu - find the dense blocks of a matrix, and arrange columns and values of blocks (gsparse.formats.bsr).
//
// One pass over the columns finds the size of the blocks (block_sizes.cuh).
#include "block_sizes.cuh"

// Set a bit of *contradicted for each number of rows and columns of blocks of which the matrix does not consist. A warp
// owns every step-th row. It ends as soon as all bits are set, which in a matrix without blocks the first rows do.
template <class Index>
GS_KERNEL full_blocks(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                      unsigned *contradicted) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x / GS_WARP;
  const int lane = threadIdx.x % GS_WARP;
  for (long long row = gs_thread() / GS_WARP; row < num_rows; row += step) {
    const long long begin = indptr[row], length = gs_row_length(indptr, row);
    const unsigned if_differs = gs_no_divisors(row);
    unsigned bits = gs_no_divisors(length) << 16;
    const bool same_length = row == 0 || gs_row_length(indptr, row - 1) == length;
    if (!same_length) bits |= if_differs;
    for (long long place = lane; place < length; place += GS_WARP) {
      const long long column = indices[begin + place];
      bits |= gs_contradicted_columns(place, column, place ? static_cast<long long>(indices[begin + place - 1]) : -1);
      if (if_differs && same_length && indices[begin - length + place] != column) bits |= if_differs;
      if (gs_fresh(contradicted) == (GS_ALL_ROWS | GS_ALL_COLUMNS)) return;
    }
    if (bits & ~gs_fresh(contradicted)) atomicOr(contradicted, bits);
  }
}

// Write the parts of block rows as CSR: their row pointers, and the columns of their blocks. A warp owns a block row.
template <class Index>
GS_KERNEL block_parts(long long num_block_rows, int rows, int columns, int row_lanes, const Index *__restrict__ indptr,
                      const Index *__restrict__ indices, Index *__restrict__ part_indptr,
                      Index *__restrict__ block_columns) {
  const long long row = gs_thread() / GS_WARP;
  const int lane = threadIdx.x % GS_WARP;
  if (row >= num_block_rows) return;
  const long long begin = indptr[row * rows], length = gs_row_length(indptr, row * rows) / columns;
  const long long first = begin / (rows * columns);
  for (int part = lane; part < row_lanes; part += GS_WARP)
    part_indptr[row * row_lanes + part] = Index(first + part * length / row_lanes);
  if (row == num_block_rows - 1 && lane == 0) part_indptr[num_block_rows * row_lanes] = Index(first + length);
  for (long long j = lane; j < length; j += GS_WARP)
    block_columns[first + j] = Index(indices[begin + j * columns] / columns);
}

// Where the values of the blocks of a block row lie in CSR: element (r, c) of its block j is at
// begin + r * row_length + j * columns + c.
struct BlockRow { long long begin, row_length, first_block; };

template <class Index>
__device__ __forceinline__ BlockRow gs_block_row(const Index *part_indptr, long long row, int row_lanes, int rows,
                                                 int columns) {
  const long long first = part_indptr[row * row_lanes], last = part_indptr[(row + 1) * row_lanes];
  return {first * rows * columns, (last - first) * columns, first};
}

// Copy items, one for each entry of CSR, to the positions of the elements of blocks in slices. A thread owns a scalar
// row of a place of the slices: it writes the items of its part of that row, then zeros. Writes are coalesced.
template <class Item, class Index>
GS_KERNEL lay_out_blocks(long long num_parts, long long num_slices, long long long_length, int rows, int columns,
                         int row_lanes, const int *__restrict__ order, const long long *__restrict__ slice_offsets,
                         const Index *__restrict__ part_indptr, const Item *__restrict__ items, Item zero,
                         Item *__restrict__ out) {
  const int threads = GS_WARP * rows;
  const long long slice = gs_thread() / threads;
  const int thread = int(gs_thread() % threads), r = thread % rows;
  if (slice >= num_slices) return;
  long long part;
  const long long length = gs_row_at(slice * GS_WARP + thread / rows, num_parts, long_length, order, part_indptr, &part);
  const long long width = (slice_offsets[slice + 1] - slice_offsets[slice]) / GS_WARP;
  out += slice_offsets[slice] * rows * columns + thread;
  if (length) {
    const BlockRow source = gs_block_row(part_indptr, part / row_lanes, row_lanes, rows, columns);
    items += source.begin + r * source.row_length + (part_indptr[part] - source.first_block) * columns;
  }
#pragma unroll 4
  for (long long i = 0; i < width * columns; ++i) out[i * threads] = i < length * columns ? items[i] : zero;
}

// The same for long block rows. A warp owns a chunk of blocks, a lane every GS_WARP-th block of it.
template <class Item, class Index>
GS_KERNEL lay_out_long_blocks(int num_chunks, const Chunk *__restrict__ chunks, int rows, int columns,
                              const Index *__restrict__ part_indptr, const Item *__restrict__ items, Item zero,
                              Item *__restrict__ out) {
  const int number = int(gs_thread() / GS_WARP), lane = threadIdx.x % GS_WARP;
  if (number >= num_chunks) return;
  const Chunk chunk = chunks[number];
  const BlockRow source = gs_block_row(part_indptr, chunk.row, 1, rows, columns);
  items += source.begin + static_cast<long long>(number - chunk.first) * GS_CHUNK * columns;
  out += chunk.begin * rows * columns;
  for (int k = lane; k < gs_whole_runs(chunk.size); k += GS_WARP)
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c)
        out[(k / GS_WARP * columns + c) * GS_WARP * rows + lane * rows + r] =
            k < chunk.size ? items[r * source.row_length + k * columns + c] : zero;
}
