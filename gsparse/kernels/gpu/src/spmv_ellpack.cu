// spmv_ellpack.cu - y = alpha*A*x + beta*y for A in ELLPACK and blocked ELLPACK (SELL-C-sigma).
// A thread owns a row; entry j of a warp's rows lies side by side, so every read of the matrix is coalesced. Padding is
// marked in its column and skipped. Long rows of blocked ELLPACK have warps of their own (long_rows.cuh).
// Source: N. Bell and M. Garland, SC 2009; M. Kreutzer et al., SIAM J. Sci. Comput. 36(5), 2014 (SELL-C-sigma).
#include "long_rows.cuh"

template <class Value, class Column, class T>
GS_KERNEL ellpack(long long num_rows, int width, long long pitch, GS_ENTRIES, GS_VECTORS, GS_DOTS) {
  GS_READER;
  GS_DOT_BEGIN;
  const long long row = gs_thread();
  if (row < num_rows) {
    T sum = Scalar<T>::zero();
    sum = entries.template add_even<true, Batch<T>::size>(row, pitch, width, sum);
    sum = gs_store(y + row, sum, alpha, beta, read_y);
    GS_DOT_ADD(x[row], sum);
  }
  GS_DOT_END;
}

// Slices are one warp high, so a slice's offset is read once a warp and its width is the same for all lanes. `rows` is
// null where rows keep their order.
template <class Value, class Column, class T>
GS_KERNEL blocked_ellpack(long long num_rows, long long num_slices, const long long *__restrict__ slice_offsets,
                          const int *__restrict__ rows, int num_chunks, const Chunk *__restrict__ chunks,
                          T *partials, unsigned *arrivals, GS_ENTRIES, GS_VECTORS, GS_DOTS) {
  GS_READER;
  GS_DOT_BEGIN;
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  if (int(blockIdx.x) < chunk_blocks) {
    int row;
    T stored;
    if (gs_long_row(entries, num_chunks, chunks, partials, arrivals, y, alpha, beta, read_y, &row, &stored))
      GS_DOT_ADD(x[row], stored);
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
      GS_DOT_ADD(x[row], sum);
    }
  }
  GS_DOT_END;
}
