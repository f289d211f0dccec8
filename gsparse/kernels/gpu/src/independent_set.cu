// independent_set.cu - roots of aggregates: a maximal set of nodes, no two of which are neighbours or have a common
// neighbour (gsparse/kernels/aggregation.py). It is the set that the greedy method finds, which visits the nodes in the
// order of their priorities. Smaller node numbers, or nodes with smaller hashes, come first.
//
// next[j] is the first undecided node among j and its neighbours, in the order of priorities. A node is a root if all
// its neighbours, and the node itself, have it as their next node; then all nodes before it within distance two are
// decided. missing[i] is the number of these nodes that still have another next node. One launch makes all generations
// of roots. Each generation has two phases, and each phase looks only at the items that the phase before has listed:
//
//   decide_nodes   roots    ->  their neighbours get the label of the root, undecided nodes at distance two OUTSIDE
//   find_next      decided  ->  where such a node was the next one of j, find the one after it, and list new roots
//
//     nodes in a line      0 1 2 3 4 5 6 7             generation 1: root 0 decides 1 and 2; new root 3
//                          R n o R n o R n             generation 2: root 3, ...
//
// Each node is decided once, and is listed once in each list, so all phases together read each entry of the graph a few
// times. There are many small generations, and most of their time is waiting for memory. So the items of a list are
// divided among all blocks, and a block collects new items in shared memory. The order of items in a list varies, but
// no result depends on it. Atomic operations work on integers only. Values that other threads change during a launch
// are read with gs_fresh.
//
// Between phases, blocks wait for each other. This must work even if not all blocks of the grid run at the same time.
// So the blocks that run when the kernel begins form a team, and the other blocks end:
//
//     joined      1 2 3 ... 263 264 | closed          the first block waits for the others, but not for long
//     team size                     | 264             a block that comes later sees that it is too late
//
// Source: N. Bell, S. Dalton and L. N. Olson, "Exposing fine-grained parallelism in algebraic multigrid methods", SIAM
// J. Sci. Comput. 34(4), 2012 (independent sets of distance two); G. E. Blelloch, J. T. Fineman and J. Shun, "Greedy
// sequential maximal independent set and matching are parallel on average", SPAA 2012 (dependences of the greedy
// method).
#include "weights.cuh"

// Threads of a block, and of a block that makes generations.
enum { GS_SET_THREADS = 256, GS_GENERATION_THREADS = 512 };
// Entries of a row that a thread reads at the same time, and the row length from which on it searches for the first
// entry.
enum { GS_AT_ONCE = 4, GS_SEARCHED = 16 };
// Roots whose neighbours a block lists together (a power of two), and values that it collects before it lists them.
enum { GS_BATCH = 32, GS_STAGED = 1024 };
// Labels (gsparse.kernels.aggregation), and elements of `next` without a node: nothing is left, and not in the graph.
enum { GS_UNDECIDED = -1, GS_OUTSIDE = -2, GS_ISOLATED = -3, GS_NONE = -1, GS_IGNORED = -2 };
// Counters: lengths of the lists; blocks that have joined the team, its size, and arrivals at its barriers; and at the
// end the numbers of nodes with two of the labels.
enum { GS_ROOTS, GS_DECIDED, GS_JOINED, GS_TEAM_SIZE, GS_ARRIVALS, GS_NUM_UNDECIDED, GS_NUM_OUTSIDE, GS_COUNTERS };
// This number is added to GS_JOINED when the team is complete.
#define GS_CLOSED 0x80000000u

// The graph, and the state of its nodes. Each list has room for all nodes.
template <class Index> struct Nodes {
  long long num_nodes;
  const Index *indptr, *indices;
  int *labels, *next, *missing, *roots, *decided;
  unsigned *counters;
};

// The hash of a number below 2^31. Different numbers have different hashes.
__device__ __forceinline__ unsigned gs_hash31(unsigned x) {
  x = (x ^ x >> 16) * 0x7feb352du & 0x7fffffffu;
  x = (x ^ x >> 15) * 0x846ca68bu & 0x7fffffffu;
  return x ^ x >> 16;
}
template <int HASHED> __device__ __forceinline__ unsigned gs_key(int node) {
  return HASHED ? gs_hash31(unsigned(node)) : unsigned(node);
}

// Append to a list the values of all lanes that have a value. All lanes of the warp must take part.
__device__ __forceinline__ void gs_append(bool has, int value, int *list, unsigned *length) {
  const Mask lanes = gs_ballot(has);
  if (!lanes) return;
  const int lane = threadIdx.x % GS_WARP, first = gs_num_bits((lanes & (0 - lanes)) - 1);
  unsigned begin = 0;
  if (lane == first) begin = atomicAdd(length, unsigned(gs_num_bits(lanes)));
  begin = gs_shfl(begin, first, GS_WARP);
  if (has) list[begin + gs_num_bits(lanes & ((1ull << lane) - 1))] = value;
}

