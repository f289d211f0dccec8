// entries.cuh - how kernels read the columns and values of stored entries (gsparse/formats/entries.py), and multiply
// them by elements of x.
//
// Columns and values are arrays over positions. Each may be stored as it is or in a shorter code:
//   column   int, long long                  the column itself
//            unsigned short, unsigned char   the distance from the base, the smallest column of the position's run;
//                                            a run is GS_WARP consecutive positions
//   value    a type that widens to T         the value itself
//            unsigned short, unsigned char   the value's index in a table of values of type T
//            Same                            all values are equal: nothing is read for a position, and table[0] is it
//
//     position k      0      1      2      3    ...   31  |  32     33    ...
//     columns[k]      0      1      0      2    ...    9  |   0      3    ...   (codes)
//     bases           b0 = bases[0] for the whole run     |  b1 = bases[1]
//     column         b0+0   b0+1   b0+0   b0+2  ...  b0+9 | b1+0   b1+3   ...
#pragma once
#include "sums.cuh"

// The value type of a matrix whose values are all equal.
struct Same {};

// ---- columns
// Return what is added to a column's code at position k: the base of its run, or 0 if columns are stored as they are.
template <class Column, class P> __device__ __forceinline__ int gs_base(const Column *, const int *bases, P k) {
  return sizeof(Column) < sizeof(int) ? gs_load(bases + k / GS_WARP) : 0;
}

// Padding of ELLPACK is marked in the column: -1, or the largest code.
template <class Column> __device__ __forceinline__ bool gs_is_padding(Column code) { return code == Column(-1); }

// ---- values
// Read a value as it is stored.
template <class Value, class P> __device__ __forceinline__ Value gs_code(const Value *values, P k) {
  return gs_load(values + k);
}
template <class P> __device__ __forceinline__ Same gs_code(const Same *, P) { return Same(); }

// Return the values from a position on.
template <class Value> __device__ __forceinline__ const Value *gs_values_from(const Value *values, long long first) {
  return values + first;
}
__device__ __forceinline__ const Same *gs_values_from(const Same *values, long long) { return values; }

// Return the value of type T that a stored value stands for.
template <class Value, class T> __device__ __forceinline__ T gs_decode(Value value, const T *) {
  return Widen<T>::from(value);
}
template <class T> __device__ __forceinline__ T gs_decode(unsigned char code, const T *table) {
  return gs_load(table + code);
}
template <class T> __device__ __forceinline__ T gs_decode(unsigned short code, const T *table) {
  return gs_load(table + code);
}
template <class T> __device__ __forceinline__ T gs_decode(Same, const T *table) { return gs_load(table); }

// ---- entries
// The number of entries of a row that a thread processes together. A thread first loads the columns and values of all
// of them, then the elements of x, and only then adds, so that SIZE loads run at the same time. Four entries need no
// more registers than one entry. On an H200, two and eight entries were slower by up to 10 %.
template <class T> struct Batch { enum { size = sizeof(T) > 8 ? 2 : 4 }; };

template <class Value, class Column, class T> struct Entries {
  const Column *columns;  // the column of each position, or its code
  const int *bases;       // the base of each run of positions; not read where columns are stored as they are
  const Value *values;    // the value of each position, or its code
  const T *table;         // the values that codes stand for; not read where values are stored as they are
  const T *x;             // the vector that entries are multiplied with
  int conjugate;          // whether values are conjugated as they are read

  // Return `sum` plus the products of SIZE entries with x, at positions first, first + stride, ... If WHOLE is false,
  // only the first `count` of them are entries of the row. If PADDED is true, some may be padding, which is skipped.
  template <bool PADDED, bool WHOLE, int SIZE, class P>
  __device__ __forceinline__ T add_batch(P first, P stride, int count, T sum) const {
    Column column[SIZE];
    int base[SIZE];
    Value value[SIZE];
    T a[SIZE], element[SIZE];
    bool is_entry[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      is_entry[i] = WHOLE || i < count;
      const P k = is_entry[i] ? first + i * stride : first;
      column[i] = gs_load(columns + k);
      base[i] = gs_base(columns, bases, k);
      value[i] = gs_code(values, k);
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      if (PADDED) is_entry[i] = is_entry[i] && !gs_is_padding(column[i]);
      element[i] = is_entry[i] ? gs_load(x + base[i] + column[i]) : Scalar<T>::zero();
      a[i] = gs_decode(value[i], table);
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      if (conjugate) a[i] = Scalar<T>::conjugate(a[i]);
      sum = is_entry[i] ? gs_fma(a[i], element[i], sum) : sum;
    }
    return sum;
  }

  // Return `sum` plus the products of `count` entries with x. The lanes of a warp may have different counts: every
  // batch tests each of its entries, so that all lanes run the same loop.
  template <int SIZE, class P>
  __device__ __forceinline__ T add(P first, P stride, int count, T sum) const {
    for (int j = 0; j < count; j += SIZE)
      sum = add_batch<false, false, SIZE>(first + j * stride, stride, count - j, sum);
    return sum;
  }

  // Do the same as the function above, but for lanes that mostly have the same count: whole batches test no entry; only
  // the remainder does. This is faster by a seventh for rows of seven entries, but slower if counts differ, because
  // lanes diverge.
  template <bool PADDED, int SIZE, class P>
  __device__ __forceinline__ T add_even(P first, P stride, int count, T sum) const {
    int j = 0;
    for (; j + SIZE <= count; j += SIZE)
      sum = add_batch<PADDED, true, SIZE>(first + j * stride, stride, SIZE, sum);
    return j < count ? add_batch<PADDED, false, SIZE>(first + j * stride, stride, count - j, sum) : sum;
  }
};
