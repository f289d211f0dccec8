// independent_set.cu - roots of aggregates: a maximal set of nodes, no two of which are neighbours or have a common
// neighbour (gsparse/kernels/aggregation.py). It is that of the greedy method, which looks at the nodes in the order of
// their priorities; smaller numbers, or smaller hashes of them, come first.
//
// next[j] is the undecided node that comes first among j and its neighbours. A node is a root once it is the next one of
// itself and of all of its neighbours, because then all nodes before it within distance two are decided; missing[i] counts
// how many of these still have another next one. Each generation of roots takes three launches, and each of them only
// looks at what the launch before has listed:
//
//   label_neighbours   roots    ->  their neighbours get the label of the root and are listed as `touched`
//   reach_out          touched  ->  undecided neighbours of these become OUTSIDE
//   find_next          decided  ->  where such a node was the next one of j, find the one after it, and list new roots
//
//     nodes in a line      0 1 2 3 4 5 6 7             generation 1: root 0, touched 1, outside 2; new root 3
//                          R t o R t o R t             generation 2: root 3, ...
//
// Each node is decided once, and is listed once in each list, so all launches together look at each entry of the graph a
// few times. A group of lanes has an item of a list. The order of the items in a list varies, but no result depends on
// it. Only integers are atomic. Values that other threads change during a launch are read with gs_fresh.
// Source: N. Bell, S. Dalton and L. N. Olson, "Exposing fine-grained parallelism in algebraic multigrid methods", SIAM J.
// Sci. Comput. 34(4), 2012 (independent sets of distance two); G. E. Blelloch, J. T. Fineman and J. Shun, "Greedy
// sequential maximal independent set and matching are parallel on average", SPAA 2012 (dependences of the greedy method).
#include "search.cuh"
#include "weights.cuh"

// Threads of a block, and of the block that makes all generations of a small graph.
enum { GS_SET_THREADS = 256, GS_SMALL_THREADS = 512 };
// Entries of a row that a thread reads at once, and the length from which on it searches for the first of them.
enum { GS_AT_ONCE = 4, GS_SEARCHED = 16 };
// Labels (gsparse.kernels.aggregation), and elements of `next` without a node: nothing is left, and not in the graph.
enum { GS_UNDECIDED = -1, GS_OUTSIDE = -2, GS_ISOLATED = -3, GS_NONE = -1, GS_IGNORED = -2 };
// Counters: generations that are done, lengths of the lists, how far they were used up by earlier generations, and at
// the end the numbers of nodes with two of the labels.
enum {
  GS_GENERATION, GS_ROOTS, GS_TOUCHED, GS_TOUCHED_DONE, GS_DECIDED, GS_DECIDED_DONE, GS_ARRIVALS,
  GS_NUM_UNDECIDED, GS_NUM_OUTSIDE, GS_COUNTERS
};

// The graph, and the state of its nodes. Each list has room for all nodes.
template <class Index> struct Nodes {
  long long num_nodes;
  const Index *indptr, *indices;
  int *labels, *next, *missing, *roots, *touched, *decided;
  unsigned *counters, most;
};

// The hash of a number below 2^31; different numbers have different ones.
__device__ __forceinline__ unsigned gs_hash31(unsigned x) {
  x = (x ^ x >> 16) * 0x7feb352du & 0x7fffffffu;
  x = (x ^ x >> 15) * 0x846ca68bu & 0x7fffffffu;
  return x ^ x >> 16;
}
template <int HASHED> __device__ __forceinline__ unsigned gs_key(int node) {
  return HASHED ? gs_hash31(unsigned(node)) : unsigned(node);
}

// Append the values of the lanes that have one to a list. All lanes of the warp take part.
__device__ __forceinline__ void gs_append(bool has, int value, int *list, unsigned *length) {
  const Mask lanes = gs_ballot(has);
  if (!lanes) return;
  const int lane = threadIdx.x % GS_WARP, first = gs_num_bits((lanes & (0 - lanes)) - 1);
  unsigned begin = 0;
  if (lane == first) begin = atomicAdd(length, unsigned(gs_num_bits(lanes)));
  begin = gs_shfl(begin, first, GS_WARP);
  if (has) list[begin + gs_num_bits(lanes & ((1ull << lane) - 1))] = value;
}

