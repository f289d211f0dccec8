// arnoldi.cuh - the small part of Arnoldi's process and of GMRES (contract and equations: gsparse/kernels/basis.py):
// what one block does with the sums of a pass over the basis. A warp has a row, its lanes the row's columns. The rows
// of Q take the place of rotations, which would have to be applied one after the other.
#pragma once
#include "steps.cuh"

// The small part, one a right-hand side, for m vectors at most.
#define GS_SMALL                                                                                                       \
  int m, int flexible, double epsilon, typename Wide<T>::type *sums, typename Wide<T>::type *small, T *coefficients,   \
      typename Wide<T>::type *cells, int num_cells, double *history, int capacity, int at_end, int at_norm,            \
      int at_residual, int at_tolerance, int at_limit
// Whether there is nothing to do. (The whole of it takes registers that a loop over elements needs.)
#define GS_IS_IDLE                                                                                                     \
  (gs_real(cells[blockIdx.y * num_cells]) != 0 || gs_real(cells[blockIdx.y * num_cells + at_end]) != 0)
#define GS_THE_SMALL                                                                                                   \
  const Small<T> a(m, flexible, epsilon, sums, small, coefficients, cells, num_cells, history, capacity, at_end,       \
                   at_norm, at_residual, at_tolerance, at_limit)

template <class T> struct Small {
  typedef typename Wide<T>::type C;
  int m, flexible;
  double epsilon;
  C *sums;          // of the pass, over all elements
  C *p, *s;         // as in the contract
  C *rotated, *rhs; // a column of R, and later y; Q e1 norm
  C *scales;        // what y is divided by, so that it belongs to the vectors that are stored
  C *found;         // vectors so far
  C *Q, *R;         // row by row, m + 1 and m numbers a row
  T *coefficients;  // s, p and 1 / norm as elements are multiplied by them; later y
  C *cells;
  double *history;
  int capacity, at_end, at_norm, at_residual, at_tolerance, at_limit;

  __device__ Small(int m, int flexible, double epsilon, C *sums, C *small, T *coefficients, C *cells, int num_cells,
                   double *history, int capacity, int at_end, int at_norm, int at_residual, int at_tolerance,
                   int at_limit)
      : m(m), flexible(flexible), epsilon(epsilon), sums(sums + blockIdx.y * (m + 2)),
        p(small + blockIdx.y * (5ll * (m + 1) + 1 + (m + 1ll) * (m + 1) + static_cast<long long>(m) * m)),
        s(p + m + 1), rotated(s + m + 1), rhs(rotated + m + 1), scales(rhs + m + 1), found(scales + m + 1),
        Q(found + 1), R(Q + (m + 1ll) * (m + 1)), coefficients(coefficients + blockIdx.y * (2ll * m + 1)),
        cells(cells + static_cast<long long>(blockIdx.y) * num_cells),
        history(history + static_cast<long long>(blockIdx.y) * capacity), capacity(capacity), at_end(at_end),
        at_norm(at_norm), at_residual(at_residual), at_tolerance(at_tolerance), at_limit(at_limit) {}

  __device__ bool is_stopped() const { return gs_real(cells[0]) != 0; }
  __device__ C *q(int row) const { return Q + (m + 1ll) * row; }
  __device__ C *r(int row) const { return R + static_cast<long long>(m) * row; }
};

// ---- the small part, by one block

