// spmm_csr.cu - Y = alpha*A*X + beta*Y for A in CSR and k dense columns, rows shared out as they are.
// A group of 2^column_bits * 2^entry_bits lanes (a warp at most) owns a row and a tile of columns:
// neighbouring lanes own neighbouring V columns, so that a row-major X is read coalesced; the lanes of one column take
// turns at the entries and add up by a shuffle tree. Few columns: many entry lanes (parallel reduction); some: one or two
// (sequential). From four column lanes on a group may read its row's entries once, coalesced, and pass them round by
// shuffles (`cached`).
// A column-major X has V columns a lane at their stride and neighbouring rows in neighbouring groups, so that Y is written
// coalesced. Blocks: x over rows, y over tiles, so that the part of X that a tile reads stays in the cache.
// Source: C. Yang, A. Buluc and J. Owens, "Design principles for sparse matrix multiplication on the GPU", Euro-Par 2018;
// G. Huang, G. Dai, Y. Wang and H. Yang, "GE-SpMM", SC 2020 (row caching).
#include "spmm.cuh"

// The longest row of a warp's groups of `width` lanes.
template <class Index> __device__ __forceinline__ Index gs_longest(Index length, int width) {
  for (int d = width; d < GS_WARP; d *= 2) {
    const Index other = gs_shfl(length, (threadIdx.x + d) % GS_WARP, GS_WARP);
    if (other > length) length = other;
  }
  return length;
}

template <class Stored, class T, class Index, int V, int PACKED>
GS_KERNEL csr_spmm(long long num_rows, long long num_columns, int column_bits, int entry_bits, int cached, GS_CSR,
                   GS_PANELS) {
  const int column_lanes = 1 << column_bits, entry_lanes = 1 << entry_bits, width = column_lanes * entry_lanes;
  const int lane = threadIdx.x & (width - 1), place = lane >> column_bits;  // the latter among the lanes of a column
  const long long row = gs_thread() >> (column_bits + entry_bits);
  const long long column = (static_cast<long long>(blockIdx.y) * column_lanes + (lane & (column_lanes - 1))) * V;
  // Rows and columns past the end are empty instead of gone: every lane of a warp has to reach the shuffles.
  const bool owned = row < num_rows, active = owned && column < num_columns;
  const Index begin = owned ? indptr[row] : 0, length = owned ? indptr[row + 1] - begin : 0;
  GS_GATHER(begin, width, entry_lanes);
  T sums[V];
#pragma unroll
  for (int v = 0; v < V; ++v) sums[v] = Scalar<T>::zero();
  const Index longest = cached ? gs_longest(length, width) : length;
  for (Index j = 0; j < longest; j += Reader::BATCH * entry_lanes) {
    gather.fetch(j, length, lane, place, active);
#pragma unroll
    for (int i = 0; i < Reader::BATCH; ++i)
      if (active && j + i * entry_lanes + place < length) gather.add(i, sums);
  }
  for (int d = width / 2; d >= column_lanes; d /= 2) {
#pragma unroll
    for (int v = 0; v < V; ++v) sums[v] = gs_add(sums[v], gs_lane_after(sums[v], d, width));
  }
  if (active && place == 0)
    gs_store_columns<T, V>(y + row * y_row_stride + column * y_column_stride, y_column_stride, packed_y, gather.left,
                           sums, alpha, beta, read_y);
}
