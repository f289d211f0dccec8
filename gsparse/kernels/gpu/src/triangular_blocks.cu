// triangular_blocks.cu - matrices of dense blocks: inverses of the diagonal blocks, relaxation with these inverses, and
// incomplete factorization and triangular solves, level by level.
//
// In factorizations and solves, a row is a row of blocks, and each entry is a block of size * size elements, stored row
// by row in `blocks`, or column by column in `columns`. Levels and launches are the same as in triangular.cu.
//
// Values that other threads have written during the launch are not read from the cache of the multiprocessor
// (gs_fresh). Nothing is in shared memory and nothing is atomic, so that results are always the same.
// Source: Y. Saad, "Iterative Methods for Sparse Linear Systems", algorithm 10.4 (ILU(0) by rows, IKJ) and section 10.5
// (block factorizations).
#include "order.cuh"
#include "steps.cuh"

// ---------------------------------------------------------------------------- inverses of small matrices
//
// Inverses of small dense matrices: a group of `width` lanes, a power of two, owns a matrix of `size` rows,
// size <= width, and a lane one of its columns. All lanes of the warp take part, also those without a column.
// Source: G. H. Golub, C. F. Van Loan, "Matrix Computations", section 3.4 (partial pivoting); W. H. Press et al.,
// "Numerical Recipes", section 2.1 (Gauss-Jordan elimination in place).

// Whether the number is not 0 in any lane of the group; valid in the first lane of the group.
__device__ __forceinline__ int gs_any_of_group(int is_true, int width) {
  for (int d = width / 2; d > 0; d /= 2) is_true |= gs_shfl_down(is_true, d, width);
  return is_true;
}

// Replace a matrix by its inverse. `own` is the address of the column of this lane, which no other lane reads or writes;
// its elements are `size` places apart. A lane that does not own a column has `owns` = false.
//
//     lane       0 1 2 -        step k: the lane of column k finds the pivot, and exchanges its row with row k.
//     row 0      a b c          Its column then becomes that of the inverse, and all lanes subtract multiples of row k
//     row 1      d e f          from the other rows. In the end the lanes exchange columns, in the reverse order.
//     row 2      g h i
//
// A zero pivot makes elements infinite or NaN.
template <class T> __device__ __forceinline__ void gs_invert(T *own, int size, int lane, int width, bool owns) {
  int exchanged = 0;  // in lane k, the row that was exchanged with row k
  for (int k = 0; k < size; ++k) {
    int pivot = k;
    if (owns && lane == k) {
      double largest = gs_extent(own[k * size]);
      for (int i = k + 1; i < size; ++i) {
        const double extent = gs_extent(own[i * size]);
        if (extent > largest) {
          largest = extent;
          pivot = i;
        }
      }
      exchanged = pivot;
    }
    pivot = gs_shfl(pivot, k, width);
    T top = owns ? own[pivot * size] : Scalar<T>::zero();
    if (owns) own[pivot * size] = own[k * size];
    const T divisor = gs_of_lane(top, k, width);
    if (lane == k) top = Make<T>::from(1.0);
    top = top / divisor;
    for (int i = 0; i < size; ++i) {
      T value = owns && i != k ? own[i * size] : Scalar<T>::zero();
      const T factor = gs_of_lane(value, k, width);
      if (lane == k) value = Scalar<T>::zero();
      value = i == k ? top : gs_fma(gs_difference(Scalar<T>::zero(), factor), top, value);
      if (owns) own[i * size] = value;
    }
  }
  int source = lane;  // the lane whose column this one takes
  for (int k = size - 1; k >= 0; --k) {
    const int other = gs_shfl(exchanged, k, width);
    source = gs_shfl(source, lane == k ? other : lane == other ? k : lane, width);
  }
  for (int i = 0; i < size; ++i) {
    const T value = gs_of_lane(owns ? own[i * size] : Scalar<T>::zero(), source, width);
    if (owns) own[i * size] = value;
  }
}

// ---------------------------------------------------------------------------- blocks on the diagonal
//
// Inverses of the dense blocks on the diagonal of a matrix, and relaxation with them. Block i consists of the rows i * size to (i + 1) * size - 1; the last one may be
// smaller. Results have a fixed order of operations, and nothing is atomic.

// Threads in a block.
enum { GS_DIAGONAL_THREADS = 256 };

// The rows of a diagonal block in CSR, whose columns rise.
template <class T, class Index> struct DiagonalBlock {
  const Index *indptr, *indices;
  const T *data;
  long long begin, num_rows;  // the first row of the block, and the number of rows of the matrix
  int size;

  // Call visit(column of the block, value) for each entry of row i of the block. Rows past the end of the matrix become
  // rows of the identity; with `fills`, so do rows in which all entries are 0 or missing.
  template <class Visit> __device__ __forceinline__ void visit_row(int i, int fills, Visit visit) const {
    const long long row = begin + i;
    bool is_empty = true;
    if (row < num_rows) {
      const Index end = indptr[row + 1];
      const Index first = gs_lower_bound(indices, indptr[row], end, begin);
      for (Index k = first; k < end && indices[k] < begin + size; ++k) {
        const T value = gs_load(data + k);
        is_empty = is_empty && gs_equal(value, Scalar<T>::zero());
        visit(int(indices[k] - begin), value);
      }
    }
    if (row >= num_rows || (is_empty && fills)) visit(i, Make<T>::from(1.0));
  }
};