// After the products with u: p, and what the second pass multiplies by.
template <class T> __device__ __forceinline__ void gs_after_project(const Small<T> &a, int j) {
  typedef typename Wide<T>::type C;
  if (threadIdx.x >= GS_WARP) return;
  const C norm = a.cells[a.at_norm];
  C dot = Scalar<C>::zero();
  for (int k = threadIdx.x; k < j; k += GS_WARP) {
    const C product = a.sums[k], left = a.s[k];
    dot = gs_fma(gs_conj(left), product, dot);
    a.p[k] = product;
    a.coefficients[k] = Narrow<T>::from(left);
    a.coefficients[a.m + k] = Narrow<T>::from(product);
  }
  dot = gs_group_sum<GS_WARP>(dot);
  if (threadIdx.x) return;
  const C last = (a.sums[j] - dot) / norm, one = Make<C>::from(1);
  a.p[j] = last;
  a.coefficients[a.m + j] = Narrow<T>::from(last);
  a.coefficients[2 * a.m] = Narrow<T>::from(one / norm);
  a.scales[j] = one;
  if (a.flexible) a.scales[j] = norm;
  if (j == 0) {
    a.rhs[0] = norm;
    a.Q[0] = one;
  }
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

// After the pass that made w: column j of R, the residual, and whether to go on. `shared` holds 4 numbers.
template <class T>
__device__ __forceinline__ void gs_after_orthogonalize(const Small<T> &a, int j, typename Wide<T>::type *shared) {
  typedef typename Wide<T>::type C;
  const int lane = threadIdx.x % GS_WARP, warps = int(blockDim.x) / GS_WARP;
  const C inverse = Make<C>::from(1) / a.cells[a.at_norm];
  // Q times (p / norm + s), less R times the s of before / norm: a row a warp. Row k of Q ends at column k + 1.
  for (int k = threadIdx.x / GS_WARP; k <= j; k += warps) {
    const int end = k + 1 < j ? k + 1 : j;
    C sum = Scalar<C>::zero();
    for (int l = lane; l <= end; l += GS_WARP) sum = gs_fma(a.q(k)[l], a.p[l] * inverse + a.sums[l], sum);
    if (!a.flexible)
      for (int l = k + lane; l < j; l += GS_WARP) sum = gs_fma(-a.r(k)[l], a.s[l] * inverse, sum);
    sum = gs_group_sum<GS_WARP>(sum);
    if (lane == 0) a.rotated[k] = sum;
  }
  __syncthreads();
  if (threadIdx.x < GS_WARP) {
    C left = Scalar<C>::zero(), height = Scalar<C>::zero();
    for (int k = lane; k <= j; k += GS_WARP) {
      left = left + gs_abs2(a.sums[k]);
      height = height + gs_abs2(a.rotated[k]);
      a.s[k] = a.sums[k];
      if (k < j) a.r(k)[j] = a.rotated[k];
    }
    left = gs_group_sum<GS_WARP>(left);
    height = gs_group_sum<GS_WARP>(height);
    if (lane == 0) {
      shared[0] = left;
      shared[1] = height;
      shared[2] = a.rotated[j];
      shared[3] = a.rhs[j];
    }
  }
  __syncthreads();
  // Below `noise` all is what rounding leaves.
  const double rest = gs_real(a.sums[j + 1]) - gs_real(shared[0]), height = gs_real(shared[1]);
  const double noise = 100 * a.epsilon * a.epsilon * (rest > 0 ? height + rest : height);
  const bool is_broken = rest <= noise, is_singular = is_broken && gs_real(gs_abs2(shared[2])) <= noise;
  const double next = is_broken ? 0 : sqrt(rest);
  const Rotation<C> g = gs_rotation(is_singular ? Scalar<C>::zero() : shared[2], next);
  C *row = a.q(j), *after = a.q(j + 1);
  for (int l = threadIdx.x; l <= j + 1; l += blockDim.x) {
    const C old = l <= j ? row[l] : Scalar<C>::zero(), unit = Make<C>::from(l <= j ? 0 : 1);
    row[l] = g.c * old + g.s * unit;
    after[l] = g.c * unit - gs_conj(g.s) * old;
  }
  if (threadIdx.x) return;
  const C last = -gs_conj(g.s) * shared[3];
  const double residual = sqrt(gs_real(gs_abs2(last))), iteration = gs_real(a.cells[1]) + 1;
  a.r(j)[j] = g.r;
  a.rhs[j] = is_singular ? Scalar<C>::zero() : g.c * shared[3];
  a.rhs[j + 1] = last;
  *a.found = Make<C>::from(j + 1);
  a.history[static_cast<long long>(iteration) % a.capacity] = residual;
  a.cells[1] = Make<C>::from(iteration);
  a.cells[a.at_norm] = Make<C>::from(next);
  a.cells[a.at_residual] = Make<C>::from(residual);
  a.cells[a.at_end] = Make<C>::from(is_broken                                         ? 2
                                    : residual <= gs_real(a.cells[a.at_tolerance])    ? 1
                                    : iteration >= gs_real(a.cells[a.at_limit])       ? 3
                                                                                      : 0);
  if (residual != residual) a.cells[0] = Make<C>::from(2);
}

