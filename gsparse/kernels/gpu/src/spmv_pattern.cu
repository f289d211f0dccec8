// spmv_pattern.cu - y = alpha*A*x + beta*y for A in row patterns (gsparse.formats.RowPattern).
//
// Row i follows the pattern codes[i]. A pattern lists the offsets of the columns from the row's own number, so that
// rows of a stencil share one:
//
//     codes              0  1  1  1  1  2           pattern of each row
//     pattern_indptr     0     2        5     7     where each pattern begins
//     offsets            0 1 | -1 0 1 | -1 0        row 3 has the pattern 1: columns 2, 3 and 4
//
//   row_pattern_values   The values belong to the pattern too (`pattern_values`, beside `offsets`). Of A only one code
//                        for each row is read from memory.
//   row_pattern          The values are the row's own, stored as in blocked ELLPACK: in slices of the rows of one warp,
//                        entry j of them side by side (coalesced).
//
// A thread owns a row, or several rows in row_pattern_values. Neighbouring threads mostly follow the same pattern, so
// that they read the same offsets, which the first-level cache serves to all of them at once, and neighbouring elements
// of x. Nothing is in shared memory, except the partial sum of conj(x)*y where it is asked for (sums.cuh).
#include "entries.cuh"

// Patterns, written once for all rows that share them.
struct Patterns {
  const int *indptr;   // where each pattern begins
  const int *offsets;  // column minus row of each entry
};

// Return the product of one row with x, by its pattern's own entries. `x_row` points to the row's element of x.
template <class T>
__device__ __forceinline__ T gs_pattern_sum(const Patterns &patterns, const T *pattern_values, int code, const T *x_row,
                                            int conjugate) {
  const int begin = gs_load(patterns.indptr + code), end = gs_load(patterns.indptr + code + 1);
  T sum = Scalar<T>::zero();
#pragma unroll 4
  for (int k = begin; k < end; ++k) {
    T a = gs_load(pattern_values + k);
    if (conjugate) a = Scalar<T>::conjugate(a);
    sum = gs_fma(a, gs_load(x_row + gs_load(patterns.offsets + k)), sum);
  }
  return sum;
}

// The entries of the common pattern, in an order of their own: first come triples, whose offsets are `apart` apart, then
// single ones.
template <class T> struct CommonEntries {
  int num_triples, num_single;
  const int *offsets;  // of the first entry of each triple, and of each single entry
  const T *values;     // of all entries
  const int *places;   // bits of masks: the place of each entry in the common pattern
};

// Add the products with x of the ROWS rows of a thread to `sums`, for groups of SIZE entries (triples, or single ones).
// The rows of a thread are `apart` rows apart, and so are the entries of a triple. So entry j of row i and entry j - 1 of
// row i + 1 are multiplied by the same element of x, and each of ROWS + SIZE - 1 elements is read once. `x_first` points
// to the element of x of the first row.
//
// If WHOLE is true, all of these rows follow the common pattern. Otherwise they have parts of its entries, with the same
// values: bit p of masks[i] is 1 if row i has the entry at place p.
template <int SIZE, bool WHOLE, class T, int ROWS>
__device__ __forceinline__ void gs_add_groups(int num_groups, const int *offsets, const T *values, const int *places,
                                              const T *x_first, unsigned apart, int conjugate,
                                              const unsigned (&masks)[ROWS], T (&sums)[ROWS]) {
  // Several groups at the same time have more loads in flight, but take more registers. A thread with several rows has
  // several loads in flight anyway: two groups are faster for values of 8 bytes, but not for float32.
  enum { UNROLLED = SIZE > 1 ? 1 : ROWS == 1 ? 4 : sizeof(T) > 4 ? 2 : 1 };
#pragma unroll UNROLLED
  for (int k = 0; k < num_groups; ++k) {
    const T *shifted = x_first + gs_load(offsets + k);
    int place[SIZE];
#pragma unroll
    for (int j = 0; j < SIZE; ++j) place[j] = WHOLE ? 0 : gs_load(places + k * SIZE + j);
    T elements[ROWS + SIZE - 1];
#pragma unroll
    for (int i = 0; i < ROWS + SIZE - 1; ++i) {
      unsigned is_needed = WHOLE;
#pragma unroll
      for (int j = 0; j < SIZE; ++j)
        if (!WHOLE && i >= j && i - j < ROWS) is_needed |= masks[i - j] >> place[j] & 1u;
      elements[i] = is_needed ? gs_load(shifted + i * static_cast<long long>(apart)) : Scalar<T>::zero();
    }
#pragma unroll
    for (int j = 0; j < SIZE; ++j) {
      T a = gs_load(values + k * SIZE + j);
      if (conjugate) a = Scalar<T>::conjugate(a);
#pragma unroll
      for (int i = 0; i < ROWS; ++i)
        if (WHOLE || masks[i] >> place[j] & 1u) sums[i] = gs_fma(a, elements[i + j], sums[i]);
    }
  }
}

