// spmv_pattern.cu - y = alpha*A*x + beta*y for A in row patterns (gsparse.formats.RowPattern).
//
// Row i follows the pattern codes[i]. A pattern lists the offsets of the columns from the row's own number, so that
// rows of a stencil share one:
//
//     codes              0  1  1  1  1  2           pattern of each row
//     pattern_indptr     0     2        5     7     where each pattern begins
//     offsets            0 1 | -1 0 1 | -1 0        row 3 has the pattern 1: columns 2, 3 and 4
//
//   row_pattern_values   The values belong to the pattern too (`pattern_values`, beside `offsets`). Of A only one code
//                        for each row is read from memory.
//   row_pattern          The values are the row's own, stored as in blocked ELLPACK: in slices of the rows of one warp,
//                        entry j of them side by side (coalesced).
//
// A thread owns a row, or ROWS rows in row_pattern_values. Neighbouring threads mostly follow the same pattern, so that
// they read the same offsets, which the first-level cache serves to all of them at once, and neighbouring elements of
// x. Nothing is in shared memory, except the partial sum of conj(x)*y where it is asked for (sums.cuh).
#include "entries.cuh"

// Patterns, written once for all rows that share them.
struct Patterns {
  const int *indptr;   // where each pattern begins
  const int *offsets;  // column minus row of each entry
};

// Return the product of one row with x, by its pattern's own entries. `x_row` points to the row's element of x.
template <class T>
__device__ __forceinline__ T gs_pattern_sum(const Patterns &patterns, const T *pattern_values, int code, const T *x_row,
                                            int conjugate) {
  const int begin = gs_load(patterns.indptr + code), end = gs_load(patterns.indptr + code + 1);
  T sum = Scalar<T>::zero();
#pragma unroll 4
  for (int k = begin; k < end; ++k) {
    T a = gs_load(pattern_values + k);
    if (conjugate) a = Scalar<T>::conjugate(a);
    sum = gs_fma(a, gs_load(x_row + gs_load(patterns.offsets + k)), sum);
  }
  return sum;
}

// A thread owns ROWS rows, a block's width apart: thread t of block b has the rows b*ROWS*blockDim + i*blockDim + t.
// For ROWS > 1, those of them that follow the `common` pattern are computed together, so that each of its entries is
// read once for all of them. The others are few; they come afterwards, each by its own pattern.
template <class Code, class T, int ROWS, template <class> class Dots>
GS_KERNEL row_pattern_values(long long num_rows, int common, const Code *__restrict__ codes,
                             const int *__restrict__ pattern_indptr, const int *__restrict__ offsets,
                             const T *__restrict__ pattern_values, const T *__restrict__ x, T *__restrict__ y, T alpha,
                             T beta, int read_y, int conjugate, typename Wide<T>::type *block_dots) {
  const Patterns patterns = {pattern_indptr, offsets};
  const long long first = static_cast<long long>(blockIdx.x) * ROWS * blockDim.x + threadIdx.x;
  int code[ROWS];  // -1 past the last row
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
  Dots<T> dots(block_dots);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    if (code[i] < 0) continue;
    const long long row = first + i * blockDim.x;
    if (ROWS == 1 || code[i] != common)
      sum[i] = gs_pattern_sum(patterns, pattern_values, code[i], x + row, conjugate);
    sum[i] = gs_store(y + row, sum[i], alpha, beta, read_y);
    dots.add(x + row, sum[i]);
  }
  dots.leave();
}

// Return `sum` plus the products of SIZE entries of a row with x, from entry j on. If WHOLE is false, only those before
// `length` are entries of the row. `offsets` points to the first offset of the row's pattern, `x_row` to its element of
// x, and its value j is at position + j * GS_WARP. SIZE loads are in flight at once, as in Entries::add_batch.
template <bool WHOLE, int SIZE, class Value, class T>
__device__ __forceinline__ T gs_add_batch(int j, int length, const int *__restrict__ offsets,
                                          long long position, const Value *__restrict__ values,
                                          const T *__restrict__ table, const T *__restrict__ x_row, int conjugate,
                                          T sum) {
  int offset[SIZE];
  Value value[SIZE];
  T a[SIZE], element[SIZE];
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    const int entry = WHOLE || j + i < length ? j + i : j;
    offset[i] = gs_load(offsets + entry);
    value[i] = gs_code(values, position + entry * GS_WARP);
  }
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    element[i] = WHOLE || j + i < length ? gs_load(x_row + offset[i]) : Scalar<T>::zero();
    a[i] = gs_decode(value[i], table);
  }
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    if (conjugate) a[i] = Scalar<T>::conjugate(a[i]);
    sum = WHOLE || j + i < length ? gs_fma(a[i], element[i], sum) : sum;
  }
  return sum;
}

template <class Code, class Value, class T, template <class> class Dots>
GS_KERNEL row_pattern(long long num_rows, const Code *__restrict__ codes, const int *__restrict__ pattern_indptr,
                      const int *__restrict__ offsets, const long long *__restrict__ slice_offsets,
                      const Value *__restrict__ values, const T *__restrict__ table, const T *__restrict__ x,
                      T *__restrict__ y, T alpha, T beta, int read_y, int conjugate,
                      typename Wide<T>::type *block_dots) {
  enum { SIZE = Batch<T>::size };
  Dots<T> dots(block_dots);
  const long long row = gs_thread();
  if (row < num_rows) {
    const int code = gs_load(codes + row), begin = gs_load(pattern_indptr + code);
    const int length = gs_load(pattern_indptr + code + 1) - begin;
    const long long position = slice_offsets[row / GS_WARP] + row % GS_WARP;
    x += row;
    offsets += begin;
    T sum = Scalar<T>::zero();
    int j = 0;
    for (; j + SIZE <= length; j += SIZE)
      sum = gs_add_batch<true, SIZE>(j, length, offsets, position, values, table, x, conjugate, sum);
    if (j < length) sum = gs_add_batch<false, SIZE>(j, length, offsets, position, values, table, x, conjugate, sum);
    sum = gs_store(y + row, sum, alpha, beta, read_y);
    dots.add(x, sum);
  }
  dots.leave();
}
