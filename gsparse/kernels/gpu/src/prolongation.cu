// prolongation.cu - prolongators of smoothed aggregation (gsparse/kernels/aggregation.py): orthonormal candidates within
// each aggregate, the aggregates that each node reaches, and P = (I - omega D^-1 A) T, where A is the filtered matrix.
//
// T has k entries in each row, all of them in the columns of one aggregate, so P needs no general product of matrices: a
// group of lanes has a row of P, and each lane one of its entries, whose sum it makes from all entries of A's row.
//
//     row of A           a_i2   a_i5   a_i9          nodes 2, 5 and 9 are in aggregates 7, 4 and 7
//     row of P (k = 2)   [4: lane 0, lane 1]  [7: lane 2, lane 3]
//     lane 2             a_i2 T_2,0 + a_i9 T_9,0     its column of aggregate 7, in the order of A's row
//
// Sums have a fixed order; only integers are atomic. Shared memory holds tables of the aggregates that a node reaches.
// Source: P. Vanek, J. Mandel and M. Brezina, Computing 56, 1996.
#include "search.cuh"
#include "weights.cuh"

// Threads of a block; slots of a table, for more aggregates than a node may reach; and the sign of a free slot.
enum { GS_PROLONG_THREADS = 128, GS_SLOTS = 128, GS_FREE = -1 };

// ---------------------------------------------------------------------------- orthonormal candidates

// The sum over a group of lanes, in all of its lanes.
template <int WIDTH, class R> __device__ __forceinline__ R gs_group_total(R v) {
  return gs_of_first<WIDTH>(gs_group_sum<WIDTH>(v));
}
template <int WIDTH, class R> __device__ __forceinline__ Complex<R> gs_group_total(Complex<R> v) {
  return {gs_group_total<WIDTH>(v.re), gs_group_total<WIDTH>(v.im)};
}

// The modified Gram-Schmidt method for the columns of `candidates` within each aggregate. A group of lanes has an
// aggregate, and a lane every WIDTH-th row of it. Column c is copied to q, then made orthogonal to the columns before.
template <class T, int WIDTH>
GS_KERNEL_OF(GS_PROLONG_THREADS)
orthonormalize(long long num_aggregates, int block_size, int k, double tolerance, const int *__restrict__ bounds,
               const int *__restrict__ order, const T *__restrict__ candidates, T *q, T *__restrict__ r) {
  typedef typename Wide<T>::type C;
  const long long aggregate = gs_thread() / WIDTH;
  const int lane = gs_lane<WIDTH>();
  const bool owned = aggregate < num_aggregates;
  const int begin = owned ? bounds[aggregate] : 0, rows = owned ? (bounds[aggregate + 1] - begin) * block_size : 0;
  const auto row_at = [&](int i) {
    return (static_cast<long long>(order[begin + i / block_size]) * block_size + i % block_size) * k;
  };
  for (int c = 0; c < k; ++c) {
    C sum = Scalar<C>::zero();
#pragma unroll 1
    for (int i = lane; i < rows; i += WIDTH) {
      const long long row = row_at(i);
      const T value = candidates[row + c];
      q[row + c] = value;
      sum = gs_add(sum, gs_abs2(Widen<C>::from(value)));
    }
    const double length = sqrt(gs_real(gs_group_total<WIDTH>(sum)));
    for (int d = 0; d < c; ++d) {
      sum = Scalar<C>::zero();
#pragma unroll 1
    for (int i = lane; i < rows; i += WIDTH) {
        const long long row = row_at(i);
        sum = gs_fma(gs_conj(Widen<C>::from(q[row + d])), Widen<C>::from(q[row + c]), sum);
      }
      const C dot = gs_group_total<WIDTH>(sum);
      if (owned && lane == 0) r[(aggregate * k + d) * k + c] = Narrow<T>::from(dot);
#pragma unroll 1
    for (int i = lane; i < rows; i += WIDTH) {
        const long long row = row_at(i);
        const C rest = gs_fma(-dot, Widen<C>::from(q[row + d]), Widen<C>::from(q[row + c]));
        q[row + c] = Narrow<T>::from(rest);
      }
    }
    sum = Scalar<C>::zero();
#pragma unroll 1
    for (int i = lane; i < rows; i += WIDTH) sum = gs_add(sum, gs_abs2(Widen<C>::from(q[row_at(i) + c])));
    const double rest = sqrt(gs_real(gs_group_total<WIDTH>(sum)));
    const bool is_independent = rest > tolerance * length;
    if (owned && lane == 0) r[(aggregate * k + c) * k + c] = Narrow<T>::from(Make<C>::from(is_independent ? rest : 0));
    const C factor = Make<C>::from(is_independent ? 1 / rest : 0);
#pragma unroll 1
    for (int i = lane; i < rows; i += WIDTH) {
      const long long row = row_at(i);
      q[row + c] = Narrow<T>::from(gs_fma(factor, Widen<C>::from(q[row + c]), Scalar<C>::zero()));
    }
  }
}

