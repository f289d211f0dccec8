// basis.cu - Arnoldi's process (contract and equations: gsparse/kernels/basis.py). Basis vectors lie one after the
// other; one read of the basis serves all that a pass does with it.
// A block goes over tiles of elements. The lanes of a warp are `teams` teams: all have the same elements of the tile,
// each has its own GS_BASIS_COLUMNS vectors. What a thread reads stays in its registers: it first adds its vectors up,
// times their coefficients, the teams put their sums together by shuffles, and each thread multiplies what it still
// holds by the result: no thread waits for another warp. More vectors than all teams can hold are read once more.
// Sums over all elements are left as partial sums, a block each, for the pass that reads them. Blocks along x but the
// first: elements; the first one does the small part of before (arnoldi.cuh). Blocks along y: right-hand sides.
#include "arnoldi.cuh"

enum {
  GS_BASIS_THREADS = 256,
  GS_BASIS_COLUMNS = 8,
  GS_BASIS_BLOCKS = 2,
  GS_BASIS_TEAMS = 8,
  GS_BASIS_SHARED = GS_BASIS_THREADS / GS_WARP * GS_BASIS_TEAMS * GS_BASIS_COLUMNS
};

// Elements of each vector that a thread has in flight: 16 bytes, where there are registers for them.
template <class S, class T> struct InFlight { enum { COUNT = 16 / sizeof(S) }; };
template <class S> struct InFlight<S, Complex<double>> { enum { COUNT = 1 }; };

// Which of the first j vectors, or of as many of them as fit, a thread works with: `columns` of them; and which elements
// of a tile: `count` of them, `width` apart.
struct Team {
  int count, width, number, columns;
  __device__ Team(int teams, int j)
      : count(teams), width(GS_WARP / teams), number(threadIdx.x % GS_WARP / width),
        columns(j < teams * GS_BASIS_COLUMNS ? (j + teams - 1) / teams : GS_BASIS_COLUMNS) {}
  __device__ int first_after(int first) const { return first + number * columns; }
  __device__ int mine(int column, int end) const { return end - column < columns ? end - column : columns; }
  __device__ int all() const { return count * columns; }
  __device__ bool leads() const { return number == 0; }
  template <int COUNT> __device__ int place() const {
    return threadIdx.x / GS_WARP * (COUNT * width) + threadIdx.x % width;
  }
  template <int COUNT> __device__ int tile() const { return GS_BASIS_THREADS / GS_WARP * COUNT * width; }
};

// ---- sums over all elements

// Adds up `count` sums, of which each of `blocks` blocks has left its part. By one block, a few lanes a sum.
template <class C>
__device__ __forceinline__ void gs_add_up(int count, const C *__restrict__ partials, int blocks, C *sums) {
  int width = GS_WARP;
  while (width > 8 && count * width > GS_BASIS_THREADS) width /= 2;
  const int lane = threadIdx.x % width;
  for (int first = 0; first < count; first += GS_BASIS_THREADS / width) {
    const int s = first + threadIdx.x / width;
    const C *partial = partials + static_cast<long long>(s) * blocks;
    C sum = Scalar<C>::zero();
    if (s < count) {
#pragma unroll 8
      for (int b = lane; b < blocks; b += width) sum = gs_add(sum, partial[b]);
    }
    sum = gs_group_sum(sum, width);
    if (lane == 0 && s < count) sums[s] = sum;
  }
}

// What a thread reads of a tile: its elements of u, of w where its team leads, and of `mine` vectors of its team. It is
// read ahead of all that the thread waits for before it begins.
template <class S, class T> struct Tile {
  enum { COUNT = InFlight<S, T>::COUNT };
  long long at[COUNT];
  T left[COUNT], right[COUNT];
  S read[GS_BASIS_COLUMNS][COUNT];

  __device__ __forceinline__ void load(const Team &team, long long start, long long n, const T *w, const T *u) {
    start += team.place<COUNT>();
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const long long i = start + e * team.width;
      at[e] = i < n ? i : n - 1;
      left[e] = w && team.leads() && i < n ? w[i] : Scalar<T>::zero();
      right[e] = i < n ? u[i] : Scalar<T>::zero();
    }
  }
  __device__ __forceinline__ void load(const S *vector, long long stride, int mine) {
#pragma unroll
    for (int c = 0; c < GS_BASIS_COLUMNS; ++c, vector += stride)
#pragma unroll
      for (int e = 0; e < COUNT; ++e)
        if (c < mine) read[c][e] = vector[at[e]];
  }
};

