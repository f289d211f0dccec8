// basis.cu - the passes over vectors of Arnoldi's process for GMRES, and of Krylov decompositions (contract and equations:
// gsparse/kernels/basis.py; the pieces of the passes, and who owns what: basis.cuh; the small problem of GMRES, which
// block 0 does: arnoldi.cuh).
#include "arnoldi.cuh"
#include "basis.cuh"

// ---- kernels of the small problem, for work that no pass over the vectors does

// Add up the partial sums of `project`, or those of `orthogonalize` if `of_w` is true.
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_sums(int j, int of_w, const typename Wide<T>::type *partials, int blocks, GS_PROBLEM_PARAMETERS) {
  GS_PROBLEMS;
  const SmallProblem<T> problem(problems);
  if (problems.is_idle()) return;
  partials += blockIdx.y * (m + 2ll) * blocks;
  gs_add_up(of_w ? j + 2 : j + 1, partials, blocks, of_w ? problem.s(j + 1) : problem.products(j));
}

// Finish column j of R. Before that, add up the partial sums of `orthogonalize`, unless `blocks` is 0.
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_finish_column(int j, const typename Wide<T>::type *partials, int blocks, GS_PROBLEM_PARAMETERS) {
  GS_SHARED(typename Wide<T>::type, shared, GS_BASIS_SHARED);
  GS_PROBLEMS;
  const SmallProblem<T> problem(problems);
  if (problems.is_idle()) return;
  if (blocks) gs_add_up(j + 2, partials + blockIdx.y * (m + 2ll) * blocks, blocks, problem.s(j + 1));
  __syncthreads();
  gs_finish_column(problem, j, shared);
}

// Solve R * y = rhs by one warp. A lane owns a row; rows are solved in groups of a warp, from the last to the first:
//
//     first      | x x x x | x x x |     left = rhs - R[row, later columns] * y
//     ...        |   x x x | x x x |     then, column by column within the group, the lane of row k computes y[k] and
//                |     x x | x x x |     passes it to the lanes of the rows above
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_solve(GS_PROBLEM_PARAMETERS) {
  typedef typename Wide<T>::type C;
  GS_PROBLEMS;
  const SmallProblem<T> problem(problems);
  if (problem.is_stopped()) return;
  const int size = int(gs_real(*problem.num_finished)), lane = threadIdx.x;
  for (int first = (size - 1) / GS_WARP * GS_WARP; first >= 0 && size > 0; first -= GS_WARP) {
    const int i = first + lane, rows = size - first < GS_WARP ? size - first : GS_WARP;
    const C *row = problem.r(i < size ? i : first);
    const C inverse = Make<C>::from(1) / row[i < size ? i : first];
    C left = problem.rhs[i < size ? i : first], y = left;
    for (int l = first + GS_WARP; l < size; ++l) left = gs_fma(-row[l], problem.y[l], left);
    for (int k = rows - 1; k >= 0; --k) {
      const C own = Scalar<C>::equal(left, Scalar<C>::zero()) ? left : left * inverse, known = gs_of_lane(own, k);
      if (lane == k) y = known;
      if (lane < k) left = gs_fma(-row[first + k], known, left);
    }
    if (i < size) {
      problem.y[i] = y;
      problem.coefficients[i] = Narrow<T>::from(y / problem.scales[i]);
    }
    __syncthreads();
  }
}

// ---- the passes over vectors

