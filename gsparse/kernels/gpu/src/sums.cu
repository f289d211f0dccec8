// sums.cu - many partial sums (those that large products leave) to few, which passes then add up.
#include "sums.cuh"

// Block b adds up an equal share of them, its threads always the same ones; blocks along y have a set of them each.
template <class C> GS_KERNEL_OF(256) sum_partials(long long count, const C *__restrict__ partials, C *__restrict__ sums) {
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
