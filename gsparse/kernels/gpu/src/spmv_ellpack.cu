// spmv_ellpack.cu - y = alpha*A*x + beta*y for A in ELLPACK and blocked ELLPACK.
// A thread owns a row; entry j of a warp's rows lies side by side, so every read of the matrix is coalesced.
// Padding repeats a column of the row with value 0. Only a sum that is NaN can owe anything to it (0*inf), and such a
// row is done again with its true length, which is read from indptr then and never otherwise.
// Source: N. Bell and M. Garland, SC 2009; M. Kreutzer et al., SIAM J. Sci. Comput. 36(5), 2014 (SELL-C-sigma).
#include "scalar.cuh"

// Entries of a row in flight at once, measured on an H200: where the stride is a whole column, two keep 7-point rows at
// full speed; within a slice four serve long rows better.
enum { ELLPACK_UNROLL = 2, BLOCKED_UNROLL = 4 };

// The sum of `count` entries, `stride` apart. Positions are 64-bit: rows * width passes 2^31 long before nnz does.
template <int UNROLL, class T, class Stored, class Index>
__device__ __forceinline__ T gs_strided_sum(const Index *__restrict__ indices, const Stored *__restrict__ data,
                                            const T *__restrict__ x, long long stride, int count, int conjugate) {
  T sum = Scalar<T>::zero();
#pragma unroll UNROLL
  for (int j = 0; j < count; ++j) {
    sum = gs_entry(data, gs_load(x + gs_load(indices)), sum, conjugate);
    indices += stride;
    data += stride;
  }
  return sum;
}

template <class Stored, class T, class Index>
GS_KERNEL ellpack(long long num_rows, int width, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                  const Stored *__restrict__ data, const T *__restrict__ x, T *__restrict__ y, T alpha, T beta,
                  int read_y, int conjugate) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  T sum = gs_strided_sum<ELLPACK_UNROLL, T>(indices + row, data + row, x, num_rows, width, conjugate);
  if (Scalar<T>::is_nan(sum))
    sum = gs_strided_sum<ELLPACK_UNROLL, T>(indices + row, data + row, x, num_rows, int(indptr[row + 1] - indptr[row]), conjugate);
  gs_store(y + row, sum, alpha, beta, read_y);
}

// Slices are one warp high, so a slice's offset is read once a warp and its width is the same for all lanes.
template <class Stored, class T, class Index>
GS_KERNEL blocked_ellpack(long long num_rows, const long long *__restrict__ slice_offsets,
                          const Index *__restrict__ indptr, const Index *__restrict__ indices,
                          const Stored *__restrict__ data, const T *__restrict__ x, T *__restrict__ y, T alpha, T beta,
                          int read_y, int conjugate) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  const long long slice = row / GS_WARP, offset = slice_offsets[slice];
  const int width = int((slice_offsets[slice + 1] - offset) / GS_WARP);
  const long long first = offset + row % GS_WARP;
  T sum = gs_strided_sum<BLOCKED_UNROLL, T>(indices + first, data + first, x, GS_WARP, width, conjugate);
  if (Scalar<T>::is_nan(sum))
    sum = gs_strided_sum<BLOCKED_UNROLL, T>(indices + first, data + first, x, GS_WARP, int(indptr[row + 1] - indptr[row]), conjugate);
  gs_store(y + row, sum, alpha, beta, read_y);
}
