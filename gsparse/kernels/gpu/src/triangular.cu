// triangular.cu - incomplete factorization and triangular solves, level by level (gsparse/formats/row_stats.py). The rows
// of one level do not depend on each other:
//
//     bounds    0         3       5   6               places of the levels in `order`
//     order     r r r  |  r r  |  r                   rows, level by level
//     threads   0 1 2     0 1     0
//               level 0 -> level 1 -> level 2         a later level reads what earlier ones have written
//
// A thread owns a row; neighbouring threads own neighbours in the order of the levels. A launch processes the levels
// from `first` up to `last`: either one level, with as many blocks as its rows need, or several narrow levels with one
// block, which waits at a barrier after each of them. Values that other threads have written during the launch are not
// read from the cache of the multiprocessor (gs_fresh). Reads are not coalesced, because each thread walks its own row,
// and nothing is in shared memory. The solve for many right-hand sides differs: a team of threads owns a row, reads are
// coalesced, and sums of teams meet in shared memory. Every floating-point sum has a fixed order, and only integers are
// updated by atomic operations, so results are always the same.
// Source: E. Anderson and Y. Saad, "Solving sparse triangular linear systems on parallel computers", Int. J. High Speed
// Comput. 1(1), 1989 (level scheduling); Y. Saad, "Iterative Methods for Sparse Linear Systems", algorithm 10.4 (ILU(0)
// by rows, IKJ).
#include "steps.cuh"

// The largest block that is launched (gsparse/kernels/gpu/triangular.py). One block alone must keep a multiprocessor
// busy. GS_LEVEL_COLUMNS right-hand sides are solved together if there are many.
enum { GS_LEVEL_THREADS = 512, GS_LEVEL_COLUMNS = 32 };
// Number of times that a thread looks at the rows on which its row depends, in one launch.
enum { GS_LEVEL_ROUNDS = 32 };

// Raise the level of each row above those of the rows that its entries name; *num_raised counts the rows that rose. A
// thread owns a row. It may see a level that another thread has just raised, or see it in the next round or launch:
// levels only rise, up to the length of the longest chain of rows, so that they are the same in the end.
template <class Index>
GS_KERNEL_OF(GS_LEVEL_THREADS)
raise_levels(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices, int *levels,
             unsigned *num_raised) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  const Index begin = indptr[row], end = indptr[row + 1];
  const int before = levels[row];
  int level = before;
  for (int round = 0; round < GS_LEVEL_ROUNDS && begin < end; ++round) {
    int least = level;
    for (Index k = begin; k < end; ++k) {
      const int other = gs_fresh(levels + gs_load(indices + k)) + 1;
      if (other > least) least = other;
    }
    if (least > level) atomicAdd(levels + row, least - level);
    level = least;
  }
  if (level > before) atomicAdd(num_raised, 1u);
}

// Factorize in place: L strictly below the diagonal, without its diagonal of ones, and U on and above it. `diagonal`
// has the position of each row's diagonal entry; column indices increase within a row. A zero pivot makes inf and NaN
// of the rows that depend on it.
template <class T, class Index>
GS_KERNEL_OF(GS_LEVEL_THREADS)
ilu0_levels(int first, int last, const long long *__restrict__ bounds, const Index *__restrict__ order,
            const Index *__restrict__ indptr, const Index *__restrict__ indices, const Index *__restrict__ diagonal,
            T *data) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (int level = first; level < last; ++level) {
    for (long long place = bounds[level] + gs_thread(); place < bounds[level + 1]; place += step) {
      const Index row = order[place], end = indptr[row + 1];
      for (Index k = indptr[row]; k < diagonal[row]; ++k) {
        const Index pivot_row = indices[k];
        const T factor = data[k] / gs_fresh(data + diagonal[pivot_row]);
        data[k] = factor;
        Index target = k + 1;
        for (Index u = diagonal[pivot_row] + 1; u < indptr[pivot_row + 1]; ++u) {
          while (target < end && indices[target] < indices[u]) ++target;
          if (target < end && indices[target] == indices[u])
            data[target] = gs_fma(-factor, gs_fresh(data + u), data[target]);
        }
      }
    }
    if (level + 1 < last) __syncthreads();
  }
}

