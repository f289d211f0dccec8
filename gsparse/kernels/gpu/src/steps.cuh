// steps.cuh - what the generated passes of solvers (gsparse.kernels.gpu.steps) are made of: arithmetic with operators,
// cells in double precision, sums over all elements that come out the same every time.
#pragma once
#include "sums.cuh"

// ---- operators of complex numbers
template <class R> __device__ __forceinline__ Complex<R> operator+(Complex<R> a, Complex<R> b) {
  return {a.re + b.re, a.im + b.im};
}
template <class R> __device__ __forceinline__ Complex<R> operator-(Complex<R> a, Complex<R> b) {
  return {a.re - b.re, a.im - b.im};
}
template <class R> __device__ __forceinline__ Complex<R> operator-(Complex<R> a) { return {-a.re, -a.im}; }
template <class R> __device__ __forceinline__ Complex<R> operator*(Complex<R> a, Complex<R> b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <class R> __device__ __forceinline__ Complex<R> operator/(Complex<R> a, Complex<R> b) {  // (Smith's: no overflow)
  if (b.im == R(0)) return {a.re / b.re, a.im / b.re};
  const R bre = b.re < R(0) ? -b.re : b.re, bim = b.im < R(0) ? -b.im : b.im;
  if (bre >= bim) {
    const R t = b.im / b.re, d = b.re + b.im * t;
    return {(a.re + a.im * t) / d, (a.im - a.re * t) / d};
  }
  const R t = b.re / b.im, d = b.re * t + b.im;
  return {(a.re * t + a.im) / d, (a.im * t - a.re) / d};
}

// ---- the functions of the language
template <class T> struct Make {
  static __device__ __forceinline__ T from(double a) { return T(a); }
};
template <class R> struct Make<Complex<R>> {
  static __device__ __forceinline__ Complex<R> from(double a) { return {R(a), R(0)}; }
};
__device__ __forceinline__ float gs_real(float a) { return a; }
__device__ __forceinline__ double gs_real(double a) { return a; }
template <class R> __device__ __forceinline__ R gs_real(Complex<R> a) { return a.re; }
__device__ __forceinline__ float gs_abs2(float a) { return a * a; }
__device__ __forceinline__ double gs_abs2(double a) { return a * a; }
template <class R> __device__ __forceinline__ Complex<R> gs_abs2(Complex<R> a) {
  return {a.re * a.re + a.im * a.im, R(0)};
}
template <class T> __device__ __forceinline__ T gs_conj(T a) { return Scalar<T>::conjugate(a); }
template <class T> __device__ __forceinline__ T gs_sqrt(T a) { return Make<T>::from(sqrt(gs_real(a))); }
__device__ __forceinline__ bool gs_isnan(double a) { return a != a; }
template <class R> __device__ __forceinline__ bool gs_isnan(Complex<R> a) { return a.re != a.re || a.im != a.im; }

// ---- between cells and elements
template <class T> struct Narrow {
  static __device__ __forceinline__ T from(double a) { return T(a); }
};
template <class R> struct Narrow<Complex<R>> {
  static __device__ __forceinline__ Complex<R> from(Complex<double> a) { return {R(a.re), R(a.im)}; }
};

// The sums of a block's threads, valid in its first thread. `shared` holds GS_MAX_WARPS numbers a sum.
template <int COUNT, class C> __device__ __forceinline__ void gs_block_sums(C *sums, C *shared) {
#pragma unroll
  for (int s = 0; s < COUNT; ++s) sums[s] = gs_block_sum(sums[s], shared + s * GS_MAX_WARPS);
}

// The sum of another pass's partial sums, in all threads: every block adds them up in the same order.
template <class C> __device__ __forceinline__ C gs_total(const C *partials, int count, C *shared) {
  partials += static_cast<long long>(blockIdx.y) * count;
  C sum[1] = {Scalar<C>::zero()};
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum[0] = gs_add(sum[0], gs_load(partials + i));
  gs_block_sums<1>(sum, shared);
  if (threadIdx.x == 0) shared[0] = sum[0];
  __syncthreads();
  sum[0] = shared[0];
  __syncthreads();
  return sum[0];
}

// Leaves this block's sums for whoever needs them.
template <int COUNT, class C>
__device__ __forceinline__ void gs_leave_sums(C *sums, C *const *partials, C *shared) {
  gs_block_sums<COUNT>(sums, shared);
  if (threadIdx.x == 0)
    for (int s = 0; s < COUNT; ++s) partials[s][blockIdx.y * gridDim.x + blockIdx.x] = sums[s];
}

// The same, and adds all blocks' sums up in the blocks' order; true in the first thread of the block that arrives last,
// which has them. Only the count of arrivals is atomic; it is set back for the next pass.
template <int COUNT, class C>
__device__ __forceinline__ bool gs_finish_sums(C *sums, C *const *partials, unsigned *arrivals, C *shared,
                                               int *is_last) {
  const int blocks = int(gridDim.x);
  gs_leave_sums<COUNT>(sums, partials, shared);
  if (COUNT == 0) __syncthreads();
  if (blocks == 1) return threadIdx.x == 0;
  arrivals += blockIdx.y;
  if (threadIdx.x == 0) *is_last = gs_arrive(arrivals) == unsigned(blocks - 1);
  __syncthreads();
  if (!*is_last) return false;
#pragma unroll
  for (int s = 0; s < COUNT; ++s) {
    sums[s] = Scalar<C>::zero();
    for (int b = threadIdx.x; b < blocks; b += blockDim.x)
      sums[s] = gs_add(sums[s], gs_fresh(partials[s] + static_cast<long long>(blockIdx.y) * blocks + b));
  }
  __syncthreads();
  gs_block_sums<COUNT>(sums, shared);
  if (threadIdx.x == 0) *arrivals = 0u;
  return threadIdx.x == 0;
}
