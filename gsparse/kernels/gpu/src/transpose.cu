// transpose.cu - the order of integer keys, and the transpose of a sparse matrix, in which entries of one column keep the order of their rows. There
// are three ways:
//
//   one block     The entries of a small matrix are sorted in shared memory, and one launch does everything.
//   counted       Entries find their places by counting the entries of each column, if most columns are short.
//   sorted        Otherwise the entries are sorted by their columns (place_digits), and then copied in that order.
//
// The counted way takes these steps. Only the ranks depend on which thread comes first, and the last step puts that
// right, so the result is always the same:
//
//     entries of a column   12 40 77     numbers of the entries, or of their rows, which rise in the same order
//     ranks                  2  0  1     in the order in which threads counted them
//     placed                40 77 12     by rank, behind the entries of the columns before
//     in order              12 40 77     by how many numbers of the column are smaller
//
// Each thread of the last step reads all numbers of its column, so columns must be short. Values are placed together
// with the numbers, so that the last step reads and writes neighbouring elements.
#include "tiles.cuh"

// ---------------------------------------------------------------------------- in one block

// The largest numbers of entries and columns of a small matrix; threads of the block that sorts it; bits of a digit.
enum { GS_SMALL = 8192, GS_NUMBER_BITS = 13, GS_SMALL_THREADS = 512, GS_SMALL_BITS = 6 };
enum { GS_SMALL_WARPS = GS_SMALL_THREADS / GS_WARP, GS_SMALL_ROUNDS = GS_SMALL / GS_SMALL_THREADS };
enum { GS_SMALL_COUNTS = GS_SMALL_WARPS << GS_SMALL_BITS, GS_THREAD_COUNTS = GS_SMALL_COUNTS / GS_SMALL_THREADS };

// Replaces the counts of the digits in each warp by the number of keys that come before: those with smaller digits, and
// those with the same digit in the warps before. A thread has GS_THREAD_COUNTS consecutive counts in this order.
__device__ __forceinline__ void gs_sum_digits(int *counts) {
  GS_SHARED(int, sums, GS_SMALL_WARPS);
  const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
  const auto place = [&](int i) {
    const int number = threadIdx.x * GS_THREAD_COUNTS + i;
    return (number % GS_SMALL_WARPS << GS_SMALL_BITS) + number / GS_SMALL_WARPS;
  };
  int of_thread = 0;
  for (int i = 0; i < GS_THREAD_COUNTS; ++i) of_thread += counts[place(i)];
  int before = gs_running<Sum, GS_WARP>(of_thread);
  if (lane == GS_WARP - 1) sums[warp] = before;
  before -= of_thread;
  __syncthreads();
  for (int w = 0; w < warp; ++w) before += sums[w];
  for (int i = 0; i < GS_THREAD_COUNTS; ++i) {
    const int count = counts[place(i)];
    counts[place(i)] = before;
    before += count;
  }
  __syncthreads();
}

