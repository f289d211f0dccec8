// spmv_split.cu - csr_split: y = alpha*A*x + beta*y for A in CSR, shared out in tiles of equally many entries and row
// ends (gsparse.formats.Tiles), whatever the rows look like.
// A block owns a tile. Its threads multiply the tile's entries, coalesced, into shared memory. Then each thread walks an
// equal share of the merged list of entries and row ends, found by binary search; what a thread leaves unfinished is
// carried to the next by a segmented scan. What a tile leaves unfinished goes to `carries`, and csr_split_carry adds it
// to the row, in the order of the tiles, in a second launch.
// Source: D. Merrill and M. Garland, "Merge-based parallel sparse matrix-vector multiplication", SC 2016.
#include "entries.cuh"

// The sum that a thread leaves, and whether a row ended in it: (a, b) -> b after a row end in b, else a + b.
template <class T> struct Segment { T sum; int ended; };
template <class T> __device__ __forceinline__ Segment<T> gs_then(Segment<T> a, Segment<T> b) {
  return {b.ended ? b.sum : gs_add(a.sum, b.sum), a.ended | b.ended};
}
template <class T> __device__ __forceinline__ Segment<T> gs_segment_up(Segment<T> s, int d) {
  return {gs_lane_before(s.sum, d), gs_lane_before(s.ended, d)};
}

// What the threads before this one leave (a segmented scan over the block; `warps` holds a segment a warp).
template <class T> __device__ __forceinline__ T gs_carried(Segment<T> own, T *warp_sums, int *warp_ended) {
  const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
  Segment<T> scan = own;
#pragma unroll
  for (int d = 1; d < GS_WARP; d *= 2) {
    const Segment<T> before = gs_segment_up(scan, d);
    if (lane >= d) scan = gs_then(before, scan);
  }
  if (lane == GS_WARP - 1) { warp_sums[warp] = scan.sum; warp_ended[warp] = scan.ended; }
  Segment<T> carried = gs_segment_up(scan, 1);
  if (lane == 0) carried = {Scalar<T>::zero(), 0};
  __syncthreads();
  Segment<T> before = {Scalar<T>::zero(), 0};
  for (int w = 0; w < warp; ++w) before = gs_then(before, Segment<T>{warp_sums[w], warp_ended[w]});
  return gs_then(before, carried).sum;
}

// THREADS threads a block, ITEMS entries and row ends a thread.
template <class Value, class Column, class T, class Index, int THREADS, int ITEMS>
GS_KERNEL_OF(THREADS) csr_split(Index nnz, const int *__restrict__ first_rows, const Index *__restrict__ indptr,
                                T *__restrict__ carries, GS_ENTRIES, GS_VECTORS) {
  enum { TILE = THREADS * ITEMS };
  GS_SHARED(T, work, TILE);  // the products of the tile's entries and, after these, the sums of the rows that end in it
  GS_SHARED(unsigned short, ends, TILE);  // short: what shared memory takes, the first cache lacks for x
  GS_SHARED(T, warp_sums, THREADS / GS_WARP);
  GS_SHARED(int, warp_ended, THREADS / GS_WARP);
  GS_READER;
  const long long tile = blockIdx.x;
  const int first = first_rows[tile], num_ends = first_rows[tile + 1] - first;
  const long long begin = tile * TILE - first, left = nnz - begin;
  const int size = left < TILE - num_ends ? int(left) : TILE - num_ends;
  entries.template multiply<(sizeof(T) > 8 ? ITEMS / 2 : ITEMS)>(Index(begin), size, work);
  for (int r = threadIdx.x; r < num_ends; r += THREADS)
    ends[r] = static_cast<unsigned short>(indptr[first + r + 1] - begin);
  __syncthreads();

  // Row ends before this thread's share: as many r as have ends[r] + r < diagonal.
  const int total = size + num_ends, wanted = threadIdx.x * ITEMS, diagonal = wanted < total ? wanted : total;
  int row = diagonal > size ? diagonal - size : 0, high = diagonal < num_ends ? diagonal : num_ends;
  while (row < high) {
    const int middle = (row + high) / 2;
    if (ends[middle] + middle < diagonal) row = middle + 1;
    else high = middle;
  }
  // Walk the share. The first row to end in it may have begun in an earlier thread, and waits for what is carried.
  int k = diagonal - row;
  const int head_row = row;
  T head = Scalar<T>::zero();
  Segment<T> own = {Scalar<T>::zero(), 0};
  int end = row < num_ends ? ends[row] : size;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (diagonal + i >= total) break;
    if (row < num_ends && end <= k) {
      if (own.ended) work[size + row] = own.sum;
      else head = own.sum;
      own = {Scalar<T>::zero(), 1};
      if (++row < num_ends) end = ends[row];
    } else {
      own.sum = gs_add(own.sum, work[k++]);
    }
  }
  const T carried = gs_carried(own, warp_sums, warp_ended);
  if (own.ended) work[size + head_row] = gs_add(carried, head);
  if (threadIdx.x == THREADS - 1) carries[tile] = own.ended ? own.sum : gs_add(carried, own.sum);
  __syncthreads();
  for (int r = threadIdx.x; r < num_ends; r += THREADS) gs_store(y + first + r, work[size + r], alpha, beta, read_y);
}

// y += alpha * (what the tiles before the row's last one left of it), a row a group of LANES lanes.
template <class T, int LANES>
GS_KERNEL csr_split_carry(int num_split, const int *__restrict__ split_rows, const int *__restrict__ first_carry,
                          const int *__restrict__ carry_tiles, const T *__restrict__ carries, T *__restrict__ y, T alpha) {
  const int split = int(gs_thread() / LANES), lane = threadIdx.x % LANES;
  const bool owned = split < num_split;
  const int end = owned ? first_carry[split + 1] : 0;
  T sum = Scalar<T>::zero();
  for (int c = owned ? first_carry[split] + lane : 0; c < end; c += LANES) sum = gs_add(sum, carries[carry_tiles[c]]);
  sum = gs_group_sum<LANES>(sum);
  if (owned && lane == 0) {
    T *target = y + split_rows[split];
    *target = Scalar<T>::is_one(alpha) ? gs_add(*target, sum) : gs_fma(alpha, sum, *target);
  }
}
