// arnoldi.cuh - the small problem of GMRES: the least-squares problem with the Hessenberg matrix of Arnoldi's process
// (contract and equations: gsparse/kernels/basis.py; the passes over vectors: basis.cu).
//
// In iteration j, a column is added to R = Q * H, where H is the Hessenberg matrix and Q collects the rotations:
//
//            0 1 2 .. j                                  0 1 2 .. j
//     R: 0   x x x x x         Q: 0   x x            H: 0   x x x x x
//        1     x x x x    =       1   x x x       *     1   x x x x x
//        2       x x x            2   x x x x           2     x x x x
//        j           x            j   x x x x x x       j         x x
//
// Row k of Q ends at column k + 1. Q is stored instead of rotations, which would have to be applied one after the
// other.
//
// The passes over the vectors do not wait for the small problem. Each block of a pass computes by itself what it needs:
// the norm of w and the last element of p (`gs_head`). One extra block of that pass does the rest (`gs_finish_column`):
// the column of R, the rotation and the residual. Therefore s, the products and p are stored twice, for even and odd j.
//
// In `gs_finish_column` a block works on one problem: eight neighbouring lanes own a row of Q and R, and read it
// coalesced. `shared` holds the sums over the block, and three values after them.
// Source: D. Bielich et al., Parallel Computing 112, 2022 (see basis.py); Y. Saad and M. H. Schultz, "GMRES", SIAM J.
// Sci. Stat. Comput. 7(3), 1986, for the least-squares problem.
#pragma once
#include "steps.cuh"

// The small problems of all right-hand sides, in the order in which kernels take these arguments
// (gsparse.kernels.gpu.basis).
template <class T> struct SmallProblems {
  typedef typename Wide<T>::type C;
  int m;            // the largest number of basis vectors (restart)
  int flexible;     // whether the solution is combined of stored vectors z, not of the basis
  double epsilon;   // the relative accuracy of T
  C *sums;          // s and the products, 2 * 2 * (m + 1) for each right-hand side; ranks add them up
  C *memory;        // everything else in double precision, see SmallProblem
  long long problem_size;  // the elements of `memory` for each right-hand side
  T *coefficients;  // m for each right-hand side
  C *cells;         // num_cells for each right-hand side (gsparse.kernels.steps)
  int num_cells;
  double *history;  // the last `capacity` residuals of each right-hand side
  int capacity;
  int cycle_end, norm, residual, inner_tolerance, limit;  // the places of ARNOLDI_CELLS among the cells

  // Return whether the solve has stopped or the cycle has ended, so that there is nothing to do. This reads `cells`
  // directly: a whole SmallProblem would take registers that a loop over elements needs.
  __device__ __forceinline__ bool is_idle() const {
    return gs_real(cells[blockIdx.y * num_cells]) != 0 || gs_real(cells[blockIdx.y * num_cells + cycle_end]) != 0;
  }
};

// The parameters of a kernel that are the fields of SmallProblems<T>, and the variable `problems` that holds them.
#define GS_PROBLEM_PARAMETERS                                                                                          \
  int m, int flexible, double epsilon, typename Wide<T>::type *sums, typename Wide<T>::type *memory,                   \
      long long problem_size, T *coefficients, typename Wide<T>::type *cells, int num_cells, double *history,          \
      int capacity, int cycle_end, int norm, int residual, int inner_tolerance, int limit
#define GS_PROBLEMS                                                                                                    \
  const SmallProblems<T> problems = {m,     flexible,  epsilon, sums,     memory,    problem_size, coefficients,       \
                                     cells, num_cells, history, capacity, cycle_end, norm,         residual,           \
                                     inner_tolerance,  limit}

