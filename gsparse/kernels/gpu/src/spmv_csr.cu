// spmv_csr.cu - y = alpha*A*x + beta*y for A in CSR.
//   csr_scalar: a thread owns a row and walks it in order. Neighbouring threads read far apart, so it suits very short
//               rows only.
//   csr_vector: THREADS consecutive lanes own a row: a strided, coalesced walk, then a shuffle tree.
// Nothing is shared between blocks; rows are summed in a fixed order.
// Source: N. Bell and M. Garland, "Implementing sparse matrix-vector multiplication on throughput-oriented
// processors", SC 2009; AMD lab notes, "Finite difference method / SpMV part 1", 2023.
#include "scalar.cuh"

template <class Stored, class T, class Index>
GS_KERNEL csr_scalar(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                     const Stored *__restrict__ data, const T *__restrict__ x, T *__restrict__ y, T alpha, T beta,
                     int read_y, int conjugate) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  T sum = Scalar<T>::zero();
  const Index end = indptr[row + 1];
  for (Index k = indptr[row]; k < end; ++k) sum = gs_entry(data + k, gs_load(x + gs_load(indices + k)), sum, conjugate);
  gs_store(y + row, sum, alpha, beta, read_y);
}

template <class Stored, class T, class Index, int THREADS>
GS_KERNEL csr_vector(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                     const Stored *__restrict__ data, const T *__restrict__ x, T *__restrict__ y, T alpha, T beta,
                     int read_y, int conjugate) {
  static_assert(THREADS >= 2 && THREADS <= GS_WARP && (THREADS & (THREADS - 1)) == 0, "a power of two within a warp");
  const long long row = gs_thread() / THREADS;
  const int lane = threadIdx.x % THREADS;
  // Rows past the end are empty instead of gone: every lane of a warp has to reach the shuffles.
  const bool owned = row < num_rows;
  const Index begin = owned ? indptr[row] : 0;
  T sum = Scalar<T>::zero();
  indices += begin;
  data += begin;
  indices += lane;
  data += lane;
  // Counting down what is left: counting up by THREADS could pass 2^31 at the end of a full int32 matrix.
  // Unrolled by number: left to itself, NVRTC unrolls further and spills complex128 registers on sm_100. Eight loads in
  // flight are as fast on long rows, four were a fifth slower (H200).
#pragma unroll 8
  for (Index left = (owned ? indptr[row + 1] : 0) - begin - lane; left > 0; left -= THREADS) {
    sum = gs_entry(data, gs_load(x + gs_load(indices)), sum, conjugate);
    indices += THREADS;
    data += THREADS;
  }
  sum = gs_group_sum<THREADS>(sum);
  if (owned && lane == 0) gs_store(y + row, sum, alpha, beta, read_y);
}
