// spmv_lanes.cu - y = alpha*A*x + beta*y for A in row lanes without hubs (gsparse.formats.row_lanes).
//
// The first blocks multiply the long rows: each takes the slices of GS_LONG_LANES lanes of one row. Where a row takes
// several blocks, each leaves a partial sum, and the one that arrives last adds them up in an order that is always the
// same, and so is the sum. The warps of the other blocks, no more than the device runs at once, share the other slices,
// those with the most work first. Each warp takes every step-th one, where step is the number of these warps.
//
// GS_GROUP consecutive positions belong to a lane, which reads them at once. While a lane multiplies them, it already
// loads the next group, of the next slice if need be:
//
//     positions of a slice:   | lane 0: j = 0 1 2 3 | lane 1: 0 1 2 3 | ... | lane 0: 4 5 6 7 | lane 1: 4 5 6 7 | ...
//
// Where a row has several lanes of a warp, their sums are added by a tree of shuffles. In shared memory are the sums of
// the warps of a block for a long row, and for conj(x)*y where it is asked for (sums.cuh).
#include "entries.cuh"

// Positions of a group, and threads of the largest block. A multiprocessor runs two blocks at once.
enum { GS_GROUP = 4, GS_LANE_THREADS = 512, GS_WIDE_LANE_THREADS = 256, GS_LANE_BLOCKS = 2 };
// Lanes of a long row that a block multiplies.
enum { GS_LONG_LANES = 512 };
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

// Multiply GS_LONG_LANES lanes of a long row by a block. Return true in one thread if that completes the row; *sum is then
// the sum of row *row. All threads of the block take part.
template <class Entries, class T>
__device__ __forceinline__ bool gs_multiply_long(const Entries &entries, const LaneLayout &layout, T *partials,
                                                 unsigned *arrivals, int *row, T *sum) {
  enum { SLICES = GS_LONG_LANES / GS_WARP };
  GS_SHARED(T, shared, GS_MAX_WARPS);
  const long long first_slice = static_cast<long long>(blockIdx.x) * SLICES;
  *sum = Scalar<T>::zero();
  for (int i = threadIdx.x / GS_WARP; i < SLICES; i += blockDim.x / GS_WARP) {
    const LaneSlice slice = layout.slice(first_slice + i);
    *sum = gs_multiply_slice(entries, slice, entries.load(slice.first), *sum);
  }
  *sum = gs_block_sum(*sum, shared);
  if (threadIdx.x) return false;
  const int first = layout.first_slices[first_slice], first_block = first / SLICES;
  const int blocks = layout.lanes[first] / GS_LONG_LANES;
  *row = layout.rows[static_cast<long long>(first) * GS_WARP];
  if (blocks == 1) return true;
  partials[blockIdx.x] = *sum;
  if (gs_arrive(arrivals + first_block) != unsigned(blocks - 1)) return false;
  *sum = Scalar<T>::zero();
  for (int i = 0; i < blocks; ++i) *sum = gs_add(*sum, gs_fresh(partials + first_block + i));
  arrivals[first_block] = 0u;
  return true;
}

// If `is_even`, the warps of a block take neighbouring slices, which share elements of x; otherwise neighbouring slices
// go to different blocks, so that blocks have equal work.
template <class Value, class Column, class T, template <class> class Dots>
GS_KERNEL_FOR(LaneThreads<T>::value, GS_LANE_BLOCKS)
row_lanes(long long num_slices, int long_blocks, int is_even, const int *__restrict__ rows,
          const int *__restrict__ lanes, const int *__restrict__ first_slices, const long long *__restrict__ offsets,
          T *partials, unsigned *arrivals, const Column *__restrict__ columns, const Value *__restrict__ values,
          const T *__restrict__ table, const T *__restrict__ x, T *__restrict__ y, T alpha, T beta, int read_y,
          int conjugate, typename Wide<T>::type *block_dots) {
  typedef LaneEntries<Value, Column, T> Entries;
  const Entries entries = {columns, values, table, x, conjugate};
  const LaneLayout layout = {rows, lanes, first_slices, offsets};
  Dots<T> dots(block_dots);
  if (int(blockIdx.x) < long_blocks) {
    int row;
    T sum;
    if (gs_multiply_long(entries, layout, partials, arrivals, &row, &sum)) {
      sum = gs_store(y + row, sum, alpha, beta, read_y);
      dots.add(x + row, sum);
    }
  } else {
    const int block = blockIdx.x - long_blocks, blocks = gridDim.x - long_blocks;
    const int warp = threadIdx.x / GS_WARP, warps = blockDim.x / GS_WARP;
    const long long number = is_even ? static_cast<long long>(block) * warps + warp
                                     : static_cast<long long>(warp) * blocks + block;
    const long long step = static_cast<long long>(blocks) * warps;
    long long s = static_cast<long long>(long_blocks) * (GS_LONG_LANES / GS_WARP) + number;
    LaneSlice next = {0, 0, 0, 0};
    typename Entries::Loaded loaded = {};
    const auto begin = [&] {
      if (s >= num_slices) return;
      next = layout.slice(s);
      if (next.groups) loaded = entries.load(next.first);
    };
    begin();
    while (s < num_slices) {
      const LaneSlice slice = next;
      T sum = gs_multiply_slice(entries, slice, loaded, Scalar<T>::zero());
      s += step;
      begin();
      sum = gs_group_sum(sum, slice.lanes);
      if (slice.row >= 0) {
        sum = gs_store(y + slice.row, sum, alpha, beta, read_y);
        dots.add(x + slice.row, sum);
      }
    }
  }
  dots.leave();
}
