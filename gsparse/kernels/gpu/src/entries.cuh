// entries.cuh - how kernels read the columns and values of stored entries (gsparse/formats/entries.py).
// Both are arrays over positions. Column: int or long long (the column itself), unsigned short or unsigned char (to be
// added to the base of its run of GS_WARP positions). Value: anything that widens to T, unsigned char or unsigned short
// (a place in a table of T), or Same (all equal: nothing is read a position).
#pragma once
#include "sums.cuh"

struct Same {};

// The arguments of every product, and how a kernel makes its reader of them.
#define GS_ENTRIES                                                                                                     \
  const Column *__restrict__ columns, const int *__restrict__ bases, const Value *__restrict__ values,                 \
      const T *__restrict__ table
#define GS_VECTORS const T *__restrict__ x, T *__restrict__ y, T alpha, T beta, int read_y, int conjugate
#define GS_READER const Entries<Value, Column, T> entries = {columns, bases, values, table, x, conjugate}

// ---- columns: a code, and the base it counts from (of a narrow one)
template <class P> __device__ __forceinline__ int gs_base(const int *, const int *, P) { return 0; }
template <class P> __device__ __forceinline__ int gs_base(const long long *, const int *, P) { return 0; }
template <class P> __device__ __forceinline__ int gs_base(const unsigned short *, const int *bases, P k) {
  return gs_load(bases + k / GS_WARP);
}
template <class P> __device__ __forceinline__ int gs_base(const unsigned char *, const int *bases, P k) {
  return gs_load(bases + k / GS_WARP);
}

__device__ __forceinline__ bool gs_is_padding(int code) { return code < 0; }
__device__ __forceinline__ bool gs_is_padding(long long code) { return code < 0; }
__device__ __forceinline__ bool gs_is_padding(unsigned short code) { return code == 0xFFFFu; }
__device__ __forceinline__ bool gs_is_padding(unsigned char code) { return code == 0xFFu; }

// ---- values: what is read at a position, and what it stands for
template <class Value, class P> __device__ __forceinline__ Value gs_code(const Value *values, P k) {
  return gs_load(values + k);
}
template <class P> __device__ __forceinline__ Same gs_code(const Same *, P) { return Same(); }

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

// Entries in flight at once. A thread first asks for the columns and values of so many, as they are stored, then for what
// they stand for and the elements of x, and only then adds: left to `#pragma unroll`, what remains of a row (all of a
// short one) would wait for one entry at a time.
// Four keep registers, and so the number of warps, where they were; eight and two were slower on an H200 by up to a tenth.
template <class T> struct Batch { enum { size = sizeof(T) > 8 ? 2 : 4 }; };

template <class Value, class Column, class T> struct Entries {
  const Column *columns;
  const int *bases;
  const Value *values;
  const T *table, *x;
  int conjugate;

  // sum + `SIZE` entries at `first`, `first + stride` …, or where not WHOLE the first `left` of them; PADDED where some
  // may be padding, which is skipped.
  template <bool PADDED, bool WHOLE, int SIZE, class P>
  __device__ __forceinline__ T add_batch(P first, P stride, int left, T sum) const {
    Column column[SIZE];
    int base[SIZE];
    Value value[SIZE];
    T a[SIZE], element[SIZE];
    bool is_entry[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      is_entry[i] = WHOLE || i < left;
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

  // sum + `count` entries, where lanes of a warp may have different counts: one loop for all of them.
  template <int SIZE, class P> __device__ __forceinline__ T add(P first, P stride, int count, T sum) const {
    for (int j = 0; j < count; j += SIZE)
      sum = add_batch<false, false, SIZE>(first + j * stride, stride, count - j, sum);
    return sum;
  }

  // The same where nearly all lanes have as many: whole batches ask nothing of each entry (a seventh faster on rows of
  // seven), which would cost twice the time where lanes part over it.
  template <bool PADDED, int SIZE, class P>
  __device__ __forceinline__ T add_even(P first, P stride, int count, T sum) const {
    int j = 0;
    for (; j + SIZE <= count; j += SIZE) sum = add_batch<PADDED, true, SIZE>(first + j * stride, stride, SIZE, sum);
    return j < count ? add_batch<PADDED, false, SIZE>(first + j * stride, stride, count - j, sum) : sum;
  }

  // The products of `size` entries from `first` on, to shared memory: by all threads of a block, coalesced.
  template <int SIZE, class P> __device__ __forceinline__ void multiply(P first, int size, T *products) const {
    for (int j = threadIdx.x; j < size; j += SIZE * blockDim.x) {
      Column column[SIZE];
      int base[SIZE];
      Value value[SIZE];
      T a[SIZE], element[SIZE];
#pragma unroll
      for (int i = 0; i < SIZE; ++i) {
        const int at = j + i * int(blockDim.x);
        if (at >= size) continue;
        column[i] = gs_load(columns + first + at);
        base[i] = gs_base(columns, bases, first + at);
        value[i] = gs_code(values, first + at);
      }
#pragma unroll
      for (int i = 0; i < SIZE; ++i) {
        if (j + i * int(blockDim.x) >= size) continue;
        element[i] = gs_load(x + base[i] + column[i]);
        a[i] = gs_decode(value[i], table);
      }
#pragma unroll
      for (int i = 0; i < SIZE; ++i) {
        const int at = j + i * int(blockDim.x);
        if (at >= size) continue;
        if (conjugate) a[i] = Scalar<T>::conjugate(a[i]);
        products[at] = gs_fma(a[i], element[i], Scalar<T>::zero());
      }
    }
  }
};
