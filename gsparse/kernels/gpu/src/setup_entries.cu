// setup_entries.cu - what is known of columns and values before they are encoded, and their encodings.
#include "entries.cuh"

typedef unsigned long long Count;

// The smallest and largest column of a warp's run; padding, which is negative, aside. All lanes get both.
template <class Column> __device__ __forceinline__ void gs_run_limits(Column column, long long *low, long long *high) {
  long long least = column < 0 ? 0x7fffffffffffffffll : static_cast<long long>(column);
  long long most = column;
#pragma unroll
  for (int d = GS_WARP / 2; d > 0; d >>= 1) {
    const long long a = gs_shfl_down(least, d, GS_WARP), b = gs_shfl_down(most, d, GS_WARP);
    if (a < least) least = a;
    if (b > most) most = b;
  }
  *low = gs_shfl(least, 0, GS_WARP);
  *high = gs_shfl(most, 0, GS_WARP);
}

// The largest distance between two columns of one run. A warp takes run after run and tells its maximum once.
template <class Column>
GS_KERNEL run_span(long long num_positions, const Column *__restrict__ columns, Count *__restrict__ span) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  long long widest = 0;
  for (long long first = gs_thread() / GS_WARP * GS_WARP; first < num_positions; first += step) {
    const long long k = first + threadIdx.x % GS_WARP;
    long long low, high;
    gs_run_limits(k < num_positions ? columns[k] : Column(-1), &low, &high);
    if (high - low > widest) widest = high - low;  // (a run of padding alone: negative)
  }
  if (threadIdx.x % GS_WARP == 0) atomicMax(span, Count(widest));
}

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

__device__ __forceinline__ Count gs_mix(Count h, Count word) {  // (the finalizer of splitmix64)
  h = (h ^ word) + 0x9e3779b97f4a7c15ull;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
  return h ^ (h >> 31);
}

// A hash of each row: its length, its offsets (column minus row) and, where `words` a value is not 0, its values' bits.
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

// Whether each row has exactly what the representative of its code has: told[0] becomes 1 where one has not. After it
// come the lengths of the representatives.
template <class Index, class Word, class Code>
GS_KERNEL rows_follow(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices, int words,
                      const Word *__restrict__ values, const Code *__restrict__ codes,
                      int num_codes, const long long *__restrict__ representatives, int *__restrict__ told) {
  const long long row = gs_thread();
  if (row < num_codes) told[1 + row] = int(indptr[representatives[row] + 1] - indptr[representatives[row]]);
  if (row >= num_rows) return;
  const long long other = representatives[codes[row]];
  const long long begin = indptr[row], length = indptr[row + 1] - begin, theirs = indptr[other];
  bool same = static_cast<long long>(indptr[other + 1]) - theirs == length;
#pragma unroll 4
  for (long long k = 0; same && k < length; ++k)
    same = static_cast<long long>(indices[begin + k]) - row == static_cast<long long>(indices[theirs + k]) - other;
#pragma unroll 4
  for (long long w = 0; same && w < length * words; ++w) same = values[begin * words + w] == values[theirs * words + w];
  if (!same && !gs_fresh(told)) atomicMax(told, 1);
}

// The offsets and, where `words` a value is not 0, the values of each representative: a warp each.
template <class Index, class Word>
GS_KERNEL gather_rows(int num_rows, const long long *__restrict__ representatives, const int *__restrict__ places,
                      const Index *__restrict__ indptr, const Index *__restrict__ indices, int words,
                      const Word *__restrict__ values, int *__restrict__ offsets, Word *__restrict__ gathered) {
  const long long number = gs_thread() / GS_WARP, lane = threadIdx.x % GS_WARP;
  if (number >= num_rows) return;
  const long long row = representatives[number], from = indptr[row], length = indptr[row + 1] - from;
  const long long to = places[number];
  for (long long k = lane; k < length; k += GS_WARP)
    offsets[to + k] = int(static_cast<long long>(indices[from + k]) - row);
  for (long long w = lane; w < length * words; w += GS_WARP) gathered[to * words + w] = values[from * words + w];
}

