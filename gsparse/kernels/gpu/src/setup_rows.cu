// setup_rows.cu - what is known of rows before a format is made of them, and where their entries go:
// measure, sort by length, count slices, lay entries out.
#include "long_rows.cuh"

typedef unsigned long long Count;

template <class Index> __device__ __forceinline__ long long gs_row_length(const Index *indptr, long long row) {
  return static_cast<long long>(indptr[row + 1] - indptr[row]);
}

__device__ __forceinline__ long long gs_warp_max(long long v) {
#pragma unroll
  for (int d = GS_WARP / 2; d > 0; d >>= 1) {
    const long long other = gs_shfl_down(v, d, GS_WARP);
    if (other > v) v = other;
  }
  return v;
}

// Statistics of all rows, eight numbers that begin at 0 (gsparse.kernels): the complement of the shortest length, the
// longest, empty rows, the sum of squares, places in slices, places without long rows, long rows, their entries.
// A warp takes a slice after another and tells what it found once; all of it is integers, so the order does not matter.
template <class Index>
GS_KERNEL measure_rows(long long num_rows, long long num_slices, long long long_length,
                       const Index *__restrict__ indptr, Count *__restrict__ found) {
  const int lane = threadIdx.x % GS_WARP;
  const long long warps = static_cast<long long>(gridDim.x) * blockDim.x / GS_WARP;
  long long shortest = 0, longest = 0, places = 0, split_places = 0;  // (shortest: the largest complement)
  long long empty = 0, squares = 0, num_long = 0, long_entries = 0;
  for (long long slice = gs_thread() / GS_WARP; slice < num_slices; slice += warps) {
    const long long row = slice * GS_WARP + lane;
    const bool owned = row < num_rows;
    const long long length = owned ? gs_row_length(indptr, row) : 0;
    const bool is_long = length > long_length;
    if (owned) {
      const long long complement = 0x7fffffffffffffffll - length;
      if (complement > shortest) shortest = complement;
      if (length > longest) longest = length;
      empty += length == 0;
      squares += length * length;
      num_long += is_long;
      long_entries += is_long ? length : 0;
    }
    places += GS_WARP * gs_warp_max(length);
    split_places += GS_WARP * gs_warp_max(is_long ? 0 : length);
  }
  shortest = gs_warp_max(shortest);
  longest = gs_warp_max(longest);
  empty = gs_group_sum<GS_WARP>(empty);
  squares = gs_group_sum<GS_WARP>(squares);
  num_long = gs_group_sum<GS_WARP>(num_long);
  long_entries = gs_group_sum<GS_WARP>(long_entries);
  if (lane) return;
  atomicMax(found, Count(shortest));
  atomicMax(found + 1, Count(longest));
  if (empty) atomicAdd(found + 2, Count(empty));
  atomicAdd(found + 3, Count(squares));
  atomicAdd(found + 4, Count(places));
  atomicAdd(found + 5, Count(split_places));
  if (num_long) atomicAdd(found + 6, Count(num_long));
  if (long_entries) atomicAdd(found + 7, Count(long_entries));
}

// Rows of a scope (gsparse.kernels.gpu.SORTING_SCOPE, a block each) by falling length, equal ones in order: a bitonic
// sort of (length, row). Long rows and what is past the last row come last, as -1.
enum { GS_SCOPE = 1024 };
template <class Index>
GS_KERNEL sort_rows(int num_rows, int num_places, long long long_length, const Index *__restrict__ indptr,
                    int *__restrict__ rows) {
  GS_SHARED(Count, keys, GS_SCOPE);
  const Count left_out = 1ull << 63;
  const long long first = static_cast<long long>(blockIdx.x) * GS_SCOPE;
  for (int i = threadIdx.x; i < GS_SCOPE; i += blockDim.x) {
    const long long length = first + i < num_rows ? gs_row_length(indptr, first + i) : long_length + 1;
    keys[i] = (length > long_length ? left_out : Count(0x7fffffffll - length) << 16) + i;
  }
  __syncthreads();
  for (int size = 2; size <= GS_SCOPE; size *= 2)
    for (int step = size / 2; step > 0; step /= 2) {
      for (int pair = threadIdx.x; pair < GS_SCOPE / 2; pair += blockDim.x) {
        const int low = 2 * pair - (pair & (step - 1)), high = low + step;
        const Count a = keys[low], b = keys[high];
        if ((a > b) == ((low & size) == 0)) { keys[low] = b; keys[high] = a; }
      }
      __syncthreads();
    }
  for (int i = threadIdx.x; i < GS_SCOPE; i += blockDim.x)
    if (first + i < num_places) rows[first + i] = keys[i] >= left_out ? -1 : int(first + (keys[i] & 0xffff));
}

// The row at a place of the slices (null: natural order) and its length there: 0 where none is, or a long row's.
template <class Index>
__device__ __forceinline__ long long gs_row_at(long long place, long long num_rows, long long long_length,
                                               const int *rows, const Index *indptr, long long *row) {
  *row = rows ? static_cast<long long>(rows[place]) : place;
  if (*row < 0 || *row >= num_rows) return 0;
  const long long length = gs_row_length(indptr, *row);
  return length > long_length ? 0 : length;
}

// Count: the places of each slice, its longest row times its rows.
template <class Index>
GS_KERNEL slice_sizes(long long num_rows, long long num_slices, long long long_length, const int *__restrict__ rows,
                      const Index *__restrict__ indptr, long long *__restrict__ sizes) {
  const long long place = gs_thread(), slice = place / GS_WARP;
  long long row;
  const bool inside = slice < num_slices;
  const long long longest = gs_warp_max(inside ? gs_row_at(place, num_rows, long_length, rows, indptr, &row) : 0);
  if (inside && place % GS_WARP == 0) sizes[slice] = longest * GS_WARP;
}

// Fill: a thread owns a place and writes its row's items, then padding. Writes are coalesced, reads are rows walked by
// one thread each. ELLPACK is one slice as high as `pitch` (slice_offsets: null) and `width` wide.
template <class Item, class Index>
GS_KERNEL lay_out(long long num_rows, long long num_places, long long long_length, const int *__restrict__ rows,
                  const long long *__restrict__ slice_offsets, long long pitch, int width,
                  const Index *__restrict__ indptr, const Item *__restrict__ items, Item padding,
                  Item *__restrict__ out) {
  const long long place = gs_thread();
  if (place >= num_places) return;
  long long row;
  const long long length = gs_row_at(place, num_rows, long_length, rows, indptr, &row);
  const Item *from = items + (length ? indptr[row] : 0);
  if (slice_offsets) {
    const long long slice = place / GS_WARP, offset = slice_offsets[slice];
    width = int((slice_offsets[slice + 1] - offset) / GS_WARP);
    out += offset + place % GS_WARP;
  } else {
    out += place;
  }
#pragma unroll 4
  for (int j = 0; j < width; ++j) out[j * pitch] = j < length ? from[j] : padding;
}

// The long rows, each from its own position on: a warp a chunk.
template <class Item, class Index>
GS_KERNEL lay_out_long(int num_chunks, const Chunk *__restrict__ chunks, const Index *__restrict__ indptr,
                       const Item *__restrict__ items, Item *__restrict__ out) {
  const int number = int(gs_thread() / GS_WARP);
  if (number >= num_chunks) return;
  const Chunk chunk = chunks[number];
  const Item *from = items + indptr[chunk.row] + static_cast<long long>(number - chunk.first) * GS_CHUNK;
  for (int k = threadIdx.x % GS_WARP; k < chunk.size; k += GS_WARP) out[chunk.begin + k] = from[k];
}
