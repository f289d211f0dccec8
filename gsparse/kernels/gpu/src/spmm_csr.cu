// spmm_csr.cu - Y = alpha*A*X + beta*Y for A in CSR, or in row patterns, and k dense columns.
//
// A group of 2^column_bits * 2^entry_bits lanes (at most a warp) owns a row of A and a tile of columns. Neighbouring
// lanes own neighbouring columns, so that a row-major X is read coalesced; the lanes of one column take turns at the
// entries and add their sums up with a tree of shuffles. For column_bits = 2 and entry_bits = 1, with entries a, b, c:
//
//                      tile of columns
//                      0   1   2   3          each lane has LOADS * EACH columns (spmm.cuh)
//     entries a, c   | 0 | 1 | 2 | 3 |        lanes 0 to 3 add a and c,
//     entry   b      | 4 | 5 | 6 | 7 |        lanes 4 to 7 add b, then lanes 0 to 3 add those sums and store
//
// Few columns or long rows want many lanes for each column (parallel reduction), otherwise one is best (sequential).
//
// Rows longer than `long_length` are cut into chunks, as in long_rows.cuh. A chunk has 2^chunk_bits threads: a warp, or
// a whole block if a warp has few lanes for each column. Its threads add up by shuffles and, in a block, through shared
// memory (one value for each thread). The last chunk of a row to arrive adds the row's partial sums up, always in the
// same order; only the count of arrivals is atomic.
//
// If `order` is not null, neighbouring groups of lanes take rows of about the same length, so that few lanes of a warp
// wait for the longest row. It holds the rows of each 1,024 by decreasing length (setup_rows.cu).
//
// If `codes` is not null, A is in row patterns: row i has the entries of row codes[i] of a short table, and their
// columns count from i on. Only the codes of A are read from memory; the table stays in the first-level cache.
//
//     blocks of the launch    y: tiles of columns, one after the other, so that the columns of X that a tile reads stay
//        x: chunks | rows        in the cache
//     y=0   [c c c | r r r r r ]
//     y=1   [c c c | r r r r r ]
//
// Source: C. Yang, A. Buluc and J. Owens, "Design principles for sparse matrix multiplication on the GPU", Euro-Par
// 2018; G. Huang, G. Dai, Y. Wang and H. Yang, "GE-SpMM", SC 2020. GE-SpMM passes entries round by shuffles. Here lanes
// read them again from the first-level cache: with shuffles, products were 2.2 to 2.8 times slower from 16 columns on,
// on an H200.
#include "spmm.cuh"

// Number of blocks for which a multiprocessor must have room. With more blocks, too few registers are left for the
// loads in flight; with fewer, too few warps run.
#define GS_SPMM_BLOCKS (sizeof(T) + sizeof(Index) > 12 ? 3 : 4)

// Rows of A as they are stored.
template <class Stored, class Index> struct Rows {
  long long num_rows;
  const void *codes;  // the pattern of each row, in code_bytes bytes; null if A is in CSR
  int code_bytes;     // 1 or 2
  const Index *indptr, *indices;
  const Stored *data;
  const int *order;  // the rows in the order in which groups of lanes take them, and -1 for none; null for all in order
};

// How threads are divided among the entries of a row and the columns of a tile.
struct Shape {
  int column_bits, entry_bits;  // logarithms of the numbers of lanes for the columns and for the entries of a row
  int chunk_bits;               // logarithm of the number of threads of a chunk
  long long long_length;        // rows with more entries are cut into chunks
};

// Return the row of the table of patterns that a row follows.
__device__ __forceinline__ int gs_code(const void *codes, int code_bytes, long long row) {
  return code_bytes == 1 ? static_cast<const unsigned char *>(codes)[row]
                         : static_cast<const unsigned short *>(codes)[row];
}

// Add up over all threads of the block that own the same columns. The first thread of each column has the sum. `shared`
// has a value for each warp and column lane.
template <class Reader, class T>
__device__ __forceinline__ void gs_add_warps(Reader &gather, int column_lanes, T *shared) {
  const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP, warps = int(blockDim.x) / GS_WARP;
#pragma unroll
  for (int c = 0; c < Reader::COLUMNS; ++c) {
    if (lane < column_lanes) shared[warp * column_lanes + lane] = gather.sums[c];
    __syncthreads();
    if (warp == 0 && lane < column_lanes)
      for (int w = 1; w < warps; ++w) gather.sums[c] = gs_add(gather.sums[c], shared[w * column_lanes + lane]);
    __syncthreads();
  }
}