// A key is the column of an entry, then its number in GS_NUMBER_BITS bits. The keys are sorted by `steps` digits of
// `width` bits of their columns, from the lowest digit on, as below: a warp has consecutive keys, in rounds of
// GS_WARP.
template <class Item, class Index>
GS_KERNEL_OF(GS_SMALL_THREADS) transpose_small(int nnz, long long num_rows, int num_cols, int steps, int width,
                                               const Index *__restrict__ indptr, const Index *__restrict__ indices,
                                               const Item *__restrict__ data, Index *__restrict__ new_indptr,
                                               Index *__restrict__ new_indices, Item *__restrict__ new_data) {
  GS_SHARED(unsigned, keys, GS_SMALL);
  GS_SHARED(int, counts, GS_SMALL_COUNTS);
  const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP, mask = (1 << width) - 1;
  const int rounds = (nnz + GS_SMALL_THREADS - 1) / GS_SMALL_THREADS, first = warp * rounds * GS_WARP + lane;
  int *const of_warp = counts + (warp << GS_SMALL_BITS);
  for (int k = threadIdx.x; k < nnz; k += GS_SMALL_THREADS)
    keys[k] = static_cast<unsigned>(indices[k]) << GS_NUMBER_BITS | static_cast<unsigned>(k);
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const int shift = GS_NUMBER_BITS + step * width;
    unsigned key[GS_SMALL_ROUNDS];
    int rank[GS_SMALL_ROUNDS];
    for (int d = lane; d < 1 << GS_SMALL_BITS; d += GS_WARP) of_warp[d] = 0;
    gs_syncwarp();
#pragma unroll
    for (int i = 0; i < GS_SMALL_ROUNDS; ++i) {
      const int k = first + i * GS_WARP;
      const bool is_key = i < rounds && k < nnz;
      key[i] = is_key ? keys[k] : 0u;
      rank[i] = 0;
      if (i >= rounds) continue;
      const int digit = int(key[i] >> shift) & mask;
      unsigned long long peers = gs_ballot(is_key);
      for (int bit = 0; bit < width; ++bit) {
        const unsigned long long with_bit = gs_ballot(digit >> bit & 1);
        peers &= digit >> bit & 1 ? with_bit : ~with_bit;
      }
      const unsigned long long before = peers & ((1ull << lane) - 1);
      if (is_key) rank[i] = of_warp[digit] + gs_num_bits(before);
      gs_syncwarp();
      if (is_key && before == 0) of_warp[digit] += gs_num_bits(peers);
      gs_syncwarp();
    }
    __syncthreads();
    gs_sum_digits(counts);
#pragma unroll
    for (int i = 0; i < GS_SMALL_ROUNDS; ++i)
      if (i < rounds && first + i * GS_WARP < nnz) keys[of_warp[int(key[i] >> shift) & mask] + rank[i]] = key[i];
    __syncthreads();
  }
  for (int p = threadIdx.x; p < nnz; p += GS_SMALL_THREADS) {
    const int k = int(keys[p] & ((1u << GS_NUMBER_BITS) - 1));
    new_indices[p] = Index(gs_lower_bound(indptr, 1ll, num_rows, k + 1) - 1);  // the last row that begins by k
    new_data[p] = data[k];
  }
  for (int v = threadIdx.x; v <= num_cols; v += GS_SMALL_THREADS)
    new_indptr[v] = Index(gs_lower_bound(keys, 0, nnz, static_cast<unsigned>(v) << GS_NUMBER_BITS));
}

// ---------------------------------------------------------------------------- by counting

// Set ranks[k] to the number of entries of the same column that were counted before entry k. `counts` must be 0 before.
template <class Index>
GS_KERNEL count_columns(long long nnz, const Index *__restrict__ indices, int *__restrict__ counts,
                        int *__restrict__ ranks) {
  const long long k = gs_thread();
  if (k < nnz) ranks[k] = atomicAdd(counts + indices[k], 1);
}

// The sum of the squares of the counts: the number of reads in the last step.
template <class Count>
GS_KERNEL_OF(GS_TILE_THREADS) sum_squares(long long size, const Count *__restrict__ counts,
                                          long long *__restrict__ of_blocks, unsigned *__restrict__ arrivals,
                                          long long *__restrict__ total) {
  long long sum = 0;
  gs_visit_tile(size, [&](long long column) { sum += static_cast<long long>(counts[column]) * counts[column]; });
  gs_leave_counts(sum, Tally{of_blocks, arrivals, total});
}

// Copies the row and the value of each entry to its place by rank, and its number unless `numbers` is null. `starts`
// are the row pointers of the transpose.
template <class Item, class Index>
GS_KERNEL_OF(GS_TILE_THREADS) place_by_rank(long long nnz, long long num_rows, const Index *__restrict__ indptr,
                                            const Index *__restrict__ indices, const Item *__restrict__ data,
                                            const int *__restrict__ ranks, const Index *__restrict__ starts,
                                            Index *__restrict__ placed_rows, int *__restrict__ numbers,
                                            Item *__restrict__ placed_data) {
  GS_SHARED(int, rows, GS_TILE);
  const Tile tile = gs_find_tile(indptr, num_rows, nnz);
  gs_find_rows(indptr, tile, rows);
  gs_visit_entries(tile, [&](int e) {
    const long long k = tile.first_entry + e, place = starts[indices[k]] + ranks[k];
    placed_rows[place] = Index(tile.first_row + rows[e]);
    placed_data[place] = data[k];
    if (numbers) numbers[place] = int(k);
  });
}