// ---------------------------------------------------------------------------- the team of blocks

// The blocks that work together; `rank` is the number of this one. All of them run until the last barrier.
struct Team {
  unsigned rank, size, target, *counters;
};

// Join the team, and return whether that was still possible. All threads of the block take part. The first block reads
// the number of the blocks that have joined up to `patience` times before it closes the team.
__device__ __forceinline__ bool gs_join_team(Team *team, unsigned *counters, unsigned patience) {
  GS_SHARED(unsigned, joined, 2);
  if (threadIdx.x == 0) {
    const unsigned rank = atomicAdd(counters + GS_JOINED, 1u);
    unsigned size = 0;
    if (rank == 0) {
      for (unsigned i = 0; i < patience && gs_fresh(counters + GS_JOINED) < gridDim.x; ++i) {
      }
      size = atomicAdd(counters + GS_JOINED, GS_CLOSED);
      atomicAdd(counters + GS_TEAM_SIZE, size);
    } else if (rank < GS_CLOSED) {
      while (!size) size = gs_fresh(counters + GS_TEAM_SIZE);
    }
    joined[0] = rank;
    joined[1] = size;
  }
  __syncthreads();
  *team = {joined[0], joined[1], 0, counters};
  return joined[1] != 0;
}

// Wait until all threads of the team have arrived. Afterwards, each thread sees what the others wrote before.
__device__ __forceinline__ void gs_wait_for_team(Team *team) {
  __syncthreads();
  team->target += team->size;
  if (team->size > 1 && threadIdx.x == 0) {
    gs_arrive(team->counters + GS_ARRIVALS);
    // The difference is right even after the counter has wrapped around.
    while (int(gs_fresh(team->counters + GS_ARRIVALS) - team->target) < 0) {
    }
    __threadfence();
  }
  __syncthreads();
}

// Values of a block that are to be listed, in shared memory: there is one atomic operation on a counter of the list for
// each block, instead of one for each warp.
struct Staged {
  int *values;
  unsigned *state;  // the number of values, and where they begin in the list
};

// Collect the values of all lanes that have a value; if there is no room, append them to the list now. All lanes must
// take part.
__device__ __forceinline__ void gs_stage(bool has, int value, Staged staged, int *list, unsigned *length) {
  const Mask lanes = gs_ballot(has);
  if (!lanes) return;
  const int lane = threadIdx.x % GS_WARP, first = gs_num_bits((lanes & (0 - lanes)) - 1);
  unsigned place = 0;
  if (lane == first) place = atomicAdd(staged.state, unsigned(gs_num_bits(lanes)));
  place = gs_shfl(place, first, GS_WARP) + gs_num_bits(lanes & ((1ull << lane) - 1));
  if (has && place < GS_STAGED) staged.values[place] = value;
  gs_append(has && place >= GS_STAGED, value, list, length);
}

// List what the block has collected. All of its threads take part.
__device__ __forceinline__ void gs_list_staged(Staged staged, int *list, unsigned *length) {
  __syncthreads();
  const unsigned count = staged.state[0] < GS_STAGED ? staged.state[0] : unsigned(GS_STAGED);
  if (threadIdx.x == 0 && count) staged.state[1] = atomicAdd(length, count);
  __syncthreads();
  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) list[staged.state[1] + i] = staged.values[i];
  if (threadIdx.x == 0) staged.state[0] = 0;
}

// ---------------------------------------------------------------------------- generations

// Record that a node has become the next node of itself or of a neighbour. A negative number is no node. Return whether
// the node is a root now.
template <class Index> __device__ __forceinline__ bool gs_is_complete(Nodes<Index> n, int node) {
  return node >= 0 && atomicAdd(n.missing + node, -1) == 1;
}

// Roots of a block: their numbers and labels, where their rows begin, and where the items of each begin. The items of a
// root are itself and the entries of its row:
//
//     starts       0           5       8 ...
//     items        r . . . .   r . .   r ...
template <class Index> struct Batch {
  int *roots, *labels;
  Index *begins;
  long long *starts;
};