// The small problem of this block's right-hand side, blockIdx.y.
template <class T> struct SmallProblem {
  typedef typename Wide<T>::type C;
  int m, flexible;
  double epsilon;
  C *sums;          // of all right-hand sides: see s and products
  // From here on in `memory`, in this order (gsparse.kernels.gpu.basis knows the sizes).
  C *p_of_parity;   // see p
  C *norms;         // the norm of w in iteration j, by the parity of j
  C *y;             // the solution of the least-squares problem
  C *rhs;           // Q * e1 * norm: the right-hand side of R * y = rhs; its last element is the residual
  C *scales;        // what y[j] is divided by, because stored vectors z are not normalized
  C *num_finished;   // the number of columns of R that are finished
  C *Q, *R;         // row by row, m + 1 and m elements in a row
  T *coefficients;  // y / scales, in the type of the vectors
  C *cells;
  double *history;
  int capacity, cycle_end, norm, residual, inner_tolerance, limit;

  __device__ explicit SmallProblem(const SmallProblems<T> &all)
      : m(all.m), flexible(all.flexible), epsilon(all.epsilon), sums(all.sums),
        p_of_parity(all.memory + blockIdx.y * all.problem_size),
        norms(p_of_parity + 2 * (m + 1)), y(norms + 2), rhs(y + m + 1), scales(rhs + m + 1),
        num_finished(scales + m + 1), Q(num_finished + 1), R(Q + (m + 1ll) * (m + 1)),
        coefficients(all.coefficients + static_cast<long long>(blockIdx.y) * m),
        cells(all.cells + static_cast<long long>(blockIdx.y) * all.num_cells),
        history(all.history + static_cast<long long>(blockIdx.y) * all.capacity), capacity(all.capacity),
        cycle_end(all.cycle_end), norm(all.norm), residual(all.residual), inner_tolerance(all.inner_tolerance),
        limit(all.limit) {}

  __device__ bool is_stopped() const { return gs_real(cells[0]) != 0; }
  __device__ C *q(int row) const { return Q + (m + 1ll) * row; }
  __device__ C *r(int row) const { return R + static_cast<long long>(m) * row; }
  // The following values belong to iteration j. s: the products of the basis with w when the iteration begins, then w^H
  // w.
  __device__ C *s(int j) const { return sums + ((j & 1) * gridDim.y + blockIdx.y) * 2ll * (m + 1); }
  // The products of the basis with u, and at the end w^H u in place of the last element of p.
  __device__ C *products(int j) const { return s(j) + m + 1; }
  __device__ C *p(int j) const { return p_of_parity + (j & 1) * (m + 1); }
};

// The values of earlier passes that `gs_head` needs: this lane's elements of s, and w^H w. They are loaded early, so
// that the loads overlap with waiting. In the first iteration, the norm itself is loaded in place of w^H w.
template <class C> struct EarlySums {
  enum { COUNT = 2 };
  C s[COUNT], square;
  template <class Problem> __device__ __forceinline__ void load(const Problem &problem, int j) {
#pragma unroll
    for (int t = 0; t < COUNT; ++t) {
      const int k = t * GS_WARP + threadIdx.x % GS_WARP;
      s[t] = k < j ? problem.s(j)[k] : Scalar<C>::zero();
    }
    square = j > 0 ? problem.s(j)[j] : problem.cells[problem.norm];
  }
};

// The norm of w after its components in the basis have been removed, the inverse of this norm, and the last element of
// p.
template <class C> struct Head { C norm, inverse, last; };

// Compute a Head from the products. Each warp does this, and all threads get the result. By Pythagoras, norm^2 = w^H w
// - |s|^2, and the last element of p is (w^H u - s^H p) / norm.
template <class T, class C>
__device__ __forceinline__ Head<C> gs_head(const SmallProblem<T> &problem, int j, const EarlySums<C> &early,
                                           const C *products) {
  const C *s = problem.s(j), own = products[j];
  C left = Scalar<C>::zero(), dot = Scalar<C>::zero();
#pragma unroll
  for (int t = 0; t < EarlySums<C>::COUNT; ++t) {
    const int k = t * GS_WARP + threadIdx.x % GS_WARP;
    left = left + gs_abs2(early.s[t]);
    if (k < j) dot = gs_fma(gs_conj(early.s[t]), products[k], dot);
  }
  for (int k = EarlySums<C>::COUNT * GS_WARP + threadIdx.x % GS_WARP; k < j; k += GS_WARP) {
    left = left + gs_abs2(s[k]);
    dot = gs_fma(gs_conj(s[k]), products[k], dot);
  }
  left = gs_of_lane(gs_group_sum<GS_WARP>(left), 0);
  dot = gs_of_lane(gs_group_sum<GS_WARP>(dot), 0);
  const double rest = gs_real(early.square) - gs_real(left), root = rest > 0 ? sqrt(rest) : 0;
  const C norm = j > 0 ? Make<C>::from(root) : early.square, inverse = Make<C>::from(1 / gs_real(norm));
  return {norm, inverse, (own - dot) * inverse};
}

// A rotation that takes (f, g) to (r, 0) for a real g, as LAPACK's lartg.
template <class C> struct Rotation { C c, s, r; };
template <class C> __device__ __forceinline__ Rotation<C> gs_rotation(C f, double g) {
  const double size = sqrt(gs_real(gs_abs2(f))), length = sqrt(size * size + g * g);
  if (g == 0) return {Make<C>::from(1), Scalar<C>::zero(), f};
  if (size == 0) return {Scalar<C>::zero(), Make<C>::from(1), Make<C>::from(g)};
  const C phase = f / Make<C>::from(size);
  return {Make<C>::from(size / length), phase * Make<C>::from(g / length), phase * Make<C>::from(length)};
}

// The new column of Q * H, before the rotation that makes it a column of R.
template <class C> struct NewColumn {
  C diagonal;     // its element in row j
  double height;  // the sum of |element|^2 over rows 0 to j
  double left;    // |s|^2, where s is what is left of the basis in the new w
};

