// tiles.cuh - the entries and the row ends of a matrix in equal shares, one for each block, whatever the lengths of the
// rows: a matrix with one dense row, or with a million empty ones, takes no longer than any other of its size.
//
// Each row contributes its entries and then its end to one list. A tile is GS_TILE consecutive positions of the list:
//
//     rows          a b c |   |   d e |        three rows, of which the second one is empty
//     positions     0 1 2 3   4   5 6 7        row r begins at position indptr[r] + r
//
// A block finds the rows at the two ends of its tile by a search in which all lanes of a warp take part, and the rows
// of all its entries by marking where rows begin: the row of an entry is the last one that begins at or before it.
//
//     entries       a b c d e
//     marks         0 . . 2 .                  the maximum of all marks up to an entry is the number of its row
#pragma once
#include "order.cuh"

// Threads of a block, positions for each of them, and positions in a tile.
enum { GS_TILE_THREADS = 256, GS_TILE_ITEMS = 8, GS_TILE = GS_TILE_ITEMS * GS_TILE_THREADS };
enum { GS_TILE_WARPS = GS_TILE_THREADS / GS_WARP };

// ---------------------------------------------------------------------------- scans over a block of GS_TILE_THREADS

// The combination of the values of all threads before this one (0 for the first thread); *all becomes the combination
// of all values. `shared` has room for a value for each warp.
template <class Operation, class V> __device__ __forceinline__ V gs_scan(V v, V *shared, V *all) {
  const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
  v = gs_running<Operation, GS_WARP>(v);
  if (lane == GS_WARP - 1) shared[warp] = v;
  V before = gs_shfl_up(v, 1, GS_WARP);
  if (lane == 0) before = V(0);
  __syncthreads();
  V total = V(0);
#pragma unroll
  for (int w = 0; w < GS_TILE_WARPS; ++w) {
    if (w == warp) before = Operation::of(total, before);
    total = Operation::of(total, shared[w]);
  }
  __syncthreads();  // so that `shared` may be written again
  *all = total;
  return before;
}

// ---------------------------------------------------------------------------- counts of all blocks of a launch

// Where the blocks of a launch leave their counts: offsets[b] for block b. `arrivals` is 0 before and after the launch.
// `total` is in memory that the host reads.
struct Tally {
  long long *offsets;
  unsigned *arrivals;
  long long *total;
};

// Whether this block is the last block of the launch to arrive. The last block sees what all others wrote before they
// arrived. All threads of the block take part.
__device__ __forceinline__ bool gs_is_last_block(unsigned *arrivals) {
  GS_SHARED(int, is_last, 1);
  if (threadIdx.x == 0) is_last[0] = gs_arrive(arrivals) == gridDim.x - 1;
  __syncthreads();
  return is_last[0];
}

// Leaves the count of this block, which its first thread has. The last block of the launch to arrive replaces each
// count by the sum of the counts of all blocks before, and writes the sum of all counts. All threads of the block take
// part.
__device__ __forceinline__ void gs_leave_count(long long count, Tally tally) {
  GS_SHARED(long long, sums, GS_TILE_WARPS);
  if (threadIdx.x == 0) tally.offsets[blockIdx.x] = count;
  if (!gs_is_last_block(tally.arrivals)) return;
  const long long blocks = gridDim.x, share = (blocks + GS_TILE_THREADS - 1) / GS_TILE_THREADS;
  const long long begin = threadIdx.x * share < blocks ? threadIdx.x * share : blocks;
  const long long end = begin + share < blocks ? begin + share : blocks;
  long long sum = 0, total;
#pragma unroll 8
  for (long long b = begin; b < end; ++b) sum += gs_fresh(tally.offsets + b);
  long long before = gs_scan<Sum>(sum, sums, &total);
  for (long long b = begin; b < end; ++b) {
    const long long of_block = gs_fresh(tally.offsets + b);
    tally.offsets[b] = before;
    before += of_block;
  }
  if (threadIdx.x == 0) {
    *tally.total = total;
    *tally.arrivals = 0;
  }
}

// Leaves the sum of the counts of the block's threads.
template <class V> __device__ __forceinline__ void gs_leave_counts(V count, Tally tally) {
  GS_SHARED(V, sums, GS_TILE_WARPS);
  V all;
  gs_scan<Sum>(count, sums, &all);
  gs_leave_count(all, tally);
}

