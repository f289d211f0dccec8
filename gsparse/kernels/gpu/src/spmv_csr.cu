// spmv_csr.cu - y = alpha*A*x + beta*y for A in CSR.
//
// A group of THREADS consecutive lanes owns a row. The lanes read neighbouring entries (coalesced) and add their sums up
// with a tree of shuffles. In the schedule `csr_scalar`, a single thread owns a row and walks its entries in order.
// Neighbouring threads then read entries that lie a row apart, so that reads are not coalesced: for very short rows only.
//
// Rows longer than `long_length` are skipped: their chunks have warps of their own (long_rows.cuh), in the first blocks
// of the launch. Nothing is in shared memory, except the partial sum of conj(x)*y where it is asked for (sums.cuh).
// Source: N. Bell and M. Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented
// processors", SC 2009; AMD lab notes, "Finite difference method / SpMV part 1", 2023.
#include "long_rows.cuh"

template <class Value, class Column, class T, class Index, int THREADS, template <class> class Dots>
GS_KERNEL csr_vector(long long num_rows, int long_length, const Index *__restrict__ indptr, int num_chunks,
                     const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals,
                     const Column *__restrict__ columns, const int *__restrict__ bases,
                     const Value *__restrict__ values, const T *__restrict__ table, const T *__restrict__ x,
                     T *__restrict__ y, T alpha, T beta, int read_y, int conjugate,
                     typename Wide<T>::type *block_dots) {
  static_assert(THREADS >= 1 && THREADS <= GS_WARP && (THREADS & (THREADS - 1)) == 0, "a power of two within a warp");
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
    const long long row = (gs_thread() - static_cast<long long>(chunk_blocks) * blockDim.x) / THREADS;
    const int lane = threadIdx.x % THREADS;
    // A row past the last one counts as empty. Its lanes must not return: all lanes of a warp take part in the
    // shuffles.
    bool owned = row < num_rows;
    const Index begin = owned ? indptr[row] : 0;
    const Index length = owned ? indptr[row + 1] - begin : 0;
    owned = owned && length <= long_length;
    const int count = owned ? (int(length) - lane + THREADS - 1) / THREADS : 0;
    T sum = Scalar<T>::zero();
    sum = entries.template add<Batch<T>::size>(Index(begin + lane), Index(THREADS), count, sum);
    sum = gs_group_sum<THREADS>(sum);
    if (owned && lane == 0) {
      sum = gs_store(y + row, sum, alpha, beta, read_y);
      dots.add(x + row, sum);
    }
  }
  dots.leave();
}
