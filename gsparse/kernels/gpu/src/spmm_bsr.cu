// spmm_bsr.cu - Y = alpha*A*X + beta*Y for A in BSR with square blocks (gsparse.formats.bsr), and k dense columns.
//
// A group of 2^column_bits lanes owns a part of a block row, or several parts of one, and a tile of columns. A lane
// holds the sums of all SIZE rows of the block row for its own columns, so that it reads each element of X once for
// SIZE rows, and each value of A once for all of its columns:
//
//                 columns of X of the lane                  sums of the lane
//     block       x x x x   row 0 of the block's rows       s s s s   row 0 of the block row
//     a00 a01     x x x x   row 1                           s s s s   row 1
//     a10 a11
//
// Neighbouring lanes own neighbouring columns, so that a row-major X is read coalesced. Neighbouring groups own
// neighbouring parts of a slice, whose values lie side by side. The parts of a block row are added up by shuffles. A
// warp owns a chunk of a long block row: its groups take turns at the blocks, and the last chunk of a row to arrive
// adds the partial sums up, always in the same order. No shared memory is used.
#include "spmm.cuh"

// The blocks of A as they are stored.
template <class Stored, class Column> struct BlockMatrix {
  const Column *columns;  // the block column of each position
  const int *bases;
  const Stored *values;
};

// The numbers of groups and parts, as logarithms: the lanes for the columns of a tile, for the parts of a block row,
// and for the groups that share a block row.
struct BlockShape { int column_bits, part_bits, share_bits; };

// Gathers columns of X for the SIZE rows of a block row, and adds them up.
template <class Stored, class Column, class T, int SIZE, int LOADS, int EACH> struct BlockGather {
  // Rows of X of a block that are in flight at once: all or four of them, if they and the sums fit into the registers.
  // With two rows, blocks of 5 x 5 to 8 x 8 and 32 columns took 1.2 to 1.4 times as long on an H100.
  enum {
    COLUMNS = LOADS * EACH,
    FITS = SIZE <= 4 || SIZE * COLUMNS * int(sizeof(T)) <= (LOADS == 1 ? 128 : 96),
    UNROLLED = !FITS || sizeof(T) > 8 ? 2 : SIZE <= 6 ? SIZE : 4
  };
  typedef Pack<T, EACH> Packed;
  BlockMatrix<Stored, Column> matrix;
  const char *x[LOADS];  // where each load begins in row 0; for columns past the end, where column 0 begins
  long long row_bytes;
  int conjugate;
  LaneColumns columns;
  T sums[SIZE][COLUMNS];

  __device__ __forceinline__ BlockGather(const BlockMatrix<Stored, Column> &matrix,
                                         const DenseMatrix<T, long long> &dense, const LaneColumns &columns,
                                         int conjugate)
      : matrix(matrix), row_bytes(dense.row_bytes), conjugate(conjugate), columns(columns) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int column = columns.first + i * columns.spacing;
      x[i] = reinterpret_cast<const char *>(dense.data) +
             (column < columns.num_columns ? column : 0) * dense.column_bytes;
    }
    clear();
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < SIZE; ++r)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sums[r][c] = Scalar<T>::zero();
  }
  // Return the code of the block column at a position; positions from `end` on have the code of padding.
  __device__ __forceinline__ Column code(long long position, long long end) const {
    return position < end ? gs_load(matrix.columns + position) : Column(-1);
  }
  // Add the block at a position, whose block column has this code.
  __device__ __forceinline__ void add(long long position, Column code) {
    const long long row = static_cast<long long>(gs_base(matrix.columns, matrix.bases, position) + int(code)) * SIZE;
    const Stored *values =
        matrix.values + position / GS_WARP * (SIZE * SIZE * GS_WARP) + position % GS_WARP * SIZE;
#pragma unroll UNROLLED
    for (int i = 0; i < SIZE; ++i) {
      Packed elements[LOADS];
#pragma unroll
      for (int l = 0; l < LOADS; ++l)
        elements[l] = gs_load_pack(reinterpret_cast<const Packed *>(x[l] + (row + i) * row_bytes));
#pragma unroll
      for (int r = 0; r < SIZE; ++r) {
        T a = Widen<T>::from(gs_load(values + i * (SIZE * GS_WARP) + r));
        if (conjugate) a = Scalar<T>::conjugate(a);
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sums[r][c] = gs_fma(a, elements[c / EACH].at[c % EACH], sums[r][c]);
      }
    }
  }
  // Add the blocks at the positions first, first + GS_WARP, ... before `end`, up to the first padding. The code of the
  // next block is on its way while a block is added.
  __device__ __forceinline__ void add_part(long long first, long long end) {
    Column next = code(first, end);
    for (long long k = first; !gs_is_padding(next); k += GS_WARP) {
      const Column own = next;
      next = code(k + GS_WARP, end);
      add(k, own);
    }
  }
  // Add up over the groups of `width` lanes that own the same columns. The first group has the sums.
  __device__ __forceinline__ void add_groups(int column_lanes, int width) {
    for (int d = width / 2; d >= column_lanes; d /= 2) {
#pragma unroll
      for (int r = 0; r < SIZE; ++r)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sums[r][c] = gs_add(sums[r][c], gs_lane_after(sums[r][c], d, width));
    }
  }
  // Return where the partial sum of one row of a chunk and of column c of this lane is stored, or -1 past the last
  // column of X.
  __device__ __forceinline__ long long place_of_partial(int chunk, int r, int c) const {
    const int column = columns.first + c / EACH * columns.spacing + c % EACH;
    if (column >= columns.num_columns) return -1;
    return (static_cast<long long>(chunk) * SIZE + r) * columns.num_columns + column;
  }
};

