// halo.cu - halo exchange: pack the entries of a vector that other ranks need, and add what arrives from them.
//
// A thread owns one exchanged entry, in scatter_add_dots every step-th one. It reads or writes neighbouring elements of
// the packed array (coalesced), and the element of the vector that `numbers` names. Only scatter_add_dots uses shared
// memory: one value for each warp (sums.cuh).
#include "sums.cuh"

// out[i] = x[numbers[i]].
template <class T, class Index>
GS_KERNEL gather(long long count, const T *__restrict__ x, const Index *__restrict__ numbers, T *__restrict__ out) {
  const long long i = gs_thread();
  if (i < count) out[i] = x[numbers[i]];
}

// y[numbers[i]] += values[i], for distinct numbers.
template <class T, class Index>
GS_KERNEL scatter_add(long long count, const T *__restrict__ values, const Index *__restrict__ numbers,
                      T *__restrict__ y) {
  const long long i = gs_thread();
  if (i < count) y[numbers[i]] = gs_add(y[numbers[i]], values[i]);
}

enum { GS_HALO_THREADS = 256 };

// The same. Each block also writes its partial sum of conj(x[numbers[i]]) * values[i] to `dots`.
template <class T, class Index>
GS_KERNEL_OF(GS_HALO_THREADS)
scatter_add_dots(long long count, const T *__restrict__ values, const Index *__restrict__ numbers, T *__restrict__ y,
                 const T *__restrict__ x, typename Wide<T>::type *__restrict__ dots) {
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_MAX_WARPS);
  C dot = Scalar<C>::zero();
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = gs_thread(); i < count; i += step) {
    const Index number = numbers[i];
    const T value = values[i];
    y[number] = gs_add(y[number], value);
    dot = gs_fma(Scalar<C>::conjugate(Widen<C>::from(x[number])), Widen<C>::from(value), dot);
  }
  dot = gs_block_sum(dot, shared);
  if (threadIdx.x == 0) dots[blockIdx.x] = dot;
}
