// spmm_split.cu - Y = alpha*A*X + beta*Y for A in CSR and k dense columns, shared out in equal parts of the merged list of
// entries and row ends, whatever the rows look like.
// A block owns a part and a tile of columns; a group of 2^column_bits lanes, each with V columns, an equal share of the
// part, which it walks in order. Each group's start is found once for all columns of the tile, by binary search among the
// part's row ends. A row that ends where it began is written at once. What a group leaves unfinished is carried to the
// next by a segmented scan, what a block leaves goes to `carries`, and csr_spmm_carry adds it to the row, in the order of
// the blocks, in a second launch: no atomics, the same bits every time.
// Source: D. Merrill and M. Garland, "Merge-based parallel sparse matrix-vector multiplication", SC 2016; C. Yang, A. Buluc
// and J. Owens, "Design principles for sparse matrix multiplication on the GPU", Euro-Par 2018.
#include "spmm.cuh"

// Threads of a block, and the most entries and row ends of its part (gsparse.kernels.gpu.spmm).
enum { GS_SPLIT_THREADS = 256, GS_SPLIT_WORK = 2048 };

// Row ends before the beginning of each part of `work` entries and row ends: `first_rows` holds one more than there are.
template <class Index>
GS_KERNEL csr_spmm_parts(long long num_rows, long long nnz, int work, long long num_parts,
                         const Index *__restrict__ indptr, Index *__restrict__ first_rows) {
  const long long part = gs_thread();
  if (part > num_parts) return;
  const long long wanted = part * work, diagonal = wanted < nnz + num_rows ? wanted : nnz + num_rows;
  long long low = 0, high = num_rows;
  while (low < high) {
    const long long middle = low + (high - low) / 2;
    if (static_cast<long long>(indptr[middle + 1]) + middle < diagonal) low = middle + 1;
    else high = middle;
  }
  first_rows[part] = Index(low);
}

template <class Stored, class T, class Index, int V, int PACKED>
GS_KERNEL_OF(GS_SPLIT_THREADS) csr_spmm_split(long long nnz, long long num_columns, int column_bits, int share,
                                              int cached, const Index *__restrict__ first_rows,
                                              T *__restrict__ carries, GS_CSR, GS_PANELS) {
  GS_SHARED(unsigned short, ends, GS_SPLIT_WORK);                 // of rows, from the part's first entry on
  GS_SHARED(unsigned short, first_ends, GS_SPLIT_THREADS + 1);    // row ends before each group's share
  GS_SHARED(T, warp_sums, GS_SPLIT_THREADS * V);                  // what each warp leaves unfinished
  GS_SHARED(int, warp_ended, GS_SPLIT_THREADS / GS_WARP);
  const int column_lanes = 1 << column_bits, groups = GS_SPLIT_THREADS >> column_bits, work = groups * share;
  const int group = threadIdx.x >> column_bits, column_lane = threadIdx.x & (column_lanes - 1);
  const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP;
  const long long column = (static_cast<long long>(blockIdx.y) * column_lanes + column_lane) * V;
  const bool active = column < num_columns;
  const long long part = blockIdx.x, first = first_rows[part], begin = part * work - first, left = nnz - begin;
  const int num_ends = int(first_rows[part + 1] - first);
  const int size = left < work - num_ends ? int(left) : work - num_ends, total = size + num_ends;
  for (int r = threadIdx.x; r < num_ends; r += GS_SPLIT_THREADS)
    ends[r] = static_cast<unsigned short>(indptr[first + r + 1] - begin);
  __syncthreads();

  // Row ends before each share: as many r as have ends[r] + r < diagonal. A thread looks for one.
  for (int g = threadIdx.x; g <= groups; g += GS_SPLIT_THREADS) {
    const int diagonal = g * share < total ? g * share : total;
    int low = diagonal > size ? diagonal - size : 0, high = diagonal < num_ends ? diagonal : num_ends;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (ends[middle] + middle < diagonal) low = middle + 1;
      else high = middle;
    }
    first_ends[g] = static_cast<unsigned short>(low);
  }
  __syncthreads();
  const int first_end = first_ends[group], last_end = first_ends[group + 1];
  const int entry = (group * share < total ? group * share : total) - first_end;
  const int last_entry = ((group + 1) * share < total ? (group + 1) * share : total) - last_end;

  // Walk the share. The first row to end in it may have begun in an earlier group, and waits for what is carried.
  GS_GATHER(begin + entry, column_lanes, 1);
  T sums[V], head[V];
