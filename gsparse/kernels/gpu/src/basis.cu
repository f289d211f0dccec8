// basis.cu - Arnoldi's process (contract and equations: gsparse/kernels/basis.py). Basis vectors lie one after the
// other; one read of the basis serves all that a pass does with it.
// A block goes over tiles of elements. Its threads are `teams` teams: all have the tile's elements, each has its own
// GS_BASIS_COLUMNS vectors, neighbouring threads neighbouring elements. What a thread reads stays in its registers: it
// first adds its vectors up, times their coefficients, the teams put their sums together in shared memory, and each
// thread multiplies what it still holds by the result. More vectors than all teams can hold are read once more.
// Sums are added up in one order by the block that arrives last, which also does the small part. Only the count of
// arrivals is atomic. Blocks along y: right-hand sides.
#include "arnoldi.cuh"

enum { GS_BASIS_THREADS = 256, GS_BASIS_COLUMNS = 8, GS_BASIS_BLOCKS = 2 };

// Elements of each vector that a thread has in flight: 16 bytes.
template <class T> struct InFlight { enum { COUNT = 16 / sizeof(T) }; };

// Which of the first j vectors, or of as many of them as fit, a thread works with: `columns` of them.
struct Team {
  int count, size, number, place, columns;
  __device__ Team(int teams, int j)
      : count(teams), size(GS_BASIS_THREADS / teams), number(threadIdx.x / size), place(threadIdx.x % size),
        columns(j < teams * GS_BASIS_COLUMNS ? (j + teams - 1) / teams : GS_BASIS_COLUMNS) {}
  __device__ int first_after(int first) const { return first + number * columns; }
  __device__ int mine(int column, int end) const { return end - column < columns ? end - column : columns; }
  __device__ int all() const { return count * columns; }
};

// ---- sums over all elements

// Products of this team's vectors, of those from `first` to `end`, with u; and of w with u, unless there is no w.
template <class S, class T, class C>
__device__ __forceinline__ void gs_products(const Team &team, long long n, int first, int end, const S *basis,
                                            const T *w, const T *u, C *sums, C &own) {
  enum { COUNT = InFlight<T>::COUNT };
  const long long stride = gridDim.y * n, tile = static_cast<long long>(team.size) * COUNT;
  const int column = team.first_after(first), mine = team.mine(column, end);
  basis += column * stride;
  for (long long start = blockIdx.x * tile + team.place; start - team.place < n; start += gridDim.x * tile) {
    long long at[COUNT];
    T right[COUNT];
    S read[GS_BASIS_COLUMNS][COUNT];
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const long long i = start + e * team.size;
      at[e] = i < n ? i : n - 1;
      right[e] = i < n ? u[i] : Scalar<T>::zero();
    }
    const S *vector = basis;
#pragma unroll
    for (int c = 0; c < GS_BASIS_COLUMNS; ++c, vector += stride)
#pragma unroll
      for (int e = 0; e < COUNT; ++e)
        if (c < mine) read[c][e] = vector[at[e]];
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const C wide = Widen<C>::from(right[e]);
#pragma unroll
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c)
        if (c < mine) sums[c] = gs_fma(gs_conj(Widen<C>::from(read[c][e])), wide, sums[c]);
      if (w) own = gs_fma(gs_conj(Widen<C>::from(w[at[e]])), wide, own);
    }
  }
}

// Leaves a block's sums, vectors from `first` to `end`. `shared` holds GS_BASIS_THREADS numbers.
template <class C>
__device__ __forceinline__ void gs_leave(const Team &team, int first, int end, const C *sums, C *partials, C *shared) {
  const int width = team.size < GS_WARP ? team.size : GS_WARP, groups = team.size / width;
  const int place = threadIdx.x;
#pragma unroll
  for (int c = 0; c < GS_BASIS_COLUMNS; ++c) {
    const C sum = gs_group_sum(sums[c], width);
    if (place % width == 0) shared[place / width * GS_BASIS_COLUMNS + c] = sum;
  }
  __syncthreads();
  if (place < team.all() && first + place < end) {
    const C *group = shared + place / team.columns * groups * GS_BASIS_COLUMNS + place % team.columns;
    C sum = group[0];
    for (int g = 1; g < groups; ++g) sum = gs_add(sum, group[g * GS_BASIS_COLUMNS]);
    partials[static_cast<long long>(first + place) * gridDim.x + blockIdx.x] = sum;
  }
  __syncthreads();
}

