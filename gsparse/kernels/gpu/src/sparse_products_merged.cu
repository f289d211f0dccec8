// sparse_products_merged.cu - the product of two sparse matrices whose rows are short or about equally long: the rows
// of B that make up a row of C = A·B are merged in registers.
//
// A group of lanes owns a row of C. Each lane has up to LISTS rows of B, and keeps the next column of each, its head,
// in a register. The group finds the least head, which is the next column of C. Each row of B with this head then moves
// on to its next column:
//
//      rows of B          4  7  8    2  7    9      head    4    2    9
//      merged             2  4  7  8  9
//      slots              1  2  3    0  2    4      the place of each product's column within the row of C
//      product number     0  1  2    3  4    5
//
// So columns come out sorted, without a table and without a sort. Merging needs the structures alone. It leaves the
// size of each row and, if wanted, the slot of each product. To fill C, each product is then added to the sum in its
// slot, in the order of A's row. Lanes of a group have consecutive products of one row of B, whose slots differ.
// Neither the lanes of a group nor the number of rows that are filled at a time change that order, so they change no
// bits.
//
// Results are staged in shared memory and copied to C side by side: threads that wrote rows of their own to C took four
// times as long on an H200.
//
// Reads: to merge, the structures of A and B; to fill, A, B, and a byte for each product. Rows of B that several rows
// of C share are mostly in the caches. Writes: a byte for each product; C once.
#include "products.cuh"

// The most entries of a row of C: slots are bytes.
enum { GS_MOST_SLOTS = 256 };

// The largest value of an index. It marks a row of B of which all entries have been taken.
template <class Index> struct Greatest { static const Index value = Index(~(1ull << (8 * sizeof(Index) - 1))); };

// Merges rows first_row to first_row + num_rows - 1 of C. sizes[row] receives the number of columns, unless `sizes` is
// null. If SLOTS is 1, `places` receives the slots: `pitch` bytes (a multiple of four) for each row of the launch, with
// the slot of product t in byte t. Slots are staged in shared memory, in blockDim.x / LANES * pitch bytes. If
// `has_zeros` is not null, it is set to 0 for the following kernels.
template <class Index, int LISTS, int LANES, int SLOTS>
GS_KERNEL_OF(GS_PRODUCT_THREADS) spgemm_merge(long long first_row, long long num_rows, int pitch, GS_STRUCTURES,
                                              Index *__restrict__ sizes, unsigned *__restrict__ slots,
                                              unsigned *__restrict__ has_zeros) {
  GS_DYN_SHARED(unsigned, staged);
  const Index NONE = Greatest<Index>::value;
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES, num_groups = blockDim.x / LANES;
  const long long first_of_block = static_cast<long long>(blockIdx.x) * num_groups, number = first_of_block + group;
  const bool is_row = number < num_rows;
  const long long row = first_row + number, begin = is_row ? a_indptr[row] : 0;
  const int length = is_row ? int(a_indptr[row + 1] - begin) : 0;
  unsigned char *const slots_of_row = reinterpret_cast<unsigned char *>(staged) + group * pitch;
  Index heads[LISTS], places[LISTS], ends[LISTS];
  int numbers[LISTS], num_products = 0;  // of the next product of each list, and of all lists so far
#pragma unroll
  for (int t = 0; t < LISTS; ++t) {
    const int entry = t * LANES + lane;
    places[t] = ends[t] = 0;
    heads[t] = NONE;
    if (entry < length) {
      const Index inner = a_indices[begin + entry];
      places[t] = b_indptr[inner];
      ends[t] = b_indptr[inner + 1];
      if (places[t] < ends[t]) heads[t] = b_indices[places[t]];
    }
    if (SLOTS) {
      const int size = int(ends[t] - places[t]);
      const int end = num_products + gs_inclusive_sum<LANES>(size, static_cast<int *>(nullptr));
      numbers[t] = end - size;
      num_products = LANES == 1 ? end : gs_shfl(end, LANES - 1, LANES);
    }
  }
  int size = 0;
  for (;;) {
    Index column = heads[0];
#pragma unroll
    for (int t = 1; t < LISTS; ++t) column = heads[t] < column ? heads[t] : column;
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) {
      const Index other = gs_shfl(column, lane ^ d, LANES);
      column = other < column ? other : column;
    }
    // All groups of a warp go on until the last one has finished, because a shuffle needs all lanes.
    if (LANES == 1 ? column == NONE : !gs_any(column != NONE)) break;
#pragma unroll
    for (int t = 0; t < LISTS; ++t) {
      if (heads[t] != column || (LANES > 1 && column == NONE)) continue;
      if (SLOTS) slots_of_row[numbers[t]++] = static_cast<unsigned char>(size);
      const Index place = ++places[t];
      heads[t] = place < ends[t] ? b_indices[place] : NONE;
    }
    size += column != NONE;
  }
  if (has_zeros && blockIdx.x == 0 && threadIdx.x == 0) *has_zeros = 0;
  if (sizes && is_row && lane == 0) sizes[row] = Index(size);
  if (!SLOTS) return;
  __syncthreads();
  const long long rest = num_rows - first_of_block, words = pitch / 4;
  const int num_words = int((rest < num_groups ? rest : num_groups) * words);
  for (int i = threadIdx.x; i < num_words; i += blockDim.x) slots[first_of_block * words + i] = staged[i];
}