// Compute p = V^H u and w^H u, as partial sums. Block 0 adds up `before`: the partial sums that the `num_before` blocks
// of `orthogonalize` have left in the iteration before.
template <class S, class T>
GS_KERNEL_FOR(GS_BASIS_THREADS, GS_BASIS_BLOCKS)
basis_project(long long n, int j, int teams, const S *__restrict__ basis, const T *__restrict__ w,
              const T *__restrict__ u, const typename Wide<T>::type *__restrict__ before, int num_before,
              typename Wide<T>::type *partials, GS_PROBLEM_PARAMETERS) {
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_BASIS_SHARED);
  GS_PROBLEMS;
  if (blockIdx.x == 0) {
    if (problems.is_idle()) return;
    const SmallProblem<T> problem(problems);
    if (j > 0) gs_add_up(j + 1, before + blockIdx.y * (m + 2ll) * num_before, num_before, problem.s(j));
    return;
  }
  const Team team(teams, j);
  basis += blockIdx.y * n;
  w += blockIdx.y * n;
  u += blockIdx.y * n;
  partials += blockIdx.y * (m + 2ll) * (gridDim.x - 1);
  gs_project(team, n, j, basis, w, u, partials, shared, [&] { return problems.is_idle(); });
}

// The small problem's part of `orthogonalize`, done by block 0: finish the last iteration, or begin a cycle.
template <class T>
__device__ __forceinline__ void gs_finish_last_column(const SmallProblem<T> &problem, int j,
                                                      typename Wide<T>::type *shared) {
  typedef typename Wide<T>::type C;
  if (j > 0) {
    gs_finish_column(problem, j - 1, shared);
  } else if (threadIdx.x == 0) {
    problem.rhs[0] = problem.cells[problem.norm];
    problem.Q[0] = Make<C>::from(1);
    *problem.num_finished = Scalar<C>::zero();
  }
}

// Compute the coefficients of this iteration. Every block computes them for itself; block 1 also stores what later
// iterations need. If HELD, `shared` receives the products and `negated` the coefficients. All threads must take part.
template <int HELD, class T, class C>
__device__ __forceinline__ Coefficients<T, HELD> gs_coefficients(const SmallProblem<T> &problem, int j,
                                                                 const Products<C> &products, C *shared, T *negated) {
  EarlySums<C> early;
  early.load(problem, j);
  const C *s = problem.s(j), *p = HELD ? shared : problem.products(j);
  if (HELD) {
    gs_add_up(j + 1, products.partials + blockIdx.y * products.stride, products.count, shared);
    __syncthreads();
  }
  const Head<C> head = gs_head(problem, j, early, p);
  const T last = Narrow<T>::from(head.last), inverse = Narrow<T>::from(head.inverse);
  for (int k = threadIdx.x; k < j; k += blockDim.x) {
    if (blockIdx.x == 1) problem.p(j)[k] = p[k];
    if (HELD) {
      negated[k] = -Narrow<T>::from(s[k]);
      negated[GS_HELD_VECTORS + k] = -Narrow<T>::from(p[k]);
    }
  }
  if (blockIdx.x == 1 && threadIdx.x == 0) {
    problem.p(j)[j] = head.last;
    problem.norms[j & 1] = head.norm;
    problem.scales[j] = problem.flexible ? head.norm : Make<C>::from(1);
  }
  __syncthreads();
  return {negated, s, p, last, inverse};
}

// v_j, the new w, and [V v_j]^H w and w^H w as partial sums. HELD says whether the teams hold all vectors. Then each
// block adds up the products that `project` has left, `num_products` partial sums of each, those of one right-hand side
// `between` values after those of the one before. Otherwise the products have been added up.
template <class S, class T, int HELD>
GS_KERNEL_FOR(GS_BASIS_THREADS, (HELD ? GS_BASIS_BLOCKS : 1))
basis_orthogonalize(long long n, int j, int teams, S *basis, T *w, const T *__restrict__ u,
                    const typename Wide<T>::type *__restrict__ products, long long between, int num_products,
                    typename Wide<T>::type *partials, GS_PROBLEM_PARAMETERS) {
  typedef typename Wide<T>::type C;
  enum { COUNT = InFlight<S, T>::COUNT };
  GS_SHARED(C, shared, GS_BASIS_SHARED);
  GS_SHARED(T, negated, 2 * GS_HELD_VECTORS);
  GS_PROBLEMS;
  const Team team(teams, j);
  basis += blockIdx.y * n;
  w += blockIdx.y * n;
  u += blockIdx.y * n;
  const Tiles tiles(team.tile_size<COUNT>(), n);
  Tile<S, T> tile;
  if (blockIdx.x > 0) gs_load_last<HELD>(team, tile, tiles, n, j, basis, w, u);
  if (problems.is_idle()) return;
  const SmallProblem<T> problem(problems);
  if (blockIdx.x == 0) {
    gs_finish_last_column(problem, j, shared);
    return;
  }
  const Coefficients<T, HELD> by =
      gs_coefficients<HELD>(problem, j, Products<C>{products, between, num_products}, shared, negated);
  partials += blockIdx.y * (m + 2ll) * (gridDim.x - 1);
  gs_orthogonalize<HELD>(team, tile, tiles, n, j, basis, w, u, by, partials, shared);
}

