// relaxation.cu - Gauss-Seidel sweeps, projections on rows, and colours of rows. In sweeps, the rows are stored group by group, and the rows of one
// group do not depend on each other (gsparse/kernels/relaxation.py):
//
//     bounds    0         4       7   9          places of the groups
//     order     r r r r | r r r | r r            blocks of rows, group by group
//               group 0   group 1
//
// A launch visits the groups `first`, first + step, ... before `last`: either one group, with as many blocks as its
// rows need, or several small groups with one block, which waits at a barrier after each group. LANES consecutive lanes
// own a row: they read its entries side by side (coalesced), and add up with a tree of shuffles. Other threads may
// write vectors during the launch, so vectors are not read from the cache of the multiprocessor (gs_fresh). Blocks
// along y are right-hand sides. Sums have a fixed order and nothing is atomic, so results are always the same.
// Source: Y. Saad, "Iterative Methods for Sparse Linear Systems", chapters 4 and 12 (multicoloured Gauss-Seidel) and 8
// (projections on rows: S. Kaczmarz, 1937).
#include "scalar.cuh"

// Threads of a block, and blocks for which a multiprocessor must have registers.
enum { GS_SWEEP_THREADS = 256, GS_BLOCKS = 4 };

// The rows of a matrix in the order of the groups.
template <class T, class Index> struct OrderedRows {
  const Index *indptr, *indices;
  const T *data;

  // Return start minus the sum of data[k] * v[indices[k]] over a row, valid in the row's first lane. All lanes of the
  // warp take part, even lanes without a row.
  template <int LANES> __device__ __forceinline__ T residual(bool owned, long long place, T start, const T *v) const {
    const Index end = owned ? indptr[place + 1] : Index(0);
    T sum = Scalar<T>::zero();
#pragma unroll 2
    for (Index k = owned ? indptr[place] + Index(threadIdx.x % LANES) : end; k < end; k += LANES)
      sum = gs_fma(gs_load(data + k), gs_fresh(v + gs_load(indices + k)), sum);
    return gs_difference(start, gs_group_sum<LANES>(sum));
  }
};

// Begin a sweep from x = 0: x_i = W_i b_i for the first `count` blocks in the order, and 0 for all others. A thread
// owns an element of x. `size` is the number of rows of a block. The last block may have fewer rows; its other places
// are empty.
template <class T, class Index>
GS_KERNEL_OF(GS_SWEEP_THREADS)
begin_sweep(long long num_places, long long num_rows, long long first, long long count, int size,
            const Index *__restrict__ order, const T *__restrict__ weights, const T *__restrict__ b,
            T *__restrict__ x) {
  const long long place = gs_thread();
  if (place >= num_places) return;
  b += blockIdx.y * num_rows;
  x += blockIdx.y * num_rows;
  const long long block = place / size, begin = static_cast<long long>(order[block]) * size;
  const long long row = begin + place % size;
  if (row >= num_rows) return;
  T sum = Scalar<T>::zero();
  if (block >= first && block < first + count)
    for (int j = 0; j < size && begin + j < num_rows; ++j)
      sum = gs_fma(gs_load(weights + place * size + j), gs_load(b + begin + j), sum);
  x[row] = sum;
}

// x_i += w_i (b_i - (A x)_i), group by group.
template <class T, class Index, int LANES>
GS_KERNEL_FOR(GS_SWEEP_THREADS, GS_BLOCKS)
sweep_rows(int first, int last, int step, const long long *__restrict__ bounds, const Index *__restrict__ order,
           const Index *__restrict__ indptr, const Index *__restrict__ indices, const T *__restrict__ data,
           const T *__restrict__ weights, long long num_rows, const T *__restrict__ b, T *x) {
  const OrderedRows<T, Index> rows = {indptr, indices, data};
  b += blockIdx.y * num_rows;
  x += blockIdx.y * num_rows;
  const int slots = blockDim.x / LANES;  // rows that the block visits at once
  for (int group = first; group != last; group += step) {
    const long long end = bounds[group + 1];
    for (long long base = bounds[group] + static_cast<long long>(blockIdx.x) * slots; base < end;
         base += static_cast<long long>(gridDim.x) * slots) {
      const long long place = base + threadIdx.x / LANES;
      const bool owned = place < end;
      const long long row = owned ? order[place] : 0;
      const T sum = rows.template residual<LANES>(owned, place, gs_load(b + row), x);
      if (owned && threadIdx.x % LANES == 0) x[row] = gs_fma(gs_load(weights + place), sum, gs_fresh(x + row));
    }
    if (group + step != last) __syncthreads();
  }
}

