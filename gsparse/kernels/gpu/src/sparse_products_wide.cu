// sparse_products_wide.cu - rows of a product of two sparse matrices that no table in shared memory holds.
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
#include "products.cuh"
#include "tiles.cuh"

// Words of a window of columns, a bit for each column.
enum { GS_BIT_WORDS = 1024, GS_WINDOW_COLUMNS = 32 * GS_BIT_WORDS };
// Entries of C in a window (half as many if a value has 16 bytes), lanes of a group, threads of a block, and the groups
// that share the values of a window.
enum { GS_WINDOW_ENTRIES = 512, GS_WIDE_LANES = 32, GS_WIDE_THREADS = 256, GS_WIDE_GROUPS = GS_WIDE_THREADS / GS_WIDE_LANES };
template <class T> struct Window { enum { entries = sizeof(T) > 8 ? GS_WINDOW_ENTRIES / 2 : GS_WINDOW_ENTRIES }; };

// ---------------------------------------------------------------------------- columns

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
                                                const Index *__restrict__ rows, const Index *__restrict__ a_indptr,
                                                const Index *__restrict__ a_indices,
                                                const Index *__restrict__ b_indptr,
                                                const Index *__restrict__ b_indices, int *__restrict__ counts,
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
                                                  const Index *__restrict__ rows, const Index *__restrict__ a_indptr,
                                                  const Index *__restrict__ a_indices,
                                                  const Index *__restrict__ b_indptr,
                                                  const Index *__restrict__ b_indices,
                                                  const int *__restrict__ counts, const Index *__restrict__ c_indptr,
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

// ---------------------------------------------------------------------------- values

// windows[n] = the number of windows of entries of the n-th wide row, of `window` entries each.
template <class Index>
GS_KERNEL count_windows(int window, long long count, const Index *__restrict__ rows, const Index *__restrict__ c_indptr,
                        Index *__restrict__ windows) {
  const long long number = gs_thread(), row = gs_row(number, count, rows);
  if (row >= 0) windows[number] = Index((c_indptr[row + 1] - c_indptr[row] + window - 1) / window);
}

// The place of a column among `size` rising ones, which hold it.
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
                                                    const Index *__restrict__ first_window,
                                                    const Index *__restrict__ a_indptr,
                                                    const Index *__restrict__ a_indices, const T *__restrict__ a_data,
                                                    const Index *__restrict__ b_indptr,
                                                    const Index *__restrict__ b_indices, const T *__restrict__ b_data,
                                                    const Index *__restrict__ c_indptr,
                                                    const Index *__restrict__ c_indices, T *__restrict__ c_data,
                                                    unsigned *__restrict__ has_zeros, long long *__restrict__ host_flag) {
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
