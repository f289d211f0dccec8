// triangular.cu - incomplete factorisation and triangular solves, level by level (gsparse/formats/levels.py): rows of
// one level wait for none of each other. A thread owns a row, neighbouring threads own neighbours in the order of
// levels. A launch does levels `first` to `last`: one level with as many blocks as its rows need, or several narrow ones
// with one block (a column), which waits at a barrier after each. What other threads have just written is read past this
// multiprocessor's own cache. Nothing is atomic, so results are the same every time.
// Source: level scheduling, Anderson & Saad 1989; ILU(0) by rows (IKJ), Saad, Iterative Methods, algorithm 10.4.
#include "steps.cuh"

// The largest block launched (gsparse/kernels/gpu/triangular.py): one block has to keep a multiprocessor busy.
#define GS_LEVEL_THREADS 512

// Factors in place: L strictly below the diagonal, its own diagonal of ones left out, and U. `diagonal`: the position of
// each row's diagonal entry; columns rise within a row. A zero pivot leaves inf and NaN in its row's followers.
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

// y = (I + N)^-1 x for the strictly triangular N whose rows are in the order of levels and whose values have the other
// sign: y[row] = x[row] + sum of data*y. Blocks along y: right-hand sides.
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
