// spmv_ellpack.cu - y = alpha*A*x + beta*y for A in ELLPACK and in blocked ELLPACK (sliced ELLPACK, SELL-C-sigma).
//
// A thread owns a row. Entry j of the rows of a warp lies side by side, so that every read of the matrix is coalesced:
//
//     ELLPACK, `pitch` positions from entry j to entry j + 1:
//
//               row 0  row 1  row 2  row 3  ...  pitch - 1
//     j = 0       a      c      d      f              -           thread i reads position j * pitch + i
//     j = 1       b      -      e      -              -           - is padding
//     ...
//
//     blocked ELLPACK, slices of GS_WARP rows that are as wide as their longest row:
//
//     slice_offsets[0]                  slice_offsets[1]            slice_offsets[2]
//     | j = 0: 32 rows | j = 1: 32 rows | j = 0: rows 32 to 63      | ...
//
// Padding is marked in its column and skipped. Long rows of blocked ELLPACK have warps of their own (long_rows.cuh), in
// the first blocks of the launch. Nothing is in shared memory, except the partial sum of conj(x)*y where it is asked
// for (sums.cuh).
// Source: N. Bell and M. Garland, SC 2009; M. Kreutzer et al., SIAM J. Sci. Comput. 36(5), 2014 (SELL-C-sigma).
#include "long_rows.cuh"

template <class Value, class Column, class T, template <class> class Dots>
GS_KERNEL ellpack(long long num_rows, int width, long long pitch, const Column *__restrict__ columns,
                  const int *__restrict__ bases, const Value *__restrict__ values, const T *__restrict__ table,
                  const T *__restrict__ x, T *__restrict__ y, T alpha, T beta, int read_y, int conjugate,
                  typename Wide<T>::type *block_dots) {
  const Entries<Value, Column, T> entries = {columns, bases, values, table, x, conjugate};
  Dots<T> dots(block_dots);
  const long long row = gs_thread();
  if (row < num_rows) {
    T sum = Scalar<T>::zero();
    sum = entries.template add_even<true, Batch<T>::size>(row, pitch, width, sum);
    sum = gs_store(y + row, sum, alpha, beta, read_y);
    dots.add(x + row, sum);
  }
  dots.leave();
}

// A warp owns a slice, so that it reads the slice's offset once, and the width is the same for all of its lanes. `rows`
// is the row at each place of the slices, -1 where there is none; it is null if rows keep their order.
template <class Value, class Column, class T, template <class> class Dots>
GS_KERNEL blocked_ellpack(long long num_rows, long long num_slices, const long long *__restrict__ slice_offsets,
                          const int *__restrict__ rows, int num_chunks, const Chunk *__restrict__ chunks, T *partials,
                          unsigned *arrivals, const Column *__restrict__ columns, const int *__restrict__ bases,
                          const Value *__restrict__ values, const T *__restrict__ table, const T *__restrict__ x,
                          T *__restrict__ y, T alpha, T beta, int read_y, int conjugate,
                          typename Wide<T>::type *block_dots) {
  const LongRows<T> long_rows = {num_chunks, chunks, partials, arrivals};
  const Entries<Value, Column, T> entries = {columns, bases, values, table, x, conjugate};
  Dots<T> dots(block_dots);
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  if (int(blockIdx.x) < chunk_blocks) {
    int row;
    T sum;
    if (gs_multiply_chunk(entries, long_rows, &row, &sum)) {
      sum = gs_store(y + row, sum, alpha, beta, read_y);
      dots.add(x + row, sum);
    }
  } else {
    const long long place = gs_thread() - static_cast<long long>(chunk_blocks) * blockDim.x, slice = place / GS_WARP;
    const long long row = slice >= num_slices ? -1 : rows ? rows[place] : place;
    if (row >= 0 && row < num_rows) {
      const long long offset = slice_offsets[slice];
      const int width = int((slice_offsets[slice + 1] - offset) / GS_WARP);
      const long long first = offset + place % GS_WARP, stride = GS_WARP;
      T sum = Scalar<T>::zero();
      sum = entries.template add_even<true, Batch<T>::size>(first, stride, width, sum);
      sum = gs_store(y + row, sum, alpha, beta, read_y);
      dots.add(x + row, sum);
    }
  }
  dots.leave();
}
