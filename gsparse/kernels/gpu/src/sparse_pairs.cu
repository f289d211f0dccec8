// sparse_pairs.cu - two sparse matrices of one shape with sorted rows, combined entry by entry: sums, maxima, products
// of entries, comparisons. An entry that only one of the matrices has is combined with 0.
//
// The two rows are merged, column by column, with the entry of A before an entry of B in the same column:
//
//     A's row       1 3     7          merged    1 3 3 4 7 9 |      the end of the row is a position, too
//     B's row         3 4     9        result    1 3   4 7 9        if nothing becomes 0
//
// The merged rows one after the other are cut into tiles of equal size (Green, McColl and Bader 2012; Merrill and
// Garland 2016). Where each tile begins in A and B is found by a search for the row and one within the row (the merge
// path): in a launch of its own with a warp for each tile, since a block that searched for itself would have nothing
// else to do meanwhile. A block brings its parts of A and B to shared memory. Each thread finds its first position by
// the same two searches and merges several positions one after the other.
//
// As in sparse_rows.cu, a launch counts the entries of each tile's result, and another one merges again and writes
// them. Reads: A and B, twice. Writes: the result.
#include "tiles.cuh"

// Positions of a thread, and of a tile: half as many if a value and a column have more than GS_NARROW_BYTES bytes.
enum { GS_NARROW_BYTES = 12 };
template <class T, class Index> struct Pair {
  enum {
    items = sizeof(T) + sizeof(Index) > GS_NARROW_BYTES ? GS_TILE_ITEMS / 2 : GS_TILE_ITEMS,
    tile = items * GS_TILE_THREADS
  };
};

// Operations on two values, by number (gsparse.kernels.algebra.OPERATIONS). They compare as order.cuh does.
enum { GS_PLUS, GS_MINUS, GS_TIMES, GS_MAXIMUM, GS_MINIMUM, GS_NOT_EQUAL, GS_LESS, GS_GREATER };

template <class T> __device__ __forceinline__ T gs_combined(int operation, long long flip, T a, T b, T *) {
  switch (operation) {
    case GS_PLUS: return gs_add(a, b);
    case GS_MINUS: return gs_difference(a, b);
    case GS_TIMES: return gs_fma(a, b, Scalar<T>::zero());
    case GS_MAXIMUM: return gs_less(a, b, flip) ? b : a;
    default: return gs_less(b, a, flip) ? b : a;
  }
}
template <class T>
__device__ __forceinline__ unsigned char gs_combined(int operation, long long flip, T a, T b, unsigned char *) {
  switch (operation) {
    case GS_NOT_EQUAL: return !gs_equal(a, b);
    case GS_LESS: return gs_less(a, b, flip);
    default: return gs_less(b, a, flip);
  }
}

// A matrix with sorted rows.
template <class T, class Index> struct Rows {
  const Index *__restrict__ indptr, *__restrict__ indices;
  const T *__restrict__ data;
};

// Where a tile begins in the merged rows: a row, and the entries of A and B that come next.
struct Place {
  long long row, a, b;
};

