// sparse_edits.cu - single entries of a sparse matrix: found, added up, inserted, and put into a dense array; and the
// gradients of products.
//
// A sample is a row and a column. If columns rise within each row, a thread finds its sample by a binary search. If
// not, a warp has a sample and reads the whole row, neighbouring lanes neighbouring entries.
//
// New entries are inserted in two passes. The first one finds the place of each new entry: the number of old entries
// before it. The second one moves each old entry by the number of new ones that come before it:
//
//      old columns   1 4 6 | 0 9        new entries   (row 0, column 5), (row 1, column 3)
//      places        2 and 4            result        1 4 5 6 | 0 3 9
#include "tiles.cuh"

// The number of elements of a sorted array that are at most `value`.
__device__ __forceinline__ long long gs_count_up_to(const long long *__restrict__ sorted, long long size, long long value) {
  return gs_lower_bound(sorted, 0ll, size, value + 1);
}

// ---------------------------------------------------------------------------- samples

// The count of samples without an entry is increased by this number for each sample with several entries.
const long long GS_SEVERAL = 1ll << 40;

// The position of a sample in a sorted row; -1 if the sample has no entry.
template <class Index>
__device__ __forceinline__ long long gs_find_sorted(const Index *__restrict__ indptr, const Index *__restrict__ indices,
                                                    long long row, long long column) {
  const Index end = indptr[row + 1], k = gs_lower_bound(indices, indptr[row], end, column);
  return k < end && indices[k] == column ? static_cast<long long>(k) : -1;
}

// The position of the entry at each sample; -1 if it has no entry, -2 if it has several. *total becomes the number of
// samples without an entry, plus GS_SEVERAL for each sample with several.
template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS) find_entries(long long count, const long long *__restrict__ rows,
                                           const long long *__restrict__ columns, int is_sorted,
                                           const Index *__restrict__ indptr, const Index *__restrict__ indices,
                                           long long *__restrict__ positions, long long *__restrict__ offsets,
                                           unsigned *__restrict__ arrivals, long long *__restrict__ total) {
  long long remarkable = 0;
  if (is_sorted) {
    const long long sample = gs_thread();
    if (sample < count) {
      const long long position = gs_find_sorted(indptr, indices, rows[sample], columns[sample]);
      positions[sample] = position;
      remarkable = position < 0;
    }
  } else {
    const long long sample = gs_thread() / GS_WARP, lane = threadIdx.x % GS_WARP, none = ~(1ll << 63);
    long long first = none, found = 0;
    if (sample < count) {
      const long long column = columns[sample], end = indptr[rows[sample] + 1];
      for (long long k = indptr[rows[sample]] + lane; k < end; k += GS_WARP)
        if (indices[k] == column) {
          if (!found) first = k;
          ++found;
        }
    }
    first = gs_group_min<GS_WARP>(first);
    found = gs_group_sum<GS_WARP>(found);
    if (sample < count && lane == 0) {
      positions[sample] = found == 1 ? first : found ? -2 : -1;
      remarkable = found > 1 ? GS_SEVERAL : found == 0;
    }
  }
  gs_leave_counts(remarkable, Tally{offsets, arrivals, total});
}

// The entry at each sample; all bits are 0 if the sample has no entry.
template <class Item, class Index>
GS_KERNEL sample_sorted(long long count, const long long *__restrict__ rows, const long long *__restrict__ columns,
                        const Index *__restrict__ indptr, const Index *__restrict__ indices,
                        const Item *__restrict__ data, Item *__restrict__ values) {
  const long long sample = gs_thread();
  if (sample >= count) return;
  const long long position = gs_find_sorted(indptr, indices, rows[sample], columns[sample]);
  values[sample] = position < 0 ? Scalar<Item>::zero() : data[position];
}

// The same for a single sample. A block of one thread.
template <class Item, class Index>
GS_KERNEL sample_entry(long long row, long long column, const Index *__restrict__ indptr,
                       const Index *__restrict__ indices, const Item *__restrict__ data, Item *__restrict__ value) {
  const long long position = gs_find_sorted(indptr, indices, row, column);
  *value = position < 0 ? Scalar<Item>::zero() : data[position];
}

// The sum of the entries at each sample, in an order that depends on their places in the row alone.
template <class T, class Index>
GS_KERNEL sample_entries(long long count, const long long *__restrict__ rows, const long long *__restrict__ columns,
                         const Index *__restrict__ indptr, const Index *__restrict__ indices,
                         const T *__restrict__ data, T *__restrict__ sums) {
  const long long sample = gs_thread() / GS_WARP, lane = threadIdx.x % GS_WARP;
  T sum = Scalar<T>::zero();
  if (sample < count) {
    const long long column = columns[sample], end = indptr[rows[sample] + 1];
    for (long long k = indptr[rows[sample]] + lane; k < end; k += GS_WARP)
      if (indices[k] == column) sum = gs_add(sum, data[k]);
  }
  sum = gs_group_sum<GS_WARP>(sum);
  if (sample < count && lane == 0) sums[sample] = sum;
}