// ---------------------------------------------------------------------------- values

// Entry k of A's row, and the row of B that it multiplies.
template <class T, class Index> struct Factor {
  T value;
  Index from;
  int size;
};

// Adds the products of a row of C, in the order of A's row, to sums[slot]; columns[slot] becomes the column if STRUCTURE
// is 1. Rows of the same warp may have different numbers of entries in A, among them none.
template <int LANES, int STRUCTURE, class T, class Index>
__device__ __forceinline__ void gs_add_row(long long begin, int length, Structures<Index> s, const T *__restrict__ a_data,
                                           const T *__restrict__ b_data, const unsigned char *__restrict__ slots, T *sums,
                                           Index *columns) {
  const int STEPS = 2, lane = threadIdx.x % LANES;
  const auto factor_of = [&](int k) {
    Factor<T, Index> factor = {Scalar<T>::zero(), 0, 0};
    if (k < length) {
      const Index inner = s.a_indices[begin + k];
      factor.value = a_data[begin + k];
      factor.from = s.b_indptr[inner];
      factor.size = int(s.b_indptr[inner + 1] - factor.from);
    }
    return factor;
  };
  Factor<T, Index> next = factor_of(0);
  for (int k = 0; LANES == 1 ? k < length : gs_any(k < length); ++k) {
    const Factor<T, Index> factor = next;
    next = factor_of(k + 1);  // (its loads run while this row of B is added)
    for (int first = lane; first < factor.size; first += STEPS * LANES) {
      T products[STEPS];
      Index columns_of[STEPS];
      int slots_of[STEPS];
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        const int j = first + step * LANES;
        slots_of[step] = -1;
        if (j >= factor.size) continue;
        slots_of[step] = slots[j];
        if (STRUCTURE) columns_of[step] = s.b_indices[factor.from + j];
        products[step] = gs_fma(factor.value, b_data[factor.from + j], Scalar<T>::zero());
      }
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        if (slots_of[step] < 0) continue;
        sums[slots_of[step]] = gs_add(sums[slots_of[step]], products[step]);
        if (STRUCTURE) columns[slots_of[step]] = columns_of[step];
      }
    }
    slots += factor.size;
    if (LANES > 1) gs_syncwarp();  // so that other lanes may add to the same sums
  }
}

// Fills rows first_row to first_row + num_rows - 1 of C, whose slots spgemm_merge has left; the flags (ZeroFlag) become 1
// if a sum is 0. If STRUCTURE is 0, only the sums are written. Shared memory holds `capacity` sums, and columns behind
// them if STRUCTURE is 1. If the rows of a block have more entries than that, the block adds in C itself.
template <class T, class Index, int LANES, int STRUCTURE>
GS_KERNEL_OF(GS_PRODUCT_THREADS) spgemm_add_merged(long long first_row, long long num_rows, int pitch, int capacity,
                                                   const unsigned char *__restrict__ slots, GS_PRODUCT) {
  GS_DYN_SHARED(T, staged_sums);
  Index *const staged_columns = reinterpret_cast<Index *>(staged_sums + capacity);
  const int num_groups = blockDim.x / LANES;
  const long long first_of_block = static_cast<long long>(blockIdx.x) * num_groups;
  const long long number = first_of_block + threadIdx.x / LANES, rest = num_rows - first_of_block;
  const long long first = first_row + first_of_block, row = first_row + number;
  const bool is_row = number < num_rows;
  const long long base = c_indptr[first];
  const int total = int(c_indptr[first + (rest < num_groups ? rest : num_groups)] - base);
  const long long begin = is_row ? a_indptr[row] : 0;
  const int length = is_row ? int(a_indptr[row + 1] - begin) : 0, place = is_row ? int(c_indptr[row] - base) : 0;
  const Structures<Index> structures = {a_indptr, a_indices, b_indptr, b_indices};
  const unsigned char *const slots_of_row = slots + (is_row ? number * pitch : 0);
  const bool is_staged = total <= capacity;
  T *const sums = c_data + base;
  Index *const columns = c_indices + base;
  int num_zeros = 0;
  if (is_staged) {
    for (int e = threadIdx.x; e < total; e += blockDim.x) staged_sums[e] = Scalar<T>::zero();
    __syncthreads();
    gs_add_row<LANES, STRUCTURE>(begin, length, structures, a_data, b_data, slots_of_row, staged_sums + place,
                                 staged_columns + place);
    __syncthreads();
    for (int e = threadIdx.x; e < total; e += blockDim.x) {
      const T sum = staged_sums[e];
      gs_store_once(sums + e, sum);
      if (STRUCTURE) gs_store_once(columns + e, staged_columns[e]);
      num_zeros += gs_equal(sum, Scalar<T>::zero());
    }
  } else {
    for (int e = threadIdx.x; e < total; e += blockDim.x) sums[e] = Scalar<T>::zero();
    __syncthreads();
    gs_add_row<LANES, STRUCTURE>(begin, length, structures, a_data, b_data, slots_of_row, sums + place, columns + place);
    __syncthreads();
    for (int e = threadIdx.x; e < total; e += blockDim.x) num_zeros += gs_equal(sums[e], Scalar<T>::zero());
  }
  if (STRUCTURE && num_zeros) ZeroFlag{has_zeros, host_flag}.raise();
}
