// arnoldi.cuh - the small part of Arnoldi's process and of GMRES (contract and equations: gsparse/kernels/basis.py).
// Nobody waits for it: what the next pass over the basis needs of it (`Head`) each block finds for itself, and the rest
// (`gs_settle`) is done by an extra block of that pass. So two of each vector of sums are kept, by the parity of j.
// The rows of Q take the place of rotations, which would have to be applied one after the other.
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
  C *sums, *first;  // see s, products, p
  C *norms;         // of w, by the parity of j
  C *rotated, *rhs; // y; Q e1 norm
  C *scales;        // what y is divided by, so that it belongs to the vectors that are stored
  C *found;         // columns that are settled
  C *Q, *R;         // row by row, m + 1 and m numbers a row
  T *coefficients;  // y as elements are multiplied by it
  C *cells;
  double *history;
  int capacity, at_end, at_norm, at_residual, at_tolerance, at_limit;

  __device__ Small(int m, int flexible, double epsilon, C *sums, C *small, T *coefficients, C *cells, int num_cells,
                   double *history, int capacity, int at_end, int at_norm, int at_residual, int at_tolerance,
                   int at_limit)
      : m(m), flexible(flexible), epsilon(epsilon), sums(sums),
        first(small + blockIdx.y * (5ll * (m + 1) + 3 + (m + 1ll) * (m + 1) + static_cast<long long>(m) * m)),
        norms(first + 2 * (m + 1)), rotated(norms + 2), rhs(rotated + m + 1), scales(rhs + m + 1),
        found(scales + m + 1), Q(found + 1), R(Q + (m + 1ll) * (m + 1)),
        coefficients(coefficients + static_cast<long long>(blockIdx.y) * m),
        cells(cells + static_cast<long long>(blockIdx.y) * num_cells),
        history(history + static_cast<long long>(blockIdx.y) * capacity), capacity(capacity), at_end(at_end),
        at_norm(at_norm), at_residual(at_residual), at_tolerance(at_tolerance), at_limit(at_limit) {}

  __device__ bool is_stopped() const { return gs_real(cells[0]) != 0; }
  __device__ C *q(int row) const { return Q + (m + 1ll) * row; }
  __device__ C *r(int row) const { return R + static_cast<long long>(m) * row; }
  // What is left of the basis in w at the beginning of iteration j, and wᴴw; the products with u (p's last is still
  // wᴴu there); p.
  __device__ C *s(int j) const { return sums + ((j & 1) * gridDim.y + blockIdx.y) * 2ll * (m + 1); }
  __device__ C *products(int j) const { return s(j) + m + 1; }
  __device__ C *p(int j) const { return first + (j & 1) * (m + 1); }
};

// What a lane has, in all lanes.
template <class R> __device__ __forceinline__ R gs_of_lane(R v, int lane) { return gs_shfl(v, lane, GS_WARP); }
template <class R> __device__ __forceinline__ Complex<R> gs_of_lane(Complex<R> v, int lane) {
  return {gs_of_lane(v.re, lane), gs_of_lane(v.im, lane)};
}

// What `gs_head` needs of the pass before, read ahead of what it waits for: a lane's share of s, and wᴴw, or in the
// first iteration the norm.
template <class C> struct Ahead {
  enum { COUNT = 2 };
  C s[COUNT], square;
  template <class Of> __device__ __forceinline__ void load(const Of &a, int j) {
#pragma unroll
    for (int t = 0; t < COUNT; ++t) {
      const int k = t * GS_WARP + threadIdx.x % GS_WARP;
      s[t] = k < j ? a.s(j)[k] : Scalar<C>::zero();
    }
    square = j > 0 ? a.s(j)[j] : a.cells[a.at_norm];
  }
};