// The number of elements less than `bound` in [begin, end).
template <class Number, class Index>
__device__ __forceinline__ Index gs_num_less(const Number *__restrict__ numbers, Index begin, Index end, Number bound) {
  Index count = 0;
#pragma unroll 4
  for (Index q = begin; q < end; ++q) count += numbers[q] < bound;
  return count;
}

// The columns and values of the transpose: an entry comes behind those of its column with smaller numbers, or with
// smaller rows if `numbers` is null because no column has two entries of one row.
template <class Item, class Index>
GS_KERNEL_OF(GS_TILE_THREADS) order_entries(long long nnz, long long num_cols, const Index *__restrict__ starts,
                                            const Index *__restrict__ placed_rows, const int *__restrict__ numbers,
                                            const Item *__restrict__ placed_data, Index *__restrict__ new_indices,
                                            Item *__restrict__ new_data) {
  GS_SHARED(int, columns, GS_TILE);
  const Tile tile = gs_find_tile(starts, num_cols, nnz);
  gs_find_rows(starts, tile, columns);
  gs_visit_entries(tile, [&](int e) {
    const long long p = tile.first_entry + e, column = tile.first_row + columns[e];
    const Index begin = starts[column], end = starts[column + 1], row = placed_rows[p];
    const Index before = numbers ? gs_num_less(numbers, begin, end, numbers[p])
                                 : gs_num_less(placed_rows, begin, end, row);
    new_indices[begin + before] = row;
    new_data[begin + before] = placed_data[p];
  });
}

// ---------------------------------------------------------------------------- in sorted order

// The columns and values of the transpose: those of entry order[p] of the matrix, whose row is rows[order[p]].
template <class Item, class Index, class Number>
GS_KERNEL place_entries(long long nnz, const Number *__restrict__ order, const Index *__restrict__ rows,
                        const Item *__restrict__ data, Index *__restrict__ new_indices, Item *__restrict__ new_data) {
  const long long p = gs_thread();
  if (p >= nnz) return;
  const Number k = order[p];
  new_indices[p] = rows[k];
  new_data[p] = data[k];
}

// ---------------------------------------------------------------------------- the order of keys
//
// A stable radix sort by digits of up to eight bits, from the lowest digit on
// (Merrill and Grimshaw 2011). Each digit takes two launches over the same tiles of keys:
//
//   count_digits   counts[d * tiles + t] = the number of keys of tile t with digit d. The sums of the counts before each
//                  count (sparse_rows.cu) are then the places at which the keys of tile t with digit d begin.
//   place_digits   brings each key, and its number, to its place.
//
// Within a tile, a warp has consecutive keys, and takes them in rounds of GS_WARP. Lanes with the same digit find each
// other by comparing the bits of the digit, one vote for each. A key comes after those of its digit in the warps
// before, in the rounds before, and in the lanes before, so equal keys keep their order:
//
//     keys      3 1 3 | 1 3 3       two warps
//     rank      0 0 1 | 1 2 3       among the keys of the same digit in the tile
//
// Reads and writes: a key and a number for each digit.

enum { GS_DIGITS = 256, GS_DIGIT_BITS = 8, GS_WARP_KEYS = GS_TILE / GS_TILE_WARPS };

template <class Key> __device__ __forceinline__ int gs_digit(Key key, int shift, int mask) {
  return int(key >> shift) & mask;
}

// Calls visit(round, position) for each key of this warp, round by round. All lanes take part in each round.
template <class Visit> __device__ __forceinline__ void gs_visit_rounds(Visit visit) {
  const long long first = static_cast<long long>(blockIdx.x) * GS_TILE + threadIdx.x / GS_WARP * GS_WARP_KEYS;
#pragma unroll
  for (int i = 0; i < GS_WARP_KEYS / GS_WARP; ++i) visit(i, first + i * GS_WARP + threadIdx.x % GS_WARP);
}

