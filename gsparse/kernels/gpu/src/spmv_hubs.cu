// spmv_hubs.cu - y = alpha*A*x + beta*y for A in row lanes with hub columns (gsparse.formats.row_lanes).
//
// A block copies the elements of x for the most frequent columns, the hubs, to shared memory. Then the warps of all
// blocks share the slices: each starts with one of the first slices and then takes every step-th one, where step is the
// number of all warps. The slices of long rows come first, so they start first.
//
//     elements of x for frequent columns:   | 0 ... num_hubs - 1 | num_hubs ... 65534 |     65535 is padding
//                                             shared memory        memory, through the caches
//
// The lanes of a warp read neighbouring codes, columns and values (coalesced). Where a row has several lanes, their sums
// are added by a tree of shuffles. Where it takes several slices, each warp leaves a partial sum, and the one that
// arrives last adds them up in an order that is always the same, and so is the sum.
// Shared memory: num_hubs elements: 64 KiB, or less where two such blocks would not fit on a multiprocessor
// (gsparse/kernels/gpu/spmv.py says why).
#include "entries.cuh"

// Threads of a block, and blocks that a multiprocessor runs at once.
enum { GS_HUB_THREADS = 640, GS_HUB_BLOCKS = 2 };

// Where the elements of x are. The code of a position is the number of a frequent column (unsigned short), or a rare
// column itself (int).
template <class T> struct HubVector {
  const T *hubs;      // in shared memory: the elements of codes 0 to num_hubs - 1
  const T *elements;  // those of all codes
  const T *x;
  int num_hubs;

  // Return the element for a code that is not padding.
  __device__ __forceinline__ T element(unsigned short code) const {
    return code < num_hubs ? hubs[code] : gs_load(elements + code);
  }
  __device__ __forceinline__ T element(int column) const { return gs_load(x + column); }
};

// How codes and values are read. ONCE is 1 if the matrix is larger than the second-level cache. The next product could
// not find codes and values there, so they are loaded with the hint to evict them first, which keeps elements of x in
// the cache.
template <int ONCE> struct Reads {
  template <class S> static __device__ __forceinline__ S at(const S *p, long long k) {
    return ONCE ? gs_load_once(p + k) : gs_load(p + k);
  }
  static __device__ __forceinline__ Same at(const Same *, long long) { return Same(); }
};

// The entries in frequent or in rare columns, in slices.
template <class Value, class Code, class T, int ONCE> struct HubEntries {
  const Code *codes;    // of each position
  const Value *values;  // the value of each position, or its place in `table`
  const T *table;       // the distinct values, if `values` has places
  HubVector<T> vector;
  int conjugate;  // whether values are conjugated as they are read

  // Return `sum` plus the products of SIZE entries with x, at positions first, first + GS_WARP, ... If WHOLE is false,
  // only the first `count` of them exist.
  template <bool WHOLE, int SIZE> __device__ __forceinline__ T add_batch(long long first, int count, T sum) const {
    Code code[SIZE];
    Value value[SIZE];
    T a[SIZE], element[SIZE];
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      const long long k = WHOLE || i < count ? first + i * GS_WARP : first;
      code[i] = Reads<ONCE>::at(codes, k);
      if (!WHOLE && i >= count) code[i] = Code(-1);
      value[i] = Reads<ONCE>::at(values, k);
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      element[i] = gs_is_padding(code[i]) ? Scalar<T>::zero() : vector.element(code[i]);
      a[i] = gs_decode(value[i], table);
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      if (conjugate) a[i] = Scalar<T>::conjugate(a[i]);
      sum = gs_is_padding(code[i]) ? sum : gs_fma(a[i], element[i], sum);
    }
    return sum;
  }

  // Return `sum` plus the products of `count` entries with x, at positions first, first + GS_WARP, ...
  __device__ __forceinline__ T add(long long first, int count, T sum) const {
    enum { SIZE = Batch<T>::size };
    int j = 0;
    for (; j + SIZE <= count; j += SIZE) sum = add_batch<true, SIZE>(first + j * GS_WARP, SIZE, sum);
    return j < count ? add_batch<false, SIZE>(first + j * GS_WARP, count - j, sum) : sum;
  }
};