// ---------------------------------------------------------------------------- the pattern

// Enter an aggregate into a table, unless more than `most` have been entered.
__device__ __forceinline__ void gs_enter(int *table, int *count, int most, int aggregate) {
  int slot = int((unsigned(aggregate) * 2654435761u) >> 16) % GS_SLOTS;
  while (gs_fresh(count) <= most) {
    const int before = atomicCAS(table + slot, int(GS_FREE), aggregate);
    if (before == GS_FREE) atomicAdd(count, 1);
    if (before == GS_FREE || before == aggregate) return;
    slot = (slot + 1) % GS_SLOTS;
  }
}

// The aggregates that each node reaches: their number (FILLS = 0), or their numbers, which rise. A node that reaches more
// than `most` is left with its own aggregate.
template <class N, class Index, int WIDTH, int FILLS>
GS_KERNEL_OF(GS_PROLONG_THREADS)
reach_aggregates(long long num_nodes, int most, double theta, const double *__restrict__ scales,
                 const Index *__restrict__ indptr, const Index *__restrict__ indices, const N *__restrict__ data,
                 const int *__restrict__ aggregates, unsigned char *__restrict__ is_smoothed,
                 Index *__restrict__ sizes, const Index *__restrict__ pattern_indptr,
                 Index *__restrict__ pattern_indices) {
  GS_SHARED(int, tables, GS_PROLONG_THREADS / WIDTH *GS_SLOTS);
  GS_SHARED(int, counts, GS_PROLONG_THREADS / WIDTH);
  const int group = threadIdx.x / WIDTH, lane = gs_lane<WIDTH>();
  int *const table = tables + group * GS_SLOTS, *const count = counts + group;
  const long long node = gs_thread() / WIDTH;
  const bool owned = node < num_nodes;
  for (int slot = lane; slot < GS_SLOTS; slot += WIDTH) table[slot] = GS_FREE;
  if (lane == 0) *count = 0;
  __syncthreads();
  const bool is_open = owned && !(FILLS && !is_smoothed[node]);
  const int own = owned ? aggregates[node] : -1;
  if (lane == 0 && own >= 0) gs_enter(table, count, most, own);
  const Index end = is_open ? indptr[node + 1] : Index(0);
  const double scale = owned ? scales[node] : 0;
  for (Index k = is_open ? indptr[node] + Index(lane) : end; k < end; k += WIDTH) {
    const long long other = indices[k];
    const int aggregate = aggregates[other];
    if (aggregate >= 0 && (theta == 0 || gs_keeps(node, other, data[k], scale, theta)))
      gs_enter(table, count, most, aggregate);
  }
  __syncthreads();
  const int reached = *count;
  if (!FILLS) {
    if (!owned || lane) return;
    is_smoothed[node] = reached <= most;
    sizes[node] = Index(reached <= most ? reached : own >= 0);
    return;
  }
  // The place of an aggregate is the number of smaller ones.
  const Index begin = owned ? pattern_indptr[node] : Index(0);
  for (int slot = lane; slot < GS_SLOTS; slot += WIDTH) {
    const int aggregate = table[slot];
    if (!owned || aggregate == GS_FREE) continue;
    int smaller = 0;
    for (int i = 0; i < GS_SLOTS; ++i) smaller += table[i] != GS_FREE && table[i] < aggregate;
    pattern_indices[begin + smaller] = Index(aggregate);
  }
}

