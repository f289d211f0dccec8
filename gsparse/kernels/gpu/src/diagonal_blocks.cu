// diagonal_blocks.cu - inverses of the dense blocks on the diagonal of a matrix, and relaxation with them
// (gsparse/kernels/relaxation.py). Block i consists of the rows i * size to (i + 1) * size - 1; the last one may be
// smaller. Results have a fixed order of operations, and nothing is atomic.
// Source: G. H. Golub, C. F. Van Loan, "Matrix Computations", section 3.4 (partial pivoting); W. H. Press et al.,
// "Numerical Recipes", section 2.1 (Gauss-Jordan elimination in place).
#include "search.cuh"
#include "steps.cuh"

// Threads in a block.
enum { GS_DIAGONAL_THREADS = 256 };

// The larger one of the magnitudes of the real and the imaginary part.
__device__ __forceinline__ double gs_extent(double a) { return a < 0 ? -a : a; }
template <class R> __device__ __forceinline__ double gs_extent(Complex<R> a) {
  const double re = gs_extent(a.re), im = gs_extent(a.im);
  return re < im || im != im ? im : re;
}

// The value of a lane of the group of `width` lanes, in all lanes of the group.
template <class R> __device__ __forceinline__ R gs_of_group(R v, int lane, int width) { return gs_shfl(v, lane, width); }
template <class R> __device__ __forceinline__ Complex<R> gs_of_group(Complex<R> v, int lane, int width) {
  return {gs_of_group(v.re, lane, width), gs_of_group(v.im, lane, width)};
}

// The rows of a diagonal block in CSR, whose columns rise.
template <class T, class Index> struct DiagonalBlock {
  const Index *indptr, *indices;
  const T *data;
  long long begin, num_rows;  // the first row of the block, and the number of rows of the matrix
  int size;

  // Call visit(column of the block, value) for each entry of row i of the block. Rows past the end of the matrix, and
  // with `fills` rows without an entry that differs from 0, are those of the identity.
  template <class Visit> __device__ __forceinline__ void visit_row(int i, int fills, Visit visit) const {
    const long long row = begin + i;
    bool is_empty = true;
    if (row < num_rows) {
      const Index end = indptr[row + 1];
      const Index first = gs_lower_bound(indices, indptr[row], end, begin);
      for (Index k = first; k < end && indices[k] < begin + size; ++k) {
        const T value = gs_load(data + k);
        is_empty = is_empty && Scalar<T>::equal(value, Scalar<T>::zero());
        visit(int(indices[k] - begin), value);
      }
    }
    if (row >= num_rows || (is_empty && fills)) visit(i, Make<T>::from(1.0));
  }
};

// The row of the largest element of a column from row k on; the elements of the column are `size` apart.
template <class T> __device__ __forceinline__ int gs_pivot(const T *column, int k, int size) {
  int pivot = k;
  double largest = gs_extent(column[k * size]);
  for (int i = k + 1; i < size; ++i) {
    const double extent = gs_extent(column[i * size]);
    if (extent > largest) {
      largest = extent;
      pivot = i;
    }
  }
  return pivot;
}

// Invert the diagonal blocks by Gauss-Jordan elimination with partial pivoting. A group of `width` lanes, a power of
// two, owns a block, and a lane one of its columns, which nobody else reads or writes in memory:
//
//     lane       0 1 2 -        step k: the lane of column k finds the pivot, and exchanges its row with row k.
//     row 0      a b c          Its column then becomes that of the inverse, and all lanes subtract multiples of row k
//     row 1      d e f          from the other rows. In the end the lanes exchange columns, in the reverse order.
//     row 2      g h i
//
// Accesses to the inverses are coalesced. A block counts as regular if its product with the inverse differs from the
// identity by less than `largest_error`.
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
  int exchanged = 0;  // in lane k, the row that was exchanged with row k
  for (int k = 0; k < size; ++k) {
    int pivot = k;
    if (owns && lane == k) {
      exchanged = pivot = gs_pivot(own, k, size);
    }
    pivot = gs_shfl(pivot, k, width);
    T top = owns ? own[pivot * size] : Scalar<T>::zero();
    if (owns) own[pivot * size] = own[k * size];
    const T divisor = gs_of_group(top, k, width);
    if (lane == k) top = Make<T>::from(1.0);
    top = top / divisor;
    for (int i = 0; i < size; ++i) {
      T value = owns && i != k ? own[i * size] : Scalar<T>::zero();
      const T factor = gs_of_group(value, k, width);
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
    const T value = gs_of_group(owns ? own[i * size] : Scalar<T>::zero(), source, width);
    if (owns) own[i * size] = value;
  }
  int is_wrong = 0;
  if (owns)
    for (int i = 0; i < size; ++i) {
      T error = Make<T>::from(i == lane ? -1.0 : 0.0);
      block.visit_row(i, fills, [&](int column, T entry) { error = gs_fma(entry, own[column * size], error); });
      if (!(gs_extent(error) < largest_error)) is_wrong = 1;
    }
  for (int d = width / 2; d > 0; d /= 2) is_wrong |= gs_shfl_down(is_wrong, d, width);
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
