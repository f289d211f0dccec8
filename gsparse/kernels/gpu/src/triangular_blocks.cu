// triangular_blocks.cu - incomplete factorization and triangular solves of matrices of dense blocks, level by level. Rows
// are those of blocks here, and each entry is a block of size * size elements, stored row by row in `blocks`, or column
// by column in `columns`. The levels and launches are those of triangular.cu.
//
// Values that other threads have written during the launch are not read from the cache of the multiprocessor
// (gs_fresh). Nothing is in shared memory and nothing is atomic, so that results are always the same.
// Source: Y. Saad, "Iterative Methods for Sparse Linear Systems", algorithm 10.4 (ILU(0) by rows, IKJ) and section 10.5
// (block factorizations).
#include "inverse.cuh"

// The largest block of threads that is launched (gsparse/kernels/gpu/triangular.py), and the blocks of a factorization
// and of a solve for which a multiprocessor must have registers. Without them, the compiler keeps some values in memory.
enum { GS_BLOCK_LEVEL_THREADS = 512, GS_FACTOR_BLOCKS = 1, GS_SOLVE_BLOCKS = 2 };

// A matrix of blocks whose columns rise, with `diagonal`, the position of each row's diagonal block.
template <class T, class Index> struct BlockRows {
  const Index *indptr, *indices, *diagonal;
  T *blocks, *factors;
  int size;

  __device__ __forceinline__ long long at(Index block, int row) const {
    return (static_cast<long long>(block) * size + row) * size;
  }

  // Subtract the products with earlier rows from row `r` of all blocks of a row, and divide the blocks below the diagonal
  // by the diagonal blocks of those rows. One lane does that for each r; it reads nothing that others are writing.
  __device__ __forceinline__ void eliminate(Index row, int r) const {
    const Index end = indptr[row + 1];
    for (Index k = indptr[row]; k < diagonal[row]; ++k) {
      const Index pivot_row = indices[k];
      const T *left = blocks + at(k, r);
      Index target = k + 1;
      for (Index u = diagonal[pivot_row] + 1; u < indptr[pivot_row + 1]; ++u) {
        while (target < end && indices[target] < indices[u]) ++target;
        if (target < end && indices[target] == indices[u]) multiply<true>(left, u, blocks + at(target, r));
      }
      multiply<false>(left, diagonal[pivot_row], factors + at(k, r));
    }
  }

  // Compute out = left * (a block of the factors), or out -= left * block, for one row of blocks. The block may have been
  // written during this launch.
  template <bool SUBTRACT> __device__ __forceinline__ void multiply(const T *left, Index block, T *out) const {
    for (int c = 0; c < size; ++c) {
      T sum = Scalar<T>::zero();
      for (int m = 0; m < size; ++m) sum = gs_fma(left[m], gs_fresh(factors + at(block, m) + c), sum);
      out[c] = SUBTRACT ? gs_difference(out[c], sum) : sum;
    }
  }
};

// Factorize A = (I + L) D (I + U): `factors` receives L below the diagonal, the inverses of the blocks of D on it, and U
// above it. `blocks` holds A, and is overwritten. A group of `width` lanes owns a row, and a lane first a row of each of
// its blocks, then a column. A block of D counts as regular as in invert_blocks (diagonal_blocks.cu).
template <class T, class Index>
GS_KERNEL_FOR(GS_BLOCK_LEVEL_THREADS, GS_FACTOR_BLOCKS)
block_ilu0_levels(int first, int last, int size, int width, double largest_error, const long long *__restrict__ bounds,
                  const Index *__restrict__ order, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                  const Index *__restrict__ diagonal, T *blocks, T *factors, unsigned char *is_regular) {
  const BlockRows<T, Index> rows = {indptr, indices, diagonal, blocks, factors, size};
  const int lane = threadIdx.x % width, groups = blockDim.x / width;
  for (int level = first; level < last; ++level) {
    for (long long base = bounds[level] + static_cast<long long>(blockIdx.x) * groups; base < bounds[level + 1];
         base += static_cast<long long>(gridDim.x) * groups) {
      const long long place = base + threadIdx.x / width;
      const bool exists = place < bounds[level + 1], owns = exists && lane < size;
      const Index row = exists ? order[place] : Index(0), middle = diagonal[row];
      if (owns) rows.eliminate(row, lane);
      gs_syncwarp();
      T *own = factors + rows.at(middle, 0) + lane;
      if (owns) {
#pragma unroll 1
        for (int i = 0; i < size; ++i) own[i * size] = gs_fresh(blocks + rows.at(middle, i) + lane);
      }
      gs_invert(own, size, lane, width, owns);
      gs_syncwarp();
      int is_wrong = 0;
      if (owns) {
#pragma unroll 1
        for (int i = 0; i < size; ++i) {
          T error = Make<T>::from(i == lane ? -1.0 : 0.0);
          for (int m = 0; m < size; ++m) error = gs_fma(gs_fresh(blocks + rows.at(middle, i) + m), own[m * size], error);
          if (!(gs_extent(error) < largest_error)) is_wrong = 1;
        }
        for (Index k = middle + 1; k < indptr[row + 1]; ++k)
#pragma unroll 1
          for (int i = 0; i < size; ++i) {
            T sum = Scalar<T>::zero();
            for (int m = 0; m < size; ++m)
              sum = gs_fma(gs_fresh(factors + rows.at(middle, i) + m), gs_fresh(blocks + rows.at(k, m) + lane), sum);
            factors[rows.at(k, i) + lane] = sum;
          }
      }
      is_wrong = gs_any_of_group(is_wrong, width);
      if (exists && lane == 0) is_regular[row] = !is_wrong;
    }
    if (level + 1 < last) __syncthreads();
  }
}

// y = (I + N)^-1 x for a matrix N of blocks that is strictly triangular. A thread owns an element of x; the threads of a
// row of blocks read the elements of `columns` side by side, and each index together. The last row of blocks may have
// fewer elements. The rows are stored in the order of the levels, and their values negated. Blocks along y of the grid
// are right-hand sides.
template <class T, class Index>
GS_KERNEL_FOR(GS_BLOCK_LEVEL_THREADS, GS_SOLVE_BLOCKS)
solve_block_levels(int first, int last, int size, const long long *__restrict__ bounds, const Index *__restrict__ order,
                   const Index *__restrict__ indptr, const Index *__restrict__ indices, const T *__restrict__ columns,
                   long long num_rows, const T *__restrict__ x, T *y) {
  x += blockIdx.y * num_rows;
  y += blockIdx.y * num_rows;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (int level = first; level < last; ++level) {
    for (long long thread = bounds[level] * size + gs_thread(); thread < bounds[level + 1] * size; thread += step) {
      const long long place = thread / size, r = thread - place * size;
      const long long row = static_cast<long long>(order[place]) * size + r;
      if (row >= num_rows) continue;
      T sum = gs_load(x + row);
      const Index end = indptr[place + 1];
      for (Index k = indptr[place]; k < end; ++k) {
        const long long begin = static_cast<long long>(gs_load(indices + k)) * size;
        const T *column = columns + static_cast<long long>(k) * size * size + r;
#pragma unroll 2
        for (int c = 0; c < size && begin + c < num_rows; ++c, column += size)
          sum = gs_fma(gs_load(column), gs_fresh(y + begin + c), sum);
      }
      y[row] = sum;
    }
    if (level + 1 < last) __syncthreads();
  }
}
