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
// What a lane that owns the columns from `column` on reads with.
#define GS_GATHER                                                                                                      \
  const Gather<Stored, T, Index, V, PACKED> gather = {indices, data, x + column * x_column_stride, x_row_stride,       \
                                                      x_column_stride, int(num_columns - column), conjugate}

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

// ---- a value of another lane, its parts one by one
template <class R> __device__ __forceinline__ R gs_lane_value(R v, int source) { return gs_shfl(v, source, GS_WARP); }
template <class R> __device__ __forceinline__ Complex<R> gs_lane_value(Complex<R> v, int source) {
  return {gs_lane_value(v.re, source), gs_lane_value(v.im, source)};
}
template <class R> __device__ __forceinline__ R gs_lane_after(R v, int d, int width) { return gs_shfl_down(v, d, width); }
template <class R> __device__ __forceinline__ Complex<R> gs_lane_after(Complex<R> v, int d, int width) {
  return {gs_lane_after(v.re, d, width), gs_lane_after(v.im, d, width)};
}

// The entries of A and one lane's columns of X.
template <class Stored, class T, class Index, int V, int PACKED> struct Gather {
  // Entries in flight at once: first their columns and values are asked for, then the elements of X, then it is added.
  enum { BATCH = PACKED || V == 1 ? (sizeof(T) > 8 ? 2 : 4) : 2 };
  const Index *indices;
  const Stored *data;
  const T *x;
  long long row_stride, column_stride;
  int left;  // columns there are
  int conjugate;

  __device__ __forceinline__ void read(Index row, T *element) const {
    const T *at = x + row * row_stride;
    if (PACKED) {
      const Pack<T, V> pack = gs_load_pack<T, V>(at);
#pragma unroll
      for (int v = 0; v < V; ++v) element[v] = pack.at[v];
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) element[v] = v < left ? gs_load(at + v * column_stride) : Scalar<T>::zero();
    }
  }
  __device__ __forceinline__ T value(Stored stored) const {
    const T a = Widen<T>::from(stored);
    return conjugate ? Scalar<T>::conjugate(a) : a;
  }

  // Reads the batch of entries `first`, `first + stride` …, the first `count` of them.
  __device__ __forceinline__ void read_batch(Index first, int stride, Index count, T *a, T (*element)[V]) const {
    Index row[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
      const Index k = first + (i < count ? i * stride : 0);
      row[i] = gs_load(indices + k);
      a[i] = value(gs_load(data + k));
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i)
      if (i < count) read(row[i], element[i]);
  }

  // sums += `count` entries at `first`, `first + stride` …; lanes of a warp may have different counts.
  __device__ __forceinline__ void add(Index first, int stride, Index count, T *sums) const {
    T a[BATCH], element[BATCH][V];
    for (Index j = 0; j < count; j += BATCH) {
      read_batch(first + j * stride, stride, count - j, a, element);
#pragma unroll
      for (int i = 0; i < BATCH; ++i)
        if (j + i < count) add_one(a[i], element[i], sums);
    }
  }
  __device__ __forceinline__ void add_one(T a, const T *element, T *sums) const {
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] = gs_fma(a, element[v], sums[v]);
  }

  // The same for a row that a whole warp owns: it reads GS_WARP entries at once, coalesced, and passes them round; lanes of
  // one place out of `places` take the same entries. All lanes come.
  __device__ __forceinline__ void add_cached(Index begin, Index length, int place, int places, bool active,
                                             T *sums) const {
    const int lane = threadIdx.x % GS_WARP;
    for (Index j = 0; j < length; j += GS_WARP) {
      const int here = length - j < GS_WARP ? int(length - j) : GS_WARP;
      Index row = 0;
      T a = Scalar<T>::zero();
      if (lane < here) {
        row = gs_load(indices + begin + j + lane);
        a = value(gs_load(data + begin + j + lane));
      }
      for (int first = 0; first < here; first += places * BATCH) {
        T passed[BATCH], element[BATCH][V];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
          const int source = first + i * places + place;
          const Index wanted = gs_lane_value(row, source % GS_WARP);
          passed[i] = gs_lane_value(a, source % GS_WARP);
          if (active && source < here) read(wanted, element[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
          if (active && first + i * places + place < here) add_one(passed[i], element[i], sums);
      }
    }
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