// The same for `COUNT` sums of all threads, which follow the vectors'.
template <int COUNT, class C>
__device__ __forceinline__ void gs_leave_own(int first, C *own, C *partials, C *shared) {
  gs_block_sums<COUNT>(own, shared);
  if (threadIdx.x == 0)
    for (int s = 0; s < COUNT; ++s) partials[static_cast<long long>(first + s) * gridDim.x + blockIdx.x] = own[s];
}

// True in all threads of the block that arrives last, which then has all sums.
template <class C>
__device__ __forceinline__ bool gs_last_adds(int count, C *sums, const C *partials, unsigned *arrivals, int *is_last) {
  const int blocks = int(gridDim.x), lane = threadIdx.x % GS_WARP, warps = int(blockDim.x) / GS_WARP;
  __syncthreads();
  if (threadIdx.x == 0) *is_last = gs_arrive(arrivals + blockIdx.y) == unsigned(blocks - 1);
  __syncthreads();
  if (!*is_last) return false;
  if (threadIdx.x == 0) arrivals[blockIdx.y] = 0u;
  for (int s = threadIdx.x / GS_WARP; s < count; s += warps) {
    const C *partial = partials + static_cast<long long>(s) * blocks;
    C sum = Scalar<C>::zero();
#pragma unroll 4
    for (int b = lane; b < blocks; b += GS_WARP) sum = gs_add(sum, gs_fresh(partial + b));
    sum = gs_group_sum<GS_WARP>(sum);
    if (lane == 0) sums[s] = sum;
  }
  __syncthreads();
  return true;
}

// ---- the small part, where it is not done by a pass

// What the two do after sums that were added up elsewhere.
template <class T> GS_KERNEL_OF(GS_BASIS_THREADS) basis_after_project(int j, GS_SMALL) {
  GS_THE_SMALL;
  if (!GS_IS_IDLE) gs_after_project(a, j);
}
template <class T> GS_KERNEL_OF(GS_BASIS_THREADS) basis_after_orthogonalize(int j, GS_SMALL) {
  GS_SHARED(typename Wide<T>::type, shared, 4);
  GS_THE_SMALL;
  if (!GS_IS_IDLE) gs_after_orthogonalize(a, j, shared);
}

// y, by one warp: R y = rhs, as elements are multiplied by it.
template <class T> GS_KERNEL_OF(GS_BASIS_THREADS) basis_solve(GS_SMALL) {
  typedef typename Wide<T>::type C;
  GS_THE_SMALL;
  if (a.is_stopped()) return;
  const int found = int(gs_real(*a.found));
  for (int i = threadIdx.x; i < found; i += blockDim.x) a.rotated[i] = a.rhs[i];
  for (int k = found - 1; k >= 0; --k) {
    __syncthreads();
    C y = a.rotated[k];
    if (!Scalar<C>::equal(y, Scalar<C>::zero())) y = y / a.r(k)[k];
    for (int i = threadIdx.x; i < k; i += blockDim.x) a.rotated[i] = a.rotated[i] - y * a.r(i)[k];
    if (threadIdx.x == 0) a.coefficients[k] = Narrow<T>::from(y / a.scales[k]);
  }
}

// ---- the passes