// x += V*y, or Z*y. A thread owns InFlight elements, a grid's width apart (coalesced), and walks over the vectors,
// GS_TEAM_VECTORS at a time.
template <class S, class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_combine(long long n, const S *__restrict__ basis, T *__restrict__ x, GS_PROBLEM_PARAMETERS) {
  enum { COUNT = InFlight<T, T>::COUNT };
  GS_PROBLEMS;
  const SmallProblem<T> problem(problems);
  if (problem.is_stopped()) return;
  const int num_vectors = int(gs_real(*problem.num_finished));
  const long long stride = gridDim.y * n, step = static_cast<long long>(gridDim.x) * blockDim.x;
  basis += blockIdx.y * n;
  x += blockIdx.y * n;
  for (long long start = gs_thread(); start < n; start += COUNT * step) {
    long long index[COUNT];
    T sum[COUNT];
#pragma unroll
    for (int e = 0; e < COUNT; ++e) {
      index[e] = start + e * step < n ? start + e * step : start;
      sum[e] = x[index[e]];
    }
    for (int first = 0; first < num_vectors; first += GS_TEAM_VECTORS) {
      S vectors[GS_TEAM_VECTORS][COUNT];
#pragma unroll
      for (int c = 0; c < GS_TEAM_VECTORS; ++c)
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
          if (first + c < num_vectors) vectors[c][e] = basis[(first + c) * stride + index[e]];
#pragma unroll
      for (int c = 0; c < GS_TEAM_VECTORS; ++c)
        if (first + c < num_vectors) {
          const T y = problem.coefficients[first + c];
#pragma unroll
          for (int e = 0; e < COUNT; ++e) sum[e] = gs_fma(y, Widen<T>::from(vectors[c][e]), sum[e]);
        }
    }
#pragma unroll
    for (int e = 0; e < COUNT; ++e)
      if (start + e * step < n) x[index[e]] = sum[e];
  }
}

// ---------------------------------------------------------------------------- decompositions
//
// The steps of a recorded Krylov decomposition, for eigenvalues.
//
// Coefficients stay on the device until the host restarts the process. Each step j has two rows of a table: s, which is
// what is left of the basis in w before the step, with w^H w behind it, and p, the products with u, with w^H u behind
// them. Kernels get pointers to these rows.
//
//     project (general)      reads V, w, u      partial sums of p; block 0 adds up s, which the last step has left
//     predict (Hermitian)    reads no vectors   one block adds up s and w^H u, and computes p from the recurrence
//     orthogonalize          reads V, w, u      v_j, the new w, and partial sums of the next s
//
// The kernels have no grid of right-hand sides: gridDim.y is 1.

// Add up `count` sums. Each has one partial sum for each of `blocks` blocks. Only one block is launched.
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
decomposition_sums(int count, const typename Wide<T>::type *__restrict__ partials, int blocks,
                   typename Wide<T>::type *row) {
  gs_add_up(count, partials, blocks, row);
}