// Add up the entries of one chunk, and of the whole row if this chunk is the last to arrive. Return whether this thread
// has sums to store, and for which row.
template <class Reader, class T>
__device__ __forceinline__ bool gs_add_chunk(Reader &gather, const Shape &shape, const LongRows<T> &long_rows,
                                             long long *row) {
  GS_SHARED(T, shared, GS_SPMM_THREADS);
  GS_SHARED(int, is_last, 1);
  const int threads = 1 << shape.chunk_bits, column_lanes = 1 << shape.column_bits;
  const int thread = threadIdx.x & (threads - 1);
  const int place = thread >> shape.column_bits, places = threads >> shape.column_bits;  // among a column's threads
  const bool is_warp = threads == GS_WARP;
  const LaneColumns &columns = gather.columns;
  const int number = int(gs_thread() >> shape.chunk_bits);
  if (number >= long_rows.num_chunks) return false;
  const Chunk chunk = long_rows.chunks[number];
  *row = chunk.row;
  gather.add_run(chunk.begin + place, static_cast<long long>(places), (chunk.size - place + places - 1) / places);
  gather.add_lanes(column_lanes, GS_WARP);
  if (!is_warp) gs_add_warps(gather, column_lanes, shared);
  if (chunk.chunks == 1) return place == 0;

  T *partial = long_rows.partials + static_cast<long long>(number) * columns.num_columns + columns.first;
  if (place == 0) {
#pragma unroll
    for (int c = 0; c < Reader::COLUMNS; ++c)
      if (gather.has_column(c)) partial[gather.offset(c)] = gather.sums[c];
  }
  if (is_warp) gs_syncwarp();
  else __syncthreads();
  int last = 0;
  if (thread == 0) {
    unsigned *arrived = long_rows.arrivals + static_cast<long long>(chunk.place) * gridDim.y + blockIdx.y;
    last = gs_arrive(arrived) == unsigned(chunk.chunks - 1);
    if (last) *arrived = 0u;
    if (!is_warp) is_last[0] = last;
  }
  if (is_warp) {
    last = gs_shfl(last, 0, GS_WARP);
    gs_syncwarp();  // what the first lane's atomic made visible to it is visible to all lanes from here on
  } else {
    __syncthreads();
    last = is_last[0];
  }
  if (!last) return false;
  gather.clear();
  const T *first = long_rows.partials + static_cast<long long>(chunk.first) * columns.num_columns + columns.first;
  for (int c = place; c < chunk.chunks; c += places) {
    const T *sums = first + static_cast<long long>(c) * columns.num_columns;
#pragma unroll
    for (int i = 0; i < Reader::COLUMNS; ++i)
      if (gather.has_column(i)) gather.sums[i] = gs_add(gather.sums[i], gs_fresh(sums + gather.offset(i)));
  }
  gather.add_lanes(column_lanes, GS_WARP);
  if (!is_warp) gs_add_warps(gather, column_lanes, shared);
  return place == 0;
}

// Add up the entries of a row that is no longer than `long_length`; `thread` counts from the first block after the
// chunks. Return whether this thread has sums to store, and for which row.
template <class Reader, class Stored, class Index>
__device__ __forceinline__ bool gs_add_row(Reader &gather, const Shape &shape, const Rows<Stored, Index> &rows,
                                           long long thread, long long *row) {
  *row = thread >> (shape.column_bits + shape.entry_bits);
  // Lanes without a row must not return: they take part in the shuffles.
  bool inside = *row < rows.num_rows;
  if (inside && rows.order) {
    *row = rows.order[*row];
    inside = *row >= 0;
  }
  const long long stored = inside && rows.codes ? gs_code(rows.codes, rows.code_bytes, *row) : *row;
  if (rows.codes) gather.shift(*row);
  const Index begin = inside ? rows.indptr[stored] : 0, length = inside ? rows.indptr[stored + 1] - begin : 0;
  const int column_lanes = 1 << shape.column_bits, entry_lanes = 1 << shape.entry_bits;
  const int place = (threadIdx.x >> shape.column_bits) & (entry_lanes - 1);
  const bool owned = inside && length <= shape.long_length;
  if (owned)
    gather.add_run(Index(begin + place), Index(entry_lanes),
                   (int(length) - place + entry_lanes - 1) >> shape.entry_bits);
  gather.add_lanes(column_lanes, column_lanes << shape.entry_bits);
  return owned && place == 0;
}

template <class Stored, class T, class Index, int LOADS, int EACH, int AHEAD>
GS_KERNEL_FOR(GS_SPMM_THREADS, GS_SPMM_BLOCKS)
csr_spmm(long long num_rows, int num_columns, int column_bits, int entry_bits, long long long_length, int chunk_bits,
         int num_chunks, const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals, const void *codes,
         int code_bytes, const Index *__restrict__ indptr, const Index *__restrict__ indices,
         const Stored *__restrict__ data, const int *__restrict__ order, const T *__restrict__ x, Index x_row_bytes,
         long long x_column_bytes, T *__restrict__ y, long long y_row_stride, long long y_column_stride, int packed_y,
         T alpha, T beta, int read_y, int conjugate) {
  typedef Gather<Stored, T, Index, LOADS, EACH, AHEAD> Reader;
  const Rows<Stored, Index> rows = {num_rows, codes, code_bytes, indptr, indices, data, order};
  const Shape shape = {column_bits, entry_bits, chunk_bits, long_length};
  const LongRows<T> long_rows = {num_chunks, chunks, partials, arrivals};
  const int column_lanes = 1 << column_bits;
  const int column = blockIdx.y * column_lanes * Reader::COLUMNS + (threadIdx.x & (column_lanes - 1)) * EACH;
  const LaneColumns columns = {column, column_lanes * EACH, num_columns};
  Reader gather(indices, data, DenseMatrix<T, Index>{x, x_row_bytes, x_column_bytes}, columns, conjugate);
  const int chunks_per_block = GS_SPMM_THREADS >> chunk_bits;
  const int chunk_blocks = (num_chunks + chunks_per_block - 1) / chunks_per_block;
  long long row;
  bool writes;
  if (int(blockIdx.x) < chunk_blocks) {
    writes = gs_add_chunk(gather, shape, long_rows, &row);
  } else {
    const long long thread = gs_thread() - static_cast<long long>(chunk_blocks) * GS_SPMM_THREADS;
    writes = gs_add_row(gather, shape, rows, thread, &row);
  }
  if (writes) gather.store(y + row * y_row_stride, y_column_stride, packed_y, alpha, beta, read_y);
}
