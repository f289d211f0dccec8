// scalar.cuh - the arithmetic of the compute types: float, double, Complex<float>, Complex<double>, long long.
// Integers wrap modulo 2^64, as in NumPy. Complex products use the plain formula, so that inf and NaN propagate as in
// SciPy. Products and their sums go through gs_fma, which keeps subnormal numbers (port.cuh).
#pragma once
#include "port.cuh"

template <class R> struct alignas(2 * sizeof(R)) Complex { R re, im; };

// The words of COUNT numbers of type T.
template <class T, int COUNT = 1> union Message {
  enum { WORDS = COUNT * int(sizeof(T) / 4) };
  T numbers[COUNT];
  unsigned halves[WORDS];
};

// ---- sum + a*b
__device__ __forceinline__ long long gs_fma(long long a, long long b, long long sum) {
  typedef unsigned long long u64;
  return static_cast<long long>(static_cast<u64>(a) * static_cast<u64>(b) + static_cast<u64>(sum));
}
template <class R> __device__ __forceinline__ Complex<R> gs_fma(Complex<R> a, Complex<R> b, Complex<R> sum) {
  return {gs_fma(-a.im, b.im, gs_fma(a.re, b.re, sum.re)), gs_fma(a.im, b.re, gs_fma(a.re, b.im, sum.im))};
}

// ---- a + b, computed as a*1 + b so that subnormal numbers are kept
__device__ __forceinline__ float gs_add(float a, float b) { return gs_fma(a, 1.0f, b); }
__device__ __forceinline__ double gs_add(double a, double b) { return a + b; }
__device__ __forceinline__ long long gs_add(long long a, long long b) { return gs_fma(a, 1ll, b); }
template <class R> __device__ __forceinline__ Complex<R> gs_add(Complex<R> a, Complex<R> b) {
  return {gs_add(a.re, b.re), gs_add(a.im, b.im)};
}

// ---- a - b, in the same way
template <class R> __device__ __forceinline__ R gs_difference(R a, R b) { return gs_fma(b, R(-1), a); }
template <class R> __device__ __forceinline__ Complex<R> gs_difference(Complex<R> a, Complex<R> b) {
  return {gs_difference(a.re, b.re), gs_difference(a.im, b.im)};
}

// ---- constants and tests
template <class T> struct Scalar {
  static __device__ __forceinline__ T zero() { return T(0); }
  static __device__ __forceinline__ bool equal(T a, T b) { return a == b; }
  static __device__ __forceinline__ bool is_one(T a) { return a == T(1); }
  static __device__ __forceinline__ T conjugate(T a) { return a; }
};
template <class R> struct Scalar<Complex<R>> {
  static __device__ __forceinline__ Complex<R> zero() { return {R(0), R(0)}; }
  static __device__ __forceinline__ bool equal(Complex<R> a, Complex<R> b) { return a.re == b.re && a.im == b.im; }
  static __device__ __forceinline__ bool is_one(Complex<R> a) { return a.re == R(1) && a.im == R(0); }
  static __device__ __forceinline__ Complex<R> conjugate(Complex<R> a) { return {a.re, -a.im}; }
};

// ---- a stored value as a compute value: of the same type, or widened without rounding
template <class To> struct Widen;
template <> struct Widen<float> { static __device__ __forceinline__ float from(float a) { return a; } };
template <> struct Widen<long long> { static __device__ __forceinline__ long long from(long long a) { return a; } };
template <> struct Widen<double> {
  static __device__ __forceinline__ double from(float a) { return gs_widen(a); }
  static __device__ __forceinline__ double from(double a) { return a; }
};
template <class R> struct Widen<Complex<R>> {
  static __device__ __forceinline__ Complex<R> from(Complex<R> a) { return a; }
  template <class S> static __device__ __forceinline__ Complex<R> from(Complex<S> a) {
    return {Widen<R>::from(a.re), Widen<R>::from(a.im)};
  }
  template <class S> static __device__ __forceinline__ Complex<R> from(S a) { return {Widen<R>::from(a), R(0)}; }
};

// ---- reads through the read-only path
template <class T> __device__ __forceinline__ T gs_load(const T *p) { return gs_ldg(p); }
#if !defined(GS_EMU) && !defined(GS_HIP)
__device__ __forceinline__ Complex<float> gs_load(const Complex<float> *p) {
  const float2 v = __ldg(reinterpret_cast<const float2 *>(p));
  return {v.x, v.y};
}
__device__ __forceinline__ Complex<double> gs_load(const Complex<double> *p) {
  const double2 v = __ldg(reinterpret_cast<const double2 *>(p));
  return {v.x, v.y};
}
#endif

// ---- reads of what another thread may have written during this launch (port.cuh)
template <class R> __device__ __forceinline__ Complex<R> gs_fresh(const Complex<R> *p) {
  return {gs_fresh(&p->re), gs_fresh(&p->im)};
}