// The same for all entries of the common pattern. With one row a thread, there are no triples.
template <bool WHOLE, class T, int ROWS>
__device__ __forceinline__ void gs_add_common(const CommonEntries<T> &common, const T *x_first, unsigned apart,
                                              int conjugate, const unsigned (&masks)[ROWS], T (&sums)[ROWS]) {
  const int num = common.num_triples;
  if (ROWS > 1)
    gs_add_groups<3, WHOLE>(num, common.offsets, common.values, common.places, x_first, apart, conjugate, masks, sums);
  gs_add_groups<1, WHOLE>(common.num_single, common.offsets + num, common.values + 3 * num, common.places + 3 * num,
                          x_first, apart, conjugate, masks, sums);
}

// The same for rows whose patterns are parts of the common one with values of their own. The value of row i's next entry
// is at `places[i]`. Bit 31 of a mask stands for entry 31 and all later ones: a common pattern of more than 32 entries has
// no part except itself.
template <class T, int ROWS>
__device__ __forceinline__ void gs_add_parts(const Patterns &patterns, const T *pattern_values, int begin, int end,
                                             const T *x_first, unsigned apart, int conjugate,
                                             const unsigned (&masks)[ROWS], int (&places)[ROWS], T (&sums)[ROWS]) {
#pragma unroll 4
  for (int k = begin; k < end; ++k) {
    const T *shifted = x_first + gs_load(patterns.offsets + k);
    const int bit = k - begin < 31 ? k - begin : 31;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
      if (masks[i] >> bit & 1u) {
        T a = gs_load(pattern_values + places[i]++);
        if (conjugate) a = Scalar<T>::conjugate(a);
        sums[i] = gs_fma(a, gs_load(shifted + i * static_cast<long long>(apart)), sums[i]);
      }
  }
}

// A thread owns ROWS rows that are `apart` rows apart. On a grid, this is the distance of two planes (or lines), so that
// the element of x beside a row, in the next plane, is that of another row of the same thread:
//
//     rows of thread 0   0, apart, 2*apart    ROWS = 3     the next thread has the rows after these, and thread `apart`
//     elements of x      -apart ... 3*apart                begins at row ROWS*apart
//
// A warp takes one of three ways. Where all of its rows follow the `common` pattern, all threads do the same. Where some
// lack entries of it, as at the ends of the lines of a grid, threads leave these out (`pattern_masks`, one for each
// pattern). Where some have other values (`pattern_differs`), each row reads its own. The mask is 0 if a pattern is no
// part of the common one; then the row follows its own pattern, after the others.
template <class Code, class T, int ROWS, template <class> class Dots>
GS_KERNEL row_pattern_values(long long num_rows, int common, unsigned apart, int num_triples, int num_single,
                             const int *__restrict__ common_offsets, const T *__restrict__ common_values,
                             const int *__restrict__ common_places, const Code *__restrict__ codes,
                             const int *__restrict__ pattern_indptr, const int *__restrict__ offsets,
                             const unsigned *__restrict__ pattern_masks,
                             const unsigned char *__restrict__ pattern_differs, const T *__restrict__ pattern_values,
                             const T *__restrict__ x, T *__restrict__ y, T alpha, T beta, int read_y, int conjugate,
                             typename Wide<T>::type *block_dots) {
  const Patterns patterns = {pattern_indptr, offsets};
  const unsigned thread = unsigned(gs_thread()), group = ROWS > 1 ? thread / apart : 0;
  const long long first = thread + static_cast<long long>(group) * (ROWS - 1) * apart;
  T sums[ROWS];
  int num_common = 0;  // counted without a branch, so that no load of a code waits for the one before
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const long long row = first + i * static_cast<long long>(apart);
    num_common += (row < num_rows ? int(gs_load(codes + row)) : -1) == common;
    sums[i] = Scalar<T>::zero();
  }
  const CommonEntries<T> entries = {num_triples, num_single, common_offsets, common_values, common_places};
  unsigned masks[ROWS];
  if (!gs_any(num_common < ROWS)) {
    gs_add_common<true>(entries, x + first, apart, conjugate, masks, sums);
  } else {
    int places[ROWS];
    bool differs = false;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      const long long row = first + i * static_cast<long long>(apart);
      const int code = row < num_rows ? int(gs_load(codes + row)) : -1;
      masks[i] = code < 0 ? 0u : gs_load(pattern_masks + code);
      places[i] = code < 0 ? 0 : gs_load(pattern_indptr + code);
      differs |= code >= 0 && gs_load(pattern_differs + code);
    }
    if (!gs_any(differs)) {
      gs_add_common<false>(entries, x + first, apart, conjugate, masks, sums);
    } else {
      const int begin = gs_load(pattern_indptr + common), end = gs_load(pattern_indptr + common + 1);
      gs_add_parts(patterns, pattern_values, begin, end, x + first, apart, conjugate, masks, places, sums);
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const long long row = first + i * static_cast<long long>(apart);
        if (row < num_rows && !masks[i])
          sums[i] = gs_pattern_sum(patterns, pattern_values, int(gs_load(codes + row)), x + row, conjugate);
      }
    }
  }
  Dots<T> dots(block_dots);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const long long row = first + i * static_cast<long long>(apart);
    if (row >= num_rows) continue;
    const T sum = gs_store(y + row, sums[i], alpha, beta, read_y);
    dots.add(x + row, sum);
  }
  dots.leave();
}