// Call visit(item, is_item) for the items of a list from `begin` to `end`, a group of lanes for each. All lanes of a warp
// make as many calls.
template <int WIDTH, class Visit>
__device__ __forceinline__ void gs_visit_items(const int *list, unsigned begin, unsigned end, Visit visit) {
  const unsigned step = gridDim.x * (blockDim.x / WIDTH);
  for (unsigned i = begin + unsigned(gs_thread() / WIDTH); gs_any(i < end); i += step)
    visit(i < end ? gs_fresh(list + i) : 0, i < end);
}

// `node`, unless it is negative, has become the next one of itself or of one more neighbour: count that, and list the
// node if it is now a root. All lanes of the warp take part.
template <class Index> __device__ __forceinline__ void gs_become_next(Nodes<Index> n, int node) {
  const bool is_root = node >= 0 && atomicAdd(n.missing + node, -1) == 1;
  gs_append(is_root, node, n.roots, n.counters + GS_ROOTS);
}

template <class Index, int WIDTH>
__device__ __forceinline__ void gs_label_neighbours(Nodes<Index> n, int fewest) {
  if (gs_fresh(n.counters + GS_GENERATION) >= n.most) return;
  const int lane = gs_lane<WIDTH>();
  gs_visit_items<WIDTH>(n.roots, 0, gs_fresh(n.counters + GS_ROOTS), [&](int node, bool has) {
    const Index begin = has ? n.indptr[node] : Index(0), end = has ? n.indptr[node + 1] : Index(0);
    int label = node;
    if (fewest) {
      int neighbours = 0;
      for (Index k = begin + lane; k < end; k += WIDTH) {
        const int other = int(n.indices[k]);
        neighbours += other != node && gs_fresh(n.next + other) != GS_IGNORED;
      }
      neighbours = gs_of_first<WIDTH>(int(gs_group_sum<WIDTH>(static_cast<long long>(neighbours))));
      if (neighbours < fewest) label = GS_OUTSIDE;
    }
    const bool is_first = has && lane == 0;
    if (is_first) atomicCAS(n.labels + node, int(GS_UNDECIDED), label);
    gs_append(is_first, node, n.touched, n.counters + GS_TOUCHED);
    gs_append(is_first, node, n.decided, n.counters + GS_DECIDED);
    for (Index first = begin; gs_any(first < end); first += WIDTH) {
      const bool has_entry = first + lane < end;
      const int other = has_entry ? int(n.indices[first + lane]) : node;
      const bool is_neighbour = has_entry && other != node && gs_fresh(n.next + other) != GS_IGNORED;
      int before = GS_OUTSIDE;
      if (is_neighbour) before = atomicCAS(n.labels + other, int(GS_UNDECIDED), label);
      if (is_neighbour && before == GS_OUTSIDE) atomicCAS(n.labels + other, int(GS_OUTSIDE), label);
      gs_append(is_neighbour, other, n.touched, n.counters + GS_TOUCHED);
      gs_append(is_neighbour && before == GS_UNDECIDED, other, n.decided, n.counters + GS_DECIDED);
    }
  });
}

template <class Index, int WIDTH> __device__ __forceinline__ void gs_reach_out(Nodes<Index> n) {
  if (gs_fresh(n.counters + GS_GENERATION) >= n.most) return;
  const int lane = gs_lane<WIDTH>();
  gs_visit_items<WIDTH>(n.touched, gs_fresh(n.counters + GS_TOUCHED_DONE), gs_fresh(n.counters + GS_TOUCHED),
                        [&](int node, bool has) {
    const Index begin = has ? n.indptr[node] : Index(0), end = has ? n.indptr[node + 1] : Index(0);
    for (Index first = begin; gs_any(first < end); first += WIDTH) {
      const bool has_entry = first + lane < end;
      const int other = has_entry ? int(n.indices[first + lane]) : node;
      const bool is_new = has_entry && gs_fresh(n.labels + other) == GS_UNDECIDED &&
                          atomicCAS(n.labels + other, int(GS_UNDECIDED), int(GS_OUTSIDE)) == GS_UNDECIDED;
      gs_append(is_new, other, n.decided, n.counters + GS_DECIDED);
    }
  });
  if (gs_thread() == 0) atomicCAS(n.counters + GS_ROOTS, gs_fresh(n.counters + GS_ROOTS), 0u);
}

