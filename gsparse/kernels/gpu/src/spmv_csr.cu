// spmv_csr.cu - y = alpha*A*x + beta*y for A in CSR.
//   csr_scalar: a thread owns a row and walks it in order. Neighbouring threads read far apart, so it suits very short
//               rows only.
//   csr_vector: THREADS consecutive lanes own a row: a strided, coalesced walk, then a shuffle tree.
// Rows longer than `long_length` are passed over: their chunks have warps of their own (long_rows.cuh).
// Source: N. Bell and M. Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented
// processors", SC 2009; AMD lab notes, "Finite difference method / SpMV part 1", 2023.
#include "long_rows.cuh"

template <class Value, class Column, class T, class Index>
GS_KERNEL csr_scalar(long long num_rows, int long_length, const Index *__restrict__ indptr, int num_chunks,
                     const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals, GS_ENTRIES, GS_VECTORS, GS_DOTS) {
  GS_READER;
  GS_DOT_BEGIN;
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  if (int(blockIdx.x) < chunk_blocks) {
    int row;
    T stored;
    if (gs_long_row(entries, num_chunks, chunks, partials, arrivals, y, alpha, beta, read_y, &row, &stored))
      GS_DOT_ADD(x[row], stored);
  } else {
    const long long row = gs_thread() - static_cast<long long>(chunk_blocks) * blockDim.x;
    const bool owned = row < num_rows;
    const Index begin = owned ? indptr[row] : 0, length = owned ? indptr[row + 1] - begin : 0;
    if (owned && length <= long_length) {
      T sum = Scalar<T>::zero();
      sum = entries.template add<Batch<T>::size>(begin, Index(1), int(length), sum);
      sum = gs_store(y + row, sum, alpha, beta, read_y);
      GS_DOT_ADD(x[row], sum);
    }
  }
  GS_DOT_END;
}

template <class Value, class Column, class T, class Index, int THREADS>
GS_KERNEL csr_vector(long long num_rows, int long_length, const Index *__restrict__ indptr, int num_chunks,
                     const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals, GS_ENTRIES, GS_VECTORS, GS_DOTS) {
  static_assert(THREADS >= 2 && THREADS <= GS_WARP && (THREADS & (THREADS - 1)) == 0, "a power of two within a warp");
  GS_READER;
  GS_DOT_BEGIN;
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  if (int(blockIdx.x) < chunk_blocks) {
    int row;
    T stored;
    if (gs_long_row(entries, num_chunks, chunks, partials, arrivals, y, alpha, beta, read_y, &row, &stored))
      GS_DOT_ADD(x[row], stored);
  } else {
    const long long row = (gs_thread() - static_cast<long long>(chunk_blocks) * blockDim.x) / THREADS;
    const int lane = threadIdx.x % THREADS;
    // Rows past the end are empty instead of gone: every lane of a warp has to reach the shuffles.
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
      GS_DOT_ADD(x[row], sum);
    }
  }
  GS_DOT_END;
}
