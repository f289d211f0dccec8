// parts.cuh - consecutive rows in equal parts, a block each. What the survey counted in each part says where the blocks of
// a later launch write what they find, in the order of rows, without a scan between.
#pragma once
#include "long_rows.cuh"

typedef unsigned long long Count;

// What is counted: positions of slices, without long rows too, positions of the long rows, row blocks, rows that tiles
// split and the carries of these; then for each limit 16, 32 … 1024 the rows longer than that, and their chunks.
enum { GS_PLACES, GS_SPLIT_PLACES, GS_LONG_PLACES, GS_BLOCKS, GS_SPLIT_ROWS, GS_CARRIES, GS_LONG };
enum { GS_FIRST_LIMIT = 16, GS_LIMITS = 7, GS_COUNTS = GS_LONG + 2 * GS_LIMITS };

template <class Index> __device__ __forceinline__ long long gs_row_length(const Index *indptr, long long row) {
  return static_cast<long long>(indptr[row + 1]) - static_cast<long long>(indptr[row]);
}
__device__ __forceinline__ long long gs_chunks(long long length) { return (length + GS_CHUNK - 1) / GS_CHUNK; }
__device__ __forceinline__ long long gs_whole_runs(long long length) {
  return (length + GS_WARP - 1) / GS_WARP * GS_WARP;
}

// Whether a row block begins at a row: at the first that begins in its share of the work, and at and after a long one.
template <class Index>
__device__ __forceinline__ bool gs_begins_block(const Index *indptr, long long row, int work) {
  if (row == 0) return true;
  const long long begin = static_cast<long long>(indptr[row]) + row, before = gs_row_length(indptr, row - 1);
  return begin / work > (begin - before - 1) / work || before > work || gs_row_length(indptr, row) > work;
}

// Ends of tiles within a row's entries: the row goes on in another tile.
template <class Index>
__device__ __forceinline__ long long gs_carries(const Index *indptr, long long row, int tile) {
  return (static_cast<long long>(indptr[row + 1]) + row) / tile - (static_cast<long long>(indptr[row]) + row) / tile;
}

__device__ __forceinline__ long long gs_warp_max(long long v) {
#pragma unroll
  for (int d = GS_WARP / 2; d > 0; d >>= 1) {
    const long long other = gs_shfl_down(v, d, GS_WARP);
    if (other > v) v = other;
  }
  return v;
}

// The sum over the threads before this one, and over all: `sums` has a place for each warp. All threads come.
__device__ __forceinline__ long long gs_block_scan(long long v, long long *sums, long long *total) {
  const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
  long long sum = v;
#pragma unroll
  for (int d = 1; d < GS_WARP; d <<= 1) {
    const long long before = gs_shfl_up(sum, d, GS_WARP);
    if (lane >= d) sum += before;
  }
  if (lane == GS_WARP - 1) sums[warp] = sum;
  __syncthreads();
  long long before = 0, all = 0;
  for (int w = 0; w < int(blockDim.x) / GS_WARP; ++w) {
    if (w < warp) before += sums[w];
    all += sums[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - v;
}

// A count over the parts before this block's own; `stride` words a part. All threads come, and all get it.
__device__ __forceinline__ long long gs_before(const long long *counts, int stride, long long *sums) {
  long long sum = 0, total;
  for (int part = threadIdx.x; part < int(blockIdx.x); part += blockDim.x) sum += counts[part * stride];
  gs_block_scan(sum, sums, &total);
  return total;
}
