// basis.cuh - passes over the vectors of a Krylov basis, for GMRES and for eigenvalues (basis.cu).
//
// Basis vectors lie one after the other. A pass reads the basis once for all that it does with it:
//
//     project        p = V^H u, w^H u                                       reads V, w, u
//     orthogonalize  v_j = (w - V s) / norm;  w = (u - [V v_j] p) / norm;
//                    s = [V v_j]^H w, w^H w                                 reads V, w, u; writes v_j, w
//
// The plane of vectors and elements is cut in both directions. A block owns tiles of elements. The lanes of a warp form
// `teams` teams. All teams have the same elements of the tile, and each team has vectors of its own: at most
// GS_TEAM_VECTORS, so that a thread holds what it has read in registers. For 2 teams of `width` = 16 lanes:
//
//                    vectors   0 ... 7                8 ... 15              16 ...
//     elements               +----------------------+----------------------+
//     of warp 0    0 ... 15  | team 0: lanes 0..15  | team 1: lanes 16..31 |   vectors that the teams cannot hold are
//                 16 ... 31  |   COUNT = 2 elements |   the same elements  |   read again in further rounds (not HELD)
//     of warp 1   32 ... 47  | team 0               | team 1               |
//                 48 ... 63  |                      |                      |
//                            +----------------------+----------------------+
//
// For w - V s, a thread adds its own vectors up, times their coefficients; then the teams add their sums up by shuffles
// (across the drawing). For V^H w, each thread multiplies the vectors that it still holds by the result (down the
// drawing). No thread waits for another warp in between. Neighbouring lanes of a team own neighbouring elements, so
// that all reads and writes of vectors are coalesced.
//
//     blocks along x    block 0 does what is left of the last iteration; the others share the tiles, in turn
//     blocks along y    right-hand sides
//
// Sums over all elements are left as partial sums, one for each block, for the pass that reads them. Shared memory
// holds the block's sums (GS_BASIS_SHARED values) and, in `orthogonalize`, the coefficients s and p.
#pragma once
#include "steps.cuh"

enum {
  GS_BASIS_THREADS = 256,
  GS_BASIS_BLOCKS = 2,  // blocks that a multiprocessor must be able to hold, so that all blocks of a launch run at once
  GS_BASIS_TEAMS = 8,   // the largest number of teams
  GS_TEAM_VECTORS = 8,  // the largest number of vectors that a team holds
  GS_HELD_VECTORS = GS_BASIS_TEAMS * GS_TEAM_VECTORS,
  GS_BASIS_SHARED = GS_BASIS_THREADS / GS_WARP * GS_BASIS_TEAMS * GS_TEAM_VECTORS
};

// Number of bytes of each vector that a thread loads at the same time, if it has enough registers.
enum { GS_BYTES_IN_FLIGHT = 16 };
template <class S, class T> struct InFlight { enum { COUNT = GS_BYTES_IN_FLIGHT / sizeof(S) }; };
template <class S> struct InFlight<S, Complex<double>> { enum { COUNT = 1 }; };

// Which vectors and which elements of a tile a thread works with. `count` teams share a warp; each has `vectors`
// vectors in a round, so that a round takes up to count * vectors of the basis.
struct Team {
  int count, width, number, vectors;
  __device__ Team(int teams, int j)
      : count(teams), width(GS_WARP / teams), number(threadIdx.x % GS_WARP / width),
        vectors(j < teams * GS_TEAM_VECTORS ? (j + teams - 1) / teams : GS_TEAM_VECTORS) {}
  // The first vector of this team in the round that begins with vector `round`.
  __device__ int first_vector(int round) const { return round + number * vectors; }
  // The number of vectors from `first` on that this team has, if there are `end` in all.
  __device__ int num_vectors(int first, int end) const { return end - first < vectors ? end - first : vectors; }
  __device__ int vectors_of_round() const { return count * vectors; }
  // Whether this is the first team, which does what must be done once for each element.
  __device__ bool leads() const { return number == 0; }
  // The first of this thread's COUNT elements, which are `width` apart, and the number of elements of a tile.
  template <int COUNT> __device__ int first_element() const {
    return threadIdx.x / GS_WARP * (COUNT * width) + threadIdx.x % width;
  }
  template <int COUNT> __device__ int tile_size() const { return GS_BASIS_THREADS / GS_WARP * COUNT * width; }
};

// ---- sums over all elements

// Add up `count` sums, each from one partial sum per block of `blocks`. One block does this, with a few lanes for each
// sum.
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

