// sparse_products_tables.cu - rows of a product of two sparse matrices (products.cuh) whose entries fit into a table.
//
// A group of lanes has a table with open addressing in shared memory (Nagasaka, Nukada, Matsuoka 2017):
//
//     keys   7  .  2  .  8  9  4  .    columns of C
//     sums   s  .  s  .  s  s  s  .    and their sums
//
// count: each lane claims a slot for its column. The number of claimed slots is the size of the row.
// fill: the same, then each lane adds to the sum in its slot. The table is sorted and written to C.
//
// Claiming is the only atomic operation. Sums have a fixed order, so the same input gives the same bits.
//
// Reads: A, and the row of B for each entry of A (from the caches where rows of C share rows of B), in count and in fill.
// Writes: C once.
#include "products.cuh"

// A column as a key of the table, and the key of a free slot, which is greater than any column.
template <class Index> struct TableKey { typedef unsigned type; };
template <> struct TableKey<long long> { typedef unsigned long long type; };

// Columns of a stencil are sums of a few distances, which a single multiplication would bring to neighbouring slots.
// (the last steps of MurmurHash3, Appleby 2011)
__device__ __forceinline__ unsigned gs_hash(unsigned column) {
  column = (column ^ column >> 15) * 0x85ebca6bu;
  column = (column ^ column >> 13) * 0xc2b2ae35u;
  return column ^ column >> 16;
}

// The slot of a column; `is_new` says whether this lane has claimed it. The distance between the slots that are tried
// also depends on the column. With neighbouring slots, a table that is half full would have long runs of taken slots,
// and all lanes would wait for the lane in the longest run.
template <int SLOTS, class Key> __device__ __forceinline__ int gs_claim(Key *keys, Key column, bool *is_new) {
  const unsigned hash = gs_hash(unsigned(column));
  int slot = hash % SLOTS;
  const int distance = int(hash / SLOTS % SLOTS) | 1;
  for (;;) {
    Key key = gs_fresh(keys + slot);
    if (key == Key(-1)) key = atomicCAS(keys + slot, Key(-1), column);
    *is_new = key == Key(-1);
    if (*is_new || key == column) return slot;
    slot = (slot + distance) % SLOTS;
  }
}

// The number of distinct columns of the rows of C that a table holds.
template <class Index, int GROUP, int SLOTS>
GS_KERNEL_OF(GS_PRODUCT_THREADS) spgemm_count(long long count, const Index *__restrict__ rows, GS_STRUCTURES,
                                              Index *__restrict__ sizes) {
  typedef typename TableKey<Index>::type Key;
  typedef typename Numbers<Index, GROUP>::type Number;
  typedef Lanes<GROUP> Group;
  const int STEPS = GROUP == 8 ? 8 : 4, PADDING = GROUP < 32 ? GROUP : 0;
  const int group = threadIdx.x / GROUP, lane = Group::number();
  GS_SHARED(Key, tables, GS_PRODUCT_THREADS / GROUP * (SLOTS + PADDING));
  GS_SHARED(Number, ends, GS_PRODUCT_THREADS);
  GS_SHARED(Number, shifts, GS_PRODUCT_THREADS);
  GS_SHARED(Number, stops, GS_PRODUCT_THREADS);
  GS_SHARED(Number, warp_sums, GS_PRODUCT_THREADS / 32);
  Key *const keys = tables + group * (SLOTS + PADDING);
  const long long row = gs_row(gs_thread() / GROUP, count, rows);
  for (int slot = lane; slot < SLOTS; slot += GROUP) keys[slot] = Key(-1);
  Group::sync();
  Number distinct = 0;
  gs_visit_row<GROUP, STEPS>(
      row, Structures<Index>{a_indptr, a_indices, b_indptr, b_indices},
      Chunk<Number>{ends + group * GROUP, shifts + group * GROUP, stops + group * GROUP, warp_sums},
      [&](long long, Number, Number, const int *, const Index *places) {
        Key columns[STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) columns[step] = places[step] < 0 ? Key(-1) : Key(b_indices[places[step]]);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          bool is_new = false;
          if (places[step] >= 0) gs_claim<SLOTS>(keys, columns[step], &is_new);
          distinct += is_new;
        }
      });
  distinct = gs_inclusive_sum<GROUP>(distinct, warp_sums);
  if (row >= 0 && lane == GROUP - 1) sizes[row] = Index(distinct);
}