// The norm of w without what is left of the basis, its inverse, and the last of p, given the products; in all threads.
template <class C> struct Head { C norm, inverse, last; };
template <class T, class C>
__device__ __forceinline__ Head<C> gs_head(const Small<T> &a, int j, const Ahead<C> &ahead, const C *products) {
  const C *s = a.s(j), own = products[j];
  C left = Scalar<C>::zero(), dot = Scalar<C>::zero();
#pragma unroll
  for (int t = 0; t < Ahead<C>::COUNT; ++t) {
    const int k = t * GS_WARP + threadIdx.x % GS_WARP;
    left = left + gs_abs2(ahead.s[t]);
    if (k < j) dot = gs_fma(gs_conj(ahead.s[t]), products[k], dot);
  }
  for (int k = Ahead<C>::COUNT * GS_WARP + threadIdx.x % GS_WARP; k < j; k += GS_WARP) {
    left = left + gs_abs2(s[k]);
    dot = gs_fma(gs_conj(s[k]), products[k], dot);
  }
  left = gs_of_lane(gs_group_sum<GS_WARP>(left), 0);
  dot = gs_of_lane(gs_group_sum<GS_WARP>(dot), 0);
  const double rest = gs_real(ahead.square) - gs_real(left), root = rest > 0 ? sqrt(rest) : 0;
  const C norm = j > 0 ? Make<C>::from(root) : ahead.square, inverse = Make<C>::from(1 / gs_real(norm));
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

// Column j of R, the residual, and whether to go on, by one block, unless that has been done. A few lanes have a row.
template <class T>
__device__ __forceinline__ void gs_settle(const Small<T> &a, int j, typename Wide<T>::type *shared) {
  typedef typename Wide<T>::type C;
  enum { LANES = 8, AT = 2 * GS_MAX_WARPS };
  const C *made = a.s(j + 1), *before = a.s(j), *p = a.p(j);
  const C found = *a.found, rhs = a.rhs[j], one = Make<C>::from(1), inverse = one / a.norms[j & 1];
  const double square = gs_real(made[j + 1]), iteration = gs_real(a.cells[1]) + 1;
  const double tolerance = gs_real(a.cells[a.at_tolerance]), limit = gs_real(a.cells[a.at_limit]);
  const int lane = threadIdx.x % LANES, rows = int(blockDim.x) / LANES;
  if (gs_real(found) > j) return;
  // Q times (p / norm + s), less R times the s of before / norm. Row k of Q ends at column k + 1.
  C sums[2] = {Scalar<C>::zero(), Scalar<C>::zero()};
  for (int first = 0; first <= j; first += rows) {
    const int k = first + threadIdx.x / LANES, end = k > j ? 0 : k + 1 < j ? k + 2 : j + 1;
    C sum = Scalar<C>::zero();
#pragma unroll 4
    for (int l = lane; l < end; l += LANES) sum = gs_fma(a.q(k)[l], p[l] * inverse + made[l], sum);
    if (!a.flexible && end > 0) {
#pragma unroll 4
      for (int l = k + lane; l < j; l += LANES) sum = gs_fma(-a.r(k)[l], before[l] * inverse, sum);
    }
    sum = gs_group_sum<LANES>(sum);
    if (lane == 0 && k <= j) {
      sums[0] = sums[0] + gs_abs2(sum);
      sums[1] = sums[1] + gs_abs2(made[k]);
      if (k < j) a.r(k)[j] = sum;
      if (k == j) shared[AT] = sum;
    }
  }
  gs_block_sums<2>(sums, shared);
  if (threadIdx.x == 0) {
    shared[AT + 1] = sums[0];
    shared[AT + 2] = sums[1];
  }
  __syncthreads();
  // Below `noise` all is what rounding leaves.
  const double height = gs_real(shared[AT + 1]), rest = square - gs_real(shared[AT + 2]);
  const double noise = 100 * a.epsilon * a.epsilon * (rest > 0 ? height + rest : height);
  const bool is_broken = rest <= noise, is_singular = is_broken && gs_real(gs_abs2(shared[AT])) <= noise;
  const Rotation<C> g = gs_rotation(is_singular ? Scalar<C>::zero() : shared[AT], is_broken ? 0 : sqrt(rest));
  C *row = a.q(j), *after = a.q(j + 1);
  for (int l = threadIdx.x; l <= j + 1; l += blockDim.x) {
    const C old = l <= j ? row[l] : Scalar<C>::zero(), unit = Make<C>::from(l <= j ? 0 : 1);
    row[l] = g.c * old + g.s * unit;
    after[l] = g.c * unit - gs_conj(g.s) * old;
  }
  if (threadIdx.x) return;
  const C last = -gs_conj(g.s) * rhs;
  const double residual = sqrt(gs_real(gs_abs2(last)));
  a.r(j)[j] = g.r;
  a.rhs[j] = is_singular ? Scalar<C>::zero() : g.c * rhs;
  a.rhs[j + 1] = last;
  *a.found = Make<C>::from(j + 1);
  a.history[static_cast<long long>(iteration) % a.capacity] = residual;
  a.cells[1] = Make<C>::from(iteration);
  a.cells[a.at_residual] = Make<C>::from(residual);
  a.cells[a.at_end] = Make<C>::from(is_broken ? 2 : residual <= tolerance ? 1 : iteration >= limit ? 3 : 0);
  if (residual != residual) a.cells[0] = one + one;
}
