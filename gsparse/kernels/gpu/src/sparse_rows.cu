// sparse_rows.cu - entries and rows of one sparse matrix: counted, copied, scaled and added up; and lists of
// their numbers. The work is shared out in tiles of entries and row ends (tiles.cuh).
//
// A selection takes two launches with the same tiles. The first launch counts the selected entries of each tile, and
// its last block turns the counts into the place of each tile's first entry (gs_leave_count). The host reads the total,
// and allocates the result. The second launch selects again, and copies.
#include "tiles.cuh"

template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS) row_numbers(long long nnz, long long num_rows, const Index *__restrict__ indptr,
                                          Index *__restrict__ numbers) {
  GS_SHARED(int, rows, GS_TILE);
  const Tile tile = gs_find_tile(indptr, num_rows, nnz);
  gs_find_rows(indptr, tile, rows);
  gs_visit_entries(tile, [&](int e) { numbers[tile.first_entry + e] = Index(tile.first_row + rows[e]); });
}

// ---------------------------------------------------------------------------- entries that a rule selects

// Rules, by number (gsparse.kernels.gpu.sparse_rows).
enum {
  GS_MARKED,    // entries with a mark
  GS_PLACED,    // entries whose column has a place, which becomes their column
  GS_NONZERO,   // entries whose value is not 0
  GS_TRIANGLE   // entries with column - row >= offset, or those with column - row <= offset
};

// What the rules look at. A value of up to 8 bytes is not 0 if it has any of the bits of `mask`, which lacks those of
// signs.
template <class Item, class Index> struct Selection {
  const Index *__restrict__ indices;
  const Item *__restrict__ data;
  const unsigned char *__restrict__ marks;
  const Index *__restrict__ places;
  long long mask, offset;
  int is_upper;
};

template <class Item> __device__ __forceinline__ bool gs_is_nonzero(Item value, long long mask) {
  return (static_cast<long long>(value) & mask) != 0;
}
__device__ __forceinline__ bool gs_is_nonzero(Complex<double> value, long long) { return value.re != 0 || value.im != 0; }

template <int RULE, class Item, class Index>
__device__ __forceinline__ bool gs_selects(const Selection<Item, Index> &s, long long k, long long row) {
  switch (RULE) {
    case GS_MARKED: return s.marks[k] != 0;
    case GS_PLACED: return s.places[s.indices[k]] >= 0;
    case GS_NONZERO: return gs_is_nonzero(s.data[k], s.mask);
    default: {
      const long long distance = s.indices[k] - row - s.offset;
      return s.is_upper ? distance >= 0 : distance <= 0;
    }
  }
}

template <class Item, class Index, int RULE>
GS_KERNEL_OF(GS_TILE_THREADS) count_selected(long long nnz, long long num_rows, const Index *__restrict__ indptr,
                                             const Index *__restrict__ indices, const Item *__restrict__ data,
                                             const unsigned char *__restrict__ marks,
                                             const Index *__restrict__ places, long long mask, long long offset,
                                             int is_upper, long long *__restrict__ offsets,
                                             unsigned *__restrict__ arrivals, long long *__restrict__ total) {
  GS_SHARED(int, rows, RULE == GS_TRIANGLE ? GS_TILE : 1);
  const Selection<Item, Index> selection = {indices, data, marks, places, mask, offset, is_upper};
  const Tile tile = gs_find_tile(indptr, num_rows, nnz);
  if (RULE == GS_TRIANGLE) gs_find_rows(indptr, tile, rows);
  int count = 0;
  gs_visit_entries(tile, [&](int e) {
    const long long row = RULE == GS_TRIANGLE ? tile.first_row + rows[e] : 0;
    count += gs_selects<RULE>(selection, tile.first_entry + e, row);
  });
  gs_leave_counts(count, Tally{offsets, arrivals, total});
}

