// sums.cuh - sums over all threads of a block, in double precision and always in the same order.
//
// Each thread has one value. The lanes of a warp add up their values with a tree of shuffles. The first lane of each
// warp writes the sum to shared memory (one value for each warp), and the first thread adds up these sums in order.
#pragma once
#include "scalar.cuh"

// The type in which elements of type T are summed.
template <class T> struct Wide { typedef double type; };
template <> struct Wide<long long> { typedef long long type; };
template <class R> struct Wide<Complex<R>> { typedef Complex<double> type; };

// Warps of the largest block.
enum { GS_MAX_WARPS = GS_MAX_THREADS / GS_WARP };
// Threads of a block of a solver pass (step_source.py) and of steps.cu.
enum { GS_PASS_THREADS = 256 };

// Return the sum over the block's threads, which is valid in the first thread. All threads must take part. `shared` has
// room for GS_MAX_WARPS values.
template <class C> __device__ __forceinline__ C gs_block_sum(C sum, C *shared) {
  sum = gs_group_sum<GS_WARP>(sum);
  if (threadIdx.x % GS_WARP == 0) shared[threadIdx.x / GS_WARP] = sum;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < int(blockDim.x) / GS_WARP; ++w) sum = gs_add(sum, shared[w]);
  return sum;
}

// Return whether this warp is the last of `count` warps to arrive. The last warp sees what the others wrote before.
__device__ __forceinline__ bool gs_is_last_warp(unsigned *arrivals, int count) {
  int is_last = 0;
  if (threadIdx.x % GS_WARP == 0) is_last = gs_arrive(arrivals) == unsigned(count - 1);
  is_last = gs_shfl(is_last, 0, GS_WARP);
  gs_syncwarp();  // what the first lane's atomic made visible to it is visible to all lanes from here on
  return is_last;
}

// ---- products that also leave partial sums of conj(x)*y
//
// The last template parameter `Dots` of a product y = A*x says whether the kernel also sums conj(x[i]) * y[i] over the
// rows i of each block. Solvers need that sum, and the product has both elements in registers.
//   NoDots     the kernel contains no trace of it: a test at run time made products 2 to 7 % slower on an H200.
//   BlockDots  block b writes its partial sum to block_dots[b].
template <class T> struct NoDots {
  __device__ __forceinline__ explicit NoDots(typename Wide<T>::type *) {}
  __device__ __forceinline__ void add(const T *, T) {}
  __device__ __forceinline__ void leave() {}
};

template <class T> struct BlockDots {
  typedef typename Wide<T>::type C;
  C *block_dots;  // one partial sum for each block of the launch
  C sum;          // over the rows that this thread has stored so far

  __device__ __forceinline__ explicit BlockDots(C *block_dots) : block_dots(block_dots), sum(Scalar<C>::zero()) {}

  // Add one row: `x_row` points to its element of x, and `y_row` is the value that was stored in y.
  __device__ __forceinline__ void add(const T *x_row, T y_row) {
    sum = gs_fma(Scalar<C>::conjugate(Widen<C>::from(*x_row)), Widen<C>::from(y_row), sum);
  }
  // Write the block's partial sum. All threads of the block must take part.
  __device__ __forceinline__ void leave() {
    GS_SHARED(C, shared, GS_MAX_WARPS);
    sum = gs_block_sum(sum, shared);
    if (threadIdx.x == 0) block_dots[blockIdx.x] = sum;
  }
};
