// row_classes.cu - the rows of a product of two sparse matrices in classes, each of which has a kernel of its own
// (products.cuh): how many products make up each row, its class, and lists of the rows of each class.
#include "tiles.cuh"

// Classes of rows: rows without products, rows whose products are sorted in registers (at most 16, 32 and 64 products),
// those of three tables, and wide rows. A block leaves the number of rows of each class, and the sum of the rows'
// sizes: their numbers of products where entries are counted, and of entries where these are filled in.
enum { GS_ROW_CLASSES = 8, GS_FIRST_TABLE = 4, GS_CLASS_COUNTS = GS_ROW_CLASSES + 1, GS_COUNT_THREADS = 128 };
// The most products that are sorted in registers.
enum { GS_SORTED = 64 };

// The number of products that make up each row of C, at most 2^31 - 1. A group of GROUP lanes owns a row.
template <class Index, int GROUP>
GS_KERNEL_OF(GS_COUNT_THREADS) spgemm_products(long long num_rows, const Index *__restrict__ a_indptr,
                                               const Index *__restrict__ a_indices,
                                               const Index *__restrict__ b_indptr, Index *__restrict__ products) {
  const long long row = gs_thread() / GROUP, lane = threadIdx.x % GROUP;
  long long sum = 0;
  if (row < num_rows) {
    const Index end = a_indptr[row + 1];
#pragma unroll 4
    for (Index k = a_indptr[row] + Index(lane); k < end; k += GROUP)
      sum += b_indptr[a_indices[k] + 1] - b_indptr[a_indices[k]];
  }
  sum = gs_group_sum<GROUP>(sum);
  if (row < num_rows && lane == 0) products[row] = Index(sum < 0x7fffffff ? sum : 0x7fffffff);
}

// The length of the longest row. `values` are the row pointers, or the lengths themselves if SIZES is 1.
template <class Index, int SIZES>
GS_KERNEL_OF(GS_TILE_THREADS) longest_row(long long num_rows, const Index *__restrict__ values,
                                          long long *__restrict__ of_blocks, unsigned *__restrict__ arrivals,
                                          long long *__restrict__ longest) {
  GS_SHARED(long long, greatest, GS_TILE_WARPS);
  long long most = 0, all;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long row = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    if (row < num_rows)
      most = Maximum::of(most, static_cast<long long>(SIZES ? values[row] : values[row + 1] - values[row]));
  }
  gs_scan<Maximum>(most, greatest, &all);
  gs_leave_maximum(all, Tally{of_blocks, arrivals, longest});
}

// Counts of up to four classes in the parts of a word, 16 bits each: a tile has fewer than 2^16 rows.
typedef unsigned long long Packed;
__device__ __forceinline__ Packed gs_packed(int of_row, int first) {
  return of_row >= first && of_row < first + 4 ? Packed(1) << 16 * (of_row - first) : Packed(0);
}
__device__ __forceinline__ long long gs_unpacked(const Packed *counts, int of_row) {
  return (of_row < 4 ? counts[0] : counts[1]) >> 16 * (of_row % 4) & 0xffff;
}

// Turn the counts of each class, one for each block, into the sums of those before; the last block to arrive does this,
// a warp for each class. The total of a class comes behind all counts, and into `totals`.
__device__ __forceinline__ void gs_sum_class_counts(long long *__restrict__ counts, long long *__restrict__ totals) {
  const long long blocks = gridDim.x;
  const int lane = threadIdx.x % GS_WARP;
  for (int c = threadIdx.x / GS_WARP; c < GS_CLASS_COUNTS; c += GS_TILE_WARPS) {
    long long *const of_class = counts + c * blocks;
    const long long share = (blocks + GS_WARP - 1) / GS_WARP, begin = lane * share < blocks ? lane * share : blocks;
    const long long end = begin + share < blocks ? begin + share : blocks;
    long long sum = 0;
#pragma unroll 8
    for (long long b = begin; b < end; ++b) sum += gs_fresh(of_class + b);
    long long before = sum;
    for (int d = 1; d < GS_WARP; d *= 2) {
      const long long other = gs_shfl_up(before, d, GS_WARP);
      if (lane >= d) before += other;
    }
    const long long total = gs_shfl(before, GS_WARP - 1, GS_WARP);
    before -= sum;
    for (long long b = begin; b < end; ++b) {
      const long long of_block = gs_fresh(of_class + b);
      of_class[b] = before;
      before += of_block;
    }
    if (lane == 0) totals[c] = counts[GS_CLASS_COUNTS * blocks + c] = total;
  }
}