// The part of a tile that a thread holds: its elements of u, of w if its team leads, and of its team's vectors. The
// first tile is loaded before the thread waits for anything.
template <class S, class T> struct Tile {
  enum { COUNT = InFlight<S, T>::COUNT };
  long long index[COUNT];
  T w[COUNT], u[COUNT];
  S vectors[GS_TEAM_VECTORS][COUNT];

  // Load the elements of w (unless it is null) and u. Elements past the end are 0.
  __device__ __forceinline__ void load(const Team &team, long long start, long long n, const T *all_w, const T *all_u) {
    start += team.first_element<COUNT>();
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const long long i = start + e * team.width;
      index[e] = i < n ? i : n - 1;
      w[e] = all_w && team.leads() && i < n ? all_w[i] : Scalar<T>::zero();
      u[e] = i < n ? all_u[i] : Scalar<T>::zero();
    }
  }
  // Load the same elements of `num_vectors` vectors, `stride` apart.
  __device__ __forceinline__ void load(const S *vector, long long stride, int num_vectors) {
#pragma unroll
    for (int c = 0; c < GS_TEAM_VECTORS; ++c, vector += stride)
#pragma unroll
      for (int e = 0; e < COUNT; ++e)
        if (c < num_vectors) vectors[c][e] = vector[index[e]];
  }
};

// Add the products of this team's vectors with u to `sums`, in the round of the vectors from `round` to `end`, and that
// of w with u to `w_dot_u`, unless w is null. The thread has loaded its first tile.
template <class S, class T, class C>
__device__ __forceinline__ void gs_products(const Team &team, Tile<S, T> &tile, long long n, int round, int end,
                                            const S *basis, const T *w, const T *u, C *sums, C &w_dot_u) {
  enum { COUNT = InFlight<S, T>::COUNT };
  const int first = team.first_vector(round), num_vectors = team.num_vectors(first, end);
  const int size = team.tile_size<COUNT>();
  const long long stride = gridDim.y * n;
  for (long long start = (blockIdx.x - 1ll) * size; start < n;) {
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      const C wide = Widen<C>::from(tile.u[e]);
      w_dot_u = gs_fma(gs_conj(Widen<C>::from(tile.w[e])), wide, w_dot_u);
#pragma unroll
      for (int c = 0; c < GS_TEAM_VECTORS; ++c)
        if (c < num_vectors) sums[c] = gs_fma(gs_conj(Widen<C>::from(tile.vectors[c][e])), wide, sums[c]);
    }
    start += (gridDim.x - 1ll) * size;
    if (start < n) {
      tile.load(team, start, n, w, u);
      tile.load(basis + first * stride, stride, num_vectors);
    }
  }
}

// Write the block's partial sums of the vectors from `round` to `end`. `shared` has room for GS_BASIS_SHARED values.
template <class C>
__device__ __forceinline__ void gs_leave(const Team &team, int round, int end, const C *sums, C *partials, C *shared) {
  const int thread = threadIdx.x, blocks = int(gridDim.x) - 1;
#pragma unroll
  for (int c = 0; c < GS_TEAM_VECTORS; ++c) {
    const C sum = gs_group_sum(sums[c], team.width);
    if (thread % team.width == 0) shared[thread / team.width * GS_TEAM_VECTORS + c] = sum;
  }
  __syncthreads();
  if (thread < team.vectors_of_round() && round + thread < end) {
    const C *of_warp = shared + thread / team.vectors * GS_TEAM_VECTORS + thread % team.vectors;
    C sum = of_warp[0];
    for (int warp = 1; warp < GS_BASIS_THREADS / GS_WARP; ++warp)
      sum = gs_add(sum, of_warp[warp * team.count * GS_TEAM_VECTORS]);
    partials[static_cast<long long>(round + thread) * blocks + blockIdx.x - 1] = sum;
  }
  __syncthreads();
}

// Write the block's partial sums number first, first + 1, ... Each thread passes its own part of them in `own`.
template <int COUNT, class C>
__device__ __forceinline__ void gs_leave_own(int first, C *own, C *partials, C *shared) {
  const int blocks = int(gridDim.x) - 1;
  gs_block_sums<COUNT>(own, shared);
  if (threadIdx.x == 0)
    for (int s = 0; s < COUNT; ++s) partials[static_cast<long long>(first + s) * blocks + blockIdx.x - 1] = own[s];
}

// ---- the first pass

