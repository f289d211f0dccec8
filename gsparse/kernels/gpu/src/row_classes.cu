// row_classes.cu - the rows of a product of two sparse matrices in classes, each of which has a kernel of its own
// (products.cuh): how many products make up each row, its class, and lists of the rows of each class. Also the
// kernels of wide rows.
#include "products.cuh"
#include "tiles.cuh"

// Classes of rows: rows without products; rows whose products are sorted in registers (at most 16, 32 and 64 products);
// rows for three sizes of tables; and wide rows. A block writes the number of its rows in each class, and the sum of
// their sizes. The size of a row is its number of products while entries are counted, and of entries while they are
// filled in.
enum { GS_ROW_CLASSES = 8, GS_FIRST_TABLE = 4, GS_CLASS_COUNTS = GS_ROW_CLASSES + 1, GS_COUNT_THREADS = 128 };
// The most products that are sorted in registers.
enum { GS_SORTED = 64 };

// The number of products for each row of C, at most 2^31 - 1. A group of GROUP lanes owns a row.
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
  gs_visit_tile(num_rows, [&](long long row) {
    most = Maximum::of(most, static_cast<long long>(SIZES ? values[row] : values[row + 1] - values[row]));
  });
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

// Turn the counts of each class into the sums over all blocks before. The last block to arrive does this, with a warp
// for each class. The total of each class is stored after all counts, and in `totals`.
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
    long long before = gs_running<Sum, GS_WARP>(sum);
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
  }
  if (!gs_is_last_block(arrivals)) return;
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

// ---------------------------------------------------------------------------- wide rows
//
// Rows that no table in shared memory holds.
//
// A row has a block for each window of columns, or for each window of its entries, so that a single wide row occupies
// many multiprocessors. Each block goes through all entries of A's row, and finds the part of each row of B that lies in
// its window by binary search.
//
//   columns   a window of GS_WINDOW_COLUMNS columns: a bit for each, set if the column is in a row of B that takes part.
//             The number of bits is counted first; then the columns are written.
//   values    a window of entries of C, whose sorted columns are known. Each group of 32 lanes takes a share of the
//             entries of A's row, in order, and adds to sums of its own. These are added in the order of the shares. The
//             order depends on the structures alone, so the same input gives the same bits.

// Words of a window of columns, a bit for each column.
enum { GS_BIT_WORDS = 1024, GS_WINDOW_COLUMNS = 32 * GS_BIT_WORDS };
// Entries of C in a window (half as many if a value has 16 bytes), lanes of a group, threads of a block, and the groups
// that share the values of a window.
enum { GS_WINDOW_ENTRIES = 512, GS_WIDE_LANES = 32, GS_WIDE_THREADS = 256, GS_WIDE_GROUPS = GS_WIDE_THREADS / GS_WIDE_LANES };
template <class T> struct Window { enum { entries = sizeof(T) > 8 ? GS_WINDOW_ENTRIES / 2 : GS_WINDOW_ENTRIES }; };

// Sets the bits of the columns of C's row that lie in the window beginning with column `low`, and returns the number of
// bits in the words of this thread: words threadIdx.x * 4 to threadIdx.x * 4 + 3. A group of `width` lanes has an entry
// of A at a time.
template <class Index>
__device__ __forceinline__ int gs_mark_columns(long long row, Structures<Index> s, int width, long long low, unsigned *bits) {
  for (int word = threadIdx.x; word < GS_BIT_WORDS; word += GS_TILE_THREADS) bits[word] = 0;
  __syncthreads();
  const int lane = threadIdx.x % width;
  const Index end = s.a_indptr[row + 1];
  for (Index k = s.a_indptr[row] + threadIdx.x / width; k < end; k += GS_TILE_THREADS / width) {
    const Index inner = s.a_indices[k], to = s.b_indptr[inner + 1];
    Index p = s.b_indptr[inner];
    if (low > 0) p = gs_lower_bound(s.b_indices, p, to, low);
    for (p += lane; p < to; p += width) {
      const long long column = s.b_indices[p] - low;
      if (column >= GS_WINDOW_COLUMNS) break;
      atomicOr(bits + column / 32, 1u << column % 32);
    }
  }
  __syncthreads();
  int count = 0;
#pragma unroll
  for (int i = 0; i < GS_BIT_WORDS / GS_TILE_THREADS; ++i)
    count += gs_num_bits(bits[threadIdx.x * (GS_BIT_WORDS / GS_TILE_THREADS) + i]);
  return count;
}