// ---- loads and stores of what nobody reads again in this launch (port.cuh)
#if !defined(GS_EMU) && !defined(GS_HIP)
__device__ __forceinline__ Complex<float> gs_load_once(const Complex<float> *p) {
  const float2 v = __ldcs(reinterpret_cast<const float2 *>(p));
  return {v.x, v.y};
}
__device__ __forceinline__ Complex<double> gs_load_once(const Complex<double> *p) {
  const double2 v = __ldcs(reinterpret_cast<const double2 *>(p));
  return {v.x, v.y};
}
__device__ __forceinline__ void gs_store_once(Complex<float> *p, Complex<float> v) {
  __stcs(reinterpret_cast<float2 *>(p), make_float2(v.re, v.im));
}
__device__ __forceinline__ void gs_store_once(Complex<double> *p, Complex<double> v) {
  __stcs(reinterpret_cast<double2 *>(p), make_double2(v.re, v.im));
}
#elif defined(GS_HIP)
template <class R> __device__ __forceinline__ Complex<R> gs_load_once(const Complex<R> *p) {
  return {gs_load_once(&p->re), gs_load_once(&p->im)};
}
template <class R> __device__ __forceinline__ void gs_store_once(Complex<R> *p, Complex<R> v) {
  gs_store_once(&p->re, v.re);
  gs_store_once(&p->im, v.im);
}
#endif

// ---- values of other lanes of a group of `width` consecutive lanes
// The value of the lane `d` places after this one. A lane at the end of its group gets its own value.
template <class R> __device__ __forceinline__ R gs_lane_after(R v, int d, int width) { return gs_shfl_down(v, d, width); }
template <class R> __device__ __forceinline__ Complex<R> gs_lane_after(Complex<R> v, int d, int width) {
  return {gs_shfl_down(v.re, d, width), gs_shfl_down(v.im, d, width)};
}
// The value of one lane of the group, returned in all of its lanes.
template <class R> __device__ __forceinline__ R gs_of_lane(R v, int lane, int width = GS_WARP) {
  return gs_shfl(v, lane, width);
}
template <class R> __device__ __forceinline__ Complex<R> gs_of_lane(Complex<R> v, int lane, int width = GS_WARP) {
  return {gs_shfl(v.re, lane, width), gs_shfl(v.im, lane, width)};
}
template <int WIDTH, class V> __device__ __forceinline__ V gs_of_first(V v) { return gs_of_lane(v, 0, WIDTH); }

// ---- sums, greatest and smallest values of groups, in a fixed order (a tree); valid in the first lane of each group
template <class V> __device__ __forceinline__ V gs_group_sum(V v, int width) {
  for (int d = width / 2; d > 0; d >>= 1) v = gs_add(v, gs_lane_after(v, d, width));
  return v;
}
template <int WIDTH, class V> __device__ __forceinline__ V gs_group_sum(V v) {
#pragma unroll
  for (int d = WIDTH / 2; d > 0; d >>= 1) v = gs_add(v, gs_lane_after(v, d, WIDTH));
  return v;
}
template <int WIDTH, class V> __device__ __forceinline__ V gs_group_max(V v) {
#pragma unroll
  for (int d = WIDTH / 2; d > 0; d >>= 1) {
    const V other = gs_shfl_down(v, d, WIDTH);
    v = v < other ? other : v;
  }
  return v;
}
template <int WIDTH, class V> __device__ __forceinline__ V gs_group_min(V v) {
#pragma unroll
  for (int d = WIDTH / 2; d > 0; d >>= 1) {
    const V other = gs_shfl_down(v, d, WIDTH);
    v = other < v ? other : v;
  }
  return v;
}

// ---- the combination of the values of all lanes of a group up to this one
struct Sum {
  template <class V> static __device__ __forceinline__ V of(V a, V b) { return a + b; }
};
struct Maximum {
  template <class V> static __device__ __forceinline__ V of(V a, V b) { return a < b ? b : a; }
};
template <class Operation, int WIDTH, class V> __device__ __forceinline__ V gs_running(V v) {
#pragma unroll
  for (int d = 1; d < WIDTH; d *= 2) {
    const V other = gs_shfl_up(v, d, WIDTH);
    if (int(threadIdx.x % WIDTH) >= d) v = Operation::of(other, v);
  }
  return v;
}

// Store alpha*sum + beta*y in *y and return it. `read_y` says whether beta differs from 0. If it is false, *y is not
// read, so that NaN in it does not survive. A factor of 1 is not multiplied: as a complex number, it would turn inf
// into NaN.
template <class T> __device__ __forceinline__ T gs_store(T *y, T sum, T alpha, T beta, int read_y) {
  if (!Scalar<T>::is_one(alpha)) sum = gs_fma(alpha, sum, Scalar<T>::zero());
  if (read_y) sum = Scalar<T>::is_one(beta) ? gs_add(*y, sum) : gs_fma(beta, *y, sum);
  *y = sum;
  return sum;
}
