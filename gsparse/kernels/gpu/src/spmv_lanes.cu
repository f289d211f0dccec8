// spmv_lanes.cu - y = alpha*A*x + beta*y for A in row lanes without hubs (gsparse.formats.row_lanes).
//
// The warps of all blocks share the slices, those with the most work first. There are no more blocks than the device runs
// at once. GS_GROUP consecutive positions belong to a lane, which reads them at once. While a lane multiplies them, it
// already loads the next group, of its next slice if need be:
//
//     positions of a slice:   | lane 0: j = 0 1 2 3 | lane 1: 0 1 2 3 | ... | lane 0: 4 5 6 7 | lane 1: 4 5 6 7 | ...
//
// Where a row has several lanes of a warp, their sums are added by a tree of shuffles. The slices of long rows come first
// and are taken in rounds, in which the warps of a block have neighbouring slices and add up the sums of a row in shared
// memory. Where the slices of a row belong to several blocks, each block leaves a partial sum, and the one that arrives
// last adds them up in an order that is always the same, and so is the sum.
#include "entries.cuh"

// Positions of a group, and threads of the largest block. A multiprocessor runs two blocks at once.
enum { GS_GROUP = 4, GS_LANE_THREADS = 512, GS_WIDE_LANE_THREADS = 256, GS_LANE_BLOCKS = 2 };
template <class T> struct LaneThreads { enum { value = sizeof(T) > 8 ? GS_WIDE_LANE_THREADS : GS_LANE_THREADS }; };

// A group of codes of columns or of values, which is read at once.
template <class S> struct alignas(sizeof(S) * GS_GROUP < 16 ? sizeof(S) * GS_GROUP : 16) Group {
  S item[GS_GROUP];
  static __device__ __forceinline__ Group at(const S *p, long long k) {
    return *reinterpret_cast<const Group *>(p + k);
  }
};
template <> struct Group<Same> {
  Same item[GS_GROUP];
  static __device__ __forceinline__ Group at(const Same *, long long) { return Group(); }
};

template <class Value, class Column, class T> struct LaneEntries {
  const Column *columns;
  const Value *values;  // the value of each position, or its place in `table`
  const T *table;       // the distinct values, if `values` has places
  const T *x;
  int conjugate;  // whether values are conjugated as they are read

  // The columns and values of a group.
  struct Loaded {
    Group<Column> column;
    Group<Value> value;
  };
  __device__ __forceinline__ Loaded load(long long k) const {
    return {Group<Column>::at(columns, k), Group<Value>::at(values, k)};
  }

  // Return `sum` plus the products of a group's entries with x.
  __device__ __forceinline__ T add(const Loaded &loaded, T sum) const {
    T element[GS_GROUP], a[GS_GROUP];
#pragma unroll
    for (int i = 0; i < GS_GROUP; ++i) {
      const Column column = loaded.column.item[i];
      element[i] = gs_is_padding(column) ? Scalar<T>::zero() : gs_load(x + column);
      a[i] = gs_decode(loaded.value.item[i], table);
    }
#pragma unroll
    for (int i = 0; i < GS_GROUP; ++i) {
      if (conjugate) a[i] = Scalar<T>::conjugate(a[i]);
      sum = gs_is_padding(loaded.column.item[i]) ? sum : gs_fma(a[i], element[i], sum);
    }
    return sum;
  }
};

// A slice as one of its lanes sees it.
struct LaneSlice {
  long long first;  // the lane's first position
  int groups;       // the number of its groups
  int lanes;        // the number of lanes of each row
  int row;          // the row that begins at this lane, or -1
};

// The slices of a matrix: arrays of LaneSlices (gsparse/formats/row_lanes.py), where `offsets` is `rare_offsets`.
struct LaneLayout {
  const int *rows, *lanes, *first_slices;
  const long long *offsets;

  __device__ __forceinline__ LaneSlice slice(long long s) const {
    const int lane = threadIdx.x % GS_WARP;
    const long long begin = offsets[s];
    const int groups = int((offsets[s + 1] - begin) / (GS_WARP * GS_GROUP));
    return {begin + lane * GS_GROUP, groups, lanes[s], rows[s * GS_WARP + lane]};
  }
};

// Return `sum` plus the products of this lane's entries of a slice. `loaded` is its first group, if it has any.
template <class Entries, class T>
__device__ __forceinline__ T gs_multiply_slice(const Entries &entries, const LaneSlice &slice,
                                               typename Entries::Loaded loaded, T sum) {
  for (int i = 1; i <= slice.groups; ++i) {
    const typename Entries::Loaded current = loaded;
    if (i < slice.groups) loaded = entries.load(slice.first + static_cast<long long>(i) * GS_WARP * GS_GROUP);
    sum = entries.add(current, sum);
  }
  return sum;
}

