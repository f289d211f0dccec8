// sort.cu - the order of integer keys: a stable radix sort by digits of up to eight bits, from the lowest digit on
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
#include "search.cuh"
#include "tiles.cuh"

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

// If `places` is not null, the last block to arrive also adds the counts up: a thread has a digit.
template <class Key>
GS_KERNEL_OF(GS_TILE_THREADS) count_digits(int shift, int mask, long long size, const Key *__restrict__ keys,
                                           int *__restrict__ counts, unsigned *__restrict__ arrivals,
                                           long long *__restrict__ places) {
  GS_SHARED(int, digits, GS_DIGITS);
  GS_SHARED(int, is_last, 1);
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
  if (threadIdx.x == 0) is_last[0] = gs_arrive(arrivals) == gridDim.x - 1;
  __syncthreads();
  if (!is_last[0]) return;
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
