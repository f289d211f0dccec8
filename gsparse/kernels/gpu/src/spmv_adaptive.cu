// spmv_adaptive.cu - csr_adaptive: y = alpha*A*x + beta*y for A in CSR, with consecutive rows grouped into blocks of
// about equal work (gsparse.formats.RowBlocks).
//
// A block of threads owns a block of rows, and works in two phases:
//
//   1. Its threads multiply all entries of the rows by x and write the products to shared memory. Neighbouring threads
//      take neighbouring entries, so that all reads of the matrix are coalesced.
//   2. Each row gets the same number of threads, a power of two up to a warp: as many as the block has for its rows.
//      They add the row's products up, with a tree of shuffles at the end.
//
//     entries      | row 0     | row 1 | row 2             | row 3 |     of the block's rows, in CSR order
//     phase 1      t0 t1 t2 t3  t4 t5   t6 t7 t0 t1 t2 t3   t4 t5        entry k belongs to thread k % 8
//     products     p0 p1 p2 p3  p4 p5   p6 p7 p8 p9 ..  ..  ..  ..       in shared memory
//     phase 2      |-t0,t1----| |t2,t3| |---t4,t5---------| |t6,t7|      4 rows, 8 threads: 2 threads for each row
//
// A row that is too long for a block is alone in one, which does nothing: the chunks of such rows have warps of their
// own (long_rows.cuh), in the first blocks of the launch.
// Source: J. L. Greathouse and M. Daga, "Efficient sparse matrix-vector multiplication on GPUs using the CSR storage
// format", SC 2014.
#include "long_rows.cuh"

enum {
  // Capacity of a block, in entries: twice gsparse.kernels.gpu.BLOCK_WORK, because the last row that begins in the
  // block's share of the work is taken whole.
  GS_BLOCK_ENTRIES = 2048,
  // A row with more entries is too long for a block (gsparse.kernels.gpu.BLOCK_WORK).
  GS_BLOCK_ROW = 1024
};

template <class Value, class Column, class T, class Index, template <class> class Dots>
GS_KERNEL csr_adaptive(const int *__restrict__ first_rows, const Index *__restrict__ indptr, int num_chunks,
                       const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals,
                       const Column *__restrict__ columns, const int *__restrict__ bases,
                       const Value *__restrict__ values, const T *__restrict__ table, const T *__restrict__ x,
                       T *__restrict__ y, T alpha, T beta, int read_y, int conjugate,
                       typename Wide<T>::type *block_dots) {
  GS_SHARED(T, products, GS_BLOCK_ENTRIES);
  const LongRows<T> long_rows = {num_chunks, chunks, partials, arrivals};
  const Entries<Value, Column, T> entries = {columns, bases, values, table, x, conjugate};
  Dots<T> dots(block_dots);
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  if (int(blockIdx.x) < chunk_blocks) {
    int row;
    T sum;
    if (gs_multiply_chunk(entries, long_rows, &row, &sum)) {
      sum = gs_store(y + row, sum, alpha, beta, read_y);
      dots.add(x + row, sum);
    }
  } else {
    const int first = first_rows[blockIdx.x - chunk_blocks], last = first_rows[blockIdx.x - chunk_blocks + 1];
    const Index begin = indptr[first], num_entries = indptr[last] - begin;
    const bool is_long_row = last - first == 1 && num_entries > GS_BLOCK_ROW;
    const int num_rows = is_long_row ? 0 : last - first;
    entries.template multiply<Batch<T>::size>(begin, num_rows ? int(num_entries) : 0, products);
    __syncthreads();
    int threads = 1;
    while (threads < GS_WARP && 2 * threads * num_rows <= int(blockDim.x)) threads *= 2;
    const int lane = threadIdx.x % threads, step = blockDim.x / threads;
    // All threads make as many rounds as those of row 0, because every lane must take part in the shuffles.
    for (int r = threadIdx.x / threads; r - int(threadIdx.x / threads) < num_rows; r += step) {
      const bool owned = r < num_rows;
      const int end = owned ? int(indptr[first + r + 1] - begin) : 0;
      T sum = Scalar<T>::zero();
      for (int k = owned ? int(indptr[first + r] - begin) + lane : 0; k < end; k += threads)
        sum = gs_add(sum, products[k]);
      sum = gs_group_sum(sum, threads);
      if (owned && lane == 0) {
        sum = gs_store(y + first + r, sum, alpha, beta, read_y);
        dots.add(x + first + r, sum);
      }
    }
  }
  dots.leave();
}