// Products of this team's vectors, of those from `first` to `end`, with u; and of w with u, unless there is no w. The
// thread has read its first tile.
template <class S, class T, class C>
__device__ __forceinline__ void gs_products(const Team &team, Tile<S, T> &tile, long long n, int first, int end,
                                            const S *basis, const T *w, const T *u, C *sums, C &own) {
  enum { COUNT = InFlight<S, T>::COUNT };
  const int column = team.first_after(first), mine = team.mine(column, end), size = team.tile<COUNT>();
  const long long stride = gridDim.y * n;
  for (long long start = (blockIdx.x - 1ll) * size; start < n;) {
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const C wide = Widen<C>::from(tile.right[e]);
      own = gs_fma(gs_conj(Widen<C>::from(tile.left[e])), wide, own);
#pragma unroll
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c)
        if (c < mine) sums[c] = gs_fma(gs_conj(Widen<C>::from(tile.read[c][e])), wide, sums[c]);
    }
    start += (gridDim.x - 1ll) * size;
    if (start < n) {
      tile.load(team, start, n, w, u);
      tile.load(basis + column * stride, stride, mine);
    }
  }
}

// Leaves a block's sums, vectors from `first` to `end`. `shared` holds GS_BASIS_SHARED numbers.
template <class C>
__device__ __forceinline__ void gs_leave(const Team &team, int first, int end, const C *sums, C *partials, C *shared) {
  const int place = threadIdx.x, blocks = int(gridDim.x) - 1;
#pragma unroll
  for (int c = 0; c < GS_BASIS_COLUMNS; ++c) {
    const C sum = gs_group_sum(sums[c], team.width);
    if (place % team.width == 0) shared[place / team.width * GS_BASIS_COLUMNS + c] = sum;
  }
  __syncthreads();
  if (place < team.all() && first + place < end) {
    const C *of_warp = shared + place / team.columns * GS_BASIS_COLUMNS + place % team.columns;
    C sum = of_warp[0];
    for (int warp = 1; warp < GS_BASIS_THREADS / GS_WARP; ++warp)
      sum = gs_add(sum, of_warp[warp * team.count * GS_BASIS_COLUMNS]);
    partials[static_cast<long long>(first + place) * blocks + blockIdx.x - 1] = sum;
  }
  __syncthreads();
}

// The same for `COUNT` sums of all threads, which follow the vectors'.
template <int COUNT, class C>
__device__ __forceinline__ void gs_leave_own(int first, C *own, C *partials, C *shared) {
  const int blocks = int(gridDim.x) - 1;
  gs_block_sums<COUNT>(own, shared);
  if (threadIdx.x == 0)
    for (int s = 0; s < COUNT; ++s) partials[static_cast<long long>(first + s) * blocks + blockIdx.x - 1] = own[s];
}

// ---- the small part, where it is not done by a pass

// The sums of `project`, or of `orthogonalize`, as `project` and `orthogonalize` would else add them up.
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_sums(int j, int of_w, const typename Wide<T>::type *partials, int blocks, GS_SMALL) {
  GS_THE_SMALL;
  if (GS_IS_IDLE) return;
  partials += blockIdx.y * (m + 2ll) * blocks;
  gs_add_up(of_w ? j + 2 : j + 1, partials, blocks, of_w ? a.s(j + 1) : a.products(j));
}

// Settles column j; adds up what `orthogonalize` has left unless `blocks` is 0.
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_settle(int j, const typename Wide<T>::type *partials, int blocks, GS_SMALL) {
  GS_SHARED(typename Wide<T>::type, shared, GS_BASIS_SHARED);
  GS_THE_SMALL;
  if (GS_IS_IDLE) return;
  if (blocks) gs_add_up(j + 2, partials + blockIdx.y * (m + 2ll) * blocks, blocks, a.s(j + 1));
  __syncthreads();
  gs_settle(a, j, shared);
}

