// basis.cu - the passes over vectors of Arnoldi's process for GMRES (contract and equations: gsparse/kernels/basis.py;
// the pieces of the passes, and who owns what: basis.cuh; the small problem, which block 0 does: arnoldi.cuh).
#include "arnoldi.cuh"
#include "basis.cuh"

// ---- kernels of the small problem, for what no pass over the vectors does on the way

// Add up the partial sums of `project`, or those of `orthogonalize` if `of_w` is true.
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_sums(int j, int of_w, const typename Wide<T>::type *partials, int blocks, int m, int flexible, double epsilon,
           typename Wide<T>::type *sums, typename Wide<T>::type *memory, long long problem_size, T *coefficients,
           typename Wide<T>::type *cells, int num_cells, double *history, int capacity, int cycle_end, int norm,
           int residual, int inner_tolerance, int limit) {
  const SmallProblems<T> problems = {m,     flexible,  epsilon, sums,     memory,    problem_size, coefficients,
                                     cells, num_cells, history, capacity, cycle_end, norm,         residual,
                                     inner_tolerance,  limit};
  const SmallProblem<T> problem(problems);
  if (problems.is_idle()) return;
  partials += blockIdx.y * (m + 2ll) * blocks;
  gs_add_up(of_w ? j + 2 : j + 1, partials, blocks, of_w ? problem.s(j + 1) : problem.products(j));
}

// Finish column j of R. Before that, add up what `orthogonalize` has left, unless `blocks` is 0.
template <class T>
GS_KERNEL_OF(GS_BASIS_THREADS)
basis_finish_column(int j, const typename Wide<T>::type *partials, int blocks, int m, int flexible, double epsilon,
                    typename Wide<T>::type *sums, typename Wide<T>::type *memory, long long problem_size,
                    T *coefficients, typename Wide<T>::type *cells, int num_cells, double *history, int capacity,
                    int cycle_end, int norm, int residual, int inner_tolerance, int limit) {
  GS_SHARED(typename Wide<T>::type, shared, GS_BASIS_SHARED);
  const SmallProblems<T> problems = {m,     flexible,  epsilon, sums,     memory,    problem_size, coefficients,
                                     cells, num_cells, history, capacity, cycle_end, norm,         residual,
                                     inner_tolerance,  limit};
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
basis_solve(int m, int flexible, double epsilon, typename Wide<T>::type *sums, typename Wide<T>::type *memory,
            long long problem_size, T *coefficients, typename Wide<T>::type *cells, int num_cells, double *history,
            int capacity, int cycle_end, int norm, int residual, int inner_tolerance, int limit) {
  typedef typename Wide<T>::type C;
  const SmallProblems<T> problems = {m,     flexible,  epsilon, sums,     memory,    problem_size, coefficients,
                                     cells, num_cells, history, capacity, cycle_end, norm,         residual,
                                     inner_tolerance,  limit};
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

// p = V^H u and w^H u, as partial sums. Block 0 adds up `before`, the partial sums of `orthogonalize` one iteration
// ago, of `num_before` blocks.
template <class S, class T>
GS_KERNEL_FOR(GS_BASIS_THREADS, GS_BASIS_BLOCKS)
basis_project(long long n, int j, int teams, const S *__restrict__ basis, const T *__restrict__ w,
              const T *__restrict__ u, const typename Wide<T>::type *__restrict__ before, int num_before,
              typename Wide<T>::type *partials, int m, int flexible, double epsilon, typename Wide<T>::type *sums,
              typename Wide<T>::type *memory, long long problem_size, T *coefficients,
              typename Wide<T>::type *cells, int num_cells,
              double *history, int capacity, int cycle_end, int norm, int residual, int inner_tolerance, int limit) {
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_BASIS_SHARED);
  const SmallProblems<T> problems = {m,     flexible,  epsilon, sums,     memory,    problem_size, coefficients,
                                     cells, num_cells, history, capacity, cycle_end, norm,         residual,
                                     inner_tolerance,  limit};
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

// Compute the coefficients of this iteration. Every block does it for itself; block 1 writes what later iterations
// need. `shared` gets the products and `negated` the coefficients, if HELD. All threads must take part.
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
                    typename Wide<T>::type *partials, int m, int flexible, double epsilon,
                    typename Wide<T>::type *sums, typename Wide<T>::type *memory, long long problem_size,
                    T *coefficients,
                    typename Wide<T>::type *cells, int num_cells, double *history, int capacity, int cycle_end,
                    int norm, int residual, int inner_tolerance, int limit) {
  typedef typename Wide<T>::type C;
  enum { COUNT = InFlight<S, T>::COUNT };
  GS_SHARED(C, shared, GS_BASIS_SHARED);
  GS_SHARED(T, negated, 2 * GS_HELD_VECTORS);
  const SmallProblems<T> problems = {m,     flexible,  epsilon, sums,     memory,    problem_size, coefficients,
                                     cells, num_cells, history, capacity, cycle_end, norm,         residual,
                                     inner_tolerance,  limit};
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
basis_combine(long long n, const S *__restrict__ basis, T *__restrict__ x, int m, int flexible, double epsilon,
              typename Wide<T>::type *sums, typename Wide<T>::type *memory, long long problem_size, T *coefficients,
              typename Wide<T>::type *cells, int num_cells, double *history, int capacity, int cycle_end, int norm,
              int residual, int inner_tolerance, int limit) {
  enum { COUNT = InFlight<T, T>::COUNT };
  const SmallProblems<T> problems = {m,     flexible,  epsilon, sums,     memory,    problem_size, coefficients,
                                     cells, num_cells, history, capacity, cycle_end, norm,         residual,
                                     inner_tolerance,  limit};
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