// Write partial sums of V^H u (j of them) and of w^H u. `is_idle()` returns whether there is nothing to do. It is
// called after the first loads, so that they overlap with waiting for the data that it reads. `shared` has room for
// GS_BASIS_SHARED values. All blocks but block 0 take part.
template <class S, class T, class C, class Idle>
__device__ __forceinline__ void gs_project(const Team &team, long long n, int j, const S *basis, const T *w, const T *u,
                                           C *partials, C *shared, Idle is_idle) {
  const long long stride = gridDim.y * n, begin = (blockIdx.x - 1ll) * team.tile_size<InFlight<S, T>::COUNT>();
  Tile<S, T> tile;
  C w_dot_u[1] = {Scalar<C>::zero()};
  int round = 0;
  do {
    const int first = team.first_vector(round);
    C sum[GS_TEAM_VECTORS];
    for (int c = 0; c < GS_TEAM_VECTORS; ++c) sum[c] = Scalar<C>::zero();
    if (begin < n) {
      tile.load(team, begin, n, round == 0 ? w : nullptr, u);
      tile.load(basis + first * stride, stride, team.num_vectors(first, j));
    }
    if (is_idle()) return;
    gs_products(team, tile, n, round, j, basis, round == 0 ? w : nullptr, u, sum, w_dot_u[0]);
    gs_leave(team, round, j, sum, partials, shared);
    round += team.vectors_of_round();
  } while (round < j);
  gs_leave_own<1>(j, w_dot_u, partials, shared);
}

// ---- the second pass, and its pieces

// The partial sums of `project`, as `orthogonalize` gets them.
template <class C> struct Products {
  const C *partials;   // `count` of each product; the products of a right-hand side are `stride` after those before
  long long stride;
  int count;
};

// The coefficients of the vectors of the basis in one iteration, in the type of the elements.
template <class T, int HELD> struct Coefficients {
  typedef typename Wide<T>::type C;
  const T *negated;  // -s, and GS_HELD_VECTORS further on -p, in shared memory; used if HELD
  const C *s, *p;    // used if not HELD
  T last;            // the last element of p, for the new vector
  T inverse;         // 1 / norm
  __device__ __forceinline__ T of_w(int k) const { return HELD ? negated[k] : -Narrow<T>::from(s[k]); }
  __device__ __forceinline__ T of_u(int k) const {
    return HELD ? negated[GS_HELD_VECTORS + k] : -Narrow<T>::from(p[k]);
  }
};