// The selected entries, and the row pointers of the result. A bit tells whether an entry is selected, so that the
// number of selected ones before an entry is a sum over words, which is kept, and over the bits of one word:
//
//     words     1101 | 0100 | 1111        before the entry marked x are 3 + 1 selected ones
//     before    0    | 3    | 4                     ..x
template <class Item, class Index, int RULE>
GS_KERNEL_OF(GS_TILE_THREADS) copy_selected(long long nnz, long long num_rows, const Index *__restrict__ indptr,
                                            const Index *__restrict__ indices, const Item *__restrict__ data,
                                            const unsigned char *__restrict__ marks,
                                            const Index *__restrict__ places, long long mask, long long offset,
                                            int is_upper, const long long *__restrict__ offsets,
                                            Index *__restrict__ new_indptr, Index *__restrict__ new_indices,
                                            Item *__restrict__ new_data) {
  typedef unsigned long long Word;
  const int WORDS = GS_TILE / GS_WARP;
  GS_SHARED(int, rows, RULE == GS_TRIANGLE ? GS_TILE : 1);
  GS_SHARED(Word, words, WORDS + 1);
  GS_SHARED(int, before, WORDS + 1);
  GS_SHARED(int, sums, GS_TILE_WARPS);
  const Selection<Item, Index> selection = {indices, data, marks, places, mask, offset, is_upper};
  const Tile tile = gs_find_tile(indptr, num_rows, nnz);
  if (RULE == GS_TRIANGLE) gs_find_rows(indptr, tile, rows);
  const int lane = threadIdx.x % GS_WARP;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const int e = i * GS_TILE_THREADS + threadIdx.x;
    const long long row = RULE == GS_TRIANGLE ? tile.first_row + rows[e] : 0;
    const bool selected = e < tile.num_entries && gs_selects<RULE>(selection, tile.first_entry + e, row);
    const Word word = gs_ballot(selected);
    if (lane == 0) words[e / GS_WARP] = word;
  }
  if (threadIdx.x == 0) words[WORDS] = 0;
  __syncthreads();
  int all;
  const int of_word = threadIdx.x < WORDS ? gs_num_bits(words[threadIdx.x]) : 0;
  const int before_word = gs_scan<Sum>(of_word, sums, &all);
  if (threadIdx.x <= WORDS) before[threadIdx.x] = before_word;
  __syncthreads();
  const long long first = offsets[blockIdx.x];
  const auto rank = [&](int e) {  // the number of selected entries of the tile before entry e
    return before[e / GS_WARP] + gs_num_bits(words[e / GS_WARP] & ((Word(1) << e % GS_WARP) - 1));
  };
  gs_visit_entries(tile, [&](int e) {
    if (!(words[e / GS_WARP] >> lane & 1)) return;
    const long long k = tile.first_entry + e, place = first + rank(e);
    new_indices[place] = RULE == GS_PLACED ? places[indices[k]] : indices[k];
    new_data[place] = data[k];
  });
  if (blockIdx.x == 0 && threadIdx.x == 0) new_indptr[0] = 0;
  for (long long row = tile.first_row + threadIdx.x; row < tile.end_row; row += GS_TILE_THREADS)
    new_indptr[row + 1] = Index(first + rank(int(indptr[row + 1] - tile.first_entry)));
}

// ---------------------------------------------------------------------------- rows

// The size of a row: values[row], or if TAKEN is 1 the length of row taken[row]. `values` are then row pointers.
template <class Index, int TAKEN> struct Sizes {
  const long long *__restrict__ taken;
  const Index *__restrict__ values;

  __device__ __forceinline__ long long of(long long row) const {
    if (!TAKEN) return values[row];
    const long long from = taken[row];
    return static_cast<long long>(values[from + 1]) - static_cast<long long>(values[from]);
  }
};

// The sum of the sizes of the rows of each tile.
template <class Index, int TAKEN>
GS_KERNEL_OF(GS_TILE_THREADS) sum_sizes(long long num_rows, const long long *__restrict__ taken,
                                        const Index *__restrict__ values, long long *__restrict__ offsets,
                                        unsigned *__restrict__ arrivals, long long *__restrict__ total) {
  const Sizes<Index, TAKEN> sizes = {taken, values};
  long long sum = 0;
  gs_visit_tile(num_rows, [&](long long row) { sum += sizes.of(row); });
  gs_leave_counts(sum, Tally{offsets, arrivals, total});
}

// Row pointers: indptr[row + 1] is the sum of the sizes of all rows up to `row`. In each round, the threads have
// consecutive rows.
template <class Index, class Out, int TAKEN>
GS_KERNEL_OF(GS_TILE_THREADS) point_to_rows(long long num_rows, const long long *__restrict__ taken,
                                            const Index *__restrict__ values, const long long *__restrict__ offsets,
                                            Out *__restrict__ indptr) {
  GS_SHARED(long long, sums, GS_TILE_WARPS);
  const Sizes<Index, TAKEN> sizes = {taken, values};
  if (blockIdx.x == 0 && threadIdx.x == 0) indptr[0] = 0;
  long long before = offsets[blockIdx.x], size[GS_TILE_ITEMS];
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long row = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    size[i] = row < num_rows ? sizes.of(row) : 0;
  }
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long row = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    long long all;
    const long long of_round = gs_scan<Sum>(size[i], sums, &all);
    if (row < num_rows) indptr[row + 1] = Out(before + of_round + size[i]);
    before += all;
  }
}

