// long_rows.cuh - products with rows that are too long for the threads that serve the other rows of a format.
//
// A long row is cut into chunks of GS_CHUNK entries, and a warp owns a chunk: its lanes read neighbouring entries
// (coalesced) and add their products up by shuffles. If the row has one chunk, it is then finished. Otherwise each warp
// writes its partial sum, and the warp that arrives last adds up the partial sums of the row, always in the same order:
//
//     row r:     | chunk first | first + 1 | ... | first + chunks - 1 |     one warp for each chunk
//                       v            v                    v
//     partials:  [    p_first     p_first+1   ...   p_first+chunks-1  ]     read by the warp that arrives last
//     arrivals[place of r]: 0, 1, ..., chunks, and back to 0
//
// Only the count of arrivals is atomic, and it is an integer, so that the sum is always the same. The last warp sets
// the count back to 0 for the next product. No shared memory is used.
#pragma once
#include "entries.cuh"

// Entries of a chunk (gsparse.kernels.gpu.CHUNK_SIZE).
enum { GS_CHUNK = 256 };

// One chunk. `list_chunks` (setup_rows.cu) writes these records.
struct Chunk {
  long long begin;  // position of its first entry
  int size;         // number of its entries
  int row;          // the row that they belong to
  int place;        // number of that row among the long rows: where its arrivals are counted
  int first;        // number of the row's first chunk
  int chunks;       // number of the row's chunks
  int unused;
};

// The chunks of all long rows of a matrix, and the scratch memory to add them up.
template <class T> struct LongRows {
  int num_chunks;
  const Chunk *chunks;
  T *partials;         // a partial sum for each chunk
  unsigned *arrivals;  // for each long row, the number of warps that have written their partial sum; 0 between products
};

// Return the number of blocks of a launch that process chunks. These blocks come first, because they take longest.
__device__ __forceinline__ int gs_chunk_blocks(int num_chunks) {
  const int warps = int(blockDim.x) / GS_WARP;
  return (num_chunks + warps - 1) / warps;
}

// Do the work of one warp of such a block: multiply a chunk with x, and add up the row if it is the last of its chunks.
// Return whether this lane has the product of a whole row: its number in *row and the product in *product.
template <class Value, class Column, class T>
__device__ __forceinline__ bool gs_multiply_chunk(const Entries<Value, Column, T> &entries,
                                                  const LongRows<T> &long_rows, int *row, T *product) {
  const int number = int(gs_thread() / GS_WARP), lane = threadIdx.x % GS_WARP;
  if (number >= long_rows.num_chunks) return false;
  const Chunk chunk = long_rows.chunks[number];
  const int count = (chunk.size - lane + GS_WARP - 1) / GS_WARP;
  const long long stride = GS_WARP;
  T sum = Scalar<T>::zero();
  sum = entries.template add_even<false, Batch<T>::size>(chunk.begin + lane, stride, count, sum);
  sum = gs_group_sum<GS_WARP>(sum);
  if (chunk.chunks > 1) {
    if (lane == 0) long_rows.partials[number] = sum;
    if (!gs_is_last_warp(long_rows.arrivals + chunk.place, chunk.chunks)) return false;
    sum = Scalar<T>::zero();
    for (int c = lane; c < chunk.chunks; c += GS_WARP)
      sum = gs_add(sum, gs_fresh(long_rows.partials + chunk.first + c));
    sum = gs_group_sum<GS_WARP>(sum);
    if (lane == 0) long_rows.arrivals[chunk.place] = 0u;
  }
  *row = chunk.row;
  *product = sum;
  return lane == 0;
}
