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

// Whether each row has exactly what the representative of its code has: `differs` becomes 1 where one has not.
template <class Index, class Word, class Code>
GS_KERNEL rows_follow(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices, int words,
                      const Word *__restrict__ values, const Code *__restrict__ codes,
                      const long long *__restrict__ representatives, int *__restrict__ differs) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  const long long other = representatives[codes[row]];
  const long long begin = indptr[row], length = indptr[row + 1] - begin, theirs = indptr[other];
  bool same = static_cast<long long>(indptr[other + 1]) - theirs == length;
#pragma unroll 4
  for (long long k = 0; same && k < length; ++k)
    same = static_cast<long long>(indices[begin + k]) - row == static_cast<long long>(indices[theirs + k]) - other;
#pragma unroll 4
  for (long long w = 0; same && w < length * words; ++w) same = values[begin * words + w] == values[theirs * words + w];
  if (!same) atomicMax(differs, 1);
}

// The place of each key in a sorted table; keys that are not there are counted and the first MAX_MISSING kept.
template <class Key, class Code>
GS_KERNEL encode_keys(long long num_keys, const Key *__restrict__ keys, int table_size, const Key *__restrict__ table,
                      Code *__restrict__ codes, int max_missing, int *__restrict__ num_missing,
                      Key *__restrict__ missing) {
  const long long k = gs_thread();
  if (k >= num_keys) return;
  const Key key = keys[k];
  int low = 0, high = table_size;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (gs_ldg(table + middle) < key) low = middle + 1;
    else high = middle;
  }
  codes[k] = Code(low);
  if (low < table_size && gs_ldg(table + low) == key) return;
  if (gs_fresh(num_missing) >= max_missing) return;  // (atomics of all threads on one word would take long)
  const int place = atomicAdd(num_missing, 1);
  if (place < max_missing) missing[place] = key;
}

// Whether each entry (i, j) has an equal one (conjugated where asked) at (j, i): `differs` becomes 1 where one has not.
// Columns rise strictly within rows.
template <class Index, class Stored>
GS_KERNEL mirrored(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                   const Stored *__restrict__ data, int conjugate, int *__restrict__ differs) {
  const long long row = gs_thread();
  if (row >= num_rows || gs_fresh(differs)) return;
  for (Index k = indptr[row]; k < indptr[row + 1]; ++k) {
    Index low = indptr[indices[k]], high = indptr[indices[k] + 1];
    const Index end = high;
    while (low < high) {
      const Index middle = low + (high - low) / 2;
      if (indices[middle] < row) low = middle + 1;
      else high = middle;
    }
    if (low == end || indices[low] != row ||
        !Scalar<Stored>::equal(data[k], conjugate ? Scalar<Stored>::conjugate(data[low]) : data[low])) {
      atomicMax(differs, 1);
      return;
    }
  }
}