// The number of entries of A among the first `count` positions of a merged row. `a` and `b` are the columns of the row
// in both matrices, of lengths a_length and b_length.
template <class Index>
__device__ __forceinline__ long long gs_merge_path(const Index *a, long long a_length, const Index *b, long long b_length,
                                                   long long count) {
  long long low = count > b_length ? count - b_length : 0, high = count < a_length ? count : a_length;
  while (low < high) {
    const long long middle = low + (high - low) / 2;
    if (a[middle] <= b[count - 1 - middle]) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The place where the tile begins whose first position is `position`, or where the last tile ends. All lanes of a warp
// search together.
template <class Index>
__device__ __forceinline__ Place gs_find_place(long long position, long long num_rows, const Index *__restrict__ a_indptr,
                                               const Index *__restrict__ a_indices, const Index *__restrict__ b_indptr,
                                               const Index *__restrict__ b_indices) {
  const auto begins = [&](long long r) { return static_cast<long long>(a_indptr[r]) + b_indptr[r] + r; };
  const long long row = gs_row_at(num_rows, position, begins), count = position - begins(row);
  Place place = {row, a_indptr[row], b_indptr[row]};
  if (count) {
    const long long of_a = gs_merge_path(a_indices + place.a, a_indptr[row + 1] - place.a, b_indices + place.b,
                                         b_indptr[row + 1] - place.b, count);
    place.a += of_a;
    place.b += count - of_a;
  }
  return place;
}

// Three elements of `places` for a tile. The first lane of the warp writes them.
__device__ __forceinline__ void gs_keep_place(Place place, long long *places) {
  if (threadIdx.x % GS_WARP) return;
  places[0] = place.row;
  places[1] = place.a;
  places[2] = place.b;
}

// places[3 * t] and the two elements after it become the place where tile t begins (Place) and, for t = the number of
// tiles, where the last one ends. A warp owns a tile.
template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS) find_places(int tile_size, long long num_rows, long long size,
                                          const Index *__restrict__ a_indptr, const Index *__restrict__ a_indices,
                                          const Index *__restrict__ b_indptr, const Index *__restrict__ b_indices,
                                          long long *__restrict__ places) {
  const long long tile = gs_thread() / GS_WARP, tiles = (size + tile_size - 1) / tile_size;
  if (tile > tiles) return;
  const long long position = tile * tile_size < size ? tile * tile_size : size;
  gs_keep_place(gs_find_place(position, num_rows, a_indptr, a_indices, b_indptr, b_indices), places + 3 * tile);
}

// The result of a thread: up to Pair::items entries, and the rows that end among its positions.
template <class T, class Index, class Out> struct Merged {
  Index columns[Pair<T, Index>::items];
  Out values[Pair<T, Index>::items];
  unsigned has_entry, has_both, ends_row;  // a bit for each position
  int first_row;                           // of the thread, less that of the tile
};

// A tile in shared memory: the entries of A, then those of B, with their columns and values.
//
//     columns    | entry of A before the tile | A: num_a entries | B: num_b entries | one more entry of B |
//     values                                  | A: num_a values  | B: num_b values  | one more value of B |
//
// The entry before and the one more are there only if they are in the first and in the last row of the tile. Rows begin
// at `a_begins` and `b_begins`, less the tile's first entries: at most what the tile holds, and -1 for a row that began
// before it.
template <class T, class Index> struct PairTile {
  Index *a_columns, *b_columns;
  T *a_values, *b_values;
  short *a_begins, *b_begins;
  int num_a, num_b, num_ends;  // entries of A and of B, and row ends
  bool began;                  // whether the first row has an entry of A before the tile

  // Copy the tile from `first` to `last`. All threads of the block take part, and must be synchronized afterwards.
  __device__ __forceinline__ void load(const Rows<T, Index> &a, const Rows<T, Index> &b, long long num_rows,
                                       const Place &first, const Place &last) {
    for (int r = threadIdx.x; r <= num_ends + 1; r += GS_TILE_THREADS) {
      const long long row = first.row + r < num_rows ? first.row + r : num_rows;
      const long long a_begin = a.indptr[row] - first.a, b_begin = b.indptr[row] - first.b;
      a_begins[r] = short(a_begin < num_a ? (a_begin < 0 ? -1 : a_begin) : num_a);
      b_begins[r] = short(b_begin < num_b + 1 ? (b_begin < 0 ? -1 : b_begin) : num_b + 1);
    }
    began = first.row < num_rows && first.a > a.indptr[first.row];
    const bool goes_on = last.row < num_rows && last.b < b.indptr[last.row + 1];
    for (int e = threadIdx.x; e < num_a; e += GS_TILE_THREADS) {
      a_columns[e] = a.indices[first.a + e];
      a_values[e] = a.data[first.a + e];
    }
    for (int e = threadIdx.x; e < num_b + goes_on; e += GS_TILE_THREADS) {
      b_columns[e] = b.indices[first.b + e];
      b_values[e] = b.data[first.b + e];
    }
    if (threadIdx.x == 0 && began) a_columns[-1] = a.indices[first.a - 1];
  }

  // The row of a position: the last one that begins at or before it.
  __device__ __forceinline__ int row_of(int position) const {
    int row = 0, high = num_ends;
    while (row < high) {
      const int middle = high - (high - row) / 2;
      const int begins = a_begins[middle] + (b_begins[middle] < num_b ? b_begins[middle] : num_b) + middle;
      if (begins <= position) row = middle;
      else high = middle - 1;
    }
    return row;
  }
};

// Merge the positions of this thread, from `position` on, which is in the tile's row `row`.
template <class T, class Index, class Out>
__device__ __forceinline__ void gs_merge_share(int operation, long long flip, const PairTile<T, Index> &tile, int row,
                                               int position, int count, Merged<T, Index, Out> *merged) {
  const int ITEMS = Pair<T, Index>::items;
  // The pointers to B are derived again, because ptxas then needs fewer registers.
  const Index *const a_columns = tile.a_columns, *const b_columns = a_columns + tile.num_a;
  const short *const a_begins = tile.a_begins, *const b_begins = tile.b_begins;
  const int num_b = tile.num_b;
  const T *const a_values = tile.a_values, *const b_values = a_values + tile.num_a;
  int a_next = a_begins[row] < 0 ? 0 : a_begins[row], b_next = b_begins[row] < 0 ? 0 : b_begins[row];
  b_next = b_next < num_b ? b_next : num_b;
  int a_end = a_begins[row + 1], b_end = b_begins[row + 1];
  // The first entry of A in the row that may have the same column as an entry of B: it may lie before the tile.
  int a_first = row == 0 && tile.began ? -1 : a_next;
  {
    const int before = position - (a_next + b_next + row), b_last = b_end < num_b ? b_end : num_b;
    const int of_a = int(gs_merge_path(a_columns + a_next, a_end - a_next, b_columns + b_next, b_last - b_next, before));
    a_next += of_a;
    b_next += before - of_a;
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (position + i >= count) break;
    const bool has_a = a_next < a_end, has_b = b_next < b_end;
    if (!has_a && !has_b) {
      merged->ends_row |= 1u << i;
      ++row;
      a_end = a_begins[row + 1];
      b_end = b_begins[row + 1];
      a_first = a_next;
      continue;
    }
    const bool from_a = has_a && (!has_b || a_columns[a_next] <= b_columns[b_next]);
    const bool has_both = from_a && has_b && a_columns[a_next] == b_columns[b_next];
    const bool is_done = !from_a && a_next > a_first && a_columns[a_next - 1] == b_columns[b_next];
    const T a_value = from_a ? a_values[a_next] : Scalar<T>::zero();
    const T b_value = has_both || !from_a ? b_values[b_next] : Scalar<T>::zero();
    const Out result = gs_combined(operation, flip, a_value, b_value, static_cast<Out *>(nullptr));
    if (has_both) merged->has_both |= 1u << i;
    merged->columns[i] = from_a ? a_columns[a_next] : b_columns[b_next];
    merged->values[i] = result;
    if (!is_done && !gs_equal(result, Scalar<Out>::zero())) merged->has_entry |= 1u << i;
    a_next += from_a;
    b_next += !from_a;
  }
}

// Merge the positions of this thread. `places` has six elements: where the tile begins and ends. All threads of the
// block take part; `columns` has room for Pair::tile + 2 columns and `values` for Pair::tile + 1 values. Returns the
// first row of the tile.
template <class T, class Index, class Out>
__device__ __forceinline__ long long gs_merge_tile(int operation, long long flip, long long num_rows, long long size,
                                                   Rows<T, Index> a, Rows<T, Index> b, const long long *places,
                                                   Index *columns, T *values, Merged<T, Index, Out> *merged) {
  const int ITEMS = Pair<T, Index>::items, TILE = Pair<T, Index>::tile;
  GS_SHARED(short, a_begins, TILE + 2);
  GS_SHARED(short, b_begins, TILE + 2);
  const long long begin = static_cast<long long>(blockIdx.x) * TILE;
  const int count = size - begin < TILE ? int(size - begin) : TILE;
  const Place first = {places[0], places[1], places[2]}, last = {places[3], places[4], places[5]};
  const int num_a = int(last.a - first.a), num_b = int(last.b - first.b), num_ends = int(last.row - first.row);
  PairTile<T, Index> tile = {columns + 1, columns + 1 + num_a, values, values + num_a, a_begins, b_begins,
                             num_a,       num_b,               num_ends, false};
  tile.load(a, b, num_rows, first, last);
  __syncthreads();
  const int position = threadIdx.x * ITEMS, row = tile.row_of(position);
  merged->has_entry = merged->has_both = merged->ends_row = 0;
  merged->first_row = row;
  if (position < count) gs_merge_share(operation, flip, tile, row, position, count, merged);
  return first.row;
}

// The lower bits of a count hold the number of entries of the result. `both` is added to the count where both matrices
// have an entry; it is 0 or the bit above these.
const long long GS_RESULTS = (1ll << 40) - 1;

// The number of entries of each tile's result. If `finds_places`, `places` are written as find_places does: that saves
// a launch, which takes longer if the matrices are small.
template <class T, class Index, class Out>
GS_KERNEL_FOR(GS_TILE_THREADS, 5) count_pairs(int operation, long long flip, long long num_rows, long long size,
                                          const Index *__restrict__ a_indptr, const Index *__restrict__ a_indices,
                                          const T *__restrict__ a_data, const Index *__restrict__ b_indptr,
                                          const Index *__restrict__ b_indices, const T *__restrict__ b_data,
                                          long long *__restrict__ places, int finds_places, long long both,
                                          long long *__restrict__ offsets, unsigned *__restrict__ arrivals,
                                          long long *__restrict__ total) {
  const int TILE = Pair<T, Index>::tile;
  GS_SHARED(Index, columns, TILE + 2);
  GS_SHARED(T, values, TILE + 1);
  GS_SHARED(int, sums, GS_TILE_WARPS);
  GS_SHARED(long long, of_tile, 6);
  if (finds_places) {  // a warp finds where the tile begins, another one where it ends
    const long long begin = static_cast<long long>(blockIdx.x) * TILE, end = begin + TILE < size ? begin + TILE : size;
    const int warp = threadIdx.x / GS_WARP;
    if (warp < 2) {
      const Place place = gs_find_place(warp ? end : begin, num_rows, a_indptr, a_indices, b_indptr, b_indices);
      gs_keep_place(place, of_tile + 3 * warp);
      if (warp == 0 || end == size) gs_keep_place(place, places + 3 * (blockIdx.x + static_cast<long long>(warp)));
    }
    __syncthreads();
  }
  Merged<T, Index, Out> merged;
  gs_merge_tile(operation, flip, num_rows, size, Rows<T, Index>{a_indptr, a_indices, a_data},
                Rows<T, Index>{b_indptr, b_indices, b_data}, finds_places ? of_tile : places + 3ll * blockIdx.x,
                columns, values, &merged);
  int all;  // the number of entries of the result in the lower half, and the number of places that both have above
  gs_scan<Sum>(gs_num_bits(merged.has_entry) | gs_num_bits(merged.has_both) << 16, sums, &all);
  gs_leave_count((all & 0xffff) + (all >> 16) * both, Tally{offsets, arrivals, total});
}

// Columns and values of the result go through shared memory, so that neighbouring threads write neighbouring entries.
template <class T, class Index, class Out>
GS_KERNEL_FOR(GS_TILE_THREADS, 5) combine_pairs(int operation, long long flip, long long num_rows, long long size,
                                            const Index *__restrict__ a_indptr, const Index *__restrict__ a_indices,
                                            const T *__restrict__ a_data, const Index *__restrict__ b_indptr,
                                            const Index *__restrict__ b_indices, const T *__restrict__ b_data,
                                            const long long *__restrict__ places,
                                            const long long *__restrict__ offsets, Index *__restrict__ indptr,
                                            Index *__restrict__ indices, Out *__restrict__ data) {
  const int TILE = Pair<T, Index>::tile;
  GS_SHARED(Index, columns, TILE + 2);
  GS_SHARED(T, values, TILE + 1);
  GS_SHARED(int, sums, GS_TILE_WARPS);
  Merged<T, Index, Out> merged;
  const long long first_row =
      gs_merge_tile(operation, flip, num_rows, size, Rows<T, Index>{a_indptr, a_indices, a_data},
                    Rows<T, Index>{b_indptr, b_indices, b_data}, places + 3ll * blockIdx.x, columns, values, &merged);
  int all;
  int place = gs_scan<Sum>(gs_num_bits(merged.has_entry), sums, &all);  // (waits until `columns` and `values` were read)
  const long long first = offsets[blockIdx.x] & GS_RESULTS;
  long long row = first_row + merged.first_row;
  Out *const results = reinterpret_cast<Out *>(values);
#pragma unroll
  for (int i = 0; i < Pair<T, Index>::items; ++i) {
    if (merged.ends_row >> i & 1) indptr[++row] = Index(first + place);
    if (!(merged.has_entry >> i & 1)) continue;
    columns[place] = merged.columns[i];
    results[place++] = merged.values[i];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) indptr[0] = 0;
  __syncthreads();
  for (int e = threadIdx.x; e < all; e += GS_TILE_THREADS) {
    indices[first + e] = columns[e];
    data[first + e] = results[e];
  }
}

// ---------------------------------------------------------------------------- matrices of one structure

// A block that finds a difference between the structures adds this number to the count of results.
const long long GS_DIFFERS = 1ll << 40;

// results[k] = the combination of a[k] and b[k], for `count` values. *total becomes the number of results that are not
// 0, plus GS_DIFFERS for each block that finds different row pointers or columns. Arrays that both matrices share are
// passed as null, and not compared.
template <class T, class Index, class Out>
GS_KERNEL_OF(GS_TILE_THREADS) combine_alike(int operation, long long flip, long long count, long long num_pointers,
                                            const Index *__restrict__ a_indptr, const Index *__restrict__ b_indptr,
                                            const Index *__restrict__ a_indices, const Index *__restrict__ b_indices,
                                            const T *__restrict__ a, const T *__restrict__ b, Out *__restrict__ results,
                                            long long *__restrict__ offsets, unsigned *__restrict__ arrivals,
                                            long long *__restrict__ total) {
  GS_SHARED(long long, sums, GS_TILE_WARPS);
  // The lower part of a thread's word counts the results that it keeps; the upper part says whether it found a
  // difference.
  const int SHIFT = 32;
  long long counted = 0, all;
  bool differs = false;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long k = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    if (a_indptr && k < num_pointers) differs |= a_indptr[k] != b_indptr[k];
    if (k >= count) continue;
    if (a_indices) differs |= a_indices[k] != b_indices[k];
    const Out result = gs_combined(operation, flip, a[k], b[k], static_cast<Out *>(nullptr));
    results[k] = result;
    counted += !gs_equal(result, Scalar<Out>::zero());
  }
  if (differs) counted |= 1ll << SHIFT;
  gs_scan<Sum>(counted, sums, &all);
  const long long kept = all & ((1ll << SHIFT) - 1);
  gs_leave_count(all >> SHIFT ? kept + GS_DIFFERS : kept, Tally{offsets, arrivals, total});
}