// Sorts n keys, a power of two, and what belongs to them (Batcher's bitonic sort).
template <int GROUP, class Key> __device__ __forceinline__ void gs_sort(int n, Key *keys, unsigned short *slots) {
#pragma unroll 1
  for (int size = 2; size <= n; size *= 2)
#pragma unroll 1
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int pair = Lanes<GROUP>::number(); pair < n / 2; pair += GROUP) {
        const int i = 2 * pair - (pair & (stride - 1)), j = i + stride;
        const Key low = keys[i], high = keys[j];
        if ((low > high) == ((i & size) == 0)) {
          const unsigned short slot = slots[i];
          keys[i] = high;
          keys[j] = low;
          slots[i] = slots[j];
          slots[j] = slot;
        }
      }
      Lanes<GROUP>::sync();
    }
}

// The slots of the `size` columns of a table, in the order of the columns. `columns` and `slots` are scratch memory.
template <int GROUP, int SLOTS, class Key>
__device__ __forceinline__ void gs_order_table(int size, const Key *keys, Key *columns, unsigned short *slots,
                                               unsigned short *order, int *warp_sums) {
  typedef Lanes<GROUP> Group;
  const int lane = Group::number(), own = SLOTS / GROUP;
  int taken = 0;
#pragma unroll
  for (int i = 0; i < own; ++i) taken += keys[i * GROUP + lane] != Key(-1);
  int place = gs_inclusive_sum<GROUP>(taken, warp_sums) - taken;
#pragma unroll
  for (int i = 0; i < own; ++i) {
    const Key key = keys[i * GROUP + lane];
    if (key == Key(-1)) continue;
    columns[place] = key;
    slots[place++] = static_cast<unsigned short>(i * GROUP + lane);
  }
  Group::sync();
  if (SLOTS > 256) {
    int n = 1;
    while (n < size) n *= 2;
    for (int e = size + lane; e < n; e += GROUP) columns[e] = Key(-1);
    Group::sync();
    gs_sort<GROUP>(n, columns, slots);
    for (int e = lane; e < size; e += GROUP) order[e] = slots[e];
  } else {
    // The place of a column is the number of smaller columns. Each lane finds the places of four columns at the same
    // time.
    for (int first = lane; first < size; first += 4 * GROUP) {
      Key mine[4];
      int smaller[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < 4; ++i) mine[i] = first + i * GROUP < size ? columns[first + i * GROUP] : Key(0);
#pragma unroll 4
      for (int e = 0; e < size; ++e) {
        const Key other = columns[e];
#pragma unroll
        for (int i = 0; i < 4; ++i) smaller[i] += other < mine[i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + i * GROUP < size) order[smaller[i]] = slots[first + i * GROUP];
    }
  }
  Group::sync();
}

// Columns and sums of the rows of C that a table holds; the flags (ZeroFlag) become 1 if a sum is 0. If STRUCTURE is 0,
// the columns are in C, and only the sums are written.
template <class T, class Index, int GROUP, int SLOTS, int STRUCTURE>
GS_KERNEL_FOR(GS_PRODUCT_THREADS, 6) spgemm_fill(long long count, const Index *__restrict__ rows, GS_PRODUCT) {
  typedef typename TableKey<Index>::type Key;
  typedef typename Numbers<Index, GROUP>::type Number;
  typedef Lanes<GROUP> Group;
  const int STEPS = 4, NUM_GROUPS = GS_PRODUCT_THREADS / GROUP;
  const int PADDING = GROUP < 32 ? GROUP : 0;  // so that the groups of a warp use different banks of shared memory
  const int group = threadIdx.x / GROUP, lane = Group::number();
  GS_SHARED(Key, all_keys, NUM_GROUPS *(SLOTS + PADDING));
  GS_SHARED(T, all_sums, NUM_GROUPS *SLOTS);
  GS_SHARED(Key, all_columns, NUM_GROUPS *(SLOTS + 1));
  GS_SHARED(unsigned short, all_slots, NUM_GROUPS *SLOTS);
  GS_SHARED(unsigned short, all_order, NUM_GROUPS *SLOTS);
  GS_SHARED(Number, ends, GS_PRODUCT_THREADS);
  GS_SHARED(Number, shifts, GS_PRODUCT_THREADS);
  GS_SHARED(Number, stops, GS_PRODUCT_THREADS);
  GS_SHARED(Number, warp_sums, GS_PRODUCT_THREADS / 32);
  GS_SHARED(int, warp_counts, GS_PRODUCT_THREADS / 32);
  Key *const keys = all_keys + group * (SLOTS + PADDING), *const columns = all_columns + group * (SLOTS + 1);
  T *const sums = all_sums + group * SLOTS;
  unsigned short *const order = all_order + group * SLOTS;
  const long long row = gs_row(gs_thread() / GROUP, count, rows);
  const Index begin = row < 0 ? Index(0) : c_indptr[row];
  const int size = row < 0 ? 0 : int(c_indptr[row + 1] - begin);
  for (int slot = lane; slot < SLOTS; slot += GROUP) {
    keys[slot] = Key(-1);
    sums[slot] = Scalar<T>::zero();
  }
  Group::sync();
  if (!STRUCTURE) {
    bool is_new;
    for (int e = lane; e < size; e += GROUP)
      order[e] = static_cast<unsigned short>(gs_claim<SLOTS>(keys, Key(c_indices[begin + e]), &is_new));
    Group::sync();
  }
  gs_visit_row<GROUP, STEPS>(
      row, Structures<Index>{a_indptr, a_indices, b_indptr, b_indices},
      Chunk<Number>{ends + group * GROUP, shifts + group * GROUP, stops + group * GROUP, warp_sums},
      [&](long long k, Number total, Number base, const int *entries, const Index *places) {
        Key keys_of[STEPS];
        T products[STEPS];
        int slots[STEPS];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          keys_of[step] = Key(-1);
          products[step] = Scalar<T>::zero();
          if (places[step] < 0) continue;
          keys_of[step] = Key(b_indices[places[step]]);
          products[step] = gs_fma(a_data[k + entries[step]], b_data[places[step]], Scalar<T>::zero());
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          bool is_new;
          slots[step] = places[step] < 0 ? 0 : gs_claim<SLOTS>(keys, keys_of[step], &is_new);
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
          const int entry = entries[step];
          if (Group::in_warp) {
            gs_add_in_turn<GROUP>(places[step] >= 0, entry, slots[step], products[step], sums);
          } else {
            const Number from = base + step * GROUP, to = from + GROUP < total ? from + GROUP : total;
            if (from >= total) break;
            const int last = gs_entry_of<GROUP>(ends, to - 1);
            for (int turn = gs_entry_of<GROUP>(ends, from); turn <= last; ++turn) {
              if (entry == turn && places[step] >= 0) sums[slots[step]] = gs_add(sums[slots[step]], products[step]);
              __syncthreads();
            }
          }
        }
      });
  if (STRUCTURE) gs_order_table<GROUP, SLOTS>(size, keys, columns, all_slots + group * SLOTS, order, warp_counts);
  int num_zeros = 0;
  for (int e = lane; e < size; e += GROUP) {
    const int slot = order[e];
    const T sum = sums[slot];
    if (STRUCTURE) c_indices[begin + e] = Index(keys[slot]);
    c_data[begin + e] = sum;
    num_zeros += gs_equal(sum, Scalar<T>::zero());
  }
  if (STRUCTURE && num_zeros) ZeroFlag{has_zeros, host_flag}.raise();
}
