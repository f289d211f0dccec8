// halo.cu - entries of vectors picked out for other ranks, and what comes of theirs added.
#include "sums.cuh"

template <class T, class Index>
GS_KERNEL gather(long long count, const T *__restrict__ x, const Index *__restrict__ numbers, T *__restrict__ out) {
  const long long i = gs_thread();
  if (i < count) out[i] = x[numbers[i]];
}

// y[numbers] += values, all numbers distinct.
template <class T, class Index>
GS_KERNEL scatter_add(long long count, const T *__restrict__ values, const Index *__restrict__ numbers,
                      T *__restrict__ y) {
  const long long i = gs_thread();
  if (i < count) y[numbers[i]] = gs_add(y[numbers[i]], values[i]);
}

// The same; and each block leaves its sum of conj(x)*values in `dots`.
template <class T, class Index>
GS_KERNEL_OF(256) scatter_add_dots(long long count, const T *__restrict__ values, const Index *__restrict__ numbers,
                                   T *__restrict__ y, const T *__restrict__ x,
                                   typename Wide<T>::type *__restrict__ dots) {
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_MAX_WARPS);
  C dot = Scalar<C>::zero();
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = gs_thread(); i < count; i += step) {
    const Index place = numbers[i];
    const T value = values[i];
    y[place] = gs_add(y[place], value);
    dot = gs_fma(Scalar<C>::conjugate(Widen<C>::from(x[place])), Widen<C>::from(value), dot);
  }
  dot = gs_block_sum(dot, shared);
  if (threadIdx.x == 0) dots[blockIdx.x] = dot;
}
