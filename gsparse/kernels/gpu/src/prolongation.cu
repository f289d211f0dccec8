// prolongation.cu - prolongators of smoothed aggregation (gsparse/kernels/aggregation.py): orthonormal candidates
// within each aggregate, the aggregates that each node reaches, and P = (I - omega D^-1 A) T, where A is the filtered
// matrix.
//
// T has k entries in each row, all in the columns of one aggregate, so P needs no general product of matrices: a group
// of lanes owns a row of P, and each lane one entry of it, which it sums from all entries of A's row.
//
//     row of A           a_i2   a_i5   a_i9          nodes 2, 5 and 9 are in aggregates 7, 4 and 7
//     row of P (k = 2)   [4: lane 0, lane 1]  [7: lane 2, lane 3]
//     lane 2             a_i2 T_2,0 + a_i9 T_9,0     its column of aggregate 7, in the order of A's row
//
// Sums have a fixed order.
// Source: P. Vanek, J. Mandel and M. Brezina, Computing 56, 1996.
#include "weights.cuh"

// Threads of a block; aggregates of a row that a lane holds; and a number that is larger than all aggregate numbers.
enum { GS_PROLONG_THREADS = 128, GS_HELD = 4, GS_NO_AGGREGATE = 0x7fffffff };

// ---------------------------------------------------------------------------- orthonormal candidates

