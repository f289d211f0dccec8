// spmv_ellpack.cu - y = alpha*A*x + beta*y for A in ELLPACK and blocked ELLPACK (SELL-C-sigma).
// A thread owns a row; entry j of a warp's rows lies side by side, so every read of the matrix is coalesced. Padding is
// marked in its column and skipped. Long rows of blocked ELLPACK have warps of their own (long_rows.cuh).
// Source: N. Bell and M. Garland, SC 2009; M. Kreutzer et al., SIAM J. Sci. Comput. 36(5), 2014 (SELL-C-sigma).
#include "long_rows.cuh"

template <class Value, class Column, class T>
GS_KERNEL ellpack(long long num_rows, int width, long long pitch, GS_ENTRIES, GS_VECTORS) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  GS_READER;
  T sum = Scalar<T>::zero();
  sum = entries.template add_even<true, Batch<T>::size>(row, pitch, width, sum);
  gs_store(y + row, sum, alpha, beta, read_y);
}

// Slices are one warp high, so a slice's offset is read once a warp and its width is the same for all lanes. `rows` is
// null where rows keep their order.
template <class Value, class Column, class T>
GS_KERNEL blocked_ellpack(long long num_rows, long long num_slices, const long long *__restrict__ slice_offsets,
                          const int *__restrict__ rows, int num_chunks, const Chunk *__restrict__ chunks,
                          T *partials, unsigned *arrivals, GS_ENTRIES, GS_VECTORS) {
  GS_READER;
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  if (int(blockIdx.x) < chunk_blocks) {
    gs_long_row(entries, num_chunks, chunks, partials, arrivals, y, alpha, beta, read_y);
    return;
  }
  const long long place = gs_thread() - static_cast<long long>(chunk_blocks) * blockDim.x, slice = place / GS_WARP;
  if (slice >= num_slices) return;
  const long long row = rows ? rows[place] : place;
  if (row < 0 || row >= num_rows) return;
  const long long offset = slice_offsets[slice];
  const int width = int((slice_offsets[slice + 1] - offset) / GS_WARP);
  T sum = Scalar<T>::zero();
  sum = entries.template add_even<true, Batch<T>::size>(offset + place % GS_WARP, static_cast<long long>(GS_WARP), width, sum);
  gs_store(y + row, sum, alpha, beta, read_y);
}