// y, by one warp: R y = rhs, as elements are multiplied by it. A lane has a row; from the last rows to the first.
template <class T> GS_KERNEL_OF(GS_BASIS_THREADS) basis_solve(GS_SMALL) {
  typedef typename Wide<T>::type C;
  GS_THE_SMALL;
  if (a.is_stopped()) return;
  const int found = int(gs_real(*a.found)), lane = threadIdx.x;
  for (int first = (found - 1) / GS_WARP * GS_WARP; first >= 0 && found > 0; first -= GS_WARP) {
    const int i = first + lane, rows = found - first < GS_WARP ? found - first : GS_WARP;
    const C *row = a.r(i < found ? i : first);
    const C inverse = Make<C>::from(1) / row[i < found ? i : first];
    C left = a.rhs[i < found ? i : first], y = left;
    for (int l = first + GS_WARP; l < found; ++l) left = gs_fma(-row[l], a.rotated[l], left);
    for (int k = rows - 1; k >= 0; --k) {
      const C own = Scalar<C>::equal(left, Scalar<C>::zero()) ? left : left * inverse, known = gs_of_lane(own, k);
      if (lane == k) y = known;
      if (lane < k) left = gs_fma(-row[first + k], known, left);
    }
    if (i < found) {
      a.rotated[i] = y;
      a.coefficients[i] = Narrow<T>::from(y / a.scales[i]);
    }
    __syncthreads();
  }
}

// ---- the passes

// `before`: partial sums of `orthogonalize`, one iteration ago, of so many blocks.
template <class S, class T>
GS_KERNEL_FOR(GS_BASIS_THREADS, GS_BASIS_BLOCKS)
basis_project(long long n, int j, int teams, const S *__restrict__ basis, const T *__restrict__ w,
              const T *__restrict__ u, const typename Wide<T>::type *__restrict__ before, int num_before,
              typename Wide<T>::type *partials, GS_SMALL) {
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_BASIS_SHARED);
  if (blockIdx.x == 0) {
    if (GS_IS_IDLE) return;
    GS_THE_SMALL;
    if (j > 0) gs_add_up(j + 1, before + blockIdx.y * (m + 2ll) * num_before, num_before, a.s(j));
    return;
  }
  const Team team(teams, j);
  const long long stride = gridDim.y * n, begin = (blockIdx.x - 1ll) * team.tile<InFlight<S, T>::COUNT>();
  basis += blockIdx.y * n;
  w += blockIdx.y * n;
  u += blockIdx.y * n;
  partials += blockIdx.y * (m + 2ll) * (gridDim.x - 1);
  Tile<S, T> tile;
  C own[1] = {Scalar<C>::zero()};
  int first = 0;
  do {
    const int column = team.first_after(first);
    C sum[GS_BASIS_COLUMNS];
    for (int c = 0; c < GS_BASIS_COLUMNS; ++c) sum[c] = Scalar<C>::zero();
    if (begin < n) {
      tile.load(team, begin, n, first == 0 ? w : nullptr, u);
      tile.load(basis + column * stride, stride, team.mine(column, j));
    }
    if (GS_IS_IDLE) return;
    gs_products(team, tile, n, first, j, basis, first == 0 ? w : nullptr, u, sum, own[0]);
    gs_leave(team, first, j, sum, partials, shared);
    first += team.all();
  } while (first < j);
  gs_leave_own<1>(j, own, partials, shared);
}