// The same with blocks of `size` rows: x_i += W_i (b_i - (A x)_i). A thread block visits whole blocks of rows, and
// keeps the residuals of these rows in shared memory.
template <class T, class Index, int LANES>
GS_KERNEL_FOR(GS_SWEEP_THREADS, GS_BLOCKS)
sweep_blocks(int first, int last, int step, int size, const long long *__restrict__ bounds,
             const Index *__restrict__ order, const Index *__restrict__ indptr, const Index *__restrict__ indices,
             const T *__restrict__ data, const T *__restrict__ weights, long long num_rows, const T *__restrict__ b,
             T *x) {
  GS_SHARED(T, residuals, GS_SWEEP_THREADS / LANES);
  const OrderedRows<T, Index> rows = {indptr, indices, data};
  b += blockIdx.y * num_rows;
  x += blockIdx.y * num_rows;
  const int slots = blockDim.x / LANES / size;  // blocks of rows
  const int slot = threadIdx.x / LANES, in_block = slot % size;
  for (int group = first; group != last; group += step) {
    const long long end = bounds[group + 1];
    for (long long base = bounds[group] + static_cast<long long>(blockIdx.x) * slots; base < end;
         base += static_cast<long long>(gridDim.x) * slots) {
      const long long block = base + slot / size, place = block * size + in_block;
      const bool in_range = slot < slots * size && block < end;
      const long long number = in_range ? static_cast<long long>(order[block]) * size + in_block : 0;
      const bool owned = in_range && number < num_rows;
      const long long row = owned ? number : 0;
      const T sum = rows.template residual<LANES>(owned, place, gs_load(b + row), x);
      if (threadIdx.x % LANES == 0) residuals[slot] = owned ? sum : Scalar<T>::zero();
      __syncthreads();
      if (owned && threadIdx.x % LANES == 0) {
        T value = gs_fresh(x + row);
        for (int j = 0; j < size; ++j)
          value = gs_fma(gs_load(weights + place * size + j), residuals[slot - in_block + j], value);
        x[row] = value;
      }
      __syncthreads();
    }
  }
}

// e = w (b_i - g v) and v += e conj(g) for each row i, where g is the stored row and b is `other`. With `of_residual`,
// b is 0, and other_i -= e. Rows of one group have no column in common.
template <class T, class Index, int LANES>
GS_KERNEL_FOR(GS_SWEEP_THREADS, GS_BLOCKS)
project_rows(int first, int last, int step, const long long *__restrict__ bounds, const Index *__restrict__ order,
             const Index *__restrict__ indptr, const Index *__restrict__ indices, const T *__restrict__ data,
             const T *__restrict__ weights, long long num_rows, int of_residual, T *v, T *other) {
  const OrderedRows<T, Index> rows = {indptr, indices, data};
  const long long offset = blockIdx.y * num_rows;
  v += offset;
  other += offset;
  const int slots = blockDim.x / LANES;
  for (int group = first; group != last; group += step) {
    const long long end = bounds[group + 1];
    for (long long base = bounds[group] + static_cast<long long>(blockIdx.x) * slots; base < end;
         base += static_cast<long long>(gridDim.x) * slots) {
      const long long place = base + threadIdx.x / LANES;
      const bool owned = place < end;
      const long long row = owned ? order[place] : 0;
      const T start = of_residual ? Scalar<T>::zero() : other[row];
      const T sum = gs_of_first<LANES>(rows.template residual<LANES>(owned, place, start, v));
      const T e = owned ? gs_fma(gs_load(weights + place), sum, Scalar<T>::zero()) : Scalar<T>::zero();
      const Index stop = owned ? indptr[place + 1] : Index(0);
#pragma unroll 2
      for (Index k = owned ? indptr[place] + Index(threadIdx.x % LANES) : stop; k < stop; k += LANES) {
        T *target = v + gs_load(indices + k);
        *target = gs_fma(e, Scalar<T>::conjugate(gs_load(data + k)), gs_fresh(target));
      }
      if (owned && of_residual && threadIdx.x % LANES == 0) other[row] = gs_difference(other[row], e);
    }
    if (group + step != last) __syncthreads();
  }
}