// The undecided node that comes first among a node and its neighbours, or GS_NONE. In natural order, nodes up to `after`
// are decided. Entries are read several at a time, because to wait for their labels takes long.
template <class Index, int HASHED> __device__ __forceinline__ int gs_first_undecided(Nodes<Index> n, int node, int after) {
  const Index end = n.indptr[node + 1];
  Index begin = n.indptr[node];
  if (!HASHED && end - begin > GS_SEARCHED)
    begin = gs_lower_bound(n.indices, begin, end, static_cast<long long>(after) + 1);
  int best = gs_fresh(n.labels + node) == GS_UNDECIDED ? node : int(GS_NONE);
  for (Index k = begin; k < end; k += Index(GS_AT_ONCE)) {
    int others[GS_AT_ONCE], labels[GS_AT_ONCE];
#pragma unroll
    for (int i = 0; i < GS_AT_ONCE; ++i) others[i] = i < end - k ? int(n.indices[k + i]) : node;
#pragma unroll
    for (int i = 0; i < GS_AT_ONCE; ++i) labels[i] = gs_fresh(n.labels + others[i]);
#pragma unroll
    for (int i = 0; i < GS_AT_ONCE; ++i) {
      const bool comes_first = best < 0 || gs_key<HASHED>(others[i]) < gs_key<HASHED>(best);
      if (labels[i] == GS_UNDECIDED && comes_first) best = others[i];
    }
    if (!HASHED && best >= 0 && best <= others[GS_AT_ONCE - 1]) return best;
  }
  return best;
}

template <class Index, int WIDTH, int HASHED> __device__ __forceinline__ void gs_find_next(Nodes<Index> n) {
  const int lane = gs_lane<WIDTH>();
  gs_visit_items<WIDTH>(n.decided, gs_fresh(n.counters + GS_DECIDED_DONE), gs_fresh(n.counters + GS_DECIDED),
                        [&](int node, bool has) {
    const Index begin = has ? n.indptr[node] : Index(0), end = has ? n.indptr[node + 1] : Index(0);
    // The node itself follows its neighbours.
    for (Index first = begin; gs_any(has && first <= end); first += WIDTH) {
      const bool has_entry = has && first + lane <= end;
      const int other = has_entry && first + lane < end ? int(n.indices[first + lane]) : node;
      int found = GS_NONE;
      // All neighbours of a node with a label are decided.
      if (has_entry && gs_fresh(n.next + other) == node && gs_fresh(n.labels + other) < 0) {
        found = gs_first_undecided<Index, HASHED>(n, other, node);
        if (atomicCAS(n.next + other, node, found) != node) found = GS_NONE;
      }
      gs_become_next(n, found);
    }
  });
}

// The end of a generation, by one thread.
__device__ __forceinline__ void gs_end_generation(unsigned *counters) {
  counters[GS_TOUCHED_DONE] = gs_fresh(counters + GS_TOUCHED);
  counters[GS_DECIDED_DONE] = gs_fresh(counters + GS_DECIDED);
  counters[GS_GENERATION] = gs_fresh(counters + GS_GENERATION) + 1;
}

template <class Index>
__device__ __forceinline__ Nodes<Index> gs_nodes(long long num_nodes, const Index *indptr, const Index *indices,
                                                 int *labels, int *lists, unsigned *counters, unsigned most) {
  const auto list = [&](int number) { return lists + number * num_nodes; };
  return {num_nodes, indptr, indices, labels, list(0), list(1), list(2), list(3), list(4), counters, most};
}

