// convert.cu - CSR to ELLPACK and blocked ELLPACK on the device: count (slice_sizes), scan (CuPy's cumsum), fill.
// A thread owns a row. Writes are coalesced, reads are CSR rows walked by one thread each.
#include "scalar.cuh"

// Count: the entries each slice will store (its longest row times its rows), by a shuffle maximum over one warp.
template <class Index>
GS_KERNEL slice_sizes(long long num_rows, long long num_slices, const Index *__restrict__ indptr,
                      long long *__restrict__ sizes) {
  const long long row = gs_thread();
  long long longest = row < num_rows ? static_cast<long long>(indptr[row + 1] - indptr[row]) : 0;
#pragma unroll
  for (int d = GS_WARP / 2; d > 0; d >>= 1) {
    const long long other = gs_shfl_down(longest, d, GS_WARP);
    if (other > longest) longest = other;
  }
  if (row % GS_WARP == 0 && row / GS_WARP < num_slices) sizes[row / GS_WARP] = longest * GS_WARP;
}

// Fill one row: its entries, then padding that repeats its last column (column 0 in an empty row) with value 0.
template <class Stored, class Index>
__device__ __forceinline__ void gs_fill_row(const Index *__restrict__ indices, const Stored *__restrict__ data,
                                            Index begin, Index length, int width, long long stride,
                                            Index *__restrict__ to_indices, Stored *__restrict__ to_data) {
  Index column = 0;
  for (int j = 0; j < width; ++j) {  // (begin + j is formed only where it is below nnz: it could pass 2^31)
    const bool is_entry = j < length;
    if (is_entry) column = indices[begin + j];
    *to_indices = column;
    *to_data = is_entry ? data[begin + j] : Scalar<Stored>::zero();
    to_indices += stride;
    to_data += stride;
  }
}

template <class Stored, class Index>
GS_KERNEL fill_ellpack(long long num_rows, int width, const Index *__restrict__ indptr,
                       const Index *__restrict__ indices, const Stored *__restrict__ data,
                       Index *__restrict__ to_indices, Stored *__restrict__ to_data) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  const Index begin = indptr[row];
  gs_fill_row(indices, data, begin, Index(indptr[row + 1] - begin), width, num_rows, to_indices + row, to_data + row);
}

// Rows past the end, within the last slice, are filled as empty rows: nothing stored is left unwritten.
template <class Stored, class Index>
GS_KERNEL fill_blocked_ellpack(long long num_rows, long long num_slices, const long long *__restrict__ slice_offsets,
                               const Index *__restrict__ indptr, const Index *__restrict__ indices,
                               const Stored *__restrict__ data, Index *__restrict__ to_indices,
                               Stored *__restrict__ to_data) {
  const long long row = gs_thread(), slice = row / GS_WARP;
  if (slice >= num_slices) return;
  const long long offset = slice_offsets[slice], first = offset + row % GS_WARP;
  const int width = int((slice_offsets[slice + 1] - offset) / GS_WARP);
  const Index begin = row < num_rows ? indptr[row] : 0;
  const Index length = row < num_rows ? Index(indptr[row + 1] - begin) : 0;
  gs_fill_row(indices, data, begin, length, width, GS_WARP, to_indices + first, to_data + first);
}
