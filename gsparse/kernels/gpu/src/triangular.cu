// triangular.cu - incomplete factorization and triangular solves, level by level (gsparse/formats/levels.py). The rows
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
// read from the cache of the multiprocessor (gs_fresh). Reads are not coalesced: each thread walks its own row. Nothing
// is in shared memory and nothing is atomic, so that results are always the same.
// Source: E. Anderson and Y. Saad, "Solving sparse triangular linear systems on parallel computers", Int. J. High Speed
// Comput. 1(1), 1989 (level scheduling); Y. Saad, "Iterative Methods for Sparse Linear Systems", algorithm 10.4 (ILU(0)
// by rows, IKJ).
#include "steps.cuh"

// The largest block that is launched (gsparse/kernels/gpu/triangular.py). One block alone must keep a multiprocessor
// busy.
enum { GS_LEVEL_THREADS = 512 };
// How often a thread looks at the rows on which its row depends, in one launch.
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

// A step of a fixed-point iteration for the same factors, which updates all entries at once. A thread owns an entry: it
// subtracts the products of the entries that its row of L and its column of U have in common, in the same order as
// above, so that the iteration ends with the same bits. `columns` are those of the transpose, and `numbers` the
// positions of its entries.
// Source: E. Chow and A. Patel, "Fine-grained parallel incomplete LU factorization", SIAM J. Sci. Comput. 37(2), 2015.
template <class T, class Index>
GS_KERNEL sweep_ilu0(long long nnz, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                     const T *__restrict__ data, const Index *__restrict__ rows, const Index *__restrict__ diagonal,
                     const Index *__restrict__ column_pointers, const Index *__restrict__ column_rows,
                     const Index *__restrict__ numbers, const T *__restrict__ factors, T *__restrict__ out) {
  const long long entry = gs_thread();
  if (entry >= nnz) return;
  const Index row = rows[entry], column = indices[entry], least = row < column ? row : column;
  Index p = indptr[row], q = column_pointers[column];
  const Index end = indptr[row + 1], last = column_pointers[column + 1];
  T sum = gs_load(data + entry);
  while (p < end && q < last) {
    const Index one = gs_load(indices + p), other = gs_load(column_rows + q);
    if (one >= least || other >= least) break;
    if (one == other) sum = gs_fma(-gs_load(factors + p), gs_load(factors + gs_load(numbers + q)), sum);
    p += one <= other;
    q += other <= one;
  }
  out[entry] = column < row ? sum / gs_load(factors + diagonal[column]) : sum;
}

// y = (I + N)^-1 x for a strictly triangular N. Its rows are stored in the order of the levels, and its values negated,
// so that y[row] = x[row] + sum of data[k] * y[indices[k]]. Blocks along y are right-hand sides.
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
