// setup_entries.cu - encode columns, values and rows in fewer bytes (entries.cuh, spmv_pattern.cu), and examine
// beforehand whether that is possible; whether a matrix is symmetric.
//
// A thread owns a position, a key or a row, as each kernel says. If a thread owns several, it takes every step-th one,
// so that positions and keys are read coalesced. Only collect_keys uses shared memory.
#include "entries.cuh"
#include "order.cuh"

typedef unsigned long long Count;

// Store the smallest and the largest column of a warp's run, without padding, which is negative. All lanes get both.
template <class Column> __device__ __forceinline__ void gs_run_limits(Column column, long long *low, long long *high) {
  const long long least = column < 0 ? 0x7fffffffffffffffll : static_cast<long long>(column), most = column;
  *low = gs_of_first<GS_WARP>(gs_group_min<GS_WARP>(least));
  *high = gs_of_first<GS_WARP>(gs_group_max<GS_WARP>(most));
}

// Find the largest distance between two columns of one run. A warp owns every step-th run, and reports its maximum
// once.
template <class Column>
GS_KERNEL run_span(long long num_positions, const Column *__restrict__ columns, Count *__restrict__ span) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  long long widest = 0;
  for (long long first = gs_thread() / GS_WARP * GS_WARP; first < num_positions; first += step) {
    const long long k = first + threadIdx.x % GS_WARP;
    long long low, high;
    gs_run_limits(k < num_positions ? columns[k] : Column(-1), &low, &high);
    if (high - low > widest) widest = high - low;  // negative for a run of padding only
  }
  if (threadIdx.x % GS_WARP == 0) atomicMax(span, Count(widest));
}

// Write the base of each run, its smallest column, and the distance of each column from it. A thread owns a position.
template <class Column, class Code>
GS_KERNEL encode_columns(long long num_positions, const Column *__restrict__ columns, int *__restrict__ bases,
                         Code *__restrict__ codes) {
  const long long k = gs_thread();
  const Column column = k < num_positions ? columns[k] : Column(-1);
  long long low, high;
  gs_run_limits(column, &low, &high);
  if (k >= num_positions) return;
  if (high < 0) low = 0;
  if (k % GS_WARP == 0) bases[k / GS_WARP] = int(low);
  codes[k] = column < 0 ? Code(-1) : Code(column - low);
}

// Add a word to a hash: the finalizer of splitmix64 (G. Steele, D. Lea and C. Flood, OOPSLA 2014).
__device__ __forceinline__ Count gs_mix(Count h, Count word) {
  h = (h ^ word) + 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

// Hash each row: its length, its offsets (column minus row) and the bits of its values. A value has `words` words; if
// this is 0, values are left out. A thread owns a row.
template <class Index, class Word>
GS_KERNEL row_keys(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices, int words,
                   const Word *__restrict__ values, Count *__restrict__ keys) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  const Index begin = indptr[row], end = indptr[row + 1];
  Count h = gs_mix(0, Count(end - begin));
#pragma unroll 4
  for (Index k = begin; k < end; ++k) h = gs_mix(h, Count(static_cast<long long>(indices[k]) - row));
#pragma unroll 4
  for (long long w = static_cast<long long>(begin) * words; w < static_cast<long long>(end) * words; ++w)
    h = gs_mix(h, Count(values[w]));
  keys[row] = h;
}

// Compare each row with the representative of its code. result[0] becomes 1 if a row differs in length, offsets or
// values. The lengths of the representatives follow in `result`. A thread owns a row.
template <class Index, class Word, class Code>
GS_KERNEL rows_follow(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                      int words, const Word *__restrict__ values, const Code *__restrict__ codes,
                      int num_codes, const long long *__restrict__ representatives, int *__restrict__ result) {
  const long long row = gs_thread();
  if (row < num_codes) result[1 + row] = int(indptr[representatives[row] + 1] - indptr[representatives[row]]);
  if (row >= num_rows) return;
  const long long other = representatives[codes[row]];
  const long long begin = indptr[row], length = indptr[row + 1] - begin, other_begin = indptr[other];
  bool same = static_cast<long long>(indptr[other + 1]) - other_begin == length;
#pragma unroll 4
  for (long long k = 0; same && k < length; ++k)
    same = static_cast<long long>(indices[begin + k]) - row == static_cast<long long>(indices[other_begin + k]) - other;
#pragma unroll 4
  for (long long w = 0; same && w < length * words; ++w)
    same = values[begin * words + w] == values[other_begin * words + w];
  if (!same && !gs_fresh(result)) atomicMax(result, 1);
}

// Copy the offsets of each representative row, and its values unless `words` is 0. A warp owns a row; `places` says
// where it goes. Reads and writes are coalesced.
template <class Index, class Word>
GS_KERNEL gather_rows(int num_rows, const long long *__restrict__ representatives, const int *__restrict__ places,
                      const Index *__restrict__ indptr, const Index *__restrict__ indices, int words,
                      const Word *__restrict__ values, int *__restrict__ offsets, Word *__restrict__ gathered) {
  const long long number = gs_thread() / GS_WARP, lane = threadIdx.x % GS_WARP;
  if (number >= num_rows) return;
  const long long row = representatives[number], begin = indptr[row], length = indptr[row + 1] - begin;
  const long long place = places[number];
  for (long long k = lane; k < length; k += GS_WARP)
    offsets[place + k] = int(static_cast<long long>(indices[begin + k]) - row);
  for (long long w = lane; w < length * words; w += GS_WARP) gathered[place * words + w] = values[begin * words + w];
}