template <class S, class T>
GS_KERNEL_FOR(GS_BASIS_THREADS, GS_BASIS_BLOCKS)
basis_project(long long n, int j, int teams, int split, const S *__restrict__ basis, const T *__restrict__ w,
              const T *__restrict__ u, typename Wide<T>::type *partials, unsigned *arrivals, GS_SMALL) {
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_BASIS_THREADS);
  GS_SHARED(int, is_last, 1);
  if (GS_IS_IDLE) return;
  const Team team(teams, j);
  const long long offset = blockIdx.y * n;
  partials += static_cast<long long>(blockIdx.y) * (m + 2) * gridDim.x;
  C own[1] = {Scalar<C>::zero()};
  int first = 0;
  do {
    C sum[GS_BASIS_COLUMNS];
    for (int c = 0; c < GS_BASIS_COLUMNS; ++c) sum[c] = Scalar<C>::zero();
    const T *left = first == 0 && team.number == 0 ? w + offset : nullptr;
    gs_products(team, n, first, j, basis + offset, left, u + offset, sum, own[0]);
    gs_leave(team, first, j, sum, partials, shared);
    first += team.all();
  } while (first < j);
  gs_leave_own<1>(j, own, partials, shared);
  GS_THE_SMALL;
  if (gs_last_adds(j + 1, a.sums, partials, arrivals, is_last) && !split) gs_after_project(a, j);
}

// HELD: the teams hold all vectors.
template <class S, class T, int HELD>
GS_KERNEL_FOR(GS_BASIS_THREADS, (HELD ? GS_BASIS_BLOCKS : 1))
basis_orthogonalize(long long n, int j, int teams, int split, S *basis, T *w, const T *__restrict__ u,
                    typename Wide<T>::type *partials, unsigned *arrivals, GS_SMALL) {
  typedef typename Wide<T>::type C;
  enum { COUNT = InFlight<T>::COUNT, PARTS = 2 * COUNT * GS_BASIS_THREADS };
  GS_SHARED(C, shared, GS_BASIS_THREADS);
  GS_SHARED(T, parts, 2 * PARTS);  // the teams' sums, of one tile and the next, so that one barrier a tile is enough
  GS_SHARED(int, is_last, 1);
  if (GS_IS_IDLE) return;
  const Team team(teams, j);
  const bool leads = team.number == 0;
  const long long stride = gridDim.y * n, tile = static_cast<long long>(team.size) * COUNT;
  basis += blockIdx.y * n;
  w += blockIdx.y * n;
  u += blockIdx.y * n;
  partials += static_cast<long long>(blockIdx.y) * (m + 2) * gridDim.x;
  const T *by_w = coefficients + blockIdx.y * (2ll * m + 1), *by_u = by_w + m;
  const T last = by_u[j], inverse = by_w[2 * m];
  C sum[GS_BASIS_COLUMNS], own[2] = {Scalar<C>::zero(), Scalar<C>::zero()};
  for (int c = 0; c < GS_BASIS_COLUMNS; ++c) sum[c] = Scalar<C>::zero();
  T *part = parts;
  for (long long start = blockIdx.x * tile; start < n; start += gridDim.x * tile) {
    long long at[COUNT];
    T old[COUNT], next[COUNT];
    S read[GS_BASIS_COLUMNS][COUNT];
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const long long i = start + team.place + e * team.size;
      at[e] = i < n ? i : n - 1;
      old[e] = leads && i < n ? w[i] : Scalar<T>::zero();
      next[e] = leads && i < n ? u[i] : Scalar<T>::zero();
    }
    for (int first = 0; first < j; first += HELD ? j : team.all()) {
      const int column = team.first_after(first), mine = team.mine(column, j);
      const S *vector = basis + column * stride;
#pragma unroll
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c, vector += stride)
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
          if (c < mine) read[c][e] = vector[at[e]];
#pragma unroll
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c)
        if (c < mine) {
          const T s = -by_w[column + c], p = -by_u[column + c];
#pragma unroll
          for (int e = 0; e < COUNT; ++e) {
            const T v = Widen<T>::from(read[c][e]);
            old[e] = gs_fma(s, v, old[e]);
            next[e] = gs_fma(p, v, next[e]);
          }
        }
    }
    if (team.count > 1) {
#pragma unroll
      for (int e = 0; e < COUNT; ++e) {
        part[2 * e * GS_BASIS_THREADS + threadIdx.x] = old[e];
        part[(2 * e + 1) * GS_BASIS_THREADS + threadIdx.x] = next[e];
      }
      __syncthreads();
#pragma unroll
      for (int e = 0; e < COUNT; ++e) {
        const T *others = part + 2 * e * GS_BASIS_THREADS + team.place;
        old[e] = others[0];
        next[e] = others[GS_BASIS_THREADS];
        for (int t = team.size; t < GS_BASIS_THREADS; t += team.size) {
          old[e] = old[e] + others[t];
          next[e] = next[e] + others[GS_BASIS_THREADS + t];
        }
      }
      part = part == parts ? parts + PARTS : parts;
    }
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const long long i = start + team.place + e * team.size;
      const S stored = Narrow<S>::from(Widen<C>::from(old[e] * inverse));  // (what will be read is what is used here)
      const T v = Widen<T>::from(stored), made = gs_fma(-last, v, next[e]) * inverse;
      const C wide = Widen<C>::from(i < n ? made : Scalar<T>::zero());
      if (leads && i < n) {
        basis[j * stride + i] = stored;
        w[i] = made;
        own[0] = gs_fma(gs_conj(Widen<C>::from(v)), wide, own[0]);
        own[1] = own[1] + gs_abs2(wide);
      }
      if (HELD) {
        const int mine = team.mine(team.first_after(0), j);
#pragma unroll
        for (int c = 0; c < GS_BASIS_COLUMNS; ++c)
          if (c < mine) sum[c] = gs_fma(gs_conj(Widen<C>::from(read[c][e])), wide, sum[c]);
      }
    }
  }
  if (HELD) {
    gs_leave(team, 0, j, sum, partials, shared);
  } else {
    __syncthreads();  // a block reads again what it has just written
    for (int first = 0; first < j; first += team.all()) {
      C unused = Scalar<C>::zero();
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c) sum[c] = Scalar<C>::zero();
      gs_products(team, n, first, j, basis, static_cast<const T *>(nullptr), w, sum, unused);
      gs_leave(team, first, j, sum, partials, shared);
    }
  }
  gs_leave_own<2>(j, own, partials, shared);
  GS_THE_SMALL;
  if (gs_last_adds(j + 2, a.sums, partials, arrivals, is_last) && !split) gs_after_orthogonalize(a, j, shared);
}

