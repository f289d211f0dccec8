// spmm_csr.cu - Y = alpha*A*X + beta*Y for A in CSR and k dense columns, X and Y of any strides.
// A thread owns one row and one column; `tile` neighbouring threads own neighbouring columns of a row, so that a
// row-major X is read coalesced and an entry of A is read by all of them at once. Blocks: x over rows, y over tiles.
// Source: family (a) of the row-balanced SpMM kernels (a thread per row and column).
#include "entries.cuh"

template <class Stored, class T, class Index>
GS_KERNEL csr_spmm(long long num_rows, long long num_columns, int tile, const Index *__restrict__ indptr,
                   const Index *__restrict__ indices, const Stored *__restrict__ data, const T *__restrict__ x,
                   long long x_row_stride, long long x_column_stride, T *__restrict__ y, long long y_row_stride,
                   long long y_column_stride, T alpha, T beta, int read_y, int conjugate) {
  const long long row = static_cast<long long>(blockIdx.x) * (blockDim.x / tile) + threadIdx.x / tile;
  const long long column = static_cast<long long>(blockIdx.y) * tile + threadIdx.x % tile;
  if (row >= num_rows || column >= num_columns) return;
  const T *xj = x + column * x_column_stride;
  T sum = Scalar<T>::zero();
  const Index end = indptr[row + 1];
#pragma unroll 4
  for (Index k = indptr[row]; k < end; ++k) {
    T a = Widen<T>::from(gs_load(data + k));
    if (conjugate) a = Scalar<T>::conjugate(a);
    sum = gs_fma(a, gs_load(xj + gs_load(indices + k) * x_row_stride), sum);
  }
  gs_store(y + row * y_row_stride + column * y_column_stride, sum, alpha, beta, read_y);
}