// If `places` is not null, the last block to arrive also adds up the counts: a thread owns a digit.
template <class Key>
GS_KERNEL_OF(GS_TILE_THREADS) count_digits(int shift, int mask, long long size, const Key *__restrict__ keys,
                                           int *__restrict__ counts, unsigned *__restrict__ arrivals,
                                           long long *__restrict__ places) {
  GS_SHARED(int, digits, GS_DIGITS);
  GS_SHARED(long long, sums, GS_TILE_WARPS);
  digits[threadIdx.x] = 0;
  __syncthreads();
  gs_visit_rounds([&](int, long long k) {
    if (k < size) atomicAdd(digits + gs_digit(keys[k], shift, mask), 1);
  });
  __syncthreads();
  const long long tiles = gridDim.x, first = threadIdx.x * tiles;
  counts[first + blockIdx.x] = digits[threadIdx.x];
  if (!places) return;
  __syncthreads();
  if (!gs_is_last_block(arrivals)) return;
  long long sum = 0, all;
  for (long long t = 0; t < tiles; ++t) sum += gs_fresh(counts + first + t);
  long long before = gs_scan<Sum>(sum, sums, &all);
  for (long long t = 0; t < tiles; ++t) {
    places[first + t] = before;
    before += gs_fresh(counts + first + t);
  }
  if (threadIdx.x == 0) *arrivals = 0;
}

// `numbers` are the numbers of the keys, or null for 0, 1, 2, ... `new_keys` may be null.
template <class Key, class Number>
GS_KERNEL_FOR(GS_TILE_THREADS, 2) place_digits(int shift, int mask, long long size, const Key *__restrict__ keys,
                                           const Number *__restrict__ numbers, const long long *__restrict__ places,
                                           Key *__restrict__ new_keys, Number *__restrict__ new_numbers) {
  GS_SHARED(int, warp_counts, GS_TILE_WARPS *GS_DIGITS);  // of each warp, then of the warps before
  GS_SHARED(long long, starts, GS_DIGITS);
  const int ROUNDS = GS_WARP_KEYS / GS_WARP, warp = threadIdx.x / GS_WARP, lane = threadIdx.x % GS_WARP;
  int *const counts = warp_counts + warp * GS_DIGITS;
  for (int d = lane; d < GS_DIGITS; d += GS_WARP) counts[d] = 0;
  starts[threadIdx.x] = places[threadIdx.x * static_cast<long long>(gridDim.x) + blockIdx.x];
  gs_syncwarp();
  Key key[ROUNDS];
  int rank[ROUNDS];
  gs_visit_rounds([&](int i, long long k) { key[i] = k < size ? keys[k] : Key(0); });
  gs_visit_rounds([&](int i, long long k) {
    const int digit = gs_digit(key[i], shift, mask);
    unsigned long long peers = gs_ballot(k < size);
#pragma unroll
    for (int bit = 0; bit < GS_DIGIT_BITS; ++bit) {
      const unsigned long long with_bit = gs_ballot(digit >> bit & 1);
      peers &= digit >> bit & 1 ? with_bit : ~with_bit;
    }
    const unsigned long long before = peers & ((1ull << lane) - 1);
    rank[i] = k < size ? counts[digit] + gs_num_bits(before) : 0;
    gs_syncwarp();
    if (k < size && before == 0) counts[digit] += gs_num_bits(peers);
    gs_syncwarp();
  });
  __syncthreads();
  int of_warps = 0;  // thread d adds up the keys with digit d
  for (int w = 0; w < GS_TILE_WARPS; ++w) {
    const int of_warp = warp_counts[w * GS_DIGITS + threadIdx.x];
    warp_counts[w * GS_DIGITS + threadIdx.x] = of_warps;
    of_warps += of_warp;
  }
  __syncthreads();
  gs_visit_rounds([&](int i, long long k) {
    if (k >= size) return;
    const int digit = gs_digit(key[i], shift, mask);
    const long long place = starts[digit] + counts[digit] + rank[i];
    if (new_keys) new_keys[place] = key[i];
    new_numbers[place] = numbers ? numbers[k] : Number(k);
  });
}

// bounds[v] = the number of keys less than v, for v = 0 to `bound`; the keys are sorted.
template <class Key>
GS_KERNEL find_bounds(long long size, long long bound, const Key *__restrict__ keys, Key *__restrict__ bounds) {
  const long long v = gs_thread();
  if (v <= bound) bounds[v] = Key(gs_lower_bound(keys, 0ll, size, v));
}