// Row pointers of consecutive rows, the first of which begins at entry indptr[0], and the numbers of their first entry
// and of the one after their last entry, for the host.
template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS) slice_pointers(long long num_rows, const Index *__restrict__ indptr,
                                             Index *__restrict__ new_indptr, long long *__restrict__ bounds) {
  const long long row = gs_thread();
  if (row > num_rows) return;
  new_indptr[row] = indptr[row] - indptr[0];
  if (row == 0) bounds[0] = indptr[0];
  if (row == num_rows) bounds[1] = indptr[num_rows];
}

// Consecutive entries, from entry `first` on.
template <class Item, class Index>
GS_KERNEL_OF(GS_TILE_THREADS) copy_entries(long long nnz, long long first, const Index *__restrict__ indices,
                                           const Item *__restrict__ data, Index *__restrict__ new_indices,
                                           Item *__restrict__ new_data) {
  const long long begin = static_cast<long long>(blockIdx.x) * GS_TILE;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long k = begin + i * GS_TILE_THREADS + threadIdx.x;
    if (k >= nnz) break;
    new_indices[k] = indices[first + k];
    new_data[k] = data[first + k];
  }
}

// Entry k of the result is entry indptr[taken[row]] + (k - new_indptr[row]) of the matrix, where row is that of k.
template <class Item, class Index>
GS_KERNEL_OF(GS_TILE_THREADS) take_rows(long long nnz, long long num_rows, const Index *__restrict__ new_indptr,
                                        const long long *__restrict__ taken, const Index *__restrict__ indptr,
                                        const Index *__restrict__ indices, const Item *__restrict__ data,
                                        Index *__restrict__ new_indices, Item *__restrict__ new_data) {
  GS_SHARED(int, rows, GS_TILE);
  GS_SHARED(Index, shifts, GS_TILE + 1);
  const Tile tile = gs_find_tile(new_indptr, num_rows, nnz);
  for (long long row = tile.first_row + threadIdx.x; row <= tile.end_row && row < num_rows; row += GS_TILE_THREADS)
    shifts[row - tile.first_row] = indptr[taken[row]] - new_indptr[row];
  gs_find_rows(new_indptr, tile, rows);
  gs_visit_entries(tile, [&](int e) {
    const long long k = tile.first_entry + e, from = k + shifts[rows[e]];
    new_indices[k] = indices[from];
    new_data[k] = data[from];
  });
}

// ---------------------------------------------------------------------------- values

// products[k] = data[k] * factors[row], or data[k] * factors[column].
template <class T, class Index>
GS_KERNEL_OF(GS_TILE_THREADS) scale_rows(long long nnz, long long num_rows, const Index *__restrict__ indptr,
                                         const T *__restrict__ data, const T *__restrict__ factors,
                                         T *__restrict__ products) {
  GS_SHARED(int, rows, GS_TILE);
  const Tile tile = gs_find_tile(indptr, num_rows, nnz);
  gs_find_rows(indptr, tile, rows);
  gs_visit_entries(tile, [&](int e) {
    const long long k = tile.first_entry + e;
    products[k] = gs_fma(data[k], factors[tile.first_row + rows[e]], Scalar<T>::zero());
  });
}

template <class T, class Index>
GS_KERNEL_OF(GS_TILE_THREADS) scale_columns(long long nnz, const Index *__restrict__ indices,
                                            const T *__restrict__ data, const T *__restrict__ factors,
                                            T *__restrict__ products) {
  gs_visit_tile(nnz, [&](long long k) { products[k] = gs_fma(data[k], factors[indices[k]], Scalar<T>::zero()); });
}

// The sum of each run of consecutive entries: run r begins at starts[r], and the last one ends at nnz.
template <class T, class Index>
GS_KERNEL sum_runs(long long num_runs, long long nnz, const Index *__restrict__ starts, const T *__restrict__ data,
                   T *__restrict__ sums) {
  const long long run = gs_thread();
  if (run >= num_runs) return;
  const long long end = run + 1 < num_runs ? static_cast<long long>(starts[run + 1]) : nnz;
  T sum = data[starts[run]];
  for (long long k = starts[run] + 1; k < end; ++k) sum = gs_add(sum, data[k]);
  sums[run] = sum;
}