#pragma unroll
  for (int v = 0; v < V; ++v) sums[v] = head[v] = Scalar<T>::zero();
  T *target = y + (first + first_end) * y_row_stride + column * y_column_stride;
  int row = first_end;
  int end = row < last_end ? ends[row] : 0;
  for (int j = 0; j <= share; j += Reader::BATCH) {
    gather.fetch(j, last_entry - entry, column_lane, 0, active);
#pragma unroll
    for (int i = 0; i < Reader::BATCH; ++i) {
      while (active && row < last_end && end <= entry + j + i) {
        if (row == first_end) {
#pragma unroll
          for (int v = 0; v < V; ++v) head[v] = sums[v];
        } else {
          gs_store_columns<T, V>(target + (row - first_end) * y_row_stride, y_column_stride, packed_y, gather.left, sums,
                                 alpha, beta, read_y);
        }
#pragma unroll
        for (int v = 0; v < V; ++v) sums[v] = Scalar<T>::zero();
        end = ++row < last_end ? ends[row] : 0;
      }
      if (active && entry + j + i < last_entry) gather.add(i, sums);
    }
  }

  // What the groups before this one leave: within the warp, then of the warps before.
  const int is_ended = last_end > first_end;
  int ended = is_ended;
  T scan[V];
#pragma unroll
  for (int v = 0; v < V; ++v) scan[v] = sums[v];
  for (int d = column_lanes; d < GS_WARP; d *= 2) {
    const int ended_before = gs_shfl_up(ended, d, GS_WARP);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const T before = gs_lane_before(scan[v], d);
      if (lane >= d && !ended) scan[v] = gs_add(before, scan[v]);
    }
    if (lane >= d) ended |= ended_before;
  }
  if (lane >= GS_WARP - column_lanes) {
#pragma unroll
    for (int v = 0; v < V; ++v) warp_sums[(warp * column_lanes + column_lane) * V + v] = scan[v];
    if (lane == GS_WARP - 1) warp_ended[warp] = ended;
  }
  int ended_here = gs_shfl_up(ended, column_lanes & (GS_WARP - 1), GS_WARP);
  T carried[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    carried[v] = gs_lane_before(scan[v], column_lanes & (GS_WARP - 1));
    if (lane < column_lanes) carried[v] = Scalar<T>::zero();
  }
  if (lane < column_lanes) ended_here = 0;
  __syncthreads();
  if (!ended_here) {
    T before[V];
#pragma unroll
    for (int v = 0; v < V; ++v) before[v] = Scalar<T>::zero();
    for (int w = 0; w < warp; ++w) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const T left_over = warp_sums[(w * column_lanes + column_lane) * V + v];
        before[v] = warp_ended[w] ? left_over : gs_add(before[v], left_over);
      }
    }
#pragma unroll
    for (int v = 0; v < V; ++v) carried[v] = gs_add(before[v], carried[v]);
  }
  if (!active) return;
  if (is_ended) {
#pragma unroll
    for (int v = 0; v < V; ++v) head[v] = gs_add(carried[v], head[v]);
    gs_store_columns<T, V>(target, y_column_stride, packed_y, gather.left, head, alpha, beta, read_y);
  }
  if (group == groups - 1) {
#pragma unroll
    for (int v = 0; v < V; ++v)
      if (v < gather.left) carries[part * num_columns + column + v] = is_ended ? sums[v] : gs_add(carried[v], sums[v]);
  }
}

// y += alpha * (what the parts before left of the first row that ends in a part), a warp a part and `column_lanes` columns.
template <class T, class Index>
GS_KERNEL csr_spmm_carry(long long num_parts, long long num_columns, int work, int column_lanes,
                         const Index *__restrict__ first_rows, const Index *__restrict__ indptr,
                         const T *__restrict__ carries, T *__restrict__ y, long long y_row_stride,
                         long long y_column_stride, T alpha) {
  const long long part = gs_thread() / GS_WARP;
  if (part >= num_parts) return;
  const Index row = first_rows[part];
  if (row == first_rows[part + 1]) return;
  const long long first = (static_cast<long long>(indptr[row]) + row) / work;
  if (first == part) return;
  const int lane = threadIdx.x % GS_WARP, places = GS_WARP / column_lanes;
  const long long column = static_cast<long long>(blockIdx.y) * column_lanes + lane % column_lanes;
  T sum = Scalar<T>::zero();
  if (column < num_columns) {
#pragma unroll 4
    for (long long p = first + lane / column_lanes; p < part; p += places)
      sum = gs_add(sum, gs_load(carries + p * num_columns + column));
  }
  for (int d = GS_WARP / 2; d >= column_lanes; d /= 2) sum = gs_add(sum, gs_lane_after(sum, d, GS_WARP));
  if (column < num_columns && lane < column_lanes) {
    T *target = y + row * y_row_stride + column * y_column_stride;
    *target = Scalar<T>::is_one(alpha) ? gs_add(*target, sum) : gs_fma(alpha, sum, *target);
  }
}