// Partial sums of p = V^H u and of w^H u. Block 0 adds up the j + 1 sums of s, unless `num_before` is 0.
template <class T>
GS_KERNEL_FOR(GS_BASIS_THREADS, GS_BASIS_BLOCKS)
decomposition_project(long long n, int j, int teams, const T *__restrict__ basis, const T *__restrict__ w,
                      const T *__restrict__ u, const typename Wide<T>::type *__restrict__ before, int num_before,
                      typename Wide<T>::type *s, typename Wide<T>::type *partials) {
  GS_SHARED(typename Wide<T>::type, shared, GS_BASIS_SHARED);
  if (blockIdx.x == 0) {
    if (num_before) gs_add_up(j + 1, before, num_before, s);
    return;
  }
  gs_project(Team(teams, j), n, j, basis, w, u, partials, shared, [] { return false; });
}

// The norm of w after its components in the basis have been removed, the inverse of this norm (0 if the norm is 0), and
// the last element of p. Each warp computes them, and all threads get the result. By Pythagoras, norm^2 = w^H w -
// |s|^2.
template <class C> struct Direction { double norm, inverse; C last; };
template <class C> __device__ __forceinline__ Direction<C> gs_direction(int j, const C *s, const C *p) {
  C left = Scalar<C>::zero(), dot = Scalar<C>::zero();
  for (int k = threadIdx.x % GS_WARP; k < j; k += GS_WARP) {
    left = left + gs_abs2(s[k]);
    dot = gs_fma(gs_conj(s[k]), p[k], dot);
  }
  left = gs_of_lane(gs_group_sum<GS_WARP>(left), 0);
  dot = gs_of_lane(gs_group_sum<GS_WARP>(dot), 0);
  const double rest = gs_real(s[j]) - gs_real(left), norm = rest > 0 ? sqrt(rest) : 0;
  const double inverse = norm > 0 ? 1 / norm : 0;
  return {norm, inverse, (p[j] - dot) * Make<C>::from(inverse)};
}

// v_j, the new w, and [V v_j]^H w and w^H w as partial sums. HELD says whether the teams hold all vectors. Then each
// block adds up the `num_products` partial sums of each product, and block 0 writes the sums to p. Otherwise p has been
// written before.
template <class T, int HELD>
GS_KERNEL_FOR(GS_BASIS_THREADS, (HELD ? GS_BASIS_BLOCKS : 1))
decomposition_orthogonalize(long long n, int j, int teams, T *basis, T *w, const T *__restrict__ u,
                            const typename Wide<T>::type *__restrict__ products, int num_products,
                            const typename Wide<T>::type *__restrict__ s, typename Wide<T>::type *p,
                            typename Wide<T>::type *partials) {
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_BASIS_SHARED);
  GS_SHARED(T, negated, 2 * GS_HELD_VECTORS);
  if (blockIdx.x == 0) {
    if (HELD && products != p) gs_add_up(j + 1, products, num_products, p);
    return;
  }
  const Team team(teams, j);
  const Tiles tiles(team.tile_size<InFlight<T, T>::COUNT>(), n);
  Tile<T, T> tile;
  gs_load_last<HELD>(team, tile, tiles, n, j, basis, w, u);
  if (HELD) {
    gs_add_up(j + 1, products, num_products, shared);
    __syncthreads();
  }
  const C *own_p = HELD ? shared : p;
  const Direction<C> direction = gs_direction(j, s, own_p);
  const T last = Narrow<T>::from(direction.last), inverse = Narrow<T>::from(Make<C>::from(direction.inverse));
  if (HELD) {
    for (int k = threadIdx.x; k < j; k += blockDim.x) {
      negated[k] = -Narrow<T>::from(s[k]);
      negated[GS_HELD_VECTORS + k] = -Narrow<T>::from(own_p[k]);
    }
  }
  __syncthreads();
  const Coefficients<T, HELD> by = {negated, s, own_p, last, inverse};
  gs_orthogonalize<HELD>(team, tile, tiles, n, j, basis, w, u, by, partials, shared);
}