// The slices of long rows, which come before all others.
template <class T> struct LongSlices {
  T *partials;  // a partial sum for each of these slices
  // At the first slice of each row: the number of warps that have stored their partial sum; 0 between products.
  unsigned *arrivals;

  // Store the partial sum of slice s. The row has `count` slices, beginning with slice `first`. Return true in the last
  // warp of the row to arrive; *sum in the first lane of this warp is then the sum of the row.
  __device__ __forceinline__ bool add_up(long long s, int first, int count, T *sum) const {
    const int lane = threadIdx.x % GS_WARP;
    if (lane == 0) partials[s] = *sum;
    if (!gs_is_last_warp(arrivals + first, count)) return false;
    *sum = Scalar<T>::zero();
    for (int i = lane; i < count; i += GS_WARP) *sum = gs_add(*sum, gs_fresh(partials + first + i));
    *sum = gs_group_sum<GS_WARP>(*sum);
    if (lane == 0) arrivals[first] = 0u;
    return true;
  }
};

// The arguments from `rows` to `rare_offsets` are arrays of LaneSlices (gsparse/formats/row_lanes.py), where `all_lanes`
// is called `lanes`: the number of lanes of each row of a slice. `elements` are those of x at the frequent columns.
template <class Value, class T, int ONCE>
GS_KERNEL_FOR(GS_HUB_THREADS, GS_HUB_BLOCKS)
hub_columns(long long num_slices, long long num_frequent_positions, int num_hubs, const int *__restrict__ rows,
            const int *__restrict__ all_lanes, const int *__restrict__ first_slices,
            const long long *__restrict__ frequent_offsets, const long long *__restrict__ rare_offsets,
            const unsigned short *__restrict__ codes, const int *__restrict__ columns,
            const Value *__restrict__ values, const T *__restrict__ table, const T *__restrict__ elements, T *partials,
            unsigned *arrivals, const T *__restrict__ x, T *__restrict__ y, T alpha, T beta, int read_y,
            int conjugate) {
  GS_DYN_SHARED(T, hubs);
  for (int i = threadIdx.x; i < num_hubs; i += GS_HUB_THREADS) hubs[i] = gs_load(elements + i);
  __syncthreads();
  const HubVector<T> vector = {hubs, elements, x, num_hubs};
  const HubEntries<Value, unsigned short, T, ONCE> frequent = {codes, values, table, vector, conjugate};
  const Value *rare_values = gs_values_from(values, num_frequent_positions);
  const HubEntries<Value, int, T, ONCE> rare = {columns, rare_values, table, vector, conjugate};
  const LongSlices<T> long_slices = {partials, arrivals};
  const int lane = threadIdx.x % GS_WARP, warp = threadIdx.x / GS_WARP, warps = GS_HUB_THREADS / GS_WARP;
  const long long step = static_cast<long long>(gridDim.x) * warps;
  for (long long s = static_cast<long long>(warp) * gridDim.x + blockIdx.x; s < num_slices; s += step) {
    const long long begin = frequent_offsets[s], rare_begin = rare_offsets[s];
    const int count = int((frequent_offsets[s + 1] - begin) / GS_WARP);
    const int rare_count = int((rare_offsets[s + 1] - rare_begin) / GS_WARP);
    const int lanes = all_lanes[s];
    int row = rows[s * GS_WARP + lane];
    T sum = frequent.add(begin + lane, count, Scalar<T>::zero());
    sum = rare.add(rare_begin + lane, rare_count, sum);
    sum = gs_group_sum(sum, lanes < GS_WARP ? lanes : GS_WARP);
    if (lanes > GS_WARP) {
      const int first = first_slices[s];
      if (!long_slices.add_up(s, first, lanes / GS_WARP, &sum)) continue;
      row = lane ? -1 : rows[static_cast<long long>(first) * GS_WARP];
    }
    if (row >= 0) gs_store(y + row, sum, alpha, beta, read_y);
  }
}
