// long_rows.cuh - rows kept apart: each is cut into chunks, a warp a chunk. The warp that arrives last adds the sums of
// the row's chunks, always in the same order. Only the count of arrivals is atomic, and it is an integer; the last warp
// sets it back to 0 for the next product.
#pragma once
#include "entries.cuh"

// Entries of a chunk (gsparse.kernels.gpu.CHUNK_SIZE).
enum { GS_CHUNK = 256 };

// A chunk (gsparse.kernels.gpu.scratch.records): `size` entries from position `begin` on, of row `row`, which has `chunks`
// chunks from number `first` on and counts its arrivals at `place`.
struct Chunk { long long begin; int size, row, place, first, chunks, unused; };

// Blocks of a launch that serve chunks; they come first, because they take longest.
__device__ __forceinline__ int gs_chunk_blocks(int num_chunks) {
  const int warps = int(blockDim.x) / GS_WARP;
  return (num_chunks + warps - 1) / warps;
}

// The work of one warp of such a block; true in the lane that wrote a row, which tells which and what.
template <class Value, class Column, class T>
__device__ __forceinline__ bool gs_long_row(const Entries<Value, Column, T> &entries, int num_chunks,
                                            const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals, T *y,
                                            T alpha, T beta, int read_y, int *row, T *stored) {
  const int number = int(gs_thread() / GS_WARP), lane = threadIdx.x % GS_WARP;
  if (number >= num_chunks) return false;
  const Chunk chunk = chunks[number];
  const int count = (chunk.size - lane + GS_WARP - 1) / GS_WARP;
  T sum = Scalar<T>::zero();
  sum = entries.template add_even<false, Batch<T>::size>(chunk.begin + lane, static_cast<long long>(GS_WARP), count, sum);
  sum = gs_group_sum<GS_WARP>(sum);
  if (chunk.chunks > 1) {
    int is_last = 0;
    if (lane == 0) {
      partials[number] = sum;
      is_last = gs_arrive(arrivals + chunk.place) == unsigned(chunk.chunks - 1);
    }
    if (!gs_shfl(is_last, 0, GS_WARP)) return false;
    gs_syncwarp();  // what the first lane's atomic made visible to it is visible to all lanes from here on
    sum = Scalar<T>::zero();
    for (int c = lane; c < chunk.chunks; c += GS_WARP) sum = gs_add(sum, gs_fresh(partials + chunk.first + c));
    sum = gs_group_sum<GS_WARP>(sum);
    if (lane == 0) arrivals[chunk.place] = 0u;
  }
  *row = chunk.row;
  if (lane == 0) *stored = gs_store(y + chunk.row, sum, alpha, beta, read_y);
  return lane == 0;
}
