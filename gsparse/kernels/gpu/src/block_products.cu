// block_products.cu - the values of the product of two sparse matrices that consist of full dense blocks, C = A·B.
//
// A has blocks of ROWS x inner elements, B has blocks of inner x columns, and C has blocks of ROWS x columns. The
// places of the blocks are known (gsparse.kernels.set_up.BlockPattern), so columns are compared once for each pair of
// blocks, and not for each pair of elements. A thread owns a column of a block of C, and sums its elements in
// registers:
//
//      block row i of A         [2]      [5]      [9]        the thread has column s of block (i, 7) of C
//      block rows of B        4 [7] 8     2     [7] 9        it looks for block column 7 in block rows 2, 5 and 9 of B
//      sums of the thread      A_i2·b_27,s  +  A_i9·b_97,s
//
// Each sum is made in the order of A's row. Threads of neighbouring columns read the same elements of A's block at the
// same time, and neighbouring elements of B's block and of C's block.
//
// Reads: A's block row for each block of C, from the caches except for the first time; for each pair of blocks with a
// common inner block column, B's block, which comes from the cache where block rows of A share it; the columns of B that a
// binary search looks at. Writes: C once.
// Source: F. G. Gustavson, ACM Trans. Math. Softw. 4(3), 1978, by blocks.
#include "order.cuh"

// Threads of a block, and the elements of a column of B's block that a thread loads at the same time.
enum { GS_BLOCK_PRODUCT_THREADS = 128, GS_BLOCK_PRODUCT_LOADS = 3 };

// The blocks of a block row of B.
template <class Index> struct BlockRange {
  Index begin, end;
};

// Writes the values of C. Matrices are given by their blocks (indptr, indices) and by their values in CSR order. `rows` has
// the block row of each of the num_blocks blocks of C.
template <class T, class Index, int ROWS>
GS_KERNEL_OF(GS_BLOCK_PRODUCT_THREADS)
multiply_blocks(long long num_blocks, int inner, int columns, const Index *__restrict__ rows,
                const Index *__restrict__ a_indptr, const Index *__restrict__ a_indices, const T *__restrict__ a_data,
                const Index *__restrict__ b_indptr, const Index *__restrict__ b_indices, const T *__restrict__ b_data,
                const Index *__restrict__ c_indptr, const Index *__restrict__ c_indices, T *__restrict__ c_data) {
  const long long thread = gs_thread(), block = thread / columns;
  if (block >= num_blocks) return;
  const int s = int(thread - block * columns);
  const Index row = rows[block], column = c_indices[block];
  const long long first = a_indptr[row], length = a_indptr[row + 1] - first;
  const long long a_stride = length * inner;  // between rows of A
  const T *a = a_data + first * ROWS * inner;
  const auto range_of = [&](long long e) {
    BlockRange<Index> range = {0, 0};
    if (e < length) {
      const Index from = a_indices[first + e];
      range.begin = b_indptr[from];
      range.end = b_indptr[from + 1];
    }
    return range;
  };
  T sums[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) sums[i] = Scalar<T>::zero();
  BlockRange<Index> next = range_of(0);
  for (long long e = 0; e < length; ++e, a += inner) {
    const BlockRange<Index> range = next;
    next = range_of(e + 1);  // (its loads run while this block is multiplied)
    const Index place = gs_lower_bound(b_indices, range.begin, range.end, column);
    if (place >= range.end || b_indices[place] != column) continue;
    const long long b_stride = static_cast<long long>(range.end - range.begin) * columns;
    const T *b = b_data + static_cast<long long>(range.begin) * inner * columns + (place - range.begin) * columns + s;
    for (int k = 0; k < inner; k += GS_BLOCK_PRODUCT_LOADS) {
      T factors[GS_BLOCK_PRODUCT_LOADS];
#pragma unroll
      for (int step = 0; step < GS_BLOCK_PRODUCT_LOADS; ++step)
        if (k + step < inner) factors[step] = b[(k + step) * b_stride];
#pragma unroll
      for (int step = 0; step < GS_BLOCK_PRODUCT_LOADS; ++step) {
        if (k + step >= inner) continue;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) sums[i] = gs_fma(a[i * a_stride + k + step], factors[step], sums[i]);
      }
    }
  }
  const long long first_of_row = c_indptr[row], c_stride = (c_indptr[row + 1] - first_of_row) * columns;
  T *const c = c_data + first_of_row * ROWS * columns + (block - first_of_row) * columns + s;
#pragma unroll
  for (int i = 0; i < ROWS; ++i) c[i * c_stride] = sums[i];
}
