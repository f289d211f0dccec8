// planted.cu - kernels, each with bugs that the emulator must find. Bug::NONE is the same kernel without a bug.
// planted_bugs.py runs them on the emulator. They are never launched on a GPU.
#include "port.cuh"

enum class Bug {
  NONE,
  NO_BARRIER_AFTER_WRITE, NO_BARRIER_IN_TREE, NO_BARRIER_BEFORE_REUSE, SHARED_ONE_SHORT, DIVERGENT_BARRIER,  // block_sum
  SHUFFLE_FOR_BARRIER,                                                                                       // swap_pairs
  EARLY_RETURN, ROW_END_OFF_BY_ONE, NO_ROW_BOUND,                                                            // row_sums
  TREE_OF_32, LANE_OF_32,                                                                                    // warp_sums
  PLAIN_ADD,                                                                                                 // count_positive
  TOO_MUCH_SHARED                                                                                            // keep_block
};

constexpr int THREADS = 256;  // threads per block, of every kernel in this file

// out[round * gridDim + block] = (round + 1) * sum of the block's part of `in`. All rounds use the same shared array.
template <Bug BUG> GS_KERNEL block_sum(const float *in, float *out, int rounds) {
  GS_SHARED(float, partial, BUG == Bug::SHARED_ONE_SHORT ? THREADS - 1 : THREADS);
  const int t = threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
    partial[t] = in[gs_thread()] * float(round + 1);
    if (BUG != Bug::NO_BARRIER_AFTER_WRITE) __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
      if (t < half) partial[t] += partial[t + half];
      if (BUG == Bug::DIVERGENT_BARRIER) {
        if (t < half) __syncthreads();
      } else if (BUG != Bug::NO_BARRIER_IN_TREE) {
        __syncthreads();
      }
    }
    if (t == THREADS - 1) out[round * gridDim.x + blockIdx.x] = partial[0];
    if (BUG != Bug::NO_BARRIER_BEFORE_REUSE) __syncthreads();
  }
}

// Neighbours swap their values through shared memory. A shuffle synchronizes lanes, but it does not order memory
// accesses, so it cannot replace the barrier.
template <Bug BUG> GS_KERNEL swap_pairs(const float *in, float *out) {
  GS_SHARED(float, values, THREADS);
  const int t = threadIdx.x;
  values[t] = in[gs_thread()];
  if (BUG != Bug::SHUFFLE_FOR_BARRIER) __syncthreads();
  const float zero = gs_shfl(0.0f, 0, GS_WARP);
  out[gs_thread()] = values[t ^ 1] + zero;
}

// y[row] = sum of the values of a CSR row, which 8 lanes add.
template <Bug BUG> GS_KERNEL row_sums(int num_rows, const int *indptr, const float *data, float *y) {
  constexpr int WIDTH = 8;
  const int row = int(gs_thread() / WIDTH), lane = threadIdx.x % WIDTH;
  if (BUG == Bug::EARLY_RETURN && row >= num_rows) return;
  const bool owned = row < num_rows;
  const int end = owned ? indptr[row + 1] + (BUG == Bug::ROW_END_OFF_BY_ONE) : 0;
  float sum = 0.0f;
  for (int k = owned ? indptr[row] + lane : 0; k < end; k += WIDTH) sum += data[k];
  for (int d = WIDTH / 2; d > 0; d /= 2) sum += gs_shfl_down(sum, d, WIDTH);
  if (lane == 0 && (owned || BUG == Bug::NO_ROW_BOUND)) y[row] = sum;
}

// out[w] = sum of the elements of `in` that the lanes of warp w read.
template <Bug BUG> GS_KERNEL warp_sums(const float *in, float *out) {
  const int lane = threadIdx.x % (BUG == Bug::LANE_OF_32 ? 32 : GS_WARP);
  float sum = in[gs_thread()];
  for (int d = BUG == Bug::TREE_OF_32 ? 16 : GS_WARP / 2; d > 0; d /= 2) sum += gs_shfl_down(sum, d, GS_WARP);
  if (lane == 0) out[gs_thread() / GS_WARP] = sum;
}

// count = number of positive elements of `in`.
template <Bug BUG> GS_KERNEL count_positive(const float *in, long long *count) {
  if (!(in[gs_thread()] > 0.0f)) return;
  if (BUG == Bug::PLAIN_ADD) *count += 1;
  else atomicAdd(count, 1);
}

// A copy through shared memory.
template <Bug BUG> GS_KERNEL keep_block(const float *in, float *out) {
  GS_SHARED(float, kept, BUG == Bug::TOO_MUCH_SHARED ? 64 * THREADS : THREADS);
  kept[threadIdx.x] = in[gs_thread()];
  out[gs_thread()] = kept[threadIdx.x];
}
