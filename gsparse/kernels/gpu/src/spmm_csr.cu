// spmm_csr.cu - Y = alpha*A*X + beta*Y for A in CSR and k dense columns.
// A group of 2^column_bits * 2^entry_bits lanes (a warp at most) owns a row and a tile of columns: neighbouring lanes own
// neighbouring columns, the lanes of one column take turns at the entries and add up by a shuffle tree. Few columns or long
// rows: many of them (parallel reduction), else one (sequential).
// Rows longer than `long_length` are cut into chunks of equal length, 2^chunk_bits threads each: a warp, or a whole block
// where there are few. These blocks come first. Who arrives last adds up the row's chunks, always in the same order; only
// the count of arrivals is atomic.
// Where `codes` are given row i has the entries of row codes[i] of a short table, and their columns count from i on (row
// patterns: of A nothing is read but a code a row and the table, which stays in the first cache).
// Blocks: x over chunks, then rows; y over tiles, so that the part of X that a tile reads stays in the cache.
// Source: C. Yang, A. Buluc and J. Owens, "Design principles for sparse matrix multiplication on the GPU", Euro-Par 2018;
// G. Huang, G. Dai, Y. Wang and H. Yang, "GE-SpMM", SC 2020 (its passing round of entries by shuffles is left to the first
// cache: with shuffles 2.2 to 2.8 times slower from 16 columns on, on an H200).
#include "spmm.cuh"

// Blocks that a multiprocessor holds at once: more would leave too few registers for what is in flight, fewer too few warps.
#define GS_SPMM_BLOCKS (sizeof(T) + sizeof(Index) > 12 ? 3 : 4)

// The row of the table that a row follows.
__device__ __forceinline__ int gs_code(const void *codes, int code_bytes, long long row) {
  return code_bytes == 1 ? static_cast<const unsigned char *>(codes)[row]
                         : static_cast<const unsigned short *>(codes)[row];
}

// Adds up over all threads of the block that own the same columns; valid in the first of each.
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

// A chunk's entries; true in the lanes that have a row's sums, which tells which row.
template <class Reader, class T>
__device__ __forceinline__ bool gs_add_chunk(Reader &gather, int column_bits, int chunk_bits, int num_chunks,
                                             const Chunk *chunks, T *partials, unsigned *arrivals, long long *row) {
  GS_SHARED(T, shared, GS_SPMM_THREADS);
  GS_SHARED(int, is_last, 1);
  const int threads = 1 << chunk_bits, column_lanes = 1 << column_bits, thread = threadIdx.x & (threads - 1);
  const int place = thread >> column_bits, places = threads >> column_bits;
  const bool alone = threads == GS_WARP;
  const int number = int(gs_thread() >> chunk_bits);
  if (number >= num_chunks) return false;
  const Chunk chunk = chunks[number];
  *row = chunk.row;
  gather.add_run(chunk.begin + place, static_cast<long long>(places), (chunk.size - place + places - 1) / places);
  gather.add_lanes(column_lanes, GS_WARP);
  if (!alone) gs_add_warps(gather, column_lanes, shared);
  if (chunk.chunks == 1) return place == 0;

  T *partial = partials + static_cast<long long>(number) * gather.num_columns + gather.column;
  if (place == 0) {
#pragma unroll
    for (int c = 0; c < Reader::COLUMNS; ++c)
      if (gather.column + gather.offset(c) < gather.num_columns) partial[gather.offset(c)] = gather.sums[c];
  }
  if (alone) gs_syncwarp();
  else __syncthreads();
  int last = 0;
  if (thread == 0) {
    unsigned *arrived = arrivals + static_cast<long long>(chunk.place) * gridDim.y + blockIdx.y;
    last = gs_arrive(arrived) == unsigned(chunk.chunks - 1);
    if (last) *arrived = 0u;
    if (!alone) is_last[0] = last;
  }
  if (alone) {
    last = gs_shfl(last, 0, GS_WARP);
    gs_syncwarp();  // what the first lane's atomic made visible to it is visible to all lanes from here on
  } else {
    __syncthreads();
    last = is_last[0];
  }
  if (!last) return false;
  gather.clear();
  const T *first = partials + static_cast<long long>(chunk.first) * gather.num_columns + gather.column;
  for (int c = place; c < chunk.chunks; c += places) {
    const T *from = first + static_cast<long long>(c) * gather.num_columns;
#pragma unroll
    for (int i = 0; i < Reader::COLUMNS; ++i)
      if (gather.column + gather.offset(i) < gather.num_columns)
        gather.sums[i] = gs_add(gather.sums[i], gs_fresh(from + gather.offset(i)));
  }
  gather.add_lanes(column_lanes, GS_WARP);
  if (!alone) gs_add_warps(gather, column_lanes, shared);
  return place == 0;
}

template <class Stored, class T, class Index, int LOADS, int EACH>
GS_KERNEL_FOR(GS_SPMM_THREADS, GS_SPMM_BLOCKS)
csr_spmm(long long num_rows, int num_columns, int column_bits, int entry_bits, long long long_length, int chunk_bits,
         int num_chunks, const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals, const void *codes,
         int code_bytes, GS_CSR, GS_PANELS) {
  typedef Gather<Stored, T, Index, LOADS, EACH> Reader;
  const int column_lanes = 1 << column_bits;
  const int column = blockIdx.y * column_lanes * Reader::COLUMNS + (threadIdx.x & (column_lanes - 1)) * EACH;
  Reader gather(indices, data, x, x_row_bytes, x_column_bytes, column, column_lanes * EACH, num_columns, conjugate);
  const int in_block = GS_SPMM_THREADS >> chunk_bits, chunk_blocks = (num_chunks + in_block - 1) / in_block;
  long long row;
  bool writes;
  if (int(blockIdx.x) < chunk_blocks) {
    writes = gs_add_chunk(gather, column_bits, chunk_bits, num_chunks, chunks, partials, arrivals, &row);
  } else {
    row = (gs_thread() - static_cast<long long>(chunk_blocks) * GS_SPMM_THREADS) >> (column_bits + entry_bits);
    // Lanes without a row take part in the shuffles.
    const bool inside = row < num_rows;
    const long long stored = inside && codes ? gs_code(codes, code_bytes, row) : row;
    if (codes) gather.shift(row);
    const Index begin = inside ? indptr[stored] : 0, length = inside ? indptr[stored + 1] - begin : 0;
    const int entry_lanes = 1 << entry_bits, place = (threadIdx.x >> column_bits) & (entry_lanes - 1);
    writes = inside && length <= long_length;
    if (writes)
      gather.add_run(Index(begin + place), Index(entry_lanes), (int(length) - place + entry_lanes - 1) >> entry_bits);
    gather.add_lanes(column_lanes, column_lanes << entry_bits);
    writes = writes && place == 0;
  }
  if (writes) gather.store(y + row * y_row_stride, y_column_stride, packed_y, alpha, beta, read_y);
}