// The scratch memory for rows whose slices belong to several blocks.
template <class T> struct LongSums {
  T *partials;         // a partial sum for each slice that is the first of its row in a block
  unsigned *arrivals;  // at the first slice of a row: blocks that have left a partial sum; 0 between products

  // Each warp passes the sum of its slice s, and whether that slice is part of a long row, which has `count` slices from
  // slice `first` on. Add up the sums that belong to the same row. All threads of the block take part. A single lane of
  // all blocks gets true as the result, and in *sum the sum of the row. `sums` is shared memory that the last call did
  // not use, so that one barrier is enough.
  __device__ __forceinline__ bool add_up(bool is_long, long long s, int first, int count, T *sums, T *sum) const {
    const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP, warps = blockDim.x / GS_WARP;
    if (lane == 0) sums[warp] = *sum;
    __syncthreads();
    if (!is_long || (s != first && warp > 0)) return false;
    const int here = int(first + count - s < warps - warp ? first + count - s : warps - warp);
    *sum = gs_group_sum<GS_WARP>(lane < here ? sums[warp + lane] : Scalar<T>::zero());
    if (lane) return false;
    if (here == count) return true;
    partials[s] = *sum;
    const long long stop = (first + count - 1) / warps;
    if (gs_arrive(arrivals + first) != unsigned(stop - first / warps)) return false;
    *sum = gs_fresh(partials + first);
    for (long long block = first / warps + 1; block <= stop; ++block)
      *sum = gs_add(*sum, gs_fresh(partials + block * warps));
    arrivals[first] = 0u;
    return true;
  }
};

// After the rounds for long rows, if `is_even`, the warps of a block take neighbouring slices, which share elements of x;
// otherwise neighbouring slices go to different blocks, so that blocks have equal work.
template <class Value, class Column, class T, template <class> class Dots>
GS_KERNEL_FOR(LaneThreads<T>::value, GS_LANE_BLOCKS)
row_lanes(long long num_slices, int rounds, int is_even, const int *__restrict__ rows, const int *__restrict__ lanes,
          const int *__restrict__ first_slices, const long long *__restrict__ offsets, T *partials, unsigned *arrivals,
          const Column *__restrict__ columns, const Value *__restrict__ values, const T *__restrict__ table,
          const T *__restrict__ x, T *__restrict__ y, T alpha, T beta, int read_y, int conjugate,
          typename Wide<T>::type *block_dots) {
  typedef LaneEntries<Value, Column, T> Entries;
  GS_SHARED(T, shared, 2 * GS_MAX_WARPS);
  const Entries entries = {columns, values, table, x, conjugate};
  const LaneLayout layout = {rows, lanes, first_slices, offsets};
  const LongSums<T> long_sums = {partials, arrivals};
  Dots<T> dots(block_dots);
  const int warp = threadIdx.x / GS_WARP, warps = blockDim.x / GS_WARP;
  const long long in_block = static_cast<long long>(blockIdx.x) * warps + warp;
  const long long spread = is_even ? in_block : static_cast<long long>(warp) * gridDim.x + blockIdx.x;
  const long long step = static_cast<long long>(gridDim.x) * warps;
  LaneSlice next = {0, 0, 0, -1};
  typename Entries::Loaded loaded = {};
  long long s = rounds ? in_block : spread;
  const auto begin = [&] {
    next = {0, 0, 1, -1};
    if (s >= num_slices) return;
    next = layout.slice(s);
    if (next.groups) loaded = entries.load(next.first);
  };
  begin();
  for (int round = 0; round < rounds || s < num_slices; ++round) {
    const LaneSlice slice = next;
    const long long number = s;
    T sum = gs_multiply_slice(entries, slice, loaded, Scalar<T>::zero());
    s = (round + 1) * step + (round + 1 < rounds ? in_block : spread);
    begin();
    sum = gs_group_sum(sum, slice.lanes < GS_WARP ? slice.lanes : GS_WARP);
    int row = slice.row;
    if (round < rounds) {
      const bool is_long = slice.lanes > GS_WARP;
      const int first = is_long ? first_slices[number] : 0;
      T *const sums = shared + round % 2 * GS_MAX_WARPS;
      T whole = sum;
      if (long_sums.add_up(is_long, number, first, slice.lanes / GS_WARP, sums, &whole)) {
        row = rows[static_cast<long long>(first) * GS_WARP];
        sum = whole;
      } else if (is_long) {
        row = -1;
      }
    }
    if (row >= 0) {
      sum = gs_store(y + row, sum, alpha, beta, read_y);
      dots.add(x + row, sum);
    }
  }
  dots.leave();
}