// Add up the blocks of a chunk, and of the whole block row if this chunk is the last to arrive. Return whether this
// lane has sums to store, and for which block row.
template <class Reader, class T, int SIZE>
__device__ __forceinline__ bool gs_add_block_chunk(Reader &gather, const LongRows<T> &long_rows, int column_bits,
                                                   long long *row) {
  const int number = int(gs_thread() / GS_WARP), lane = threadIdx.x % GS_WARP;
  const int place = lane >> column_bits, places = GS_WARP >> column_bits;
  if (number >= long_rows.num_chunks) return false;
  const Chunk chunk = long_rows.chunks[number];
  *row = chunk.row;
  for (int k = place; k < chunk.size; k += places)
    gather.add(chunk.begin + k, gather.code(chunk.begin + k, chunk.begin + chunk.size));
  gather.add_groups(1 << column_bits, GS_WARP);
  if (chunk.chunks == 1) return place == 0;
  if (place == 0) {
#pragma unroll
    for (int r = 0; r < SIZE; ++r)
#pragma unroll
      for (int c = 0; c < Reader::COLUMNS; ++c) {
        const long long partial = gather.place_of_partial(number, r, c);
        if (partial >= 0) long_rows.partials[partial] = gather.sums[r][c];
      }
  }
  gs_syncwarp();
  int is_last = 0;
  if (lane == 0) {
    unsigned *arrived = long_rows.arrivals + static_cast<long long>(chunk.place) * gridDim.y + blockIdx.y;
    is_last = gs_arrive(arrived) == unsigned(chunk.chunks - 1);
    if (is_last) *arrived = 0u;
  }
  is_last = gs_shfl(is_last, 0, GS_WARP);
  gs_syncwarp();  // what the first lane's atomic made visible to it is visible to all lanes from here on
  if (!is_last) return false;
  gather.clear();
  for (int k = place; k < chunk.chunks; k += places) {
#pragma unroll
    for (int r = 0; r < SIZE; ++r)
#pragma unroll
      for (int c = 0; c < Reader::COLUMNS; ++c) {
        const long long partial = gather.place_of_partial(chunk.first + k, r, c);
        if (partial >= 0) gather.sums[r][c] = gs_add(gather.sums[r][c], gs_fresh(long_rows.partials + partial));
      }
  }
  gather.add_groups(1 << column_bits, GS_WARP);
  return place == 0;
}

// Blocks of a multiprocessor. On GPUs before Hopper, the compiler needs more registers than two blocks leave, and would
// keep some of the sums in memory.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { GS_BSR_BLOCKS = 1 };
#else
enum { GS_BSR_BLOCKS = 2 };
#endif

// `order` is the part at each place of the slices, -1 where there is none; it is null if parts keep their order.
template <class Stored, class Column, class T, int SIZE, int LOADS, int EACH>
GS_KERNEL_FOR(GS_SPMM_THREADS, GS_BSR_BLOCKS)
bsr_spmm(long long num_parts, long long num_places, int num_columns, int column_bits, int part_bits, int share_bits,
         const long long *__restrict__ slice_offsets, const int *__restrict__ order, int num_chunks,
         const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals, const Column *__restrict__ block_columns,
         const int *__restrict__ bases, const Stored *__restrict__ values, const T *__restrict__ x,
         long long x_row_bytes, long long x_column_bytes, T *__restrict__ y, long long y_row_stride,
         long long y_column_stride, int packed_y, T alpha, T beta, int read_y, int conjugate) {
  typedef BlockGather<Stored, Column, T, SIZE, LOADS, EACH> Reader;
  const BlockShape shape = {column_bits, part_bits, share_bits};
  const LongRows<T> long_rows = {num_chunks, chunks, partials, arrivals};
  const int column_lanes = 1 << column_bits;
  const int column = blockIdx.y * column_lanes * Reader::COLUMNS + (threadIdx.x & (column_lanes - 1)) * EACH;
  const LaneColumns columns = {column, column_lanes * EACH, num_columns};
  Reader gather(BlockMatrix<Stored, Column>{block_columns, bases, values},
                DenseMatrix<T, long long>{x, x_row_bytes, x_column_bytes}, columns, conjugate);
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  long long row = 0;
  bool writes;
  if (int(blockIdx.x) < chunk_blocks) {
    writes = gs_add_block_chunk<Reader, T, SIZE>(gather, long_rows, column_bits, &row);
  } else {
    const long long thread = gs_thread() - static_cast<long long>(chunk_blocks) * GS_SPMM_THREADS;
    const long long group = thread >> shape.column_bits;
    const int own_parts = 1 << (shape.part_bits - shape.share_bits);
    // Lanes without a part must not return: they take part in the shuffles.
    long long part = -1;
    for (int i = 0; i < own_parts; ++i) {
      const long long place = group * own_parts + i, slice = place / GS_WARP;
      part = place >= num_places ? -1 : order ? order[place] : place;
      if (part < 0 || part >= num_parts) continue;
      gather.add_part(slice_offsets[slice] + place % GS_WARP, slice_offsets[slice + 1]);
    }
    gather.add_groups(column_lanes, column_lanes << shape.share_bits);
    row = part >> shape.part_bits;
    writes = part >= 0 && part < num_parts && (group & ((1 << shape.share_bits) - 1)) == 0;
  }
  if (!writes) return;
#pragma unroll
  for (int r = 0; r < SIZE; ++r)
    gs_store_columns<LOADS, EACH>(gather.sums[r], columns, y + (row * SIZE + r) * y_row_stride, y_column_stride,
                                  packed_y, alpha, beta, read_y);
}
