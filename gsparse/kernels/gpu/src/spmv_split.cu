// spmv_split.cu - csr_split: y = alpha*A*x + beta*y for A in CSR, in tiles of equal work whatever the rows look like
// (gsparse.formats.Tiles).
//
// The work is one list in which the entries and the row ends of A are merged: all entries of row 0, the end of row 0,
// the entries of row 1, and so on. In the plane of entries (right) and row ends (down) the list is a path:
//
//                    entries   0   1   2   3   4   5
//                            +---+---+---+
//     end of row 0 (3)                   |               A step to the right is an entry, a step down is a row end.
//                                        +               Every point of one diagonal (entries + row ends = constant)
//     end of row 1 (3)                   |               is equally far from the start, so that cutting the path at
//                                        +---+---+       every TILE-th diagonal gives equal work, and so does cutting
//     end of row 2 (5)                           |       a tile at every ITEMS-th diagonal.
//                                                +---+
//
//     tile      a block of THREADS threads owns THREADS * ITEMS steps (TILE)
//     share     a thread owns ITEMS consecutive steps of the tile
//
// A block works in five phases:
//
//   1. The threads multiply the tile's entries by x and write the products to shared memory (`work`). Neighbouring
//      threads take neighbouring entries, so that reads are coalesced. The row ends go to shared memory too (`ends`).
//   2. Each thread finds where its diagonal crosses the path, by binary search in `ends`.
//   3. It walks its share: it adds products, and at a row end it keeps the sum and starts a new one.
//   4. A row may begin in one thread and end in another. What a thread leaves unfinished is carried to the following
//      threads by a segmented scan over the block (gs_carried).
//   5. The sums of the rows that end in the tile are stored, by neighbouring threads (coalesced).
//
// What the tile itself leaves unfinished goes to `carries`. A second launch, csr_split_carry, adds the carries of a row in
// a fixed order, so that the result is always the same.
// Source: D. Merrill and M. Garland, "Merge-based parallel sparse matrix-vector multiplication", SC 2016.
#include "entries.cuh"

// The sum that a thread has not finished, and whether a row ended in its share. The scan combines two neighbours a, b:
// a row end in b cuts off what a leaves; otherwise the sums are added.
template <class T> struct Segment { T sum; int ended; };
template <class T> __device__ __forceinline__ Segment<T> gs_then(Segment<T> a, Segment<T> b) {
  return {b.ended ? b.sum : gs_add(a.sum, b.sum), a.ended | b.ended};
}
template <class T> __device__ __forceinline__ Segment<T> gs_segment_up(Segment<T> s, int d) {
  return {gs_lane_before(s.sum, d), gs_lane_before(s.ended, d)};
}

// Return what the threads before this one leave unfinished: an exclusive segmented scan over the block. `warp_sums` and
// `warp_ended`, in shared memory, have an element for each warp.
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

// Return the number of row ends before the diagonal: the number of r with ends[r] + r < diagonal. The path crosses the
// diagonal after that many row ends and `diagonal - result` entries.
__device__ __forceinline__ int gs_row_ends_before(int diagonal, const unsigned short *ends, int num_entries,
                                                  int num_ends) {
  int low = diagonal > num_entries ? diagonal - num_entries : 0, high = diagonal < num_ends ? diagonal : num_ends;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] + middle < diagonal) low = middle + 1;
    else high = middle;
  }
  return low;
}

template <class Value, class Column, class T, class Index, int THREADS, int ITEMS>
GS_KERNEL_OF(THREADS)
csr_split(Index nnz, const int *__restrict__ first_rows, const Index *__restrict__ indptr, T *__restrict__ carries,
          const Column *__restrict__ columns, const int *__restrict__ bases, const Value *__restrict__ values,
          const T *__restrict__ table, const T *__restrict__ x, T *__restrict__ y, T alpha, T beta, int read_y,
          int conjugate) {
  enum { TILE = THREADS * ITEMS };
  // The products of the tile's entries and, after these, the sums of the rows that end in the tile.
  GS_SHARED(T, work, TILE);
  // Row ends, counted from the tile's first entry. They are stored in 16 bits to save shared memory: what it does not
  // take is left to the L1 cache, which holds x.
  GS_SHARED(unsigned short, ends, TILE);
  GS_SHARED(T, warp_sums, THREADS / GS_WARP);
  GS_SHARED(int, warp_ended, THREADS / GS_WARP);
  const Entries<Value, Column, T> entries = {columns, bases, values, table, x, conjugate};
  const long long tile = blockIdx.x;
  const int first = first_rows[tile], num_ends = first_rows[tile + 1] - first;
  const long long begin = tile * TILE - first, left = nnz - begin;
  const int num_entries = left < TILE - num_ends ? int(left) : TILE - num_ends;

  // Phase 1: products and row ends to shared memory.
  entries.template multiply<(sizeof(T) > 8 ? ITEMS / 2 : ITEMS)>(Index(begin), num_entries, work);
  for (int r = threadIdx.x; r < num_ends; r += THREADS)
    ends[r] = static_cast<unsigned short>(indptr[first + r + 1] - begin);
  __syncthreads();

  // Phase 2: where this thread's share begins.
  const int total = num_entries + num_ends, share = threadIdx.x * ITEMS, diagonal = share < total ? share : total;
  int row = gs_row_ends_before(diagonal, ends, num_entries, num_ends);
  int k = diagonal - row;

  // Phase 3: walk the share. The first row that ends in it may have begun in an earlier thread: its sum (`head`) waits
  // for what is carried.
  const int head_row = row;
  T head = Scalar<T>::zero();
  Segment<T> own = {Scalar<T>::zero(), 0};
  int end = row < num_ends ? ends[row] : num_entries;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (diagonal + i >= total) break;
    if (row < num_ends && end <= k) {
      if (own.ended) work[num_entries + row] = own.sum;
      else head = own.sum;
      own = {Scalar<T>::zero(), 1};
      if (++row < num_ends) end = ends[row];
    } else {
      own.sum = gs_add(own.sum, work[k++]);
    }
  }

  // Phase 4: carry over thread boundaries, and out of the tile.
  const T carried = gs_carried(own, warp_sums, warp_ended);
  if (own.ended) work[num_entries + head_row] = gs_add(carried, head);
  if (threadIdx.x == THREADS - 1) carries[tile] = own.ended ? own.sum : gs_add(carried, own.sum);
  __syncthreads();

  // Phase 5: store the rows that end in the tile.
  for (int r = threadIdx.x; r < num_ends; r += THREADS)
    gs_store(y + first + r, work[num_entries + r], alpha, beta, read_y);
}

// For each row that lies in several tiles, y[row] += alpha * (the sum of the carries that the row has left in all of
// its tiles but the last). A group of LANES lanes owns a row.
template <class T, int LANES>
GS_KERNEL csr_split_carry(int num_split, const int *__restrict__ split_rows, const int *__restrict__ first_carry,
                          const int *__restrict__ carry_tiles, const T *__restrict__ carries, T *__restrict__ y,
                          T alpha) {
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