// ---------------------------------------------------------------------------- colours
//
// Colours of the rows of a matrix, such that rows that are joined by an entry have different colours.
//
// Each row has a priority. A launch colours every row whose neighbours of higher priority have colours already, with
// the smallest colour that none of them has; launches follow until all rows are coloured:
//
//     priorities    5 - 9 - 2 - 7 - 4        rows in a line, joined with the rows beside them
//     launch 1      .   0   .   0   .        rows with a higher priority than all of their neighbours
//     launch 2      1   0   1   0   1        rows that waited for them
//
// A row may see a colour that another thread writes during the same launch, or not see it and wait for the next launch.
// Its own colour is the same in both cases, because it depends on the neighbours of higher priority alone. So the
// colours are those of the sequential method in the order of the priorities. All atomic operations are on integers, so
// the result is the same in every run.
//
// A thread owns a row. The rows of a warp that are longer than GS_LONG_ROW are then coloured by the whole warp, one
// after the other. Reads are coalesced for those rows only. Nothing is in shared memory.
// Source: M. T. Jones and P. E. Plassmann, "A parallel graph coloring heuristic", SIAM J. Sci. Comput. 14(3), 1993; W.
// Hasenplaugh, T. Kaler, T. B. Schardl and C. E. Leiserson, "Ordering heuristics for parallel graph coloring", SPAA
// 2014 (largest logarithm of the degree first).

// Threads of a block; entries above which a row is long; bits of a priority that are a hash; colours that are examined at
// once.
enum { GS_COLOR_THREADS = 256, GS_LONG_ROW = 64, GS_HASH_BITS = 26, GS_WINDOW = 64 };

typedef unsigned long long Mask;

// A priority: the logarithm of the number of neighbours, and 26 bits of a hash of the row (the finalizer of
// splitmix64).
template <class Index>
GS_KERNEL_OF(GS_COLOR_THREADS)
row_priorities(long long num_rows, const Index *__restrict__ indptr, unsigned *__restrict__ priorities) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  const long long count = indptr[row + 1] - indptr[row];
  Mask bits = 0;
  while ((1ll << bits) < count) ++bits;
  Mask h = Mask(row) + 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  h = (h ^ (h >> 31)) >> (64 - GS_HASH_BITS);
  priorities[row] = unsigned((bits << GS_HASH_BITS) | h);
}

// Return the smallest colour that no neighbour of higher priority has, or -1 if one of these has no colour yet. With
// WIDTH = GS_WARP, all lanes of a warp call it for the same row and get the same result.
template <int WIDTH, class Index>
__device__ __forceinline__ int gs_first_free(const Index *indptr, const Index *indices, long long row,
                                             const unsigned *priorities, const int *colors) {
  const Index begin = indptr[row] + Index(WIDTH == 1 ? 0 : threadIdx.x % GS_WARP), end = indptr[row + 1];
  const unsigned own = priorities[row];
  bool waits = false;
  for (Index k = begin; k < end && !waits; k += WIDTH) {
    const long long other = indices[k];
    const unsigned priority = priorities[other];
    const bool is_before = priority > own || (priority == own && other < row);
    waits = is_before && gs_fresh(colors + other) < 0;
  }
  if (WIDTH == 1 ? waits : gs_any(waits)) return -1;
  // Neighbours of lower priority wait for this row, so they have no colour yet and do not count.
  for (int base = 0;; base += GS_WINDOW) {
    Mask used = 0;
    for (Index k = begin; k < end; k += WIDTH) {
      const int color = gs_fresh(colors + indices[k]) - base;
      if (color >= 0 && color < GS_WINDOW) used |= Mask(1) << color;
    }
    for (int d = WIDTH / 2; d > 0; d >>= 1) used |= gs_shfl_down(used, d, WIDTH);
    if (WIDTH > 1) used = gs_shfl(used, 0, WIDTH);
    if (~used) {
      int color = 0;
      while (used >> color & 1) ++color;
      return base + color;
    }
  }
}

// Colour the rows that can be coloured; *num_left counts the warps in which rows are left. Colours are -1 at first.
template <class Index>
GS_KERNEL_FOR(GS_COLOR_THREADS, GS_BLOCKS)
color_rows(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
           const unsigned *__restrict__ priorities, int *colors, unsigned *num_left) {
  const long long row = gs_thread();
  const int lane = threadIdx.x % GS_WARP;
  const bool is_open = row < num_rows && gs_fresh(colors + row) < 0;
  const bool is_long = is_open && indptr[row + 1] - indptr[row] > GS_LONG_ROW;
  int color = -1;
  if (is_open && !is_long) color = gs_first_free<1>(indptr, indices, row, priorities, colors);
  const Mask long_lanes = gs_ballot(is_long);
  for (int owner = 0; owner < GS_WARP; ++owner) {
    if (!(long_lanes >> owner & 1)) continue;
    const long long long_row = gs_shfl(row, owner, GS_WARP);
    const int free_color = gs_first_free<GS_WARP>(indptr, indices, long_row, priorities, colors);
    if (lane == owner) color = free_color;
  }
  // The colour was -1. It is changed atomically, because other threads may read it during this launch.
  if (color >= 0) atomicAdd(colors + row, color + 1);
  const bool any_left = gs_any(is_open && color < 0);
  if (any_left && lane == 0) atomicAdd(num_left, 1u);
}
