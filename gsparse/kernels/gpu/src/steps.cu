// steps.cu - what solver passes need besides the generated kernels: sums of partial sums, and numbers that look random.
#include "sums.cuh"

// Reduce many partial sums to a few. A large product writes one for each of its blocks, which are more than the
// following solver pass should add up by itself.
//
// Block b owns an equal, contiguous share of the partial sums. Its threads read neighbouring elements (coalesced), each
// thread always the same ones, and add them up through shared memory (sums.cuh), so that the result is always the same.
// Blocks along y each have a set of partial sums of their own.
template <class C>
GS_KERNEL_OF(GS_PASS_THREADS) sum_partials(long long count, const C *__restrict__ partials, C *__restrict__ sums) {
  GS_SHARED(C, shared, GS_MAX_WARPS);
  partials += blockIdx.y * count;
  sums += blockIdx.y * gridDim.x;
  const long long share = (count + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * share;
  const long long end = begin + share < count ? begin + share : count;
  C sum = Scalar<C>::zero();
#pragma unroll 4
  for (long long k = begin + threadIdx.x; k < end; k += blockDim.x) sum = gs_add(sum, partials[k]);
  sum = gs_block_sum(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// ---------------------------------------------------------------------------- numbers that look random

// The odd numbers by which a hash is multiplied (gsparse.kernels.cpu.steps.MULTIPLIERS).
enum : unsigned { GS_FIRST_MULTIPLIER = 2654435761u, GS_SECOND_MULTIPLIER = 2246822507u };

__device__ __forceinline__ void gs_set_real(float *out, double real) { *out = float(real); }
__device__ __forceinline__ void gs_set_real(double *out, double real) { *out = real; }
template <class R> __device__ __forceinline__ void gs_set_real(Complex<R> *out, double real) { *out = {R(real), R(0)}; }

// out[i] = h / 2^32 - 1/2 for the hash h of i + 1 + offset. A thread computes one element; neighbouring threads write
// neighbouring elements (coalesced).
template <class T> GS_KERNEL fill_hashes(long long size, unsigned offset, T *__restrict__ out) {
  const long long i = gs_thread();
  if (i >= size) return;
  unsigned h = (unsigned(i) + 1u + offset) * GS_FIRST_MULTIPLIER;
  h ^= h >> 16;
  h *= GS_SECOND_MULTIPLIER;
  h ^= h >> 16;
  gs_set_real(out + i, h * 0x1p-32 - 0.5);
}