// The projected matrix of a Hermitian operator, as far as the steps before have found it. In the basis of vectors
// before and after `first`, where the cycle began, it is
//
//                 0 .. first-1     first ...
//     0 ..        theta            b^H             theta    diagonal: the values of the vectors that were kept
//     first       b                alpha beta      b        the coupling of each of them to vector `first`
//     ...                          beta  alpha     alpha    diagonal, beta: beside it, of the steps of this cycle
//
// One array holds theta, b, alpha, beta, the last elements of p and the norms, m of each.
template <class C> struct Projected {
  const C *theta, *b;
  C *alpha, *beta, *last, *norms;
  __device__ Projected(C *memory, int m)
      : theta(memory), b(theta + m), alpha(memory + 2 * m), beta(alpha + m), last(beta + m), norms(last + m) {}

  // Element k of the product with s, where s continues with `norm` at position j: the vectors before j, times u.
  // `coupling` is the sum of b[i] * s[i].
  __device__ C product(int k, int j, int first, const C *s, C norm, C coupling) const {
    const C next = k + 1 < j ? s[k + 1] : norm;
    if (k < first) return theta[k] * s[k] + gs_conj(b[k]) * (first < j ? s[first] : norm);
    const C before = k == first ? coupling : beta[k - 1] * s[k - 1];
    return before + alpha[k] * s[k] + beta[k] * next;
  }
};

// Compute p = V^H u of a Hermitian operator from the projected matrix H instead of from the vectors: V^H u = (A V)^H w,
// where A V = [V v_j] H. Before that, add up s (unless `num_before` is 0) and w^H u, of which `num_dots` partial sums
// are in `dots`, and finish column j - 1 of H. One block.
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
decomposition_predict(int j, int first, int m, const typename Wide<T>::type *__restrict__ before, int num_before,
                      const typename Wide<T>::type *__restrict__ dots, int num_dots,
                      const typename Wide<T>::type *last_s, typename Wide<T>::type *s, typename Wide<T>::type *p,
                      typename Wide<T>::type *memory) {
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, 4 * GS_MAX_WARPS);
  const Projected<C> H(memory, m);
  if (num_before) gs_add_up(j + 1, before, num_before, s);
  __syncthreads();
  C sums[3] = {Scalar<C>::zero(), Scalar<C>::zero(), Scalar<C>::zero()};
  for (int k = threadIdx.x; k < j; k += blockDim.x) {
    sums[0] = sums[0] + gs_abs2(s[k]);
    if (k < first) sums[1] = gs_fma(H.b[k], s[k], sums[1]);
  }
  for (int i = threadIdx.x; i < num_dots; i += blockDim.x) sums[2] = gs_add(sums[2], dots[i]);
  gs_block_sums<3>(sums, shared);
  if (threadIdx.x == 0) {
    const double rest = gs_real(s[j]) - gs_real(sums[0]), norm = rest > 0 ? sqrt(rest) : 0;
    const C coupling = sums[1], product = sums[2];
    shared[0] = Make<C>::from(norm);
    shared[1] = coupling;
    p[j] = product;
    H.norms[j] = Make<C>::from(norm);
    if (j > first) {
      const int k = j - 1;
      const double before_norm = gs_real(H.norms[k]);
      const double inverse = before_norm > 0 ? 1 / before_norm : 0;
      const C left = k > first ? H.beta[k - 1] * last_s[k - 1] : Scalar<C>::zero();
      H.alpha[k] = Make<C>::from(gs_real((H.last[k] - left) * Make<C>::from(inverse) + s[k]));
      H.beta[k] = Make<C>::from(norm);
    }
  }
  __syncthreads();
  const C norm = shared[0], coupling = shared[1];
  C dot[1] = {Scalar<C>::zero()};
  for (int k = threadIdx.x; k < j; k += blockDim.x) {
    const C product = H.product(k, j, first, s, norm, coupling);
    p[k] = product;
    dot[0] = gs_fma(gs_conj(s[k]), product, dot[0]);
  }
  __syncthreads();
  gs_block_sums<1>(dot, shared);
  if (threadIdx.x == 0) {
    const double inverse = gs_real(norm) > 0 ? 1 / gs_real(norm) : 0;
    H.last[j] = (p[j] - dot[0]) * Make<C>::from(inverse);
  }
}