// The same for the largest count of a block: *total becomes the maximum over all blocks. The counts are not valid
// afterwards.
__device__ __forceinline__ void gs_leave_maximum(long long count, Tally tally) {
  GS_SHARED(long long, greatest, GS_TILE_WARPS);
  if (threadIdx.x == 0) tally.offsets[blockIdx.x] = count;
  if (!gs_is_last_block(tally.arrivals)) return;
  long long most = 0, total;
  for (long long b = threadIdx.x; b < gridDim.x; b += GS_TILE_THREADS) most = Maximum::of(most, gs_fresh(tally.offsets + b));
  gs_scan<Maximum>(most, greatest, &total);
  if (threadIdx.x == 0) {
    *tally.total = total;
    *tally.arrivals = 0;
  }
}

// ---------------------------------------------------------------------------- tiles

// The share of a block: entries first_entry to first_entry + num_entries - 1, and the ends of rows first_row to
// end_row - 1. Row end_row begins or goes on after the tile; it is the number of rows for the last tile.
struct Tile {
  long long first_row, end_row, first_entry;
  int num_entries;
};

// The row of a position: the last row that begins at or before it. All lanes of the warp search together: each step
// divides the number of rows that are left by the number of lanes. `begins(row)` is the position at which a row begins.
template <class Begins>
__device__ __forceinline__ long long gs_row_at(long long num_rows, long long position, Begins begins) {
  const int lane = threadIdx.x % GS_WARP;
  long long low = 0, high = num_rows;  // the row is in [low, high]
  while (low < high) {
    const long long step = (high - low + GS_WARP - 1) / GS_WARP, probe = low + (lane + 1) * step;
    low += step * gs_num_lanes(probe <= high && begins(probe) <= position);
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

template <class Index>
__device__ __forceinline__ Tile gs_find_tile(const Index *__restrict__ indptr, long long num_rows, long long nnz) {
  GS_SHARED(long long, bounds, 2);
  const long long begin = static_cast<long long>(blockIdx.x) * GS_TILE, all = nnz + num_rows;
  const long long end = begin + GS_TILE < all ? begin + GS_TILE : all;
  const int warp = threadIdx.x / GS_WARP;
  if (warp < 2) {
    const long long row = gs_row_at(num_rows, warp ? end : begin, [&](long long r) { return indptr[r] + r; });
    if (threadIdx.x % GS_WARP == 0) bounds[warp] = row;
  }
  __syncthreads();
  const long long first_row = bounds[0], end_row = bounds[1], first_entry = begin - first_row;
  return Tile{first_row, end_row, first_entry, int(end - end_row - first_entry)};
}

// Writes rows[e]: the row of entry e of the tile, minus the tile's first row. `rows` has GS_TILE elements, in shared
// memory.
template <class Index>
__device__ __forceinline__ void gs_find_rows(const Index *__restrict__ indptr, Tile tile, int *rows) {
  GS_SHARED(int, shared, GS_TILE_WARPS);
  for (int e = threadIdx.x; e < GS_TILE; e += GS_TILE_THREADS) rows[e] = 0;
  __syncthreads();
  for (long long row = tile.first_row + 1 + threadIdx.x; row <= tile.end_row; row += GS_TILE_THREADS) {
    const long long begin = indptr[row] - tile.first_entry;
    if (begin < tile.num_entries) atomicMax(rows + begin, int(row - tile.first_row));
  }
  __syncthreads();
  int *const mine = rows + threadIdx.x * GS_TILE_ITEMS;
  int highest = 0, all;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) highest = highest < mine[i] ? mine[i] : highest;
  highest = gs_scan<Maximum>(highest, shared, &all);
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    highest = highest < mine[i] ? mine[i] : highest;
    mine[i] = highest;
  }
  __syncthreads();
}

// Calls visit(k) for each position k of this block's tile of a list of `size` elements: neighbouring threads have
// neighbouring positions.
template <class Visit> __device__ __forceinline__ void gs_visit_tile(long long size, Visit visit) {
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long k = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    if (k < size) visit(k);
  }
}

// Calls visit(e) for each entry e of the tile: neighbouring threads have neighbouring entries.
template <class Visit> __device__ __forceinline__ void gs_visit_entries(Tile tile, Visit visit) {
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const int e = i * GS_TILE_THREADS + threadIdx.x;
    if (e < tile.num_entries) visit(e);
  }
}
