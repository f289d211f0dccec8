// sums.cuh - sums over all threads of a block, in double precision and always in the same order.
#pragma once
#include "scalar.cuh"

// The type that elements are summed in.
template <class T> struct Wide { typedef double type; };
template <> struct Wide<long long> { typedef long long type; };
template <class R> struct Wide<Complex<R>> { typedef Complex<double> type; };

// Warps of the largest block.
enum { GS_MAX_WARPS = GS_MAX_THREADS / GS_WARP };

// The sum of a block's threads, valid in its first one. `shared` holds GS_MAX_WARPS numbers. All threads have to come.
template <class C> __device__ __forceinline__ C gs_block_sum(C sum, C *shared) {
  sum = gs_group_sum<GS_WARP>(sum);
  if (threadIdx.x % GS_WARP == 0) shared[threadIdx.x / GS_WARP] = sum;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < int(blockDim.x) / GS_WARP; ++w) sum = gs_add(sum, shared[w]);
  return sum;
}

// A product y = A*x that also leaves the sum of conj(x_i)*y_i over the rows of each block in `dots`: kernels of the files
// *_dots.cu. Compiled into all kernels and not asked for, they made products 2 to 7 % slower on an H200.
#define GS_DOTS typename Wide<T>::type *dots
#if defined(GS_WITH_DOTS)
#define GS_DOT_BEGIN typename Wide<T>::type dot = Scalar<typename Wide<T>::type>::zero()
#define GS_DOT_ADD(x_row, y_row)                                                                                       \
  {                                                                                                                    \
    typedef Widen<typename Wide<T>::type> W;                                                                           \
    dot = gs_fma(Scalar<typename Wide<T>::type>::conjugate(W::from(x_row)), W::from(y_row), dot);                      \
  }
#define GS_DOT_END                                                                                                     \
  GS_SHARED(typename Wide<T>::type, shared_dots, GS_MAX_WARPS);                                                        \
  dot = gs_block_sum(dot, shared_dots);                                                                                \
  if (threadIdx.x == 0) dots[blockIdx.x] = dot
#else
#define GS_DOT_BEGIN (void)dots
#define GS_DOT_ADD(x_row, y_row) (void)(y_row)
#define GS_DOT_END (void)dots
#endif
