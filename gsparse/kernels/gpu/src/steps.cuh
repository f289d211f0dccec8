// steps.cuh - the parts that generated solver passes are made of (gsparse.kernels.gpu.step_source shows one): operators
// and functions of the step language, cells in double precision, and sums over all elements with a fixed order.
//
// A pass sums as follows. Each thread adds up its elements, each block the sums of its threads (sums.cuh, in shared
// memory), and the block writes its partial sum. Then there are two ways. Either every block of the following pass adds
// up all partial sums by itself (gs_total), or the last block of this pass to arrive does so (gs_finish_sums). In both,
// neighbouring threads read neighbouring partial sums (coalesced), always in the same order.
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
// Smith's algorithm, which does not overflow where the quotient does not (R. L. Smith, CACM 5(8), 1962).
template <class R> __device__ __forceinline__ Complex<R> operator/(Complex<R> a, Complex<R> b) {
  if (b.im == R(0)) return {a.re / b.re, a.im / b.re};
  const R bre = b.re < R(0) ? -b.re : b.re, bim = b.im < R(0) ? -b.im : b.im;
  if (bre >= bim) {
    const R t = b.im / b.re, d = b.re + b.im * t;
    return {(a.re + a.im * t) / d, (a.im - a.re * t) / d};
  }
  const R t = b.re / b.im, d = b.re * t + b.im;
  return {(a.re * t + a.im) / d, (a.im * t - a.re) / d};
}

// ---- the functions of the step language (gsparse.kernels.steps)
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

// ---- from cells, in double precision, to elements
template <class T> struct Narrow {
  static __device__ __forceinline__ T from(double a) { return T(a); }
};
template <class R> struct Narrow<Complex<R>> {
  static __device__ __forceinline__ Complex<R> from(Complex<double> a) { return {R(a.re), R(a.im)}; }
};

// Replace each of COUNT values by its sum over the block's threads, which is valid in the first thread. `shared` has
// room for GS_MAX_WARPS values for each sum. All threads must take part.
template <int COUNT, class C> __device__ __forceinline__ void gs_block_sums(C *sums, C *shared) {
#pragma unroll
  for (int s = 0; s < COUNT; ++s) sums[s] = gs_block_sum(sums[s], shared + s * GS_MAX_WARPS);
}

// Return the sum of the `count` partial sums that another pass has left for this right-hand side, in all threads. Every
// block adds them up in the same order, so that all blocks get the same result.
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

// Write this block's partial sums: partials[s] is the array of sum number s.
template <int COUNT, class C>
__device__ __forceinline__ void gs_leave_sums(C *sums, C *const *partials, C *shared) {
  gs_block_sums<COUNT>(sums, shared);
  if (threadIdx.x == 0)
    for (int s = 0; s < COUNT; ++s) partials[s][blockIdx.y * gridDim.x + blockIdx.x] = sums[s];
}

// Write this block's partial sums. Return whether this is the first thread of the last block to arrive, which then has
// the sums over all blocks, added up in the order of the blocks, in `sums`. Only the count of arrivals is atomic; it is
// set back to 0 for the next pass.
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
