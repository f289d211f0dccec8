// sparse_products_sorted.cu - rows of a product of two sparse matrices with up to 64 products (products.cuh), which are sorted
// by column in registers.
//
// Eight lanes have a row with at most 8 * REGISTERS products. Product t is in register t / 8 of lane t % 8, as a key whose
// upper part is the column and whose lowest six bits are t, so that sorted keys have the products of each column side by
// side, in the order of A's row.
//
//     products       b_27  b_94  b_72  b_75          their columns are 7, 4, 2 and 5
//     sorted keys    2|2   4|1   5|3   7|0           column | number of the product
//
// Sums have a fixed order, so the same input gives the same bits.
//
// Reads: A, and the row of B for each entry of A (from the caches where rows of C share rows of B), in count and in fill.
// Writes: C once.
#include "products.cuh"

enum { GS_SORT_LANES = 8, GS_NUMBER_BITS = 6 };

// Calls visit(r, t, k, place) for each product of a row: product t, the r-th one of this lane, is entry k of A times entry
// `place` of B. `ends` and `shifts` are for eight entries of A at a time.
template <int REGISTERS, class Index, class Visit>
__device__ __forceinline__ void gs_gather_products(long long row, Structures<Index> s, int *ends, Index *shifts, Visit visit) {
  const int lane = threadIdx.x % GS_SORT_LANES;
  const long long begin = row < 0 ? 0 : s.a_indptr[row], length = row < 0 ? 0 : s.a_indptr[row + 1] - begin;
  int gathered = 0;
  for (long long first = 0; gs_any(first < length); first += GS_SORT_LANES) {
    Index from = 0;
    int size = 0;
    if (first + lane < length) {
      const Index inner = s.a_indices[begin + first + lane];
      from = s.b_indptr[inner];
      size = int(s.b_indptr[inner + 1] - from);
    }
    const int end = gathered + gs_inclusive_sum<GS_SORT_LANES>(size, static_cast<int *>(nullptr));
    ends[lane] = end;
    shifts[lane] = from - Index(end - size);
    gs_syncwarp();
    const int total = ends[GS_SORT_LANES - 1];
#pragma unroll
    for (int r = 0; r < REGISTERS; ++r) {
      const int t = r * GS_SORT_LANES + lane;
      if (t < gathered || t >= total) continue;
      const int entry = gs_entry_of<GS_SORT_LANES>(ends, t);
      visit(r, t, begin + first + entry, shifts[entry] + Index(t));
    }
    gathered = total;
    gs_syncwarp();
  }
}

// Fills in the keys of a row, and calls visit(t, k, place) for each product. Registers without a product get the greatest
// key.
template <class Key, int REGISTERS, class Index, class Visit>
__device__ __forceinline__ void gs_gather_keys(long long row, Structures<Index> s, int *ends, Index *shifts, Key *keys,
                                               Visit visit) {
#pragma unroll
  for (int r = 0; r < REGISTERS; ++r) keys[r] = Key(-1);
  gs_gather_products<REGISTERS>(row, s, ends, shifts, [&](int r, int t, long long k, Index place) {
    keys[r] = Key(s.b_indices[place]) << GS_NUMBER_BITS | Key(t);
    visit(t, k, place);
  });
}

// Sorts the keys of eight lanes (Batcher's bitonic sort): key i is in register i / 8 of lane i % 8.
template <class Key, int REGISTERS> __device__ __forceinline__ void gs_sort_keys(Key *keys) {
  const int lane = threadIdx.x % GS_SORT_LANES;
#pragma unroll
  for (int size = 2; size <= REGISTERS * GS_SORT_LANES; size *= 2) {
#pragma unroll
    for (int stride = size / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int r = 0; r < REGISTERS; ++r) {
        if (stride >= GS_SORT_LANES) {
          const int other = r ^ (stride / GS_SORT_LANES);
          if (other < r) continue;
          const bool rises = (r * GS_SORT_LANES & size) == 0;
          const Key low = keys[r] < keys[other] ? keys[r] : keys[other], high = keys[r] < keys[other] ? keys[other] : keys[r];
          keys[r] = rises ? low : high;
          keys[other] = rises ? high : low;
        } else {
          const bool rises = ((r * GS_SORT_LANES + lane) & size) == 0, is_first = (lane & stride) == 0;
          const Key other = gs_shfl(keys[r], lane ^ stride, GS_SORT_LANES);
          const Key low = keys[r] < other ? keys[r] : other, high = keys[r] < other ? other : keys[r];
          keys[r] = rises == is_first ? low : high;
        }
      }
    }
  }
}

// The number of the product of a key.
template <class Key> __device__ __forceinline__ unsigned char gs_product_number(Key key) {
  return static_cast<unsigned char>(key & Key((1 << GS_NUMBER_BITS) - 1));
}

// Whether the key in each register is the first one of its column.
template <class Key, int REGISTERS> __device__ __forceinline__ void gs_mark_firsts(const Key *keys, bool *is_first) {
  const int lane = threadIdx.x % GS_SORT_LANES;
  Key last = Key(-1);  // the key of the last lane in the register before
#pragma unroll
  for (int r = 0; r < REGISTERS; ++r) {
    const Key rotated = gs_shfl(keys[r], (lane + GS_SORT_LANES - 1) % GS_SORT_LANES, GS_SORT_LANES);
    const Key before = lane == 0 ? last : rotated;
    is_first[r] = keys[r] != Key(-1) && (before == Key(-1) || before >> GS_NUMBER_BITS != keys[r] >> GS_NUMBER_BITS);
    last = rotated;  // (lane 0 has that of the last lane)
  }
}

