// spmm.cuh - what a lane does in products with k dense columns: it reads its columns of X at the entries of a run of A,
// adds them up, and writes its columns of Y. A lane has LOADS accesses of EACH neighbouring columns; an access of one lane
// is followed by those of its neighbours, so that a row-major X is read coalesced.
#pragma once
#include "long_rows.cuh"

// Threads of a block at most (gsparse.kernels.gpu.spmm).
enum { GS_SPMM_THREADS = 256 };

#define GS_CSR                                                                                                         \
  const Index *__restrict__ indptr, const Index *__restrict__ indices, const Stored *__restrict__ data
// X by the bytes from row to row and from column to column, Y by elements; `packed_y` where EACH elements of Y lie side by
// side and are aligned, as those of X do.
#define GS_PANELS                                                                                                      \
  const T *__restrict__ x, Index x_row_bytes, long long x_column_bytes, T *__restrict__ y, long long y_row_stride,     \
      long long y_column_stride, int packed_y, T alpha, T beta, int read_y, int conjugate

template <class T, int EACH> struct alignas(sizeof(T) * EACH) Pack { T at[EACH]; };

template <class T, int EACH> __device__ __forceinline__ Pack<T, EACH> gs_load_pack(const Pack<T, EACH> *p) {
#if !defined(GS_EMU) && !defined(GS_HIP)
  union { uint4 words; Pack<T, EACH> pack; } four;
  union { uint2 words; Pack<T, EACH> pack; } two;
  if (sizeof(T) * EACH == sizeof(uint4)) {
    four.words = __ldg(reinterpret_cast<const uint4 *>(p));
    return four.pack;
  }
  if (sizeof(T) * EACH == sizeof(uint2)) {
    two.words = __ldg(reinterpret_cast<const uint2 *>(p));
    return two.pack;
  }
  Pack<T, EACH> one;
  one.at[0] = gs_load(p->at);
  return one;
#else
  return *p;
#endif
}

// Past the caches as far as it goes: Y is not read again, X is.
template <class T, int EACH> __device__ __forceinline__ void gs_store_pack(Pack<T, EACH> *p, Pack<T, EACH> pack) {
#if !defined(GS_EMU) && !defined(GS_HIP)
  union { uint4 words; Pack<T, EACH> pack; } four;
  union { uint2 words; Pack<T, EACH> pack; } two;
  if (sizeof(T) * EACH == sizeof(uint4)) {
    four.pack = pack;
    __stcs(reinterpret_cast<uint4 *>(p), four.words);
    return;
  }
  if (sizeof(T) * EACH == sizeof(uint2)) {
    two.pack = pack;
    __stcs(reinterpret_cast<uint2 *>(p), two.words);
    return;
  }
#endif
  *p = pack;
}

// ---- the value of the lane `d` places on in a group of `width`
template <class R> __device__ __forceinline__ R gs_lane_after(R v, int d, int width) { return gs_shfl_down(v, d, width); }
template <class R> __device__ __forceinline__ Complex<R> gs_lane_after(Complex<R> v, int d, int width) {
  return {gs_lane_after(v.re, d, width), gs_lane_after(v.im, d, width)};
}

template <class Stored, class T, class Index, int LOADS, int EACH> struct Gather {
  // Entries in flight at once: first their columns and values are asked for, then the elements of X, then it is added. All
  // lanes of a group ask for the same entry: one access, for which no lane waits longer than for a shuffle. Four accesses
  // to X in flight a lane: as many as registers allow with GS_SPMM_BLOCKS.
  enum { COLUMNS = LOADS * EACH, BATCH = LOADS > 2 ? 1 : 4 / LOADS };
  typedef Pack<T, EACH> Packed;
  const Index *indices;
  const Stored *data;
  const char *x[LOADS];  // where each access begins in row 0; columns past the end: where the first does
  Index row_bytes;
  int conjugate, spacing, column, num_columns;
  T sums[COLUMNS];

  // For columns from `column` on, `spacing` from access to access.
  __device__ __forceinline__ Gather(const Index *indices, const Stored *data, const T *x_data, Index row_bytes,
                                    long long column_bytes, int column, int spacing, int num_columns, int conjugate)
      : indices(indices), data(data), row_bytes(row_bytes), conjugate(conjugate), spacing(spacing), column(column),
        num_columns(num_columns) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int at = column + i * spacing;
      x[i] = reinterpret_cast<const char *>(x_data) + (at < num_columns ? at : 0) * column_bytes;
    }
    clear();
  }
  // Where the lane's column number c is, from its first one on.
  __device__ __forceinline__ int offset(int c) const { return c / EACH * spacing + c % EACH; }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sums[c] = Scalar<T>::zero();
  }
  // Lets columns count from `row` on.
  __device__ __forceinline__ void shift(long long row) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) x[i] += row * row_bytes;
  }
  template <class P> __device__ __forceinline__ T value(P k) const {
    const T stored = Widen<T>::from(gs_load(data + k));
    return conjugate ? Scalar<T>::conjugate(stored) : stored;
  }
  __device__ __forceinline__ void read(Index row, Packed *into) const {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
      into[i] = gs_load_pack(reinterpret_cast<const Packed *>(x[i] + static_cast<long long>(row) * row_bytes));
  }
  __device__ __forceinline__ void add(T a, const Packed *element) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sums[c] = gs_fma(a, element[c / EACH].at[c % EACH], sums[c]);
  }
  // Adds the first `count` of BATCH entries, `step` apart from position `at` on; all of them where WHOLE.
  template <bool WHOLE, class P> __device__ __forceinline__ void add_batch(P at, P step, int count) {
    Index row[BATCH];
    T a[BATCH];
    Packed element[BATCH][LOADS];
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (WHOLE || b < count) {
        row[b] = gs_load(indices + at + b * step);
        a[b] = value(at + b * step);
      }
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (WHOLE || b < count) read(row[b], element[b]);
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (WHOLE || b < count) add(a[b], element[b]);
  }
  // Adds `count` entries, `step` apart from position `at` on.
  template <class P> __device__ __forceinline__ void add_run(P at, P step, int count) {
    for (; count >= BATCH; count -= BATCH, at += BATCH * step) add_batch<true>(at, step, int(BATCH));
    if (count > 0) add_batch<false>(at, step, count);
  }
  // Adds up over the lanes of a group of `width` that own the same columns, valid in the first of each.
  __device__ __forceinline__ void add_lanes(int column_lanes, int width) {
    for (int d = width / 2; d >= column_lanes; d /= 2) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sums[c] = gs_add(sums[c], gs_lane_after(sums[c], d, width));
    }
  }
  // y = alpha*sums + beta*y, see gs_store; y points to column 0 of the row.
  __device__ __forceinline__ void store(T *y, long long stride, int packed, T alpha, T beta, int read_y) const {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int at = column + i * spacing;
      if (at >= num_columns) continue;
      T *target = y + at * stride;
      Packed pack;
      if (EACH > 1 && packed) {
        if (read_y) pack = *reinterpret_cast<const Packed *>(target);
#pragma unroll
        for (int e = 0; e < EACH; ++e) gs_store(pack.at + e, sums[i * EACH + e], alpha, beta, read_y);
        gs_store_pack(reinterpret_cast<Packed *>(target), pack);
      } else {
#pragma unroll
        for (int e = 0; e < EACH; ++e) gs_store(target + e * stride, sums[i * EACH + e], alpha, beta, read_y);
      }
    }
  }
};
