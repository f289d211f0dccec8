// inverse.cuh - inverses of small dense matrices: a group of `width` lanes, a power of two, owns a matrix of `size` rows,
// size <= width, and a lane one of its columns. All lanes of the warp take part, also those without a column.
// Source: G. H. Golub, C. F. Van Loan, "Matrix Computations", section 3.4 (partial pivoting); W. H. Press et al.,
// "Numerical Recipes", section 2.1 (Gauss-Jordan elimination in place).
#pragma once
#include "steps.cuh"

// The larger one of the magnitudes of the real and the imaginary part.
__device__ __forceinline__ double gs_extent(double a) { return a < 0 ? -a : a; }
template <class R> __device__ __forceinline__ double gs_extent(Complex<R> a) {
  const double re = gs_extent(a.re), im = gs_extent(a.im);
  return re < im || im != im ? im : re;
}

// The value of a lane of the group of `width` lanes, in all lanes of the group.
template <class R> __device__ __forceinline__ R gs_of_group(R v, int lane, int width) { return gs_shfl(v, lane, width); }
template <class R> __device__ __forceinline__ Complex<R> gs_of_group(Complex<R> v, int lane, int width) {
  return {gs_of_group(v.re, lane, width), gs_of_group(v.im, lane, width)};
}

// Whether the number is not 0 in a lane of the group; valid in the first lane of the group.
__device__ __forceinline__ int gs_any_of_group(int is_true, int width) {
  for (int d = width / 2; d > 0; d /= 2) is_true |= gs_shfl_down(is_true, d, width);
  return is_true;
}

// Replace a matrix by its inverse. `own` is the address of the column of this lane, which no other lane reads or writes;
// its elements are `size` places apart. A lane that does not own a column has `owns` = false.
//
//     lane       0 1 2 -        step k: the lane of column k finds the pivot, and exchanges its row with row k.
//     row 0      a b c          Its column then becomes that of the inverse, and all lanes subtract multiples of row k
//     row 1      d e f          from the other rows. In the end the lanes exchange columns, in the reverse order.
//     row 2      g h i
//
// A zero pivot makes elements infinite or NaN.
template <class T> __device__ __forceinline__ void gs_invert(T *own, int size, int lane, int width, bool owns) {
  int exchanged = 0;  // in lane k, the row that was exchanged with row k
  for (int k = 0; k < size; ++k) {
    int pivot = k;
    if (owns && lane == k) {
      double largest = gs_extent(own[k * size]);
      for (int i = k + 1; i < size; ++i) {
        const double extent = gs_extent(own[i * size]);
        if (extent > largest) {
          largest = extent;
          pivot = i;
        }
      }
      exchanged = pivot;
    }
    pivot = gs_shfl(pivot, k, width);
    T top = owns ? own[pivot * size] : Scalar<T>::zero();
    if (owns) own[pivot * size] = own[k * size];
    const T divisor = gs_of_group(top, k, width);
    if (lane == k) top = Make<T>::from(1.0);
    top = top / divisor;
    for (int i = 0; i < size; ++i) {
      T value = owns && i != k ? own[i * size] : Scalar<T>::zero();
      const T factor = gs_of_group(value, k, width);
      if (lane == k) value = Scalar<T>::zero();
      value = i == k ? top : gs_fma(gs_difference(Scalar<T>::zero(), factor), top, value);
      if (owns) own[i * size] = value;
    }
  }
  int source = lane;  // the lane whose column this one takes
  for (int k = size - 1; k >= 0; --k) {
    const int other = gs_shfl(exchanged, k, width);
    source = gs_shfl(source, lane == k ? other : lane == other ? k : lane, width);
  }
  for (int i = 0; i < size; ++i) {
    const T value = gs_of_group(owns ? own[i * size] : Scalar<T>::zero(), source, width);
    if (owns) own[i * size] = value;
  }
}