// y = (I + N)^-1 x for a strictly triangular N. Its rows are stored in the order of the levels, and its values negated,
// so that y[row] = x[row] + sum of data[k] * y[indices[k]]. Blocks along y of the grid are right-hand sides.
template <class T, class Index>
GS_KERNEL_OF(GS_LEVEL_THREADS)
solve_levels(int first, int last, const long long *__restrict__ bounds, const Index *__restrict__ order,
             const Index *__restrict__ indptr, const Index *__restrict__ indices, const T *__restrict__ data,
             long long num_rows, const T *__restrict__ x, T *y) {
  x += blockIdx.y * num_rows;
  y += blockIdx.y * num_rows;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (int level = first; level < last; ++level) {
    for (long long place = bounds[level] + gs_thread(); place < bounds[level + 1]; place += step) {
      const Index row = order[place], end = indptr[place + 1];
      T sum = gs_load(x + row);
      for (Index k = indptr[place]; k < end; ++k)
        sum = gs_fma(gs_load(data + k), gs_fresh(y + gs_load(indices + k)), sum);
      y[row] = sum;
    }
    if (level + 1 < last) __syncthreads();
  }
}

// Part of sum(data[k] * Y[indices[k] * columns]): every step-th term, from entry k on. Four loads of Y run at the same
// time, because nothing else hides their latency if a level has few rows.
template <class T, class Index>
__device__ __forceinline__ T gs_part_of_row(long long k, long long end, int step, const Index *__restrict__ indices,
                                            const T *__restrict__ data, long long columns, const T *Y, T sum) {
  for (; k + 3 * step < end; k += 4 * step) {
    T y[4], a[4];
    for (int i = 0; i < 4; ++i) a[i] = gs_load(data + k + i * step);
    for (int i = 0; i < 4; ++i) y[i] = gs_fresh(Y + gs_load(indices + k + i * step) * columns);
    for (int i = 0; i < 4; ++i) sum = gs_fma(a[i], y[i], sum);
  }
  for (; k < end; k += step) sum = gs_fma(gs_load(data + k), gs_fresh(Y + gs_load(indices + k) * columns), sum);
  return sum;
}

// The same solve for many right-hand sides. A team of GS_LEVEL_COLUMNS threads owns a row and as many right-hand sides,
// one for each thread:
//
//     Y         row 0: c c c c ...  row 1: c c c c ...      solutions, the columns of a row side by side
//     team      0 0 0 0 .. 1 1 1 1 .. 2 2 2 2 ..            neighbouring threads read neighbouring columns of Y
//
// Each entry of the matrix is read once for all columns of a team. If a block alone processes a level that has at most
// half as many rows as the block has teams, several teams share a row: their sums meet in shared memory, where the
// first of them adds them up in a fixed order. `x` and `y` hold one column after the other; Y is scratch. Blocks along
// y of the grid are groups of columns.
template <class T, class Index>
GS_KERNEL_OF(GS_LEVEL_THREADS)
solve_levels_of_columns(int first, int last, const long long *__restrict__ bounds, const Index *__restrict__ order,
                        const Index *__restrict__ indptr, const Index *__restrict__ indices,
                        const T *__restrict__ data, long long num_rows, long long columns, T *Y,
                        const T *__restrict__ x, T *y) {
  GS_SHARED(T, sums, GS_LEVEL_THREADS);
  const int teams = blockDim.x / GS_LEVEL_COLUMNS, team = threadIdx.x / GS_LEVEL_COLUMNS;
  const long long column = static_cast<long long>(blockIdx.y) * GS_LEVEL_COLUMNS + threadIdx.x % GS_LEVEL_COLUMNS;
  const bool is_active = column < columns;
  Y += is_active ? column : 0;
  x += is_active ? column * num_rows : 0;
  y += is_active ? column * num_rows : 0;
  for (int level = first; level < last; ++level) {
    const long long begin = bounds[level], end = bounds[level + 1];
    int parts = 1;
    while (gridDim.x == 1 && 2 * parts * (end - begin) <= teams) parts *= 2;
    if (parts == 1) {
      const long long step = static_cast<long long>(gridDim.x) * teams;
      for (long long place = begin + static_cast<long long>(blockIdx.x) * teams + team; place < end; place += step) {
        if (!is_active) continue;
        const Index row = order[place];
        const T sum = gs_part_of_row(indptr[place], indptr[place + 1], 1, indices, data, columns, Y, gs_load(x + row));
        Y[row * columns] = sum;
        y[row] = sum;
      }
    } else {
      const long long place = begin + team / parts;
      const bool has_row = is_active && place < end;
      const int part = team % parts;
      sums[threadIdx.x] = has_row ? gs_part_of_row<T, Index>(indptr[place] + part, indptr[place + 1], parts, indices,
                                                             data, columns, Y, Scalar<T>::zero())
                                  : Scalar<T>::zero();
      __syncthreads();
      if (has_row && part == 0) {
        const Index row = order[place];
        T sum = gs_load(x + row);
        for (int i = 0; i < parts; ++i) sum = gs_add(sum, sums[threadIdx.x + i * GS_LEVEL_COLUMNS]);
        Y[row * columns] = sum;
        y[row] = sum;
      }
    }
    if (level + 1 < last) __syncthreads();
  }
}
