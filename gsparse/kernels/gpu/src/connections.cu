// connections.cu - the first passes of smoothed aggregation: the weights of blocks, the scales of nodes, and which
// connections are strong (gsparse/kernels/aggregation.py).
//
// A group of lanes owns a node, and reads the entries of its rows side by side (coalesced). Shared memory holds the
// totals of each warp. All floating-point sums have a fixed order. Atomic operations combine only integers and maxima
// of positive numbers, whose bits have the order of the numbers.
// Source: P. Vanek, J. Mandel and M. Brezina, "Algebraic multigrid by smoothed aggregation for second and fourth order
// elliptic problems", Computing 56, 1996.
#include "weights.cuh"

// Threads of a block.
enum { GS_CONNECTION_THREADS = 256 };
// The totals of `examine_rows` over all rows: the number of dropped entries; the largest Gershgorin bounds, first of
// the filtered matrix, then of the matrix itself; the largest and the smallest element of the diagonal. All but the
// first are the bits of positive numbers. The bits of the smallest element are inverted, so that it is a maximum, too.
enum { GS_DROPPED, GS_BOUND, GS_UNFILTERED_BOUND, GS_LARGEST, GS_SMALLEST, GS_TOTALS };

// ---------------------------------------------------------------------------- blocks

// For each node, merge its rows to one row of blocks: the column of each block, and its weight. The block on the diagonal
// is listed even if it has no entry. Lane q of a group reads row q. If FILLS is 0, only the number of blocks is written.
template <class T, class Index, int WIDTH, int FILLS>
GS_KERNEL_OF(GS_CONNECTION_THREADS)
merge_blocks(long long num_nodes, int block_size, const Index *__restrict__ indptr, const Index *__restrict__ indices,
             const T *__restrict__ data, Index *__restrict__ sizes, const Index *__restrict__ node_indptr,
             Index *__restrict__ node_indices, double *__restrict__ node_data) {
  const long long node = gs_thread() / WIDTH, none = 0x7fffffffffffffffll;
  const int lane = gs_lane<WIDTH>();
  const bool has_row = node < num_nodes && lane < block_size;
  const long long row = has_row ? node * block_size + lane : 0;
  Index place = has_row ? indptr[row] : Index(0);
  const Index end = has_row ? indptr[row + 1] : Index(0);
  Index to = FILLS && node < num_nodes ? node_indptr[node] : Index(0);
  bool has_diagonal = node >= num_nodes;
  int count = 0;
  for (;;) {
    const long long own = place < end ? static_cast<long long>(indices[place] / Index(block_size)) : none;
    const long long first = gs_of_first<WIDTH>(gs_group_min<WIDTH>(own)), block = has_diagonal || first < node ? first : node;
    if (!gs_any(block != none)) break;
    has_diagonal = has_diagonal || block == node;
    double square = 0;
    for (; place < end && indices[place] < (block + 1) * block_size; ++place) square += gs_square(data[place]);
    if (FILLS) {
      double total = 0;
      for (int q = 0; q < block_size; ++q) total += gs_shfl(square, q, WIDTH);
      if (lane == 0 && block != none) {
        node_indices[to] = Index(block);
        node_data[to] = gs_rounded(sqrt(total));
        ++to;
      }
    }
    count += block != none;
  }
  if (!FILLS && lane == 0 && node < num_nodes) sizes[node] = Index(count);
}

// ---------------------------------------------------------------------------- rows

// The bits of a number.
__device__ __forceinline__ Mask gs_bits(double number) {
  union {
    double number;
    Mask bits;
  } v;
  v.number = number;
  return v.bits;
}

// Over all blocks, add up the first value of each thread, and find the maximum of each of its other values. Values are
// the bits of numbers that are not negative; NaN has the largest bits. All threads of the block must take part.
__device__ __forceinline__ void gs_leave_totals(const Mask (&values)[GS_TOTALS], Mask *totals) {
  GS_SHARED(Mask, of_warps, GS_TOTALS *GS_CONNECTION_THREADS / GS_WARP);
  const int warp = threadIdx.x / GS_WARP, num_warps = GS_CONNECTION_THREADS / GS_WARP;
#pragma unroll
  for (int i = 0; i < GS_TOTALS; ++i) {
    const Mask value = i == GS_DROPPED ? Mask(gs_group_sum<GS_WARP>(static_cast<long long>(values[i])))
                                       : gs_group_max<GS_WARP>(values[i]);
    if (threadIdx.x % GS_WARP == 0) of_warps[i * num_warps + warp] = value;
  }
  __syncthreads();
  const int i = threadIdx.x;
  if (i >= GS_TOTALS) return;
  Mask total = 0;
  for (int w = 0; w < num_warps; ++w) {
    const Mask value = of_warps[i * num_warps + w];
    total = i == GS_DROPPED ? total + value : total < value ? value : total;
  }
  if (i == GS_DROPPED && total) atomicAdd(totals, total);
  if (i != GS_DROPPED && total > gs_fresh(totals + i)) atomicMax(totals + i, total);
}

__device__ __forceinline__ void gs_find_greatest(Mask bits, Mask *greatest) {
  *greatest = *greatest < bits ? bits : *greatest;
}

