// order.cuh - comparisons of two values, and binary search in sorted integers. Complex numbers are compared as in
// SciPy: by the real parts, then by the imaginary parts. `flip` is the bit that makes signed comparisons order unsigned
// integers.
#pragma once
#include "scalar.cuh"

// Numbers are compared in double precision: comparisons of float take subnormals for 0 (-ftz=true).
template <class R> __device__ __forceinline__ R gs_exact(R a) { return a; }
__device__ __forceinline__ double gs_exact(float a) { return gs_widen(a); }
template <class R> __device__ __forceinline__ bool gs_equal(R a, R b) { return gs_exact(a) == gs_exact(b); }
template <class R> __device__ __forceinline__ bool gs_equal(Complex<R> a, Complex<R> b) {
  return gs_equal(a.re, b.re) && gs_equal(a.im, b.im);
}
template <class R> __device__ __forceinline__ bool gs_less(R a, R b, long long) { return gs_exact(a) < gs_exact(b); }
__device__ __forceinline__ bool gs_less(long long a, long long b, long long flip) { return (a ^ flip) < (b ^ flip); }
template <class R> __device__ __forceinline__ bool gs_less(Complex<R> a, Complex<R> b, long long) {
  return gs_equal(a.re, b.re) ? gs_exact(a.im) < gs_exact(b.im) : gs_exact(a.re) < gs_exact(b.re);
}

// The magnitude of a real number. For a complex number: the larger magnitude of its two parts, which cannot overflow.
__device__ __forceinline__ double gs_extent(double a) { return a < 0 ? -a : a; }
template <class R> __device__ __forceinline__ double gs_extent(Complex<R> a) {
  const double re = gs_extent(a.re), im = gs_extent(a.im);
  return re < im || im != im ? im : re;
}

// The first position in [from, to) whose column is at least `column`; `to` if no column is.
template <class Index, class Position, class Column>
__device__ __forceinline__ Position gs_lower_bound(const Index *__restrict__ indices, Position from, Position to,
                                                   Column column) {
  while (from < to) {
    const Position middle = from + (to - from) / 2;
    if (indices[middle] < column) from = middle + 1;
    else to = middle;
  }
  return from;
}
