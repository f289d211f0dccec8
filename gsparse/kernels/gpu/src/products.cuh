// products.cuh - the product of two sparse matrices, C = A·B, row by row (Gustavson 1978): row i of C is the sum of the rows
// k of B, each times a_ik, over the entries (i, k) of A's row i in the order in which they are stored.
//
// Rows that are short or about equally long are merged (sparse_products_merged.cu). Others differ in their numbers of
// products and of entries. row_classes.cu puts each row into a class, and each class has a kernel:
//
//   sorted rows   with up to 64 products: sparse_products_sorted.cu
//   tables        rows whose entries fit into a table in shared memory: sparse_products_tables.cu
//   wide rows     rows that no table holds: row_classes.cu
//
// This header says how their kernels go through the products that make up a row of C.
//
// A group of lanes has a row of C. The products of the row are numbered one after the other, and the lanes take GROUP of
// them in each step:
//
//      row i of A:       a_i2     a_i5   a_i9
//                         |        |      |
//      rows of B:      4  7  8    2  7    9
//      products:       0  1  2    3  4    5
//      step of 4 lanes 0  0  0    0  1    1
#pragma once
#include "order.cuh"

// Threads of a block.
enum { GS_PRODUCT_THREADS = 128 };
// Records that a sum of the result is 0: in a flag in device memory, which must be 0 before the launch, and in a flag
// that the host reads. Only the first thread that finds a zero writes to the host's flag, which takes long to reach.
struct ZeroFlag {
  unsigned *seen;
  long long *host;
  __device__ __forceinline__ void raise() const {
    if (!gs_fresh(seen) && atomicOr(seen, 1u) == 0) *host = 1;
  }
};

// The row of C for a group of lanes or a block: element `number` of `rows`, or row `number` itself if `rows` is null.
template <class Index> __device__ __forceinline__ long long gs_row(long long number, long long count, const Index *rows) {
  if (number >= count) return -1;
  return rows ? static_cast<long long>(rows[number]) : number;
}

// ---------------------------------------------------------------------------- groups of lanes

// GROUP lanes that compute a row of C: part of a warp, or a whole block.
template <int GROUP> struct Lanes {
  static const bool in_warp = GROUP <= 32;
  static __device__ __forceinline__ int number() { return threadIdx.x % GROUP; }
  static __device__ __forceinline__ void sync() {
    if (in_warp) gs_syncwarp();
    else __syncthreads();
  }
  // Whether a condition holds for any group that runs in step with this group. It is the same for all lanes of a group.
  static __device__ __forceinline__ bool any(bool condition) { return in_warp ? gs_any(condition) : condition; }
};

// The sum over the lanes of a group up to this one. `warp_sums` has an element for each warp of a block.
template <int GROUP, class V> __device__ __forceinline__ V gs_inclusive_sum(V v, V *warp_sums) {
  constexpr int width = Lanes<GROUP>::in_warp ? GROUP : GS_WARP;
  const int lane = threadIdx.x % width;
  v = gs_running<Sum, width>(v);
  if (Lanes<GROUP>::in_warp) return v;
  if (lane == width - 1) warp_sums[threadIdx.x / GS_WARP] = v;
  __syncthreads();
  for (int w = 0; w < int(threadIdx.x) / GS_WARP; ++w) v += warp_sums[w];
  return v;
}

// The type of product numbers. Within a group of lanes in a warp, they fit 32 bits (classify_rows).
template <class Index, int GROUP> struct Numbers { typedef long long type; };
template <> struct Numbers<int, 8> { typedef int type; };
template <> struct Numbers<int, 32> { typedef int type; };

// The parameters of a kernel: the structure of A and B; the structure and the values; and all these with C and the
// flags (ZeroFlag).
#define GS_STRUCTURES                                                                                                  \
  const Index *__restrict__ a_indptr, const Index *__restrict__ a_indices, const Index *__restrict__ b_indptr,         \
      const Index *__restrict__ b_indices
#define GS_FACTORS                                                                                                     \
  const Index *__restrict__ a_indptr, const Index *__restrict__ a_indices, const T *__restrict__ a_data,               \
      const Index *__restrict__ b_indptr, const Index *__restrict__ b_indices, const T *__restrict__ b_data
#define GS_PRODUCT                                                                                                     \
  GS_FACTORS, const Index *__restrict__ c_indptr, Index *__restrict__ c_indices, T *__restrict__ c_data,               \
      unsigned *__restrict__ has_zeros, long long *__restrict__ host_flag

// The structure of A and B.
template <class Index> struct Structures {
  const Index *__restrict__ a_indptr, *__restrict__ a_indices, *__restrict__ b_indptr, *__restrict__ b_indices;
};