// Compute this thread's elements of w - V*s (`old`) and u - V*p (`next`), for the elements of a tile. Each team adds
// its own vectors; then the teams add their sums up, so that all of them have the result.
template <int HELD, class S, class T>
__device__ __forceinline__ void gs_subtract(const Team &team, Tile<S, T> &tile, int j, const S *basis, long long stride,
                                            const Coefficients<T, HELD> &by, T *old, T *next) {
  enum { COUNT = InFlight<S, T>::COUNT };
  const bool leads = team.leads();
#pragma unroll
  for (int e = 0; e < COUNT; ++e) {
    old[e] = tile.w[e];
    next[e] = leads ? tile.u[e] : Scalar<T>::zero();
  }
  for (int round = 0; round < j; round += HELD ? j : team.vectors_of_round()) {
    const int first = team.first_vector(round), num_vectors = team.num_vectors(first, j);
    if (!HELD) tile.load(basis + first * stride, stride, num_vectors);
#pragma unroll
    for (int c = 0; c < GS_TEAM_VECTORS; ++c)
      if (c < num_vectors) {
        const T by_w = by.of_w(first + c), by_u = by.of_u(first + c);
#pragma unroll
        for (int e = 0; e < COUNT; ++e) {
          const T v = Widen<T>::from(tile.vectors[c][e]);
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
}

// Normalize this thread's elements of the new vector v and of the new w, store them, and add the products: those of the
// held vectors with w to `sums`, v^H w and w^H w to `own`.
template <int HELD, class S, class T, class C>
__device__ __forceinline__ void gs_finish(const Team &team, const Tile<S, T> &tile, long long start, long long n, int j,
                                          const Coefficients<T, HELD> &by, const T *old, const T *next, S *v, T *w,
                                          C *sums, C *own) {
  enum { COUNT = InFlight<S, T>::COUNT };
  const int num_vectors = team.num_vectors(team.first_vector(0), j);
#pragma unroll
  for (int e = 0; e < COUNT; ++e) {
    const long long i = start + team.first_element<COUNT>() + e * team.width;
    // The new w is made orthogonal to v as it is stored, which may be rounded.
    const S stored = Narrow<S>::from(Widen<C>::from(old[e] * by.inverse));
    const T v_i = Widen<T>::from(stored), w_i = gs_fma(-by.last, v_i, next[e]) * by.inverse;
    const C wide = Widen<C>::from(i < n ? w_i : Scalar<T>::zero());
    if (team.leads() && i < n) {
      v[i] = stored;
      w[i] = w_i;
      own[0] = gs_fma(gs_conj(Widen<C>::from(v_i)), wide, own[0]);
      own[1] = own[1] + gs_abs2(wide);
    }
    if (HELD) {
#pragma unroll
      for (int c = 0; c < GS_TEAM_VECTORS; ++c)
        if (c < num_vectors) sums[c] = gs_fma(gs_conj(Widen<C>::from(tile.vectors[c][e])), wide, sums[c]);
    }
  }
}

// Write partial sums of V^H w by reading the basis once more, because the teams could not hold it.
template <class S, class T, class C>
__device__ __forceinline__ void gs_project_again(const Team &team, Tile<S, T> &tile, long long n, int j, const S *basis,
                                                 const T *w, C *sum, C *partials, C *shared) {
  const T *no_w = nullptr;  // (w takes the place of u)
  const long long stride = gridDim.y * n, begin = (blockIdx.x - 1ll) * team.tile_size<InFlight<S, T>::COUNT>();
  __syncthreads();  // the block reads what it has just written
  for (int round = 0; round < j; round += team.vectors_of_round()) {
    const int first = team.first_vector(round);
    C unused = Scalar<C>::zero();
    for (int c = 0; c < GS_TEAM_VECTORS; ++c) sum[c] = Scalar<C>::zero();
    if (begin < n) {
      tile.load(team, begin, n, no_w, w);
      tile.load(basis + first * stride, stride, team.num_vectors(first, j));
    }
    gs_products(team, tile, n, round, j, basis, no_w, w, sum, unused);
    gs_leave(team, round, j, sum, partials, shared);
  }
}

// The tiles of a block in `orthogonalize`, which goes from its last tile to its first: `project` has read the last one
// most recently, so that it may still be in the cache.
struct Tiles {
  long long begin, step, last;
  __device__ Tiles(int size, long long n)
      : begin((blockIdx.x - 1ll) * size), step((gridDim.x - 1ll) * size),
        last(begin + (n - 1 - begin) / step * step) {}
};

// Load the block's last tile, and if HELD the vectors of the basis.
template <int HELD, class S, class T>
__device__ __forceinline__ void gs_load_last(const Team &team, Tile<S, T> &tile, const Tiles &tiles, long long n, int j,
                                             const S *basis, const T *w, const T *u) {
  const int first = team.first_vector(0);
  const long long stride = gridDim.y * n;
  if (tiles.last >= n) return;
  tile.load(team, tiles.last, n, w, u);
  if (HELD) tile.load(basis + first * stride, stride, team.num_vectors(first, j));
}

// Compute v_j and the new w, tile by tile, and leave partial sums of [V v_j]^H w and of w^H w. The first tile has been
// loaded. `shared` has room for GS_BASIS_SHARED values. All blocks but block 0 take part.
template <int HELD, class S, class T, class C>
__device__ __forceinline__ void gs_orthogonalize(const Team &team, Tile<S, T> &tile, const Tiles &tiles, long long n,
                                                 int j, S *basis, T *w, const T *u, const Coefficients<T, HELD> &by,
                                                 C *partials, C *shared) {
  enum { COUNT = InFlight<S, T>::COUNT };
  const int first = team.first_vector(0), num_vectors = team.num_vectors(first, j);
  const long long stride = gridDim.y * n;
  C sum[GS_TEAM_VECTORS], own[2] = {Scalar<C>::zero(), Scalar<C>::zero()};
  for (int c = 0; c < GS_TEAM_VECTORS; ++c) sum[c] = Scalar<C>::zero();
  for (long long start = tiles.last; start >= tiles.begin && start < n;) {
    T old[COUNT], next[COUNT];
    gs_subtract(team, tile, j, basis, stride, by, old, next);
    gs_finish(team, tile, start, n, j, by, old, next, basis + j * stride, w, sum, own);
    start -= tiles.step;
    if (start >= tiles.begin) {
      tile.load(team, start, n, w, u);
      if (HELD) tile.load(basis + first * stride, stride, num_vectors);
    }
  }
  if (HELD) gs_leave(team, 0, j, sum, partials, shared);
  else gs_project_again(team, tile, n, j, basis, w, sum, partials, shared);
  gs_leave_own<2>(j, own, partials, shared);
}