// Compute column j of Q * H = Q * (p / norm + s_new) - R * s_old / norm, and store its rows above j in R. All threads
// of the block must take part, and all get the result.
template <class T, class C>
__device__ __forceinline__ NewColumn<C> gs_new_column(const SmallProblem<T> &problem, int j, C inverse, C *shared) {
  enum { LANES = 8, SCRATCH = 2 * GS_MAX_WARPS };
  const C *s_new = problem.s(j + 1), *s_old = problem.s(j), *p = problem.p(j);
  const int lane = threadIdx.x % LANES, rows = int(blockDim.x) / LANES;
  C sums[2] = {Scalar<C>::zero(), Scalar<C>::zero()};
  for (int first = 0; first <= j; first += rows) {
    const int k = first + threadIdx.x / LANES, end = k > j ? 0 : k + 1 < j ? k + 2 : j + 1;
    C sum = Scalar<C>::zero();
#pragma unroll 4
    for (int l = lane; l < end; l += LANES) sum = gs_fma(problem.q(k)[l], p[l] * inverse + s_new[l], sum);
    if (!problem.flexible && end > 0) {
#pragma unroll 4
      for (int l = k + lane; l < j; l += LANES) sum = gs_fma(-problem.r(k)[l], s_old[l] * inverse, sum);
    }
    sum = gs_group_sum<LANES>(sum);
    if (lane == 0 && k <= j) {
      sums[0] = sums[0] + gs_abs2(sum);
      sums[1] = sums[1] + gs_abs2(s_new[k]);
      if (k < j) problem.r(k)[j] = sum;
      if (k == j) shared[SCRATCH] = sum;
    }
  }
  gs_block_sums<2>(sums, shared);
  if (threadIdx.x == 0) {
    shared[SCRATCH + 1] = sums[0];
    shared[SCRATCH + 2] = sums[1];
  }
  __syncthreads();
  return {shared[SCRATCH], gs_real(shared[SCRATCH + 1]), gs_real(shared[SCRATCH + 2])};
}

// Apply a rotation to rows j and j + 1 of Q. Before this, row j + 1 is a row of the identity.
template <class T, class C>
__device__ __forceinline__ void gs_rotate_rows(const SmallProblem<T> &problem, int j, const Rotation<C> &rotation) {
  C *row = problem.q(j), *next = problem.q(j + 1);
  for (int l = threadIdx.x; l <= j + 1; l += blockDim.x) {
    const C old = l <= j ? row[l] : Scalar<C>::zero(), unit = Make<C>::from(l <= j ? 0 : 1);
    row[l] = rotation.c * old + rotation.s * unit;
    next[l] = rotation.c * unit - gs_conj(rotation.s) * old;
  }
}

// Finish column j of R, record the residual, and decide whether the cycle continues, unless this has been done before.
// A residual that is NaN stops the solve. One block calls this, with all of its threads. `shared` has room for 2 *
// GS_MAX_WARPS + 3 values.
template <class T>
__device__ __forceinline__ void gs_finish_column(const SmallProblem<T> &problem, int j,
                                                 typename Wide<T>::type *shared) {
  typedef typename Wide<T>::type C;
  const C num_finished = *problem.num_finished, rhs = problem.rhs[j], one = Make<C>::from(1);
  const C inverse = one / problem.norms[j & 1];
  const double square = gs_real(problem.s(j + 1)[j + 1]), iteration = gs_real(problem.cells[1]) + 1;
  const double tolerance = gs_real(problem.cells[problem.inner_tolerance]);
  const double limit = gs_real(problem.cells[problem.limit]);
  if (gs_real(num_finished) > j) return;
  const NewColumn<C> column = gs_new_column(problem, j, inverse, shared);
  // The element of H below the diagonal is the norm of the new w. Squares below `noise` are rounding error: then the
  // operator adds nothing new to the basis.
  const double rest = square - column.left;
  const double noise = 100 * problem.epsilon * problem.epsilon * (rest > 0 ? column.height + rest : column.height);
  const bool is_broken = rest <= noise, is_singular = is_broken && gs_real(gs_abs2(column.diagonal)) <= noise;
  const Rotation<C> g = gs_rotation(is_singular ? Scalar<C>::zero() : column.diagonal, is_broken ? 0 : sqrt(rest));
  gs_rotate_rows(problem, j, g);
  if (threadIdx.x) return;
  const C last = -gs_conj(g.s) * rhs;
  const double residual = sqrt(gs_real(gs_abs2(last)));
  problem.r(j)[j] = g.r;
  problem.rhs[j] = is_singular ? Scalar<C>::zero() : g.c * rhs;
  problem.rhs[j + 1] = last;
  *problem.num_finished = Make<C>::from(j + 1);
  problem.history[static_cast<long long>(iteration) % problem.capacity] = residual;
  problem.cells[1] = Make<C>::from(iteration);
  problem.cells[problem.residual] = Make<C>::from(residual);
  problem.cells[problem.cycle_end] =
      Make<C>::from(is_broken ? 2 : residual <= tolerance ? 1 : iteration >= limit ? 3 : 0);
  if (residual != residual) problem.cells[0] = one + one;
}
