// transpose.cu - the transpose of a sparse matrix, in which entries of one column keep the order of their rows. There
// are three ways:
//
//   one block     The entries of a small matrix are sorted in shared memory, and one launch does everything.
//   counted       Entries find their places by counting the entries of each column, if most columns are short.
//   sorted        Otherwise the entries are sorted by their columns (sort.cu), and then copied in that order.
//
// The counted way takes these steps. Only the ranks depend on which thread comes first, and the last step puts that
// right, so the result is always the same:
//
//     entries of a column   12 40 77     numbers of the entries, or of their rows, which rise in the same order
//     ranks                  2  0  1     in the order in which threads counted them
//     placed                40 77 12     by rank, behind the entries of the columns before
//     in order              12 40 77     by how many numbers of the column are smaller
//
// Each thread of the last step reads all numbers of its column, so columns have to be short. Placing the values
// together with the numbers makes the last step read and write neighbouring elements.
#include "search.cuh"
#include "tiles.cuh"

// ---------------------------------------------------------------------------- in one block

// The most entries, and the most columns, of a small matrix; threads of the block that sorts it; bits of a digit.
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
  int before = of_thread;
#pragma unroll
  for (int d = 1; d < GS_WARP; d *= 2) {
    const int other = gs_shfl_up(before, d, GS_WARP);
    if (lane >= d) before += other;
  }
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
// `width` bits of their columns, from the lowest digit on, as in sort.cu: a warp has consecutive keys, in rounds of
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

// ranks[k] = how many entries of the same column were counted before entry k. `counts` is 0 before.
template <class Index>
GS_KERNEL count_columns(long long nnz, const Index *__restrict__ indices, int *__restrict__ counts,
                        int *__restrict__ ranks) {
  const long long k = gs_thread();
  if (k < nnz) ranks[k] = atomicAdd(counts + indices[k], 1);
}

// The sum of the squares of the counts: how many numbers the last step reads.
template <class Count>
GS_KERNEL_OF(GS_TILE_THREADS) sum_squares(long long size, const Count *__restrict__ counts,
                                          long long *__restrict__ of_blocks, unsigned *__restrict__ arrivals,
                                          long long *__restrict__ total) {
  GS_SHARED(long long, sums, GS_TILE_WARPS);
  long long sum = 0, all;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long column = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    const long long count = column < size ? counts[column] : 0;
    sum += count * count;
  }
  gs_scan<Sum>(sum, sums, &all);
  gs_leave_count(all, Tally{of_blocks, arrivals, total});
}

// Brings the row and the value of each entry to its place by rank, and its number unless `numbers` is null. `starts`
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