// The Gershgorin bound of a row is (others + |diagonal|) / |divisor|, where `others` is the sum of the magnitudes off
// the diagonal. A row with a zero divisor has no bound. `greatest` becomes the maximum of `greatest` and the bound.
template <class C> __device__ __forceinline__ void gs_find_bound(double others, C diagonal, C divisor, Mask *greatest) {
  const double length = sqrt(gs_real(gs_abs2(divisor)));
  if (length != 0) gs_find_greatest(gs_bits((others + sqrt(gs_real(gs_abs2(diagonal)))) / length), greatest);
}

// Compute the scale of each node: the largest weight off the diagonal in its row (`measure` 0), or the weight on the
// diagonal (1). Also compute the totals over all rows (GS_DROPPED and the following ones). If BLOCKS is 0, `node_data`
// is `data` itself; otherwise it holds the weights from merge_blocks.
template <class T, class N, int BLOCKS, class Index, int WIDTH>
GS_KERNEL_OF(GS_CONNECTION_THREADS)
examine_rows(long long num_nodes, int block_size, int measure, double theta, const Index *__restrict__ indptr,
             const Index *__restrict__ indices, const T *__restrict__ data, const Index *__restrict__ node_indptr,
             const Index *__restrict__ node_indices, const N *__restrict__ node_data, double *__restrict__ scales,
             Mask *totals) {
  typedef typename Wide<T>::type C;
  const long long node = gs_thread() / WIDTH;
  const int lane = gs_lane<WIDTH>(), size = BLOCKS ? block_size : 1;
  const bool owned = node < num_nodes;
  const Index begin = owned ? node_indptr[node] : Index(0), end = owned ? node_indptr[node + 1] : Index(0);
  double scale = 0;
  for (Index e = begin + lane; e < end; e += WIDTH)
    if ((node_indices[e] == node) == (measure == 1)) {
      const double weight = gs_weight(node_data[e]);
      scale = scale < weight ? weight : scale;
    }
  scale = gs_of_first<WIDTH>(gs_group_max<WIDTH>(scale));
  if (owned && lane == 0) scales[node] = scale;
  Mask found[GS_TOTALS] = {};
  for (int q = 0; q < size; ++q) {
    const long long row = owned ? node * size + q : 0;
    const Index row_end = owned ? indptr[row + 1] : Index(0);
    C diagonal = Scalar<C>::zero(), lumped = Scalar<C>::zero();
    double total = 0, total_dropped = 0;
    for (Index k = owned ? indptr[row] + Index(lane) : row_end; k < row_end; k += WIDTH) {
      // Divided in the type of the columns, because a division of 32 bits is several times as fast as one of 64.
      const Index column = indices[k], of_node = BLOCKS ? column / Index(size) : column;
      const long long other = of_node;
      const C value = Widen<C>::from(data[k]);
      if (column == row) {
        diagonal = value;
        continue;
      }
      const Index e = BLOCKS && theta != 0 ? gs_lower_bound(node_indices, begin, end, other) : begin;
      const bool kept = BLOCKS ? gs_keeps(node, other, node_data[e], scale, theta)
                               : gs_keeps(node, other, data[k], scale, theta);
      found[GS_DROPPED] += !kept;
      const double magnitude = sqrt(gs_real(gs_abs2(value)));
      // A dropped entry is added to the diagonal, or to an entry beside the diagonal in the node's own block.
      const bool is_lumped = !kept && (!BLOCKS || column - of_node * Index(size) == q);
      if (is_lumped) lumped = gs_add(lumped, value);
      (is_lumped ? total_dropped : total) += magnitude;
    }
    total = gs_group_sum<WIDTH>(total);
    total_dropped = gs_group_sum<WIDTH>(total_dropped);
    diagonal = gs_group_sum<WIDTH>(diagonal);
    lumped = gs_add(diagonal, gs_group_sum<WIDTH>(lumped));
    if (owned && lane == 0) {
      gs_find_bound(total, lumped, gs_safe_diagonal(lumped, diagonal), found + GS_BOUND);
      gs_find_bound(total + total_dropped, diagonal, diagonal, found + GS_UNFILTERED_BOUND);
      const double real = gs_real(diagonal), element = real > 0 ? real : 0.0;
      gs_find_greatest(gs_bits(element), found + GS_LARGEST);
      gs_find_greatest(~gs_bits(element), found + GS_SMALLEST);
    }
  }
  gs_leave_totals(found, totals);
}

// ---------------------------------------------------------------------------- strong entries

// Mark the strong entries of each row, and the entries on the diagonal.
template <class N, class Index, int WIDTH>
GS_KERNEL_FOR(GS_CONNECTION_THREADS, 5)
mark_strong(long long num_rows, double square, const double *__restrict__ scales, const Index *__restrict__ indptr,
            const Index *__restrict__ indices, const N *__restrict__ data, unsigned char *__restrict__ is_strong) {
  const long long row = gs_thread() / WIDTH;
  if (row >= num_rows) return;
  const double scale = scales[row];
  for (Index k = indptr[row] + Index(gs_lane<WIDTH>()); k < indptr[row + 1]; k += WIDTH) {
    const double weight = gs_weight(data[k]), least = gs_product(square, gs_product(scale, scales[indices[k]]));
    is_strong[k] = indices[k] == row || (weight > 0 && gs_product(weight, weight) >= least);
  }
}