// The sum of the entries on diagonal `offset` in each row. A group of lanes owns a row and looks at all of its entries.
enum { GS_DIAGONAL_LANES = 8 };

template <class T, class Index>
GS_KERNEL diagonal_entries(long long size, long long first_row, long long offset, const Index *__restrict__ indptr,
                           const Index *__restrict__ indices, const T *__restrict__ data, T *__restrict__ diagonal) {
  const int width = GS_DIAGONAL_LANES;
  const long long i = gs_thread() / width, row = first_row + i;
  T sum = Scalar<T>::zero();
  if (i < size) {
    const Index end = indptr[row + 1];
    for (Index k = indptr[row] + Index(threadIdx.x % width); k < end; k += width)
      if (static_cast<long long>(indices[k]) == row + offset) sum = gs_add(sum, data[k]);
  }
  sum = gs_group_sum<width>(sum);
  if (i < size && threadIdx.x % width == 0) diagonal[i] = sum;
}

// The same for sorted rows, which a thread searches.
template <class T, class Index>
GS_KERNEL sorted_diagonal_entries(long long size, long long first_row, long long offset,
                                  const Index *__restrict__ indptr, const Index *__restrict__ indices,
                                  const T *__restrict__ data, T *__restrict__ diagonal) {
  const long long i = gs_thread(), row = first_row + i;
  if (i >= size) return;
  const Index end = indptr[row + 1], k = gs_lower_bound(indices, indptr[row], end, row + offset);
  diagonal[i] = k < end && indices[k] == row + offset ? data[k] : Scalar<T>::zero();
}

// ---------------------------------------------------------------------------- lists of numbers
//
// Row or column numbers by which a user selects: checked, and turned into places. A thread has a number; neighbouring threads have neighbouring ones. Blocks leave counts of what is wrong (tiles.cuh).

// checked[i] = numbers[i], or numbers[i] + size for a negative one, which is counted from the end. If `checked` is
// null, negative numbers are out of range. *total becomes how many numbers are out of range.
template <class Number>
GS_KERNEL_OF(GS_TILE_THREADS) check_numbers(long long count, long long size, const Number *__restrict__ numbers,
                                            long long *__restrict__ checked, long long *__restrict__ offsets,
                                            unsigned *__restrict__ arrivals, long long *__restrict__ total) {
  int wrong = 0;
  gs_visit_tile(count, [&](long long k) {
    const long long number = numbers[k];
    wrong += number < (checked ? -size : 0) || number >= size;
    if (checked) checked[k] = number < 0 ? number + size : number;
  });
  gs_leave_counts(wrong, Tally{offsets, arrivals, total});
}

// counts[n] = how often n occurs among the numbers; `counts` must be 0 before. Only integers are added, so the order of
// the threads does not matter.
template <class Number>
GS_KERNEL_OF(GS_TILE_THREADS) count_numbers(long long count, const Number *__restrict__ numbers,
                                            long long *__restrict__ counts) {
  typedef unsigned long long Unsigned;
  gs_visit_tile(count, [&](long long k) { atomicAdd(reinterpret_cast<Unsigned *>(counts) + numbers[k], Unsigned(1)); });
}

__device__ __forceinline__ int gs_claim_place(int *place, int number) { return atomicCAS(place, -1, number); }
__device__ __forceinline__ long long gs_claim_place(long long *place, long long number) {
  typedef unsigned long long Unsigned;
  return static_cast<long long>(atomicCAS(reinterpret_cast<Unsigned *>(place), Unsigned(-1), Unsigned(number)));
}

// places[numbers[i]] = i, where `places` is -1 before. *total becomes the number of repetitions; if it is not 0, the
// places are not valid.
template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS) place_numbers(long long count, const long long *__restrict__ numbers,
                                            Index *__restrict__ places, long long *__restrict__ offsets,
                                            unsigned *__restrict__ arrivals, long long *__restrict__ total) {
  int repeated = 0;
  gs_visit_tile(count, [&](long long k) {
    repeated += gs_claim_place(places + numbers[k], Index(k)) != Index(-1);
  });
  gs_leave_counts(repeated, Tally{offsets, arrivals, total});
}