// List the distinct keys among many. They are collected in `table`, a hash table with open addressing: a free slot is
// 0, and a key of 0 has a slot of its own after the others. The thread that puts a key into the table also appends it
// to `listed`, with its position; `count` is the number of keys listed. All threads stop once there are more than
// `limit`. The order of the list varies, so that the host sorts it. Each block keeps keys that it has seen in the table
// in shared memory (`known`, GS_KNOWN keys), to read the table less often.
enum { GS_SLOTS = 8192, GS_KNOWN = 1024, GS_PROBES = 4 };
template <class Key>
GS_KERNEL collect_keys(long long num_keys, const Key *__restrict__ keys, int limit, Count *table, Count *count,
                       Count *__restrict__ listed) {
  GS_SHARED(Count, known, GS_KNOWN);
  for (int i = threadIdx.x; i < GS_KNOWN; i += blockDim.x) known[i] = 0;
  __syncthreads();
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long k = gs_thread(); k < num_keys; k += step) {
    const Count key = Count(keys[k]), word = key ? key : 1, hash = gs_mix(0, key);
    Count *const cached = known + hash % GS_KNOWN, before = gs_fresh(cached);
    if (key && before == key) continue;
    Count slot = key ? hash / GS_KNOWN % GS_SLOTS : Count(GS_SLOTS);
    for (int probes = 0;; ++probes, slot = (slot + 1) % GS_SLOTS) {
      Count seen = gs_fresh(table + slot);
      if (seen == word) break;
      // The limit is also tested after a few occupied slots: the table may be full, because many threads may have
      // passed the test at the same time.
      if ((!seen || probes >= GS_PROBES) && gs_fresh(count) > Count(limit)) return;
      if (seen) continue;
      seen = atomicCAS(table + slot, Count(0), word);
      if (seen == word) break;
      if (seen) continue;
      const Count place = atomicAdd(count, Count(1));
      if (place >= Count(limit)) return;
      listed[2 * place] = key;
      listed[2 * place + 1] = Count(k);
      break;
    }
    if (key) atomicCAS(cached, before, key);
  }
}

// Find the index of each key in a sorted table that contains them all, by binary search. A thread owns a key.
template <class Key, class Code>
GS_KERNEL encode_keys(long long num_keys, const Key *__restrict__ keys, int table_size, const Key *__restrict__ table,
                      Code *__restrict__ codes) {
  const long long k = gs_thread();
  if (k >= num_keys) return;
  const Key key = keys[k];
  int low = 0, high = table_size - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (gs_ldg(table + middle) < key) low = middle + 1;
    else high = middle;
  }
  codes[k] = Code(low);
}

// Test whether each float64 keeps its bits when it is converted to float32 and back: `differs` becomes 1 if one may
// not. Values that would be subnormal in float32 count as changed, because a conversion may flush them to zero, and so
// does NaN. The bits are tested as integers; a thread owns every step-th word.
template <class Word>
GS_KERNEL survive(long long num_words, const Word *__restrict__ words, int *__restrict__ differs) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long k = gs_thread(); k < num_words; k += step) {
    const Count bits = Count(words[k]), magnitude = bits & 0x7fffffffffffffffull;
    const bool is_normal = magnitude >= 0x3810000000000000ull && magnitude <= 0x47efffffe0000000ull;
    const bool is_special = magnitude == 0 || magnitude == 0x7ff0000000000000ull;
    if (is_special || (is_normal && !(bits & 0x1fffffffull))) continue;
    if (!gs_fresh(differs)) atomicMax(differs, 1);
    return;
  }
}

// ---- symmetry
template <class R> __device__ __forceinline__ bool gs_near(R a, R b, double allowed) {
  return gs_extent(static_cast<double>(a) - static_cast<double>(b)) <= allowed;
}
template <class R> __device__ __forceinline__ bool gs_near(Complex<R> a, Complex<R> b, double allowed) {
  return gs_near(a.re, b.re, allowed) && gs_near(a.im, b.im, allowed);
}
template <class Index, class Stored>
__device__ __forceinline__ double gs_largest(const Stored *__restrict__ data, Index begin, Index end) {
  double largest = 0;
  for (Index k = begin; k < end; ++k) {
    const double size = gs_extent(data[k]);
    largest = size > largest ? size : largest;
  }
  return largest;
}

// Test whether each entry (i, j) equals the entry (j, i), or its conjugate if `conjugate` is true; otherwise `differs`
// becomes 1. If `tolerance` is positive, the two may differ by this fraction of the largest magnitude in either row,
// and a missing entry counts as 0. A thread owns a row; columns increase strictly within rows.
template <class Index, class Stored>
GS_KERNEL mirrored(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                   const Stored *__restrict__ data, int conjugate, double tolerance, int *__restrict__ differs) {
  const long long row = gs_thread();
  if (row >= num_rows || gs_fresh(differs)) return;
  const double allowed = tolerance > 0 ? tolerance * gs_largest(data, indptr[row], indptr[row + 1]) : 0;
  for (Index k = indptr[row]; k < indptr[row + 1]; ++k) {
    const Index begin = indptr[indices[k]], end = indptr[indices[k] + 1];
    const Index low = gs_lower_bound(indices, begin, end, row);
    const bool is_stored = low < end && indices[low] == row;
    const Stored other = is_stored ? data[low] : Scalar<Stored>::zero();
    const Stored mirror = conjugate ? Scalar<Stored>::conjugate(other) : other;
    bool is_alike = is_stored && gs_equal(data[k], mirror);
    if (!is_alike && tolerance > 0) {
      is_alike = gs_near(data[k], mirror, allowed);
      // The thread of the other row does not see this pair, because the entry is not stored there: test its row here.
      if (!is_stored) is_alike = is_alike && gs_extent(data[k]) <= tolerance * gs_largest(data, begin, end);
    }
    if (!is_alike) {
      atomicMax(differs, 1);
      return;
    }
  }
}
