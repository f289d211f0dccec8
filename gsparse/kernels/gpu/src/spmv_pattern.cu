// spmv_pattern.cu - y = alpha*A*x + beta*y for A in row patterns (gsparse.formats.RowPattern).
// A thread owns a row. Which columns it reads, and of row_pattern_values which values, is written once for all rows that
// share a pattern; neighbouring threads mostly read the same words, which the first cache hands to all of them at once.
// row_pattern reads values as blocked ELLPACK does: slices of one warp's rows, entry j of them side by side.
#include "entries.cuh"

// The sum of one row by its own pattern.
template <class T>
__device__ __forceinline__ T gs_pattern_sum(const int *__restrict__ offsets, const T *__restrict__ pattern_values,
                                            const T *__restrict__ x, int begin, int end, int conjugate) {
  T sum = Scalar<T>::zero();
#pragma unroll 4
  for (int k = begin; k < end; ++k) {
    T a = gs_load(pattern_values + k);
    if (conjugate) a = Scalar<T>::conjugate(a);
    sum = gs_fma(a, gs_load(x + gs_load(offsets + k)), sum);
  }
  return sum;
}

// ROWS rows a thread, a block apart. Those that follow the `common` pattern go side by side: each of its entries is read
// once for all of them. The others, few, come after, each by its own pattern.
template <class Code, class T, int ROWS>
GS_KERNEL row_pattern_values(long long num_rows, int common, const Code *__restrict__ codes,
                             const int *__restrict__ pattern_indptr, const int *__restrict__ offsets,
                             const T *__restrict__ pattern_values, GS_VECTORS, GS_DOTS) {
  const long long first = static_cast<long long>(blockIdx.x) * ROWS * blockDim.x + threadIdx.x;
  int code[ROWS];
  T sum[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const long long row = first + i * blockDim.x;
    code[i] = row < num_rows ? int(gs_load(codes + row)) : -1;
    sum[i] = Scalar<T>::zero();
  }
  const int end = ROWS > 1 ? gs_load(pattern_indptr + common + 1) : 0;
#pragma unroll 4
  for (int k = ROWS > 1 ? gs_load(pattern_indptr + common) : 0; k < end; ++k) {
    T a = gs_load(pattern_values + k);
    if (conjugate) a = Scalar<T>::conjugate(a);
    const T *shifted = x + first + gs_load(offsets + k);
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
      if (code[i] == common) sum[i] = gs_fma(a, gs_load(shifted + i * blockDim.x), sum[i]);
  }
  GS_DOT_BEGIN;
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    if (code[i] < 0) continue;
    const long long row = first + i * blockDim.x;
    if (ROWS == 1 || code[i] != common)
      sum[i] = gs_pattern_sum(offsets, pattern_values, x + row, gs_load(pattern_indptr + code[i]),
                              gs_load(pattern_indptr + code[i] + 1), conjugate);
    sum[i] = gs_store(y + row, sum[i], alpha, beta, read_y);
    GS_DOT_ADD(x[row], sum[i]);
  }
  GS_DOT_END;
}

// sum + `SIZE` entries of a row from its k-th on, or where not WHOLE those of them that it has; its values are from
// `position` on.
template <bool WHOLE, int SIZE, class Value, class T>
__device__ __forceinline__ T gs_add_batch(int k, int length, const int *__restrict__ offsets,
                                          long long position, const Value *__restrict__ values,
                                          const T *__restrict__ table, const T *__restrict__ x, int conjugate, T sum) {
  int offset[SIZE];
  Value value[SIZE];
  T a[SIZE], element[SIZE];
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    const int at = WHOLE || k + i < length ? k + i : k;
    offset[i] = gs_load(offsets + at);
    value[i] = gs_code(values, position + at * GS_WARP);
  }
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    element[i] = WHOLE || k + i < length ? gs_load(x + offset[i]) : Scalar<T>::zero();
    a[i] = gs_decode(value[i], table);
  }
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    if (conjugate) a[i] = Scalar<T>::conjugate(a[i]);
    sum = WHOLE || k + i < length ? gs_fma(a[i], element[i], sum) : sum;
  }
  return sum;
}

template <class Code, class Value, class T>
GS_KERNEL row_pattern(long long num_rows, const Code *__restrict__ codes, const int *__restrict__ pattern_indptr,
                      const int *__restrict__ offsets, const long long *__restrict__ slice_offsets,
                      const Value *__restrict__ values, const T *__restrict__ table, GS_VECTORS, GS_DOTS) {
  enum { SIZE = Batch<T>::size };
  GS_DOT_BEGIN;
  const long long row = gs_thread();
  if (row < num_rows) {
    const int code = gs_load(codes + row), begin = gs_load(pattern_indptr + code);
    const int length = gs_load(pattern_indptr + code + 1) - begin;
    const long long position = slice_offsets[row / GS_WARP] + row % GS_WARP;
    x += row;
    offsets += begin;
    T sum = Scalar<T>::zero();
    int k = 0;
    for (; k + SIZE <= length; k += SIZE)
      sum = gs_add_batch<true, SIZE>(k, length, offsets, position, values, table, x, conjugate, sum);
    if (k < length) sum = gs_add_batch<false, SIZE>(k, length, offsets, position, values, table, x, conjugate, sum);
    sum = gs_store(y + row, sum, alpha, beta, read_y);
    GS_DOT_ADD(*x, sum);
  }
  GS_DOT_END;
}
