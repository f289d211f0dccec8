// sums.cu - reduce many partial sums to a few: a large product leaves one for each of its blocks, more than the next
// solver pass should add up by itself.
//
// Block b owns an equal, contiguous share of the partial sums. Its threads read neighbouring elements (coalesced), each
// thread always the same ones, and add them up through shared memory (sums.cuh), so that the result is always the same.
// Blocks along y each have a set of partial sums of their own.
#include "sums.cuh"

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