// Row pointers and columns of the prolongator: for each row of a node, k columns for each aggregate that it reaches.
template <class Index, class Out, int WIDTH>
GS_KERNEL_OF(GS_PROLONG_THREADS)
expand_pattern(long long num_nodes, int block_size, int k, const Index *__restrict__ pattern_indptr,
               const Index *__restrict__ pattern_indices, Out *__restrict__ indptr, Out *__restrict__ indices) {
  const long long node = gs_thread() / WIDTH;
  const int lane = gs_lane<WIDTH>();
  if (node >= num_nodes) return;
  const long long first = pattern_indptr[node], width = (pattern_indptr[node + 1] - first) * k;
  const long long begin = first * block_size * k;
  for (int q = lane; q < block_size; q += WIDTH) indptr[node * block_size + q + 1] = Out(begin + (q + 1) * width);
  if (node == 0 && lane == 0) indptr[0] = 0;
  for (long long i = lane; i < block_size * width; i += WIDTH) {
    const long long place = i % width;
    indices[begin + i] = Out(pattern_indices[first + place / k]) * k + Out(place % k);
  }
}

// ---------------------------------------------------------------------------- the values

// The values of P, a group of lanes for each row. Node values N are those of the matrix itself if BLOCKS is 0.
template <class T, class N, class Index, int WIDTH, int BLOCKS>
GS_KERNEL_OF(GS_PROLONG_THREADS)
smooth_rows(long long num_rows, int block_size, int columns, double theta, double omega,
            const double *__restrict__ scales, const Index *__restrict__ indptr, const Index *__restrict__ indices,
            const T *__restrict__ data, const Index *__restrict__ node_indptr, const Index *__restrict__ node_indices,
            const N *__restrict__ node_data, const Index *__restrict__ pattern_indptr,
            const Index *__restrict__ pattern_indices, const unsigned char *__restrict__ is_smoothed,
            const int *__restrict__ aggregates, const T *__restrict__ tentative, T *__restrict__ values) {
  typedef typename Wide<T>::type C;
  const long long row = gs_thread() / WIDTH;
  if (row >= num_rows) return;
  const int lane = gs_lane<WIDTH>(), size = BLOCKS ? block_size : 1, k = BLOCKS ? columns : 1;
  const long long node = BLOCKS ? row / size : row, base = node * size;
  const Index first = pattern_indptr[node], last = pattern_indptr[node + 1];
  const int own = aggregates[node], width = int(last - first) * k;
  const Index begin = indptr[row], end = is_smoothed[node] ? indptr[row + 1] : begin;
  const double scale = scales[node];
  T *const row_values = values + (static_cast<long long>(first) * size + (row - base) * (last - first)) * k;
  for (int place = lane; place < width; place += WIDTH) {
    const int aggregate = int(pattern_indices[first + place / k]), column_of_node = place % k;
    T sum = Scalar<T>::zero();
    C diagonal = Scalar<C>::zero(), lumped = Scalar<C>::zero();
    for (Index e = begin; e < end; ++e) {
      const long long column = indices[e], other = BLOCKS ? column / size : column;
      const T value = data[e];
      long long source = column;
      int target = aggregates[other];
      if (column == row) diagonal = Widen<C>::from(value);
      if (theta != 0 && other != node) {
        bool kept;
        if (BLOCKS) {
          const Index at = gs_lower_bound(node_indices, node_indptr[node], node_indptr[node + 1], other);
          kept = gs_keeps(node, other, node_data[at], scale, theta);
        } else {
          kept = gs_keeps(node, other, value, scale, theta);
        }
        if (kept && target >= 0) {
          const Index at = gs_lower_bound(pattern_indices, first, last, static_cast<long long>(target));
          kept = at < last && pattern_indices[at] == target;
        }
        if (!kept) {  // it counts as an entry of the node itself
          source = base + (BLOCKS ? column % size : 0);
          target = own;
          if (source == row) lumped = gs_add(lumped, Widen<C>::from(value));
        }
      }
      if (target == aggregate) sum = gs_fma(value, tentative[source * k + column_of_node], sum);
    }
    const C divisor = gs_safe_diagonal(gs_add(diagonal, lumped), diagonal);
    const bool is_zero = gs_real(gs_abs2(divisor)) == 0;
    const T factor = is_zero ? Scalar<T>::zero() : Narrow<T>::from(Make<C>::from(-omega) / divisor);
    const T start = aggregate == own ? tentative[row * k + column_of_node] : Scalar<T>::zero();
    row_values[place] = gs_fma(factor, sum, start);
  }
}