// x += V y, a thread a few elements.
template <class S, class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_combine(long long n, const S *__restrict__ basis, T *__restrict__ x, GS_SMALL) {
  enum { COUNT = InFlight<T>::COUNT };
  GS_THE_SMALL;
  if (a.is_stopped()) return;
  const int found = int(gs_real(*a.found));
  const long long stride = gridDim.y * n, step = static_cast<long long>(gridDim.x) * blockDim.x;
  basis += blockIdx.y * n;
  x += blockIdx.y * n;
  for (long long start = gs_thread(); start < n; start += COUNT * step) {
    long long at[COUNT];
    T sum[COUNT];
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      at[e] = start + e * step < n ? start + e * step : start;
      sum[e] = x[at[e]];
    }
    for (int first = 0; first < found; first += GS_BASIS_COLUMNS) {
      S read[GS_BASIS_COLUMNS][COUNT];
#pragma unroll
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c)
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
          if (first + c < found) read[c][e] = basis[(first + c) * stride + at[e]];
#pragma unroll
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c)
        if (first + c < found) {
          const T y = a.coefficients[first + c];
#pragma unroll
          for (int e = 0; e < COUNT; ++e) sum[e] = gs_fma(y, Widen<T>::from(read[c][e]), sum[e]);
        }
    }
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
      if (start + e * step < n) x[at[e]] = sum[e];
  }
}