// Read the roots first, first + step, ... of the list. All threads of the block take part.
template <class Index, int WIDTH>
__device__ __forceinline__ void gs_read_batch(Nodes<Index> n, Batch<Index> batch, unsigned first, unsigned step,
                                              unsigned end, int fewest) {
  __syncthreads();  // because threads may still read the batch before
  if (threadIdx.x < GS_WARP) {
    const unsigned q = threadIdx.x, place = first + q * step;
    const bool has = q < GS_BATCH && place < end;
    const int root = has ? gs_fresh(n.roots + place) : 0;
    const Index begin = has ? n.indptr[root] : Index(0);
    const long long sum = gs_running<Sum, GS_WARP>(has ? 1 + static_cast<long long>(n.indptr[root + 1] - begin) : 0ll);
    if (q < GS_BATCH) {
      batch.roots[q] = batch.labels[q] = root;
      batch.begins[q] = begin;
      batch.starts[q + 1] = sum;
    }
    if (q == 0) batch.starts[0] = 0;
  }
  __syncthreads();
  if (!fewest) return;
  const int lane = gs_lane<WIDTH>();
  for (int q = threadIdx.x / WIDTH; gs_any(q < GS_BATCH); q += blockDim.x / WIDTH) {
    const bool has = q < GS_BATCH;
    const int root = has ? batch.roots[q] : 0;
    const long long entries = has ? batch.starts[q + 1] - batch.starts[q] - 1 : 0;
    int neighbours = 0;
    for (long long k = lane; k < entries; k += WIDTH) {
      const int other = int(n.indices[batch.begins[q] + Index(k)]);
      neighbours += other != root && gs_fresh(n.next + other) != GS_IGNORED;
    }
    neighbours = int(gs_group_sum<WIDTH>(static_cast<long long>(neighbours)));
    if (has && lane == 0 && neighbours < fewest) batch.labels[q] = GS_OUTSIDE;
  }
  __syncthreads();
}

// Decide the nodes within distance two of the roots from `begin` to `end` in the list. A group of lanes has an item of
// a batch: it labels that node, and looks at the node's row. Another group may find that a node at distance two is also
// the neighbour of a root. In any order of these writes, the root's label remains in the end.
template <class Index, int WIDTH>
__device__ __forceinline__ void gs_decide_nodes(Nodes<Index> n, Team team, Batch<Index> batch, Staged staged,
                                                unsigned begin, unsigned end, int fewest) {
  const int lane = gs_lane<WIDTH>();
  for (unsigned first = begin + team.rank; first < end; first += team.size * GS_BATCH) {
    gs_read_batch<Index, WIDTH>(n, batch, first, team.size, end, fewest);
    const long long num_items = batch.starts[GS_BATCH];
    for (long long item = threadIdx.x / WIDTH; gs_any(item < num_items); item += blockDim.x / WIDTH) {
      const bool has_item = item < num_items;
      int q = 0;
#pragma unroll
      for (int half = GS_BATCH / 2; half; half /= 2)
        if (batch.starts[q + half] <= item) q += half;
      const int root = batch.roots[q], label = batch.labels[q];
      const long long offset = has_item ? item - batch.starts[q] : 0;
      const int node = offset ? int(n.indices[batch.begins[q] + Index(offset - 1)]) : root;
      const bool has = has_item && (!offset || (node != root && gs_fresh(n.next + node) != GS_IGNORED));
      const Index row_begin = has ? n.indptr[node] : Index(0), row_end = has ? n.indptr[node + 1] : Index(0);
      bool is_decided = false;
      if (has && lane == 0) {
        const int before = atomicCAS(n.labels + node, int(GS_UNDECIDED), label);
        if (before == GS_OUTSIDE) atomicCAS(n.labels + node, int(GS_OUTSIDE), label);
        is_decided = before == GS_UNDECIDED;
      }
      gs_stage(is_decided, node, staged, n.decided, n.counters + GS_DECIDED);
      for (Index k = row_begin; gs_any(k < row_end); k += WIDTH) {
        const bool has_entry = k + lane < row_end;
        const int other = has_entry ? int(n.indices[k + lane]) : node;
        const bool is_new = has_entry && gs_fresh(n.labels + other) == GS_UNDECIDED &&
                            atomicCAS(n.labels + other, int(GS_UNDECIDED), int(GS_OUTSIDE)) == GS_UNDECIDED;
        gs_stage(is_new, other, staged, n.decided, n.counters + GS_DECIDED);
      }
    }
  }
  gs_list_staged(staged, n.decided, n.counters + GS_DECIDED);
}

// The first undecided node among a node and its neighbours, or GS_NONE. In natural order, all nodes up to `after` are
// decided. Several entries are read at the same time, because waiting for their labels takes long.
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