// data[positions[i]] = values[i], or values[0] for all if there is one value; negative positions are left out.
template <class Item>
GS_KERNEL put_values(long long count, int is_one, const long long *__restrict__ positions,
                     const Item *__restrict__ values, Item *__restrict__ data) {
  const long long i = gs_thread();
  if (i < count && positions[i] >= 0) data[positions[i]] = values[is_one ? 0 : i];
}

// ---------------------------------------------------------------------------- insertions

// The number of old entries before each new entry: all entries of earlier rows and, if rows are sorted, the entries of
// its own row with smaller columns.
template <class Index>
GS_KERNEL insertion_places(long long count, const long long *__restrict__ rows, const long long *__restrict__ columns,
                           int is_sorted, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                           long long *__restrict__ places) {
  const long long i = gs_thread();
  if (i >= count) return;
  const Index begin = indptr[rows[i]], end = indptr[rows[i] + 1];
  places[i] = is_sorted ? gs_lower_bound(indices, begin, end, columns[i]) : begin;
}

// A thread moves an old entry, a new entry and a row pointer.
template <class Item, class Index>
GS_KERNEL insert_entries(long long nnz, long long num_rows, long long count, const Index *__restrict__ indptr,
                         const Index *__restrict__ indices, const Item *__restrict__ data,
                         const long long *__restrict__ rows, const long long *__restrict__ columns,
                         const Item *__restrict__ values, const long long *__restrict__ places,
                         Index *__restrict__ new_indptr, Index *__restrict__ new_indices, Item *__restrict__ new_data) {
  const long long t = gs_thread();
  if (t < nnz) {
    const long long to = t + gs_count_up_to(places, count, t);
    new_indices[to] = indices[t];
    new_data[to] = data[t];
  }
  if (t < count) {
    const long long to = t + places[t];
    new_indices[to] = Index(columns[t]);
    new_data[to] = values[t];
  }
  if (t <= num_rows) new_indptr[t] = indptr[t] + Index(gs_count_up_to(rows, count, t - 1));
}

// ---------------------------------------------------------------------------- dense arrays

// Sums in any type. Integers wrap modulo the size of their type; a boolean sum is true if a term is true.
template <class T> __device__ __forceinline__ T gs_total(T a, T b, int) { return gs_add(a, b); }
__device__ __forceinline__ int gs_total(int a, int b, int) { return int(unsigned(a) + unsigned(b)); }
__device__ __forceinline__ unsigned short gs_total(unsigned short a, unsigned short b, int) { return a + b; }
__device__ __forceinline__ unsigned char gs_total(unsigned char a, unsigned char b, int is_boolean) {
  return is_boolean ? a | b : a + b;
}

// Adds each entry to its place in a dense array whose rows are contiguous. A thread owns an entry, and no place has
// several entries.
template <class T, class Index>
GS_KERNEL add_entries(long long nnz, long long num_cols, int is_boolean, const Index *__restrict__ rows,
                      const Index *__restrict__ indices, const T *__restrict__ data, T *__restrict__ dense) {
  const long long k = gs_thread();
  if (k >= nnz) return;
  T *const place = dense + static_cast<long long>(rows[k]) * num_cols + indices[k];
  *place = gs_total(*place, data[k], is_boolean);
}

// The same where places may have several entries, which are added in their order. A thread owns a row.
template <class T, class Index>
GS_KERNEL add_rows(long long num_rows, long long num_cols, int is_boolean, const Index *__restrict__ indptr,
                   const Index *__restrict__ indices, const T *__restrict__ data, T *__restrict__ dense) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  for (Index k = indptr[row]; k < indptr[row + 1]; ++k) {
    T *const place = dense + row * num_cols + indices[k];
    *place = gs_total(*place, data[k], is_boolean);
  }
}

// The element of a dense array at the place of each entry; strides count elements.
template <class Item, class Index>
GS_KERNEL take_elements(long long nnz, long long row_stride, long long column_stride, const Index *__restrict__ rows,
                        const Index *__restrict__ indices, const Item *__restrict__ dense, Item *__restrict__ elements) {
  const long long k = gs_thread();
  if (k < nnz) elements[k] = dense[rows[k] * row_stride + indices[k] * column_stride];
}

// ---------------------------------------------------------------------------- gradients
//
// The gradients of Y = A X with respect to X and to the values of A:
//
//     dX = A^H G        dA[i, j] = sum over columns c of G[i, c] conj(X[j, c]), at the entries of A only
//
// Dense arrays are stored row by row. Entries of the transpose of A are visited row by row: with X[j] at hand, an entry
// (i, j) reads row i of G once for both gradients. `numbers` has the position of each entry in the values of A, which
// are read, and their gradients written, at these positions (not coalesced, unless the matrix is nearly symmetric).
//
//     vector_gradients     one column: LANES lanes own a row of the transpose, each of them every LANES-th entry
//     columns_gradients    more columns: a warp owns a row. WIDTH lanes share an entry, with a column each (coalesced):
//
//         lanes    0 1 2 3 | 4 5 6 7 | 8 ...          WIDTH = 4
//         entry    first   | second  | third ...
//         column   0 1 2 3 | 0 1 2 3 | 0 ...          then columns 4 to 7, in a second pass over the entries
//
//     dot_rows             dA alone: WIDTH lanes own an entry, each of them every WIDTH-th column
//
// Sums have a fixed order and nothing is atomic, so that results are always the same.