// The modified Gram-Schmidt method for the columns of `candidates` within each aggregate. A group of lanes owns an
// aggregate, and a lane every WIDTH-th row of it. Each column is copied to q, then made orthogonal to the columns
// before it.
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
    const double length = sqrt(gs_real(gs_of_first<WIDTH>(gs_group_sum<WIDTH>(sum))));
    for (int d = 0; d < c; ++d) {
      sum = Scalar<C>::zero();
#pragma unroll 1
    for (int i = lane; i < rows; i += WIDTH) {
        const long long row = row_at(i);
        sum = gs_fma(gs_conj(Widen<C>::from(q[row + d])), Widen<C>::from(q[row + c]), sum);
      }
      const C dot = gs_of_first<WIDTH>(gs_group_sum<WIDTH>(sum));
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
    const double rest = sqrt(gs_real(gs_of_first<WIDTH>(gs_group_sum<WIDTH>(sum))));
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

// Count the aggregates that each node reaches (FILLS = 0), or list their numbers in increasing order. A node that
// reaches more than `most` keeps only its own aggregate. A group of lanes owns a node. In each step, it takes the
// smallest aggregate that is larger than the one before, until there is no more. A lane holds the aggregates of its
// first entries, and reads the aggregates of its further entries again in each step.
template <class N, class Index, int WIDTH, int FILLS>
GS_KERNEL_FOR(GS_PROLONG_THREADS, 4)
reach_aggregates(long long num_nodes, int most, double theta, const double *__restrict__ scales,
                 const Index *__restrict__ indptr, const Index *__restrict__ indices, const N *__restrict__ data,
                 const int *__restrict__ aggregates, unsigned char *__restrict__ is_smoothed,
                 Index *__restrict__ sizes, const Index *__restrict__ pattern_indptr,
                 Index *__restrict__ pattern_indices) {
  const int lane = gs_lane<WIDTH>();
  const long long node = gs_thread() / WIDTH;
  const bool owned = node < num_nodes, is_open = owned && !(FILLS && !is_smoothed[node]);
  const int own = owned ? aggregates[node] : -1;
  const double scale = owned ? scales[node] : 0;
  const Index begin = is_open ? indptr[node] : Index(0);
  const int length = is_open ? int(indptr[node + 1] - begin) : 0;
  const auto aggregate_at = [&](int i) {
    if (i >= length) return int(GS_NO_AGGREGATE);
    const long long other = indices[begin + i];
    const int aggregate = aggregates[other];
    const bool counts = aggregate >= 0 && (theta == 0 || gs_keeps(node, other, data[begin + i], scale, theta));
    return counts ? aggregate : int(GS_NO_AGGREGATE);
  };
  int held[GS_HELD];
#pragma unroll
  for (int i = 0; i < GS_HELD; ++i) held[i] = aggregate_at(lane + i * WIDTH);
  const Index first = FILLS && owned ? pattern_indptr[node] : Index(0);
  const int mine = lane == 0 && own >= 0 ? own : int(GS_NO_AGGREGATE);
  int reached = 0, before = -1;
  for (bool goes_on = owned; gs_any(goes_on);) {
    int next = mine > before ? mine : int(GS_NO_AGGREGATE);
#pragma unroll
    for (int i = 0; i < GS_HELD; ++i) next = held[i] > before && held[i] < next ? held[i] : next;
    for (int i = lane + GS_HELD * WIDTH; goes_on && i < length; i += WIDTH) {
      const int aggregate = aggregate_at(i);
      next = aggregate > before && aggregate < next ? aggregate : next;
    }
    next = gs_of_first<WIDTH>(gs_group_min<WIDTH>(next));
    goes_on = goes_on && next != GS_NO_AGGREGATE && (FILLS || reached <= most);
    if (!goes_on) continue;
    if (FILLS && lane == reached % WIDTH) pattern_indices[first + reached] = Index(next);
    ++reached;
    before = next;
  }
  if (FILLS || !owned || lane) return;
  is_smoothed[node] = reached <= most;
  sizes[node] = Index(reached <= most ? reached : own >= 0);
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
  for (long long place = lane; place < width; place += WIDTH) {
    const long long entry = place / k;  // (a slow division, once for all rows)
    const Out column = Out(pattern_indices[first + entry]) * k + Out(place - entry * k);
    for (int q = 0; q < block_size; ++q) indices[begin + q * width + place] = column;
  }
}

// ---------------------------------------------------------------------------- the values

// The values of P, a group of lanes for each row. Node values N are those of the matrix itself if BLOCKS is 0.
template <class T, class N, int BLOCKS, class Index, int WIDTH>
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
    long long other = -1;  // the node of the entry
    int target = -1;       // the aggregate to whose sum it belongs
    bool kept = true;
    Index at = BLOCKS ? node_indptr[node] : Index(0);  // the place of `other` in the graph of nodes
    for (Index e = begin; e < end; ++e) {
      const long long column = indices[e];
      const T value = data[e];
      if (!BLOCKS || column >= (other + 1) * size) {  // Columns rise, so `at` moves on, and blocks are looked at once.
        if (BLOCKS)
          while ((static_cast<long long>(node_indices[at]) + 1) * size <= column) ++at;
        other = BLOCKS ? static_cast<long long>(node_indices[at]) : column;
        target = aggregates[other];
        kept = true;
        if (theta != 0 && other != node) {
          if (BLOCKS) kept = gs_keeps(node, other, node_data[at], scale, theta);
          else kept = gs_keeps(node, other, value, scale, theta);
          if (kept && target >= 0) {
            const Index reached = gs_lower_bound(pattern_indices, first, last, static_cast<long long>(target));
            kept = reached < last && pattern_indices[reached] == target;
          }
          if (!kept) target = own;  // Its entries count as entries of the node itself.
        }
      }
      if (column == row) diagonal = Widen<C>::from(value);
      const long long source = kept ? column : base + (column - other * size);
      if (!kept && source == row) lumped = gs_add(lumped, Widen<C>::from(value));
      if (target == aggregate) sum = gs_fma(value, tentative[source * k + column_of_node], sum);
    }
    const C divisor = gs_safe_diagonal(gs_add(diagonal, lumped), diagonal);
    const bool is_zero = gs_real(gs_abs2(divisor)) == 0;
    const T factor = is_zero ? Scalar<T>::zero() : Narrow<T>::from(Make<C>::from(-omega) / divisor);
    const T start = aggregate == own ? tentative[row * k + column_of_node] : Scalar<T>::zero();
    row_values[place] = gs_fma(factor, sum, start);
  }
}
