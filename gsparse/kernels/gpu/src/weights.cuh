// weights.cuh - weights of values, and groups of lanes that share a row (gsparse/kernels/aggregation.py).
//
// A weight is a magnitude that is rounded to 17 bits. Sums of a few weights are exact, and each operation that makes a
// weight is rounded on its own (gs_product), so weights are the same on every device.
#pragma once
#include "order.cuh"
#include "steps.cuh"

typedef unsigned long long Mask;

// a * b, which the compiler must not fuse with an addition.
#if defined(GS_EMU)
__device__ __forceinline__ double gs_product(double a, double b) { return a * b; }
#elif defined(GS_HIP)
__device__ __forceinline__ double gs_product(double a, double b) {
#pragma clang fp contract(off)
  const double product = a * b;
  return product;
}
#else
__device__ __forceinline__ double gs_product(double a, double b) { return __dmul_rn(a, b); }
#endif

// Round a magnitude to 17 bits: the leading one and the 16 highest of the 52 bits after it.
__device__ __forceinline__ double gs_rounded(double magnitude) {
  union {
    double number;
    Mask bits;
  } v;
  v.number = magnitude;
  v.bits = (v.bits + (1ull << 35)) & ~((1ull << 36) - 1);
  return v.number;
}

__device__ __forceinline__ double gs_weight(double a) { return gs_rounded(gs_extent(a)); }
__device__ __forceinline__ double gs_weight(float a) { return gs_weight(gs_widen(a)); }
template <class R> __device__ __forceinline__ double gs_weight(Complex<R> a) {
  const double re = gs_extent(gs_widen(a.re)), im = gs_extent(gs_widen(a.im));
  double high = re < im ? im : re;
  const double low = re < im ? re : im;
  if (low > 0) {
    const double ratio = low / high;
    high = gs_product(high, sqrt(1.0 + gs_product(ratio, ratio)));
  }
  return gs_rounded(high);
}

// The square of a magnitude.
__device__ __forceinline__ double gs_square(double a) { return gs_product(a, a); }
__device__ __forceinline__ double gs_square(float a) { return gs_square(gs_widen(a)); }
template <class R> __device__ __forceinline__ double gs_square(Complex<R> a) {
  return gs_square(a.re) + gs_square(a.im);
}

// Whether a node keeps an entry.
template <class N>
__device__ __forceinline__ bool gs_keeps(long long node, long long other, N value, double scale, double theta) {
  return theta == 0 || node == other || gs_weight(value) >= gs_product(theta, scale);
}

// The diagonal by which the filtered matrix is divided: its own diagonal, unless the magnitude is less than a hundredth
// of the magnitude of the matrix's diagonal.
template <class C> __device__ __forceinline__ C gs_safe_diagonal(C filtered, C diagonal) {
  return gs_real(gs_abs2(filtered)) >= 1e-4 * gs_real(gs_abs2(diagonal)) ? filtered : diagonal;
}

// The place of this lane in its group of WIDTH consecutive lanes.
template <int WIDTH> __device__ __forceinline__ int gs_lane() { return threadIdx.x % WIDTH; }
