// spmm.cuh - what kernels of products with k dense columns share: how a lane reads its few columns of X and writes those
// of Y. A lane owns V columns of a row. PACKED: they are side by side and aligned, one load; else V loads of any stride.
#pragma once
#include "scalar.cuh"

#define GS_CSR                                                                                                         \
  const Index *__restrict__ indptr, const Index *__restrict__ indices, const Stored *__restrict__ data
// X and Y by strides in elements; `packed_y` where V elements of Y are side by side and aligned.
#define GS_PANELS                                                                                                      \
  const T *__restrict__ x, long long x_row_stride, long long x_column_stride, T *__restrict__ y,                      \
      long long y_row_stride, long long y_column_stride, int packed_y, T alpha, T beta, int read_y, int conjugate
// What a lane that owns the columns from `column` on reads with: entries from position `begin` on.
#define GS_GATHER(begin, lanes, turns)                                                                                        \
  typedef Gather<Stored, T, Index, V, PACKED> Reader;                                                                  \
  Reader gather(indices + begin, data + begin, x + column * x_column_stride, x_row_stride, x_column_stride,            \
                int(num_columns - column), conjugate, lanes, turns, cached)

template <class T, int V> struct alignas(sizeof(T) * V) Pack { T at[V]; };

template <class T, int V> __device__ __forceinline__ Pack<T, V> gs_load_pack(const T *p) {
#if !defined(GS_EMU) && !defined(GS_HIP)
  union { uint4 words; Pack<T, V> pack; } four;
  union { uint2 words; Pack<T, V> pack; } two;
  if (sizeof(T) * V == sizeof(uint4)) {
    four.words = __ldg(reinterpret_cast<const uint4 *>(p));
    return four.pack;
  }
  two.words = __ldg(reinterpret_cast<const uint2 *>(p));
  return two.pack;
#else
  return *reinterpret_cast<const Pack<T, V> *>(p);
#endif
}

// ---- a value of another lane of a group of `width`
template <class R> __device__ __forceinline__ R gs_lane_value(R v, int source, int width) {
  return gs_shfl(v, source, width);
}
template <class R> __device__ __forceinline__ Complex<R> gs_lane_value(Complex<R> v, int source, int width) {
  return {gs_lane_value(v.re, source, width), gs_lane_value(v.im, source, width)};
}
template <class R> __device__ __forceinline__ R gs_lane_after(R v, int d, int width) { return gs_shfl_down(v, d, width); }
template <class R> __device__ __forceinline__ Complex<R> gs_lane_after(Complex<R> v, int d, int width) {
  return {gs_lane_after(v.re, d, width), gs_lane_after(v.im, d, width)};
}

// The entries of A and one lane's columns of X, for a group of `width` lanes in `places`: lanes of one place own different
// columns and take the same entries, every `places`-th of a run.
template <class Stored, class T, class Index, int V, int PACKED> struct Gather {
  // Entries in flight at once: first their columns and values are asked for, then the elements of X, then it is added. As
  // many as registers allow without fewer warps.
  enum { BATCH = PACKED ? (sizeof(Index) > 4 ? 2 : 4) : V == 1 ? (sizeof(T) > 8 ? 2 : 4) : 2 };
  const Index *indices;
  const Stored *data;
  const T *x;  // of this lane's first column
  long long row_stride, column_stride;
  int left;  // columns there are from that one on
  int conjugate;
  int width, places, cached;
  T a[BATCH], element[BATCH][V];
  Index own_row;
  T own_a;

  __device__ __forceinline__ Gather(const Index *indices, const Stored *data, const T *x, long long row_stride,
                                    long long column_stride, int left, int conjugate, int width, int places, int cached)
      : indices(indices), data(data), x(x), row_stride(row_stride), column_stride(column_stride), left(left),
        conjugate(conjugate), width(width), places(places), cached(cached), own_row(0), own_a(Scalar<T>::zero()) {}
  __device__ __forceinline__ void read(Index row, T *into) const {
    const T *at = x + row * row_stride;
    if (PACKED) {
      const Pack<T, V> pack = gs_load_pack<T, V>(at);
#pragma unroll
      for (int v = 0; v < V; ++v) into[v] = pack.at[v];
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) into[v] = v < left ? gs_load(at + v * column_stride) : Scalar<T>::zero();
    }
  }
  template <class P> __device__ __forceinline__ T value(P k) const {
    const T stored = Widen<T>::from(gs_load(data + k));
    return conjugate ? Scalar<T>::conjugate(stored) : stored;
  }

  // Asks for the lane's next entries out of `count`: BATCH from j + place on, where j grows by BATCH * places from call to
  // call; a lane that is not `active` has no columns. Where entries are `cached` each lane reads one of the next `width`
  // (BATCH * places at least), coalesced, and they are passed round by shuffles: then all lanes of a warp have to come,
  // and come equally often.
  template <class P> __device__ __forceinline__ void fetch(P j, P count, int lane, int place, bool active) {
    Index row[BATCH];
    if (cached) {
      const int from = int(j & (width - 1));
      if (from == 0 && j + lane < count) {
        own_row = gs_load(indices + j + lane);
        own_a = value(j + lane);
      }
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        row[i] = gs_lane_value(own_row, from + i * places + place, width);
        a[i] = gs_lane_value(own_a, from + i * places + place, width);
      }
    } else {
#pragma unroll
      for (int i = 0; i < BATCH; ++i) {
        const P at = j + i * places + place;
        if (at >= count) continue;
        row[i] = gs_load(indices + at);
        a[i] = value(at);
      }
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
      if (active && j + i * places + place < count) read(row[i], element[i]);
  }
  __device__ __forceinline__ void add(int i, T *sums) const {
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] = gs_fma(a[i], element[i][v], sums[v]);
  }
};

// y = alpha*sum + beta*y for a lane's columns, see gs_store.
template <class T, int V>
__device__ __forceinline__ void gs_store_columns(T *y, long long column_stride, int packed, int left, T *sums, T alpha,
                                                 T beta, int read_y) {
  if (packed) {
    Pack<T, V> pack;
    if (read_y) pack = *reinterpret_cast<const Pack<T, V> *>(y);
#pragma unroll
    for (int v = 0; v < V; ++v) gs_store(pack.at + v, sums[v], alpha, beta, read_y);
    *reinterpret_cast<Pack<T, V> *>(y) = pack;
  } else {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < left) gs_store(y + v * column_stride, sums[v], alpha, beta, read_y);
  }
}
