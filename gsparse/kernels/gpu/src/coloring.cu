// coloring.cu - colours of the rows of a matrix, such that rows that are joined by an entry have different colours.
//
// Each row has a priority. A launch colours every row whose neighbours of higher priority have colours already, with
// the smallest colour that none of them has; launches follow until all rows are coloured:
//
//     priorities    5 - 9 - 2 - 7 - 4        rows in a line, joined with the rows beside them
//     launch 1      .   0   .   0   .        rows with a higher priority than all of their neighbours
//     launch 2      1   0   1   0   1        rows that waited for them
//
// A row may see a colour that another thread writes during the same launch, or not see it and wait for the next launch.
// Its own colour is the same in both cases, because it depends on the neighbours of higher priority alone. So the
// colours are those of the sequential method in the order of the priorities. All atomic operations are on integers, so
// the result is the same in every run.
//
// A thread owns a row. The rows of a warp that are longer than GS_LONG_ROW are then coloured by the whole warp, one
// after the other. Reads are coalesced for those rows only. Nothing is in shared memory.
// Source: M. T. Jones and P. E. Plassmann, "A parallel graph coloring heuristic", SIAM J. Sci. Comput. 14(3), 1993; W.
// Hasenplaugh, T. Kaler, T. B. Schardl and C. E. Leiserson, "Ordering heuristics for parallel graph coloring", SPAA
// 2014 (largest logarithm of the degree first).
#include "scalar.cuh"

// Threads of a block, and blocks for which a multiprocessor must have registers; entries above which a row is long;
// bits of a priority that are a hash; colours that are examined at once.
enum { GS_COLOR_THREADS = 256, GS_BLOCKS = 4, GS_LONG_ROW = 64, GS_HASH_BITS = 26, GS_WINDOW = 64 };

typedef unsigned long long Mask;

// The rows that are joined with a row: the columns of its entries, and the rows with an entry in its column, unless
// these are the same.
template <class Index> struct Graph {
  const Index *indptr, *indices, *other_indptr, *other_indices;
  int has_others;

  __device__ __forceinline__ long long length(long long row) const {
    const long long own = indptr[row + 1] - indptr[row];
    return has_others ? own + (other_indptr[row + 1] - other_indptr[row]) : own;
  }
  // Call visit(neighbour) for every step-th neighbour until it returns false.
  template <class Visit> __device__ __forceinline__ void visit(long long row, int first, int step, Visit visit) const {
    for (Index k = indptr[row] + first; k < indptr[row + 1]; k += step)
      if (!visit(indices[k])) return;
    if (!has_others) return;
    for (Index k = other_indptr[row] + first; k < other_indptr[row + 1]; k += step)
      if (!visit(other_indices[k])) return;
  }
};

// A priority: the logarithm of the number of neighbours, and 26 bits of a hash of the row (the finalizer of
// splitmix64).
template <class Index>
GS_KERNEL_OF(GS_COLOR_THREADS)
row_priorities(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ other_indptr,
               int has_others, unsigned *__restrict__ priorities) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  const Graph<Index> graph = {indptr, nullptr, other_indptr, nullptr, has_others};
  const long long count = graph.length(row);
  Mask bits = 0;
  while ((1ll << bits) < count) ++bits;
  Mask h = Mask(row) + 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  h = (h ^ (h >> 31)) >> (64 - GS_HASH_BITS);
  priorities[row] = unsigned((bits << GS_HASH_BITS) | h);
}

// Return the smallest colour that no neighbour of higher priority has, or -1 if one of these has no colour yet. With
// WIDTH = GS_WARP, all lanes of a warp call it for the same row and get the same result.
template <int WIDTH, class Index>
__device__ __forceinline__ int gs_first_free(const Graph<Index> &graph, long long row, const unsigned *priorities,
                                             const int *colors) {
  const int lane = WIDTH == 1 ? 0 : threadIdx.x % GS_WARP;
  const unsigned own = priorities[row];
  bool waits = false;
  graph.visit(row, lane, WIDTH, [&](long long other) {
    const unsigned priority = priorities[other];
    const bool is_before = priority > own || (priority == own && other < row);
    waits = is_before && gs_fresh(colors + other) < 0;
    return !waits;
  });
  if (WIDTH == 1 ? waits : gs_any(waits)) return -1;
  // Neighbours of lower priority wait for this row, so they have no colour yet and do not count.
  for (int base = 0;; base += GS_WINDOW) {
    Mask used = 0;
    graph.visit(row, lane, WIDTH, [&](long long other) {
      const int color = gs_fresh(colors + other) - base;
      if (color >= 0 && color < GS_WINDOW) used |= Mask(1) << color;
      return true;
    });
    for (int d = WIDTH / 2; d > 0; d >>= 1) used |= gs_shfl_down(used, d, WIDTH);
    if (WIDTH > 1) used = gs_shfl(used, 0, WIDTH);
    if (~used) {
      int color = 0;
      while (used >> color & 1) ++color;
      return base + color;
    }
  }
}

// Colour the rows that can be coloured; *num_left counts the warps in which rows are left. Colours are -1 at first.
template <class Index>
GS_KERNEL_FOR(GS_COLOR_THREADS, GS_BLOCKS)
color_rows(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
           const Index *__restrict__ other_indptr, const Index *__restrict__ other_indices, int has_others,
           const unsigned *__restrict__ priorities, int *colors, unsigned *num_left) {
  const Graph<Index> graph = {indptr, indices, other_indptr, other_indices, has_others};
  const long long row = gs_thread();
  const int lane = threadIdx.x % GS_WARP;
  const bool is_open = row < num_rows && gs_fresh(colors + row) < 0;
  const bool is_long = is_open && graph.length(row) > GS_LONG_ROW;
  int color = -1;
  if (is_open && !is_long) color = gs_first_free<1>(graph, row, priorities, colors);
  const Mask long_lanes = gs_ballot(is_long);
  for (int owner = 0; owner < GS_WARP; ++owner) {
    if (!(long_lanes >> owner & 1)) continue;
    const int free_color = gs_first_free<GS_WARP>(graph, gs_shfl(row, owner, GS_WARP), priorities, colors);
    if (lane == owner) color = free_color;
  }
  // The colour was -1. It is changed atomically, because other threads may read it during this launch.
  if (color >= 0) atomicAdd(colors + row, color + 1);
  const bool any_left = gs_any(is_open && color < 0);
  if (any_left && lane == 0) atomicAdd(num_left, 1u);
}