// Find new next nodes in place of the decided nodes from `begin` to `end` in the list. A group of lanes has one decided
// node.
template <class Index, int WIDTH, int HASHED>
__device__ __forceinline__ void gs_find_next(Nodes<Index> n, Team team, Staged staged, unsigned begin, unsigned end) {
  const int lane = gs_lane<WIDTH>();
  const unsigned groups = blockDim.x / WIDTH, step = team.size * groups;
  for (unsigned i = begin + team.rank * groups + threadIdx.x / WIDTH; gs_any(i < end); i += step) {
    const bool has = i < end;
    const int node = has ? gs_fresh(n.decided + i) : 0;
    const Index row_begin = has ? n.indptr[node] : Index(0), row_end = has ? n.indptr[node + 1] : Index(0);
    // The node itself follows its neighbours.
    for (Index first = row_begin; gs_any(has && first <= row_end); first += WIDTH) {
      const bool has_entry = has && first + lane <= row_end;
      const int other = has_entry && first + lane < row_end ? int(n.indices[first + lane]) : node;
      int found = GS_NONE;
      // A root, or the neighbour of one, has a label and only decided neighbours, so it has no next node to be found.
      if (has_entry && gs_fresh(n.next + other) == node && gs_fresh(n.labels + other) < 0) {
        found = gs_first_undecided<Index, HASHED>(n, other, node);
        if (atomicCAS(n.next + other, node, found) != node) found = GS_NONE;
      }
      gs_stage(gs_is_complete(n, found), found, staged, n.roots, n.counters + GS_ROOTS);
    }
  }
  gs_list_staged(staged, n.roots, n.counters + GS_ROOTS);
}

template <class Index>
__device__ __forceinline__ Nodes<Index> gs_nodes(long long num_nodes, const Index *indptr, const Index *indices,
                                                 int *labels, int *lists, unsigned *counters) {
  const auto list = [&](int number) { return lists + number * num_nodes; };
  return {num_nodes, indptr, indices, labels, list(0), list(1), list(2), list(3), counters};
}

// -------------------------------------------------------------- kernels: `lists` are next, missing, roots and decided

// Find the next node of each node, and its `missing`: the number of its neighbours in the graph, plus 1. Nodes without
// neighbours become isolated. All counters must be 0.
template <class Index, int WIDTH, int HASHED>
GS_KERNEL_OF(GS_SET_THREADS) begin_set(long long num_nodes, const Index *indptr, const Index *indices, int *labels,
                                       int *lists, unsigned *counters) {
  const Nodes<Index> n = gs_nodes(num_nodes, indptr, indices, labels, lists, counters);
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
  const unsigned smallest = gs_of_first<WIDTH>(gs_group_min<WIDTH>(best));
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
                                        int *lists, unsigned *counters) {
  const Nodes<Index> n = gs_nodes(num_nodes, indptr, indices, labels, lists, counters);
  const int node = gs_thread() < num_nodes ? n.next[gs_thread()] : int(GS_NONE);
  gs_append(gs_is_complete(n, node), node, n.roots, n.counters + GS_ROOTS);
}

// All generations, or the first `most` of them.
template <class Index, int WIDTH, int HASHED>
GS_KERNEL_FOR(GS_GENERATION_THREADS, 2)
make_generations(long long num_nodes, const Index *indptr, const Index *indices, int *labels, int *lists,
                 unsigned *counters, unsigned most, int fewest, unsigned patience) {
  GS_SHARED(int, batch_roots, GS_BATCH);
  GS_SHARED(int, batch_labels, GS_BATCH);
  GS_SHARED(Index, batch_begins, GS_BATCH);
  GS_SHARED(long long, batch_starts, GS_BATCH + 1);
  GS_SHARED(int, staged_values, GS_STAGED);
  GS_SHARED(unsigned, staged_state, 2);
  Team team;
  if (!gs_join_team(&team, counters, patience)) return;
  const Nodes<Index> n = gs_nodes(num_nodes, indptr, indices, labels, lists, counters);
  const Batch<Index> batch = {batch_roots, batch_labels, batch_begins, batch_starts};
  const Staged staged = {staged_values, staged_state};
  if (threadIdx.x == 0) staged_state[0] = 0;
  __syncthreads();
  unsigned roots_done = 0, decided_done = 0;
  for (unsigned generation = 0; generation < most; ++generation) {
    // No block lists roots before all blocks have decided nodes, so all threads read the same number here.
    const unsigned roots = gs_fresh(counters + GS_ROOTS);
    if (roots == roots_done) break;
    gs_decide_nodes<Index, WIDTH>(n, team, batch, staged, roots_done, roots, fewest);
    gs_wait_for_team(&team);
    const unsigned decided = gs_fresh(counters + GS_DECIDED);
    gs_find_next<Index, WIDTH, HASHED>(n, team, staged, decided_done, decided);
    gs_wait_for_team(&team);
    roots_done = roots;
    decided_done = decided;
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

// Find the aggregate of each node: numbers[r] for root r. A node that is outside joins the aggregate to which its
// connections have the largest sum of weights. A thread owns a node and reads its row.
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