// Threads of a block.
enum { GS_GRADIENT_THREADS = 256 };

// The sum over the lanes of a warp whose numbers differ by multiples of WIDTH, valid in the first WIDTH lanes.
template <int WIDTH, class V> __device__ __forceinline__ V gs_sum_of_groups(V v) {
#pragma unroll
  for (int d = GS_WARP / 2; d >= WIDTH; d >>= 1) v = gs_add(v, gs_lane_after(v, d, GS_WARP));
  return v;
}

// dots[e] = sum over c of left[rows[e], c] conj(right[columns[e], c]).
template <class T, class Index, int WIDTH>
GS_KERNEL_OF(GS_GRADIENT_THREADS)
dot_rows(long long count, long long num_columns, const Index *__restrict__ rows, const Index *__restrict__ columns,
         const T *__restrict__ left, const T *__restrict__ right, T *__restrict__ dots) {
  const long long entry = gs_thread() / WIDTH;
  const bool owned = entry < count;
  const T *const one = left + (owned ? static_cast<long long>(rows[entry]) * num_columns : 0);
  const T *const other = right + (owned ? static_cast<long long>(columns[entry]) * num_columns : 0);
  T sum = Scalar<T>::zero();
  for (long long c = threadIdx.x % WIDTH; owned && c < num_columns; c += WIDTH)
    sum = gs_fma(gs_load(one + c), Scalar<T>::conjugate(gs_load(other + c)), sum);
  sum = gs_group_sum<WIDTH>(sum);
  if (owned && threadIdx.x % WIDTH == 0) dots[entry] = sum;
}

// Both gradients of a product with one column.
template <class T, class Index, int LANES>
GS_KERNEL_OF(GS_GRADIENT_THREADS)
vector_gradients(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                 const Index *__restrict__ numbers, const T *__restrict__ values, const T *__restrict__ gradient,
                 const T *__restrict__ x, T *__restrict__ of_x, T *__restrict__ of_values) {
  const long long row = gs_thread() / LANES;
  const bool owned = row < num_rows;
  const T factor = owned ? Scalar<T>::conjugate(gs_load(x + row)) : Scalar<T>::zero();
  const Index end = owned ? indptr[row + 1] : Index(0);
  T sum = Scalar<T>::zero();
#pragma unroll 2
  for (Index k = owned ? indptr[row] + Index(threadIdx.x % LANES) : end; k < end; k += LANES) {
    const Index number = gs_load(numbers + k);
    const T element = gs_load(gradient + gs_load(indices + k));
    sum = gs_fma(Scalar<T>::conjugate(gs_load(values + number)), element, sum);
    of_values[number] = gs_fma(element, factor, Scalar<T>::zero());
  }
  sum = gs_group_sum<LANES>(sum);
  if (owned && threadIdx.x % LANES == 0) of_x[row] = sum;
}

// Both gradients of a product with several columns.
template <class T, class Index, int WIDTH>
GS_KERNEL_OF(GS_GRADIENT_THREADS)
columns_gradients(long long num_rows, long long num_columns, const Index *__restrict__ indptr,
                  const Index *__restrict__ indices, const Index *__restrict__ numbers, const T *__restrict__ values,
                  const T *__restrict__ gradient, const T *__restrict__ x, T *__restrict__ of_x,
                  T *__restrict__ of_values) {
  const long long row = gs_thread() / GS_WARP;
  if (row >= num_rows) return;  // the whole warp
  const int lane = threadIdx.x % GS_WARP, group = lane / WIDTH, in_group = lane % WIDTH;
  const Index begin = indptr[row], end = indptr[row + 1];
  for (long long base = 0; base < num_columns; base += WIDTH) {
    const long long column = base + in_group;
    const bool has_column = column < num_columns;
    const T factor = has_column ? Scalar<T>::conjugate(gs_load(x + row * num_columns + column)) : Scalar<T>::zero();
    T sum = Scalar<T>::zero();
    for (Index first = begin; first < end; first += GS_WARP / WIDTH) {
      const bool has_entry = first + group < end;
      const Index k = has_entry ? first + group : begin;
      const Index number = gs_load(numbers + k);
      T dot = Scalar<T>::zero();
      if (has_entry && has_column) {
        const T element = gs_load(gradient + static_cast<long long>(gs_load(indices + k)) * num_columns + column);
        sum = gs_fma(Scalar<T>::conjugate(gs_load(values + number)), element, sum);
        dot = gs_fma(element, factor, Scalar<T>::zero());
      }
      dot = gs_group_sum<WIDTH>(dot);
      // The same thread has written the sum of the columns before `base`.
      if (has_entry && in_group == 0) of_values[number] = base ? gs_add(of_values[number], dot) : dot;
    }
    sum = gs_sum_of_groups<WIDTH>(sum);
    if (group == 0 && has_column) of_x[row * num_columns + column] = sum;
  }
}