// -------------------------------------------------------------- kernels: `lists` are next, missing and three lists

// The next node of each node, and, as its `missing`, the number of its neighbours in the graph and itself. Nodes without
// neighbours become isolated. Counters are 0.
template <class Index, int WIDTH, int HASHED>
GS_KERNEL_OF(GS_SET_THREADS) begin_set(long long num_nodes, const Index *indptr, const Index *indices, int *labels,
                                       int *lists, unsigned *counters, unsigned most) {
  const Nodes<Index> n = gs_nodes(num_nodes, indptr, indices, labels, lists, counters, most);
  const long long number = gs_thread() / WIDTH;
  const int lane = gs_lane<WIDTH>(), node = int(number < num_nodes ? number : 0);
  const bool owned = number < num_nodes;
  const int label = owned ? gs_fresh(labels + node) : int(GS_ISOLATED);
  const bool takes_part = label == GS_UNDECIDED || label == GS_OUTSIDE;
  const Index begin = takes_part ? indptr[node] : Index(0), end = takes_part ? indptr[node + 1] : Index(0);
  const unsigned last = 0xffffffffu;
  unsigned best = label == GS_UNDECIDED ? gs_key<HASHED>(node) : last;
  int first = label == GS_UNDECIDED ? node : int(GS_NONE), has_neighbour = 0;
  long long members = 0;
  for (Index k = begin + lane; k < end; k += WIDTH) {
    const int other = int(indices[k]);
    has_neighbour |= other != node;
    const int other_label = gs_fresh(labels + other);
    members += other != node && (other_label == GS_UNDECIDED || other_label == GS_OUTSIDE);
    const unsigned key = other_label == GS_UNDECIDED ? gs_key<HASHED>(other) : last;
    first = key < best ? other : first;
    best = key < best ? key : best;
  }
  const unsigned smallest = gs_group_min<WIDTH>(best);
  first = gs_group_max<WIDTH>(best == smallest && smallest != last ? first : int(GS_NONE));
  has_neighbour = gs_group_max<WIDTH>(has_neighbour);
  members = gs_group_sum<WIDTH>(members);
  const bool is_isolated = label == GS_UNDECIDED && !has_neighbour;
  if (owned && lane == 0) {
    if (is_isolated) atomicCAS(labels + node, int(GS_UNDECIDED), int(GS_ISOLATED));
    n.next[node] = takes_part && !is_isolated ? first : int(GS_IGNORED);
    n.missing[node] = 1 + int(members);
  }
}

// The first roots. All lanes of a warp take part.
template <class Index>
GS_KERNEL_OF(GS_SET_THREADS) list_roots(long long num_nodes, const Index *indptr, const Index *indices, int *labels,
                                        int *lists, unsigned *counters, unsigned most) {
  const Nodes<Index> n = gs_nodes(num_nodes, indptr, indices, labels, lists, counters, most);
  gs_become_next(n, gs_thread() < num_nodes ? n.next[gs_thread()] : int(GS_NONE));
}

template <class Index, int WIDTH>
GS_KERNEL_OF(GS_SET_THREADS) label_neighbours(long long num_nodes, const Index *indptr, const Index *indices, int *labels,
                                              int *lists, unsigned *counters, unsigned most, int fewest) {
  gs_label_neighbours<Index, WIDTH>(gs_nodes(num_nodes, indptr, indices, labels, lists, counters, most), fewest);
}

template <class Index, int WIDTH>
GS_KERNEL_OF(GS_SET_THREADS) reach_out(long long num_nodes, const Index *indptr, const Index *indices, int *labels,
                                       int *lists, unsigned *counters, unsigned most) {
  gs_reach_out<Index, WIDTH>(gs_nodes(num_nodes, indptr, indices, labels, lists, counters, most));
}