// HELD: the teams hold all vectors. Then the block adds up what `project` has left: `num_products` sums of each product,
// those of a right-hand side `between` after those of the one before. Else they have been added up.
template <class S, class T, int HELD>
GS_KERNEL_FOR(GS_BASIS_THREADS, (HELD ? GS_BASIS_BLOCKS : 1))
basis_orthogonalize(long long n, int j, int teams, S *basis, T *w, const T *__restrict__ u,
                    const typename Wide<T>::type *__restrict__ products, long long between, int num_products,
                    typename Wide<T>::type *partials, GS_SMALL) {
  typedef typename Wide<T>::type C;
  enum { COUNT = InFlight<S, T>::COUNT, MOST = GS_BASIS_TEAMS * GS_BASIS_COLUMNS };
  GS_SHARED(C, shared, GS_BASIS_SHARED);
  GS_SHARED(T, by, 2 * MOST);  // s and p as elements are multiplied by them, where all vectors are held
  const Team team(teams, j);
  const int size = team.tile<COUNT>(), column = team.first_after(0), mine = team.mine(column, j);
  const bool leads = team.leads();
  const long long stride = gridDim.y * n, step = (gridDim.x - 1ll) * size, begin = (blockIdx.x - 1ll) * size;
  basis += blockIdx.y * n;
  w += blockIdx.y * n;
  u += blockIdx.y * n;
  // From the last tile of each block to its first: `project` has read that one last, so it may be in the cache still.
  long long start = begin + (n - 1 - begin) / step * step;
  Tile<S, T> tile;
  if (blockIdx.x > 0 && start < n) {
    tile.load(team, start, n, w, u);
    if (HELD) tile.load(basis + column * stride, stride, mine);
  }
  if (GS_IS_IDLE) return;
  const C *s, *p;
  T last, inverse;
  {
    GS_THE_SMALL;
    if (blockIdx.x == 0) {
      if (j > 0) {
        gs_settle(a, j - 1, shared);
      } else if (threadIdx.x == 0) {
        a.rhs[0] = a.cells[a.at_norm];
        a.Q[0] = Make<C>::from(1);
        *a.found = Scalar<C>::zero();
      }
      return;
    }
    Ahead<C> ahead;
    ahead.load(a, j);
    s = a.s(j);
    p = HELD ? shared : a.products(j);
    if (HELD) {
      gs_add_up(j + 1, products + blockIdx.y * between, num_products, shared);
      __syncthreads();
    }
    const Head<C> head = gs_head(a, j, ahead, p);
    last = Narrow<T>::from(head.last);
    inverse = Narrow<T>::from(head.inverse);
    for (int k = threadIdx.x; k < j; k += blockDim.x) {
      if (blockIdx.x == 1) a.p(j)[k] = p[k];
      if (HELD) {
        by[k] = -Narrow<T>::from(s[k]);
        by[MOST + k] = -Narrow<T>::from(p[k]);
      }
    }
    if (blockIdx.x == 1 && threadIdx.x == 0) {
      a.p(j)[j] = head.last;
      a.norms[j & 1] = head.norm;
      a.scales[j] = a.flexible ? head.norm : Make<C>::from(1);
    }
    __syncthreads();
  }
  partials += blockIdx.y * (m + 2ll) * (gridDim.x - 1);
  C sum[GS_BASIS_COLUMNS], own[2] = {Scalar<C>::zero(), Scalar<C>::zero()};
  for (int c = 0; c < GS_BASIS_COLUMNS; ++c) sum[c] = Scalar<C>::zero();
  while (start >= begin && start < n) {
    T old[COUNT], next[COUNT];
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      old[e] = tile.left[e];
      next[e] = leads ? tile.right[e] : Scalar<T>::zero();
    }
    for (int first = 0; first < j; first += HELD ? j : team.all()) {
      const int at = team.first_after(first), count = HELD ? mine : team.mine(at, j);
      if (!HELD) tile.load(basis + at * stride, stride, count);
#pragma unroll
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c)
        if (c < count) {
          const T by_w = HELD ? by[at + c] : -Narrow<T>::from(s[at + c]);
          const T by_u = HELD ? by[MOST + at + c] : -Narrow<T>::from(p[at + c]);
#pragma unroll
          for (int e = 0; e < COUNT; ++e) {
            const T v = Widen<T>::from(tile.read[c][e]);
            old[e] = gs_fma(by_w, v, old[e]);
            next[e] = gs_fma(by_u, v, next[e]);
          }
        }
    }
    for (int d = team.width; d < GS_WARP; d *= 2)
#pragma unroll
      for (int e = 0; e < COUNT; ++e) {
        old[e] = gs_add(old[e], gs_of_lane(old[e], threadIdx.x % GS_WARP ^ d));
        next[e] = gs_add(next[e], gs_of_lane(next[e], threadIdx.x % GS_WARP ^ d));
      }
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const long long i = start + team.place<COUNT>() + e * team.width;
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
#pragma unroll
        for (int c = 0; c < GS_BASIS_COLUMNS; ++c)
          if (c < mine) sum[c] = gs_fma(gs_conj(Widen<C>::from(tile.read[c][e])), wide, sum[c]);
      }
    }
    start -= step;
    if (start >= begin) {
      tile.load(team, start, n, w, u);
      if (HELD) tile.load(basis + column * stride, stride, mine);
    }
  }
  if (HELD) {
    gs_leave(team, 0, j, sum, partials, shared);
  } else {
    const T *nothing = nullptr;
    __syncthreads();  // a block reads again what it has just written
    for (int first = 0; first < j; first += team.all()) {
      const int at = team.first_after(first);
      C unused = Scalar<C>::zero();
      for (int c = 0; c < GS_BASIS_COLUMNS; ++c) sum[c] = Scalar<C>::zero();
      if (begin < n) {
        tile.load(team, begin, n, nothing, w);
        tile.load(basis + at * stride, stride, team.mine(at, j));
      }
      gs_products(team, tile, n, first, j, basis, nothing, w, sum, unused);
      gs_leave(team, first, j, sum, partials, shared);
    }
  }
  gs_leave_own<2>(j, own, partials, shared);
}

// x += V y, a thread a few elements.
template <class S, class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_combine(long long n, const S *__restrict__ basis, T *__restrict__ x, GS_SMALL) {
  enum { COUNT = InFlight<T, T>::COUNT };
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
