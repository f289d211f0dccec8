// spmv_adaptive.cu - csr_adaptive: y = alpha*A*x + beta*y for A in CSR with consecutive rows gathered into blocks of
// about equal work (gsparse.formats.RowBlocks).
// A block owns its rows. Its threads multiply all its entries, coalesced, into shared memory; then every row gets the
// same power of two of threads, as many as the block has for its rows, up to a warp. A row too long for a block stands
// alone in one, which does nothing: its chunks have warps of their own (long_rows.cuh).
// Source: J. L. Greathouse and M. Daga, "Efficient sparse matrix-vector multiplication on GPUs using the CSR storage
// format", SC 2014.
#include "long_rows.cuh"

// Entries of a block at most (gsparse.kernels.gpu.BLOCK_WORK, twice): those that begin in its share, the last row whole.
enum { GS_BLOCK_ENTRIES = 2048, GS_BLOCK_ROW = 1024 };

template <class Value, class Column, class T, class Index>
GS_KERNEL csr_adaptive(const int *__restrict__ first_rows, const Index *__restrict__ indptr, int num_chunks,
                       const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals, GS_ENTRIES, GS_VECTORS, GS_DOTS) {
  GS_SHARED(T, products, GS_BLOCK_ENTRIES);
  GS_READER;
  GS_DOT_BEGIN;
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  if (int(blockIdx.x) < chunk_blocks) {
    int row;
    T stored;
    if (gs_long_row(entries, num_chunks, chunks, partials, arrivals, y, alpha, beta, read_y, &row, &stored))
      GS_DOT_ADD(x[row], stored);
  } else {
    const int first = first_rows[blockIdx.x - chunk_blocks], last = first_rows[blockIdx.x - chunk_blocks + 1];
    const Index begin = indptr[first], all = indptr[last] - begin;
    const int num_rows = last - first == 1 && all > GS_BLOCK_ROW ? 0 : last - first;
    entries.template multiply<Batch<T>::size>(begin, num_rows ? int(all) : 0, products);
    __syncthreads();
    int threads = 1;
    while (threads < GS_WARP && 2 * threads * num_rows <= int(blockDim.x)) threads *= 2;
    const int lane = threadIdx.x % threads, step = blockDim.x / threads;
    // All lanes go round as often as the first row's, because every one has to reach the shuffles.
    for (int r = threadIdx.x / threads; r - int(threadIdx.x / threads) < num_rows; r += step) {
      const bool owned = r < num_rows;
      const int end = owned ? int(indptr[first + r + 1] - begin) : 0;
      T sum = Scalar<T>::zero();
      for (int k = owned ? int(indptr[first + r] - begin) + lane : 0; k < end; k += threads)
        sum = gs_add(sum, products[k]);
      sum = gs_group_sum(sum, threads);
      if (owned && lane == 0) {
        sum = gs_store(y + first + r, sum, alpha, beta, read_y);
        GS_DOT_ADD(x[first + r], sum);
      }
    }
  }
  GS_DOT_END;
}
