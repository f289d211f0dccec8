// diagonal_blocks.cu - inverses of the dense blocks on the diagonal of a matrix, and relaxation with them
// (gsparse/kernels/relaxation.py). Block i consists of the rows i * size to (i + 1) * size - 1; the last one may be
// smaller. Results have a fixed order of operations, and nothing is atomic.
#include "inverse.cuh"
#include "order.cuh"
#include "search.cuh"

// Threads in a block.
enum { GS_DIAGONAL_THREADS = 256 };

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