// Invert the diagonal blocks. A group of `width` lanes owns a block, and a lane one of its columns (gs_invert). Accesses
// to the inverses are coalesced. A block counts as regular if its product with the inverse differs from the identity by
// less than `largest_error`.
template <class T, class Index>
GS_KERNEL_FOR(GS_DIAGONAL_THREADS, 4)
invert_blocks(long long num_rows, int size, int width, int fills, double largest_error, const Index *__restrict__ indptr,
              const Index *__restrict__ indices, const T *__restrict__ data, T *inverses, unsigned char *is_regular) {
  const int lane = threadIdx.x % width;
  const long long number = gs_thread() / width;
  const DiagonalBlock<T, Index> block = {indptr, indices, data, number * size, num_rows, size};
  const bool exists = block.begin < num_rows, owns = exists && lane < size;
  T *own = inverses + number * size * size + lane;
  if (owns)
    for (int i = 0; i < size; ++i) {
      T value = Scalar<T>::zero();
      block.visit_row(i, fills, [&](int column, T entry) { if (column == lane) value = entry; });
      own[i * size] = value;
    }
  gs_invert(own, size, lane, width, owns);
  int is_wrong = 0;
  if (owns)
    for (int i = 0; i < size; ++i) {
      T error = Make<T>::from(i == lane ? -1.0 : 0.0);
      block.visit_row(i, fills, [&](int column, T entry) { error = gs_fma(entry, own[column * size], error); });
      if (!(gs_extent(error) < largest_error)) is_wrong = 1;
    }
  is_wrong = gs_any_of_group(is_wrong, width);
  if (exists && lane == 0) is_regular[number] = !is_wrong;
}

// x_i += omega * W_i (b_i - r_i), or x_i = omega * W_i b_i without a guess, for each block i. With `copies`, r becomes
// b after that. `columns` has W block by block, each column by column. A thread block owns whole blocks of rows, so
// that all of them have been read before r is overwritten, and a thread one row of each pass over them. Neighbouring
// threads read neighbouring elements of W; b and r come through the cache. Blocks along y are right-hand sides.
template <class T>
GS_KERNEL_OF(GS_DIAGONAL_THREADS)
relax_blocks(long long num_rows, int size, int rows_per_block, T omega, int has_guess, int copies,
             const T *__restrict__ columns, const T *__restrict__ b, T *x, T *r) {
  b += blockIdx.y * num_rows;
  x += blockIdx.y * num_rows;
  r += blockIdx.y * num_rows;
  const long long first = static_cast<long long>(blockIdx.x) * rows_per_block;
  const int count = int(num_rows - first < rows_per_block ? num_rows - first : rows_per_block);
  columns += first * size;
  for (int place = threadIdx.x; place < count; place += blockDim.x) {
    const int begin = place / size * size, end = begin + size < count ? begin + size : count;
    T sum = Scalar<T>::zero();
    for (int j = begin; j < end; ++j) {
      T value = gs_load(b + first + j);
      if (has_guess) value = gs_difference(value, r[first + j]);
      sum = gs_fma(gs_load(columns + static_cast<long long>(j) * size + (place - begin)), value, sum);
    }
    x[first + place] = gs_fma(omega, sum, has_guess ? x[first + place] : Scalar<T>::zero());
  }
  if (!copies) return;
  __syncthreads();
  for (int place = threadIdx.x; place < count; place += blockDim.x) r[first + place] = gs_load(b + first + place);
}

// ---------------------------------------------------------------------------- factors

// The largest number of threads of a block (gsparse/kernels/gpu/triangular.py), and the numbers of blocks of a
// factorization and of a solve for which a multiprocessor must have registers. Without these numbers, the compiler
// keeps some values in memory.
enum { GS_BLOCK_LEVEL_THREADS = 512, GS_FACTOR_BLOCKS = 1, GS_SOLVE_BLOCKS = 2 };

// A matrix of blocks whose columns rise, with `diagonal`, the position of each row's diagonal block.
template <class T, class Index> struct BlockRows {
  const Index *indptr, *indices, *diagonal;
  T *blocks, *factors;
  int size;

  __device__ __forceinline__ long long at(Index block, int row) const {
    return (static_cast<long long>(block) * size + row) * size;
  }

  // Subtract the products with earlier rows from row `r` of all blocks of a row, and divide the blocks below the
  // diagonal by the diagonal blocks of the earlier rows. One lane does this for each r; it reads nothing that other
  // lanes write.
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
// its blocks, then a column. A block of D counts as regular as in invert_blocks.
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
