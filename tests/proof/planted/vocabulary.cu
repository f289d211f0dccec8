// vocabulary.cu - kernels that use, one by one, the CUDA functions that the emulator supports (test_emulator.py).
#include "scalar.cuh"

GS_KERNEL coordinates(int *out) {  // writes a different number for each thread of a three-dimensional launch
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int size = blockDim.x * blockDim.y * blockDim.z;
  out[block * size + thread] = block * size + thread;
}
template <int WIDTH> GS_KERNEL shuffles(int *down, int *up, int *exchanged, int *indexed) {
  const int t = threadIdx.x;
  down[t] = gs_shfl_down(t, 1, WIDTH);
  up[t] = gs_shfl_up(t, 1, WIDTH);
  exchanged[t] = gs_shfl_xor(t, 1, WIDTH);
  indexed[t] = gs_shfl(t, 2, WIDTH);
}
GS_KERNEL shuffle_outside_group(int *out) { out[threadIdx.x] = gs_shfl_xor(int(threadIdx.x), GS_WARP, GS_WARP); }
GS_KERNEL different_collectives(int *out) {
  if (threadIdx.x % 2) out[threadIdx.x] = gs_shfl(1, 0, GS_WARP);
  else out[threadIdx.x] = gs_shfl(2, 0, GS_WARP);
}
GS_KERNEL votes(unsigned long long *out) { out[threadIdx.x] = gs_ballot(threadIdx.x % 3 == 0); }
GS_KERNEL warp_reverse(const int *in, int *out) {  // __syncwarp orders memory accesses, so TSan must report no race
  GS_DYN_SHARED(int, values);
  const int t = threadIdx.x, first = t - t % GS_WARP;
  for (int round = 0; round < 3; ++round) {
    values[t] = in[t] + round;
    __syncwarp();
    out[t] = values[first + GS_WARP - 1 - t % GS_WARP];
    __syncwarp();
  }
}
GS_KERNEL atomics(int *sum, long long *most, double *real_sum) {
  atomicAdd(sum, 1);
  atomicMax(most, (long long)threadIdx.x);
  atomicAdd(real_sum, 0.5);
}
GS_KERNEL unwritten(float *out) {
  GS_SHARED(float, never, 1);
  out[threadIdx.x] = never[0];
}
template <class T> GS_KERNEL scale(const T *in, T *out, T factor) {
  out[threadIdx.x] = gs_fma(in[threadIdx.x], factor, Scalar<T>::zero());
}