// Return `sum` plus the products of SIZE entries of a row with x, from entry j on. If WHOLE is false, only those before
// `length` are entries of the row. `offsets` points to the first offset of the row's pattern, `x_row` to its element of
// x, and its value j is at position + j * GS_WARP. SIZE loads are in flight at once, as in Entries::add_batch.
template <bool WHOLE, int SIZE, class Value, class T>
__device__ __forceinline__ T gs_add_batch(int j, int length, const int *__restrict__ offsets,
                                          long long position, const Value *__restrict__ values,
                                          const T *__restrict__ table, const T *__restrict__ x_row, int conjugate,
                                          T sum) {
  int offset[SIZE];
  Value value[SIZE];
  T a[SIZE], element[SIZE];
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    const int entry = WHOLE || j + i < length ? j + i : j;
    offset[i] = gs_load(offsets + entry);
    value[i] = gs_code(values, position + entry * GS_WARP);
  }
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    element[i] = WHOLE || j + i < length ? gs_load(x_row + offset[i]) : Scalar<T>::zero();
    a[i] = gs_decode(value[i], table);
  }
#pragma unroll
  for (int i = 0; i < SIZE; ++i) {
    if (conjugate) a[i] = Scalar<T>::conjugate(a[i]);
    sum = WHOLE || j + i < length ? gs_fma(a[i], element[i], sum) : sum;
  }
  return sum;
}

template <class Code, class Value, class T, template <class> class Dots>
GS_KERNEL row_pattern(long long num_rows, const Code *__restrict__ codes, const int *__restrict__ pattern_indptr,
                      const int *__restrict__ offsets, const long long *__restrict__ slice_offsets,
                      const Value *__restrict__ values, const T *__restrict__ table, const T *__restrict__ x,
                      T *__restrict__ y, T alpha, T beta, int read_y, int conjugate,
                      typename Wide<T>::type *block_dots) {
  enum { SIZE = Batch<T>::size };
  Dots<T> dots(block_dots);
  const long long row = gs_thread();
  if (row < num_rows) {
    const int code = gs_load(codes + row), begin = gs_load(pattern_indptr + code);
    const int length = gs_load(pattern_indptr + code + 1) - begin;
    const long long position = slice_offsets[row / GS_WARP] + row % GS_WARP;
    x += row;
    offsets += begin;
    T sum = Scalar<T>::zero();
    int j = 0;
    for (; j + SIZE <= length; j += SIZE)
      sum = gs_add_batch<true, SIZE>(j, length, offsets, position, values, table, x, conjugate, sum);
    if (j < length) sum = gs_add_batch<false, SIZE>(j, length, offsets, position, values, table, x, conjugate, sum);
    sum = gs_store(y + row, sum, alpha, beta, read_y);
    dots.add(x, sum);
  }
  dots.leave();
}