// The class of each row. Up to 64 products, the number of products decides. Rows with more products belong to the first
// of the classes 4 to 7 whose limit is at least the row's size. If the number of products is more than 16 times the
// limit of a table, the row belongs to a larger table, if there is one. If `products` is null, rows whose size is not 0
// count as if they had more than 64 products.
//
//     counts      tile 0  tile 1  ...              each count is the number of rows of the class in the tiles before;
//     class 0   |   0   |  c00  | c00 + c01 ..     in `sizes`, the sum of the sizes of all rows in the tiles before
//     class 1   |   0   |  c10  | ..
//     ...
//     sizes     |   0   |  s0   | s0 + s1 ..
//     totals    | one for each of the rows above   also in `totals`, which the host reads
//
// `flag` is set to 0, for the kernels that follow.
template <class Index, int LIMIT_4, int LIMIT_5, int LIMIT_6>
GS_KERNEL_OF(GS_TILE_THREADS) classify_rows(long long num_rows, const Index *__restrict__ sizes,
                                            const Index *__restrict__ products, unsigned char *__restrict__ classes,
                                            unsigned *__restrict__ flag, long long *__restrict__ counts,
                                            unsigned *__restrict__ arrivals, long long *__restrict__ totals) {
  GS_SHARED(Packed, packed_sums, GS_TILE_WARPS);
  GS_SHARED(long long, sums, GS_TILE_WARPS);
  GS_SHARED(int, is_last, 1);
  Packed packed[2] = {0, 0};
  long long size_sum = 0;
  Index size_of[GS_TILE_ITEMS], number_of[GS_TILE_ITEMS];  // all loads first, so that none waits for another
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long row = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    size_of[i] = row < num_rows ? sizes[row] : Index(0);
    number_of[i] = row < num_rows && products ? products[row] : Index(size_of[i] ? GS_SORTED + 1 : 0);
  }
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long row = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    if (row >= num_rows) continue;
    const long long size = size_of[i], number = number_of[i], part = (number + 15) / 16;
    int of_row = (number > 0) + (number > 16) + (number > 32);
    if (number > GS_SORTED) {
      of_row = GS_FIRST_TABLE + (size > LIMIT_4) + (size > LIMIT_5) + (size > LIMIT_6);
      const int by_products = GS_FIRST_TABLE + (part > LIMIT_4) + (part > LIMIT_5);
      of_row = by_products > of_row ? by_products : of_row;
    }
    classes[row] = static_cast<unsigned char>(of_row);
    packed[0] += gs_packed(of_row, 0);
    packed[1] += gs_packed(of_row, 4);
    size_sum += size;
  }
  Packed all[2];
  long long size_total;
  gs_scan<Sum>(packed[0], packed_sums, all);
  gs_scan<Sum>(packed[1], packed_sums, all + 1);
  gs_scan<Sum>(size_sum, sums, &size_total);
  const long long blocks = gridDim.x;
  if (threadIdx.x == 0) {
    if (blockIdx.x == 0) *flag = 0;
    for (int c = 0; c < GS_ROW_CLASSES; ++c) counts[c * blocks + blockIdx.x] = gs_unpacked(all, c);
    counts[GS_ROW_CLASSES * blocks + blockIdx.x] = size_total;
    is_last[0] = gs_arrive(arrivals) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last[0]) return;
  gs_sum_class_counts(counts, totals);
  if (threadIdx.x == 0) *arrivals = 0;
}

// The rows of class 0, then those of class 1, and so on; the rows of each class in order.
template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS) group_rows(long long num_rows, const unsigned char *__restrict__ classes,
                                         const long long *__restrict__ counts, Index *__restrict__ rows) {
  GS_SHARED(Packed, packed_sums, GS_TILE_WARPS);
  GS_SHARED(long long, starts, GS_ROW_CLASSES);
  const long long blocks = gridDim.x;
  if (threadIdx.x < GS_ROW_CLASSES) {
    long long start = counts[threadIdx.x * blocks + blockIdx.x];
    for (unsigned c = 0; c < threadIdx.x; ++c) start += counts[GS_CLASS_COUNTS * blocks + c];
    starts[threadIdx.x] = start;
  }
  __syncthreads();
  Packed of_rounds[2] = {0, 0};  // rows of each class in the rounds so far
#pragma unroll 1
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long row = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    const int of_row = row < num_rows ? classes[row] : -1;
    Packed before[2], all[2];
    before[0] = of_rounds[0] + gs_scan<Sum>(gs_packed(of_row, 0), packed_sums, all);
    before[1] = of_rounds[1] + gs_scan<Sum>(gs_packed(of_row, 4), packed_sums, all + 1);
    if (of_row >= 0) rows[starts[of_row] + gs_unpacked(before, of_row)] = Index(row);
    of_rounds[0] += all[0];
    of_rounds[1] += all[1];
  }
}