// GROUP consecutive entries of A: the products of entry e are numbers ends[e - 1] to ends[e] - 1, and product t of it is
// with entry t + shifts[e] of B, if that is less than stops[e].
template <class Number> struct Chunk {
  Number *ends, *shifts, *stops, *warp_sums;
};

// The entry of A, within the chunk, to which product t belongs: the first with ends[e] > t.
template <int GROUP, class Number> __device__ __forceinline__ int gs_entry_of(const Number *ends, Number t) {
  int e = 0;
#pragma unroll
  for (int half = GROUP / 2; half > 0; half /= 2)
    if (ends[e + half - 1] <= t) e += half;
  return e;
}

// Calls visit(k, total, base, entries, places) for all products of entries `begin` to `begin + length - 1` of A, GROUP *
// STEPS of them at a time: step s of this lane is product base + s * GROUP + lane of the `total` of a chunk, which
// multiplies entry k + entries[s] of A with entry places[s] of B. Lanes without a product in a step have a negative place.
// range(k, &from, &stop) tells which entries of B entry k of A is multiplied with.
//
// If these are more than GROUP / 2 on average, each range begins with a step of its own, so that all lanes of a step have
// the same entry of A, and add at once.
template <int GROUP, int STEPS, class Index, class Range, class Visit>
__device__ __forceinline__ void gs_visit_products(long long begin, long long length, Range range,
                                                  Chunk<typename Numbers<Index, GROUP>::type> chunk, Visit visit) {
  typedef typename Numbers<Index, GROUP>::type Number;
  typedef Lanes<GROUP> Group;
  const int lane = Group::number();
  for (long long first = 0; Group::any(first < length); first += GROUP) {
    Number from = 0, stop = 0;
    if (first + lane < length) {
      Index range_begin, range_end;
      range(begin + first + lane, &range_begin, &range_end);
      from = range_begin;
      stop = range_end;
    }
    Number size = stop - from, end = gs_inclusive_sum<GROUP>(size, chunk.warp_sums);
    if (Group::in_warp) {
      const long long entries = length - first < GROUP ? length - first : GROUP;
      const bool pads = 2 * gs_shfl(end, GROUP - 1, GROUP) > GROUP * entries;
      if (gs_any(pads)) {
        if (pads) size = (size + GROUP - 1) / GROUP * GROUP;
        end = gs_inclusive_sum<GROUP>(size, chunk.warp_sums);
      }
    }
    chunk.ends[lane] = end;
    chunk.shifts[lane] = from - (end - size);
    chunk.stops[lane] = stop;
    Group::sync();
    const Number total = chunk.ends[GROUP - 1];
    for (Number base = 0; Group::any(base < total); base += GROUP * STEPS) {
      int entries[STEPS];
      Index places[STEPS];
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        const Number t = base + step * GROUP + lane;
        const int entry = t < total ? gs_entry_of<GROUP>(chunk.ends, t) : 0;
        const Number place = t < total ? t + chunk.shifts[entry] : Number(-1);
        entries[step] = t < total ? entry : -1;
        places[step] = place < chunk.stops[entry] ? Index(place) : Index(-1);
      }
      visit(begin + first, total, base, entries, places);
    }
    Group::sync();
  }
}

// The same for all products of a row of C; there are none if `row` is negative.
template <int GROUP, int STEPS, class Index, class Visit>
__device__ __forceinline__ void gs_visit_row(long long row, Structures<Index> s,
                                             Chunk<typename Numbers<Index, GROUP>::type> chunk, Visit visit) {
  const long long begin = row < 0 ? 0 : s.a_indptr[row], length = row < 0 ? 0 : s.a_indptr[row + 1] - begin;
  const auto range = [&](long long k, Index *from, Index *stop) {
    const Index inner = s.a_indices[k];
    *from = s.b_indptr[inner];
    *stop = s.b_indptr[inner + 1];
  };
  gs_visit_products<GROUP, STEPS, Index>(begin, length, range, chunk, visit);
}

// Adds the products of a step to the sums of this row: sums[slot] += product for each lane with a product. Lanes with
// the same entry of A add at the same time, because their columns are distinct; the entries of A follow one after the
// other. This is for a group of lanes in a warp.
template <int GROUP, class T>
__device__ __forceinline__ void gs_add_in_turn(bool has_product, int entry, int slot, T product, T *sums) {
  const int first = gs_shfl(entry, 0, GROUP);  // (the first of the step: entries rise with the lanes)
  const int turn_of_lane = has_product ? entry - first : -1;
  for (int turn = 0; gs_any(turn_of_lane >= turn); ++turn) {
    if (turn_of_lane == turn) sums[slot] = gs_add(sums[slot], product);
    gs_syncwarp();
  }
}