template <class Index, int WIDTH, int HASHED>
GS_KERNEL_OF(GS_SET_THREADS) find_next(long long num_nodes, const Index *indptr, const Index *indices, int *labels,
                                       int *lists, unsigned *counters, unsigned most) {
  if (gs_fresh(counters + GS_GENERATION) >= most) return;
  gs_find_next<Index, WIDTH, HASHED>(gs_nodes(num_nodes, indptr, indices, labels, lists, counters, most));
  __syncthreads();
  if (threadIdx.x == 0 && gs_arrive(counters + GS_ARRIVALS) == gridDim.x - 1) {
    gs_end_generation(counters);
    counters[GS_ARRIVALS] = 0;
  }
}

// All generations of a small graph, by one block.
template <class Index, int WIDTH, int HASHED>
GS_KERNEL_OF(GS_SMALL_THREADS) all_generations(long long num_nodes, const Index *indptr, const Index *indices,
                                               int *labels, int *lists, unsigned *counters, unsigned most, int fewest) {
  const Nodes<Index> n = gs_nodes(num_nodes, indptr, indices, labels, lists, counters, most);
  while (gs_fresh(counters + GS_ROOTS) && gs_fresh(counters + GS_GENERATION) < most) {
    __syncthreads();  // because the counters change below
    gs_label_neighbours<Index, WIDTH>(n, fewest);
    __syncthreads();
    gs_reach_out<Index, WIDTH>(n);
    __syncthreads();
    gs_find_next<Index, WIDTH, HASHED>(n);
    __syncthreads();
    if (threadIdx.x == 0) gs_end_generation(counters);
    __syncthreads();
  }
}

// Count the nodes that are undecided and those that are outside.
template <class Label>
GS_KERNEL_OF(GS_SET_THREADS) count_labels(long long num_nodes, const Label *__restrict__ labels, unsigned *counters) {
  long long undecided = 0, outside = 0;
  for (long long node = gs_thread(); node < num_nodes; node += static_cast<long long>(gridDim.x) * blockDim.x) {
    undecided += labels[node] == GS_UNDECIDED;
    outside += labels[node] == GS_OUTSIDE;
  }
  undecided = gs_group_sum<GS_WARP>(undecided);
  outside = gs_group_sum<GS_WARP>(outside);
  if (threadIdx.x % GS_WARP) return;
  if (undecided) atomicAdd(counters + GS_NUM_UNDECIDED, unsigned(undecided));
  if (outside) atomicAdd(counters + GS_NUM_OUTSIDE, unsigned(outside));
}

// ---------------------------------------------------------------------------- aggregates

// A node is a root if its label is its number.
template <class Label>
GS_KERNEL_OF(GS_SET_THREADS) mark_roots(long long num_nodes, const Label *__restrict__ labels, int *__restrict__ marks) {
  const long long node = gs_thread();
  if (node < num_nodes) marks[node] = labels[node] == node;
}

// The aggregate of each node: numbers[r] for root r. A node that is outside joins the aggregate with which its
// connections have the greatest sum of weights. A thread owns a node and walks its row.
template <class N, class Index>
GS_KERNEL_OF(GS_SET_THREADS)
join_aggregates(long long num_nodes, int most_summed, const Index *__restrict__ indptr,
                const Index *__restrict__ indices, const N *__restrict__ data, const int *__restrict__ labels,
                const long long *__restrict__ numbers, int *__restrict__ aggregates) {
  const long long node = gs_thread();
  if (node >= num_nodes) return;
  int best_label = labels[node];
  if (best_label == GS_OUTSIDE) {
    const Index begin = indptr[node], end = indptr[node + 1];
    double best = -1;
    best_label = GS_NONE;
    for (Index k = begin; k < end; ++k) {
      const int label = labels[indices[k]];
      if (label < 0) continue;
      double total = 0;
      if (end - begin > most_summed) {
        total = gs_weight(data[k]);
      } else {
        for (Index e = begin; e < end; ++e)
          if (labels[indices[e]] == label) total += gs_weight(data[e]);
      }
      if (total > best || (total == best && label < best_label)) {
        best = total;
        best_label = label;
      }
    }
  }
  aggregates[node] = best_label < 0 ? int(GS_NONE) : int(numbers[best_label]);
}