// The distinct ones among many keys, by a table with open addressing whose free slots are 0: whoever puts a key there
// lists it, and where it stood; `found` counts them. A key of 0 has the slot after the last. Nobody goes on once there are
// more than `limit`. The order in which they are listed is any: the host sorts them. Each block remembers in shared memory
// keys that it knows to be listed.
enum { GS_SLOTS = 8192, GS_KNOWN = 1024, GS_PROBES = 4 };
template <class Key>
GS_KERNEL collect_keys(long long num_keys, const Key *__restrict__ keys, int limit, Count *table, Count *found,
                       Count *__restrict__ listed) {
  GS_SHARED(Count, known, GS_KNOWN);
  for (int i = threadIdx.x; i < GS_KNOWN; i += blockDim.x) known[i] = 0;
  __syncthreads();
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long k = gs_thread(); k < num_keys; k += step) {
    const Count key = Count(keys[k]), word = key ? key : 1, hash = gs_mix(0, key);
    Count *const mine = known + hash % GS_KNOWN, before = gs_fresh(mine);
    if (key && before == key) continue;
    Count slot = key ? hash / GS_KNOWN % GS_SLOTS : Count(GS_SLOTS);
    for (int probes = 0;; ++probes, slot = (slot + 1) % GS_SLOTS) {
      Count seen = gs_fresh(table + slot);
      if (seen == word) break;
      // (threads that all passed the test below at once may fill the table)
      if ((!seen || probes >= GS_PROBES) && gs_fresh(found) > Count(limit)) return;
      if (seen) continue;
      seen = atomicCAS(table + slot, Count(0), word);
      if (seen == word) break;
      if (seen) continue;
      const Count place = atomicAdd(found, Count(1));
      if (place >= Count(limit)) return;
      listed[2 * place] = key;
      listed[2 * place + 1] = Count(k);
      break;
    }
    if (key) atomicCAS(mine, before, key);
  }
}

// The place of each key in a sorted table that has them all.
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

// Whether each float64 comes back from float32 with the same bits: `differs` becomes 1 where one may not. Subnormal
// float32 values may be flushed by what casts them, and a NaN may change.
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

// ---- magnitudes: of a complex number the larger of its two parts, which cannot overflow
template <class R> __device__ __forceinline__ double gs_size(R a) {
  const double wide = static_cast<double>(a);
  return wide < 0 ? -wide : wide;
}
template <class R> __device__ __forceinline__ double gs_size(Complex<R> a) {
  const double re = gs_size(a.re), im = gs_size(a.im);
  return re > im ? re : im;
}
template <class R> __device__ __forceinline__ bool gs_near(R a, R b, double allowed) {
  return gs_size(static_cast<double>(a) - static_cast<double>(b)) <= allowed;
}
template <class R> __device__ __forceinline__ bool gs_near(Complex<R> a, Complex<R> b, double allowed) {
  return gs_near(a.re, b.re, allowed) && gs_near(a.im, b.im, allowed);
}
template <class Index, class Stored>
__device__ __forceinline__ double gs_largest(const Stored *__restrict__ data, Index begin, Index end) {
  double largest = 0;
  for (Index k = begin; k < end; ++k) {
    const double size = gs_size(data[k]);
    largest = size > largest ? size : largest;
  }
  return largest;
}

// Whether each entry (i, j) has an equal one (conjugated where asked) at (j, i): `differs` becomes 1 where one has not.
// With a `tolerance` above 0 the two may differ by this fraction of the largest magnitude in either row, and an entry
// that is not stored counts as 0. A thread owns a row; columns rise strictly within rows.
template <class Index, class Stored>
GS_KERNEL mirrored(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                   const Stored *__restrict__ data, int conjugate, double tolerance, int *__restrict__ differs) {
  const long long row = gs_thread();
  if (row >= num_rows || gs_fresh(differs)) return;
  const double allowed = tolerance > 0 ? tolerance * gs_largest(data, indptr[row], indptr[row + 1]) : 0;
  for (Index k = indptr[row]; k < indptr[row + 1]; ++k) {
    const Index begin = indptr[indices[k]], end = indptr[indices[k] + 1];
    Index low = begin, high = end;
    while (low < high) {
      const Index middle = low + (high - low) / 2;
      if (indices[middle] < row) low = middle + 1;
      else high = middle;
    }
    const bool is_stored = low < end && indices[low] == row;
    const Stored other = is_stored ? data[low] : Scalar<Stored>::zero();
    const Stored mirror = conjugate ? Scalar<Stored>::conjugate(other) : other;
    bool is_alike = is_stored && Scalar<Stored>::equal(data[k], mirror);
    if (!is_alike && tolerance > 0) {
      is_alike = gs_near(data[k], mirror, allowed);
      // No thread of the other row compares an entry that is not stored there.
      if (!is_stored) is_alike = is_alike && gs_size(data[k]) <= tolerance * gs_largest(data, begin, end);
    }
    if (!is_alike) {
      atomicMax(differs, 1);
      return;
    }
  }
}