__device__ __forceinline__ void gs_add_to(int *size, int count) { atomicAdd(size, count); }
__device__ __forceinline__ void gs_add_to(long long *size, int count) {
  typedef unsigned long long Unsigned;
  atomicAdd(reinterpret_cast<Unsigned *>(size), Unsigned(count));
}

// counts[n * num_windows + w] = the number of columns of the n-th wide row in window w, and sizes[row] += that number if
// `sizes` is not null.
template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS) spgemm_count_wide(long long num_windows, int width, long long count,
                                                const Index *__restrict__ rows, GS_STRUCTURES, int *__restrict__ counts,
                                                Index *__restrict__ sizes) {
  GS_SHARED(unsigned, bits, GS_BIT_WORDS);
  GS_SHARED(int, sums, GS_TILE_WARPS);
  const long long number = blockIdx.x / num_windows, low = blockIdx.x % num_windows * GS_WINDOW_COLUMNS;
  const long long row = gs_row(number, count, rows);
  int all;
  gs_scan<Sum>(gs_mark_columns(row, Structures<Index>{a_indptr, a_indices, b_indptr, b_indices}, width, low, bits), sums,
               &all);
  if (threadIdx.x) return;
  counts[blockIdx.x] = all;
  if (sizes) gs_add_to(sizes + row, all);
}

// The columns of wide rows of C, rising.
template <class Index>
GS_KERNEL_FOR(GS_TILE_THREADS, 4) spgemm_columns_wide(long long num_windows, int width, long long count,
                                                      const Index *__restrict__ rows, GS_STRUCTURES,
                                                      const int *__restrict__ counts,
                                                      const Index *__restrict__ c_indptr,
                                                      Index *__restrict__ c_indices) {
  GS_SHARED(unsigned, bits, GS_BIT_WORDS);
  GS_SHARED(int, sums, GS_TILE_WARPS);
  GS_SHARED(long long, long_sums, GS_TILE_WARPS);
  const long long number = blockIdx.x / num_windows, window = blockIdx.x % num_windows;
  const long long low = window * GS_WINDOW_COLUMNS, row = gs_row(number, count, rows);
  long long before_window = 0, first;  // columns of the row in the windows before this one
  for (long long w = threadIdx.x; w < window; w += GS_TILE_THREADS) before_window += counts[number * num_windows + w];
  gs_scan<Sum>(before_window, long_sums, &first);
  int all;
  const int before = gs_scan<Sum>(
      gs_mark_columns(row, Structures<Index>{a_indptr, a_indices, b_indptr, b_indices}, width, low, bits), sums, &all);
  long long place = c_indptr[row] + first + before;
  for (int i = 0; i < GS_BIT_WORDS / GS_TILE_THREADS; ++i) {
    const int word_number = threadIdx.x * (GS_BIT_WORDS / GS_TILE_THREADS) + i;
    for (unsigned word = bits[word_number]; word; word &= word - 1)
      c_indices[place++] = Index(low + 32ll * word_number + gs_num_bits((word & -word) - 1));
  }
}

// windows[n] = the number of windows of entries of the n-th wide row, of `window` entries each.
template <class Index>
GS_KERNEL count_windows(int window, long long count, const Index *__restrict__ rows, const Index *__restrict__ c_indptr,
                        Index *__restrict__ windows) {
  const long long number = gs_thread(), row = gs_row(number, count, rows);
  if (row >= 0) windows[number] = Index((c_indptr[row + 1] - c_indptr[row] + window - 1) / window);
}

// The position of a column in an increasing list of `size` columns, which contains it.
template <class Index> __device__ __forceinline__ int gs_place(const Index *columns, int size, Index column) {
  int low = 0;
  for (int rest = size; rest > 1;) {  // the column is in columns[low : low + rest]
    const int half = rest / 2;
    if (columns[low + half] <= column) low += half;
    rest -= half;
  }
  return low;
}