// The number of entries of each row.
template <class Index, class Key, int REGISTERS>
GS_KERNEL_FOR(GS_PRODUCT_THREADS, 8) spgemm_count_sorted(long long count, const Index *__restrict__ rows, GS_STRUCTURES,
                                                         Index *__restrict__ sizes) {
  GS_SHARED(int, ends, GS_PRODUCT_THREADS);
  GS_SHARED(Index, shifts, GS_PRODUCT_THREADS);
  const int group = threadIdx.x / GS_SORT_LANES * GS_SORT_LANES;
  const long long row = gs_row(gs_thread() / GS_SORT_LANES, count, rows);
  Key keys[REGISTERS];
  gs_gather_keys<Key, REGISTERS>(row, Structures<Index>{a_indptr, a_indices, b_indptr, b_indices}, ends + group,
                                 shifts + group, keys, [](int, long long, Index) {});
  gs_sort_keys<Key, REGISTERS>(keys);
  bool is_first[REGISTERS];
  gs_mark_firsts<Key, REGISTERS>(keys, is_first);
  int entries = 0;
#pragma unroll
  for (int r = 0; r < REGISTERS; ++r) entries += is_first[r];
  entries = gs_inclusive_sum<GS_SORT_LANES>(entries, static_cast<int *>(nullptr));
  if (row >= 0 && threadIdx.x % GS_SORT_LANES == GS_SORT_LANES - 1) sizes[row] = Index(entries);
}

// Write the columns and sums of short rows of C. If a sum is 0, set the flags (ZeroFlag). If STRUCTURE is 0, write only
// sums.
template <class T, class Index, class Key, int REGISTERS, int STRUCTURE>
GS_KERNEL_OF(GS_PRODUCT_THREADS) spgemm_fill_sorted(long long count, const Index *__restrict__ rows, GS_PRODUCT) {
  const int MOST = REGISTERS * GS_SORT_LANES, NUM_GROUPS = GS_PRODUCT_THREADS / GS_SORT_LANES;
  GS_SHARED(int, ends, GS_PRODUCT_THREADS);
  GS_SHARED(Index, shifts, GS_PRODUCT_THREADS);
  GS_SHARED(T, all_products, NUM_GROUPS *(MOST + 1));  // (+ 1: the groups of a warp use different banks)
  GS_SHARED(unsigned char, all_numbers, NUM_GROUPS *MOST);
  GS_SHARED(unsigned char, all_firsts, NUM_GROUPS *MOST);
  const int group = threadIdx.x / GS_SORT_LANES, lane = threadIdx.x % GS_SORT_LANES;
  T *const products = all_products + group * (MOST + 1);
  unsigned char *const numbers = all_numbers + group * MOST, *const firsts = all_firsts + group * MOST;
  const long long row = gs_row(gs_thread() / GS_SORT_LANES, count, rows);
  Key keys[REGISTERS];
  gs_gather_keys<Key, REGISTERS>(row, Structures<Index>{a_indptr, a_indices, b_indptr, b_indices},
                                 ends + group * GS_SORT_LANES, shifts + group * GS_SORT_LANES, keys,
                                 [&](int t, long long k, Index place) {
                                   products[t] = gs_fma(a_data[k], b_data[place], Scalar<T>::zero());
                                 });
  gs_sort_keys<Key, REGISTERS>(keys);
  bool is_first[REGISTERS];
  gs_mark_firsts<Key, REGISTERS>(keys, is_first);
  // numbers[i] is the number of the product at place i of the sorted ones; firsts[e] is the first place of entry e of C.
  const Index begin = row < 0 ? Index(0) : c_indptr[row];
  int entries = 0, num_products = 0;
#pragma unroll
  for (int r = 0; r < REGISTERS; ++r) {
    const int shift = threadIdx.x % GS_WARP - lane;
    const unsigned marks = unsigned(gs_ballot(is_first[r]) >> shift) & 0xffu;
    const int entry = entries + gs_num_bits(marks & ((1u << lane) - 1u)), place = r * GS_SORT_LANES + lane;
    if (is_first[r]) {
      firsts[entry] = static_cast<unsigned char>(place);
      if (STRUCTURE) c_indices[begin + entry] = Index(keys[r] >> GS_NUMBER_BITS);
    }
    numbers[place] = gs_product_number(keys[r]);
    num_products += keys[r] != Key(-1);
    entries += gs_num_bits(marks);
  }
  num_products = gs_shfl(gs_inclusive_sum<GS_SORT_LANES>(num_products, static_cast<int *>(nullptr)), GS_SORT_LANES - 1,
                         GS_SORT_LANES);
  gs_syncwarp();
  int num_zeros = 0;
  for (int e = lane; e < entries; e += GS_SORT_LANES) {
    const int end = e + 1 < entries ? firsts[e + 1] : num_products;
    T sum = Scalar<T>::zero();
#pragma unroll 1  // (unrolled, int64 would not fit in the registers)
    for (int place = firsts[e]; place < end; ++place) sum = gs_add(sum, products[numbers[place]]);
    c_data[begin + e] = sum;
    num_zeros += gs_equal(sum, Scalar<T>::zero());
  }
  if (STRUCTURE && num_zeros) ZeroFlag{has_zeros, host_flag}.raise();
}
