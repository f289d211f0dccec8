// gradients.cu - the gradients of Y = A X with respect to X and to the values of A (gsparse/kernels/relaxation.py):
//
//     dX = A^H G        dA[i, j] = sum over columns c of G[i, c] conj(X[j, c]), at the entries of A only
//
// Dense arrays are stored row by row. Entries of the transpose of A are visited row by row: with X[j] at hand, an entry
// (i, j) reads row i of G once for both gradients. `numbers` has the position of each entry in the values of A, which
// are read, and their gradients written, at these positions (not coalesced, unless the matrix is nearly symmetric).
//
//     vector_gradients     one column: LANES lanes own a row of the transpose, each of them every LANES-th entry
//     columns_gradients    more columns: a warp owns a row. WIDTH lanes share an entry, with a column each (coalesced):
//
//         lanes    0 1 2 3 | 4 5 6 7 | 8 ...          WIDTH = 4
//         entry    first   | second  | third ...
//         column   0 1 2 3 | 0 1 2 3 | 0 ...          then columns 4 to 7, in a second pass over the entries
//
//     dot_rows             dA alone: WIDTH lanes own an entry, each of them every WIDTH-th column
//
// Sums have a fixed order and nothing is atomic, so that results are always the same.
#include "scalar.cuh"

// Threads of a block.
enum { GS_GRADIENT_THREADS = 256 };

// The sum over the lanes of a warp whose numbers differ by multiples of WIDTH, valid in the first WIDTH lanes.
template <int WIDTH, class R> __device__ __forceinline__ R gs_sum_of_groups(R v) {
#pragma unroll
  for (int d = GS_WARP / 2; d >= WIDTH; d >>= 1) v = gs_add(v, gs_shfl_down(v, d, GS_WARP));
  return v;
}
template <int WIDTH, class R> __device__ __forceinline__ Complex<R> gs_sum_of_groups(Complex<R> v) {
  return {gs_sum_of_groups<WIDTH>(v.re), gs_sum_of_groups<WIDTH>(v.im)};
}

// dots[e] = sum over c of left[rows[e], c] conj(right[columns[e], c]).
template <class T, class Index, int WIDTH>
GS_KERNEL_OF(GS_GRADIENT_THREADS)
dot_rows(long long count, long long num_columns, const Index *__restrict__ rows, const Index *__restrict__ columns,
         const T *__restrict__ left, const T *__restrict__ right, T *__restrict__ dots) {
  const long long entry = gs_thread() / WIDTH;
  const bool owned = entry < count;
  const T *const one = left + (owned ? static_cast<long long>(rows[entry]) * num_columns : 0);
  const T *const other = right + (owned ? static_cast<long long>(columns[entry]) * num_columns : 0);
  T sum = Scalar<T>::zero();
  for (long long c = threadIdx.x % WIDTH; owned && c < num_columns; c += WIDTH)
    sum = gs_fma(gs_load(one + c), Scalar<T>::conjugate(gs_load(other + c)), sum);
  sum = gs_group_sum<WIDTH>(sum);
  if (owned && threadIdx.x % WIDTH == 0) dots[entry] = sum;
}

// Both gradients of a product with one column.
template <class T, class Index, int LANES>
GS_KERNEL_OF(GS_GRADIENT_THREADS)
vector_gradients(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                 const Index *__restrict__ numbers, const T *__restrict__ values, const T *__restrict__ gradient,
                 const T *__restrict__ x, T *__restrict__ of_x, T *__restrict__ of_values) {
  const long long row = gs_thread() / LANES;
  const bool owned = row < num_rows;
  const T factor = owned ? Scalar<T>::conjugate(gs_load(x + row)) : Scalar<T>::zero();
  const Index end = owned ? indptr[row + 1] : Index(0);
  T sum = Scalar<T>::zero();
#pragma unroll 2
  for (Index k = owned ? indptr[row] + Index(threadIdx.x % LANES) : end; k < end; k += LANES) {
    const Index number = gs_load(numbers + k);
    const T element = gs_load(gradient + gs_load(indices + k));
    sum = gs_fma(Scalar<T>::conjugate(gs_load(values + number)), element, sum);
    of_values[number] = gs_fma(element, factor, Scalar<T>::zero());
  }
  sum = gs_group_sum<LANES>(sum);
  if (owned && threadIdx.x % LANES == 0) of_x[row] = sum;
}

// Both gradients of a product with several columns.
template <class T, class Index, int WIDTH>
GS_KERNEL_OF(GS_GRADIENT_THREADS)
columns_gradients(long long num_rows, long long num_columns, const Index *__restrict__ indptr,
                  const Index *__restrict__ indices, const Index *__restrict__ numbers, const T *__restrict__ values,
                  const T *__restrict__ gradient, const T *__restrict__ x, T *__restrict__ of_x,
                  T *__restrict__ of_values) {
  const long long row = gs_thread() / GS_WARP;
  if (row >= num_rows) return;  // the whole warp
  const int lane = threadIdx.x % GS_WARP, group = lane / WIDTH, in_group = lane % WIDTH;
  const Index begin = indptr[row], end = indptr[row + 1];
  for (long long base = 0; base < num_columns; base += WIDTH) {
    const long long column = base + in_group;
    const bool has_column = column < num_columns;
    const T factor = has_column ? Scalar<T>::conjugate(gs_load(x + row * num_columns + column)) : Scalar<T>::zero();
    T sum = Scalar<T>::zero();
    for (Index first = begin; first < end; first += GS_WARP / WIDTH) {
      const bool has_entry = first + group < end;
      const Index k = has_entry ? first + group : begin;
      const Index number = gs_load(numbers + k);
      T dot = Scalar<T>::zero();
      if (has_entry && has_column) {
        const T element = gs_load(gradient + static_cast<long long>(gs_load(indices + k)) * num_columns + column);
        sum = gs_fma(Scalar<T>::conjugate(gs_load(values + number)), element, sum);
        dot = gs_fma(element, factor, Scalar<T>::zero());
      }
      dot = gs_group_sum<WIDTH>(dot);
      // The same thread has written the sum of the columns before `base`.
      if (has_entry && in_group == 0) of_values[number] = base ? gs_add(of_values[number], dot) : dot;
    }
    sum = gs_sum_of_groups<WIDTH>(sum);
    if (group == 0 && has_column) of_x[row * num_columns + column] = sum;
  }
}