// The sums of wide rows of C: block b has a window of entries of the n-th wide row, for which first_window[n] <= b <
// first_window[n + 1]. Blocks from first_window[count] on have nothing to do. The flags (ZeroFlag) become 1 if a sum is 0,
// unless they are null.
template <class T, class Index>
GS_KERNEL_FOR(GS_WIDE_THREADS, 3) spgemm_values_wide(long long count, const Index *__restrict__ rows,
                                                     const Index *__restrict__ first_window, GS_FACTORS,
                                                     const Index *__restrict__ c_indptr,
                                                     const Index *__restrict__ c_indices, T *__restrict__ c_data,
                                                     unsigned *__restrict__ has_zeros,
                                                     long long *__restrict__ host_flag) {
  const long long block = blockIdx.x;
  if (block >= first_window[count]) return;
  const int WINDOW = Window<T>::entries, STEPS = 4, LANES = GS_WIDE_LANES, GROUPS = GS_WIDE_GROUPS;
  typedef typename Numbers<Index, LANES>::type Number;
  GS_SHARED(Index, columns, WINDOW);
  GS_SHARED(T, all_sums, GROUPS *WINDOW);
  GS_SHARED(Number, ends, GS_WIDE_THREADS);
  GS_SHARED(Number, shifts, GS_WIDE_THREADS);
  GS_SHARED(Number, stops, GS_WIDE_THREADS);
  const long long number = gs_row_at(count - 1, block, [&](long long n) { return first_window[n]; });
  const long long row = gs_row(number, count, rows), window = block - first_window[number];
  const Index first = c_indptr[row] + Index(window * WINDOW), rest = c_indptr[row + 1] - first;
  const int size = rest < WINDOW ? int(rest) : int(WINDOW), group = threadIdx.x / LANES;
  const bool is_whole = first_window[number + 1] - first_window[number] == 1;
  for (int e = threadIdx.x; e < size; e += GS_WIDE_THREADS) columns[e] = c_indices[first + e];
  for (int e = threadIdx.x; e < GROUPS * WINDOW; e += GS_WIDE_THREADS) all_sums[e] = Scalar<T>::zero();
  __syncthreads();
  T *const sums = all_sums + group * WINDOW;
  const long long a_begin = a_indptr[row], a_length = a_indptr[row + 1] - a_begin;
  const long long begin = a_begin + a_length * group / GROUPS, end = a_begin + a_length * (group + 1) / GROUPS;
  const auto range = [&](long long k, Index *from, Index *stop) {
    const Index inner = a_indices[k];
    *from = b_indptr[inner];
    *stop = b_indptr[inner + 1];
    if (is_whole) return;
    *from = gs_lower_bound(b_indices, *from, *stop, columns[0]);
    *stop = gs_lower_bound(b_indices, *from, *stop, static_cast<long long>(columns[size - 1]) + 1);
  };
  gs_visit_products<LANES, STEPS, Index>(
      begin, end - begin, range,
      Chunk<Number>{ends + group * LANES, shifts + group * LANES, stops + group * LANES, static_cast<Number *>(nullptr)},
      [&](long long k, Number, Number, const int *entries, const Index *places) {
        T products[STEPS];
        int slots[STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          slots[step] = 0;
          products[step] = Scalar<T>::zero();
          if (places[step] < 0) continue;
          slots[step] = gs_place(columns, size, b_indices[places[step]]);
          products[step] = gs_fma(a_data[k + entries[step]], b_data[places[step]], Scalar<T>::zero());
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
          gs_add_in_turn<LANES>(places[step] >= 0, entries[step], slots[step], products[step], sums);
      });
  __syncthreads();
  for (int e = threadIdx.x; e < size; e += GS_WIDE_THREADS) {
    T sum = all_sums[e];
#pragma unroll
    for (int g = 1; g < GROUPS; ++g) sum = gs_add(sum, all_sums[g * WINDOW + e]);
    c_data[first + e] = sum;
    if (has_zeros && gs_equal(sum, Scalar<T>::zero())) ZeroFlag{has_zeros, host_flag}.raise();
  }
}
