// setup_rows.cu - decide where rows go: long rows for CSR, slices for blocked ELLPACK; and copy entries to their
// positions there.
//
// In the kernels named place_*, a block owns a part of the rows. The survey has counted what is in each part, so that
// the block knows where its output begins (parts.cuh). Its threads own neighbouring rows, one each at a time, and find
// their places among the block's by scans through shared memory (one value for each warp). Row pointers are read
// coalesced.
#include "parts.cuh"

// List the rows that are longer than limit number `which` of the survey, with the begin and end of their entries, and
// the numbers of their chunks. If `first` is not negative, their entries will be copied to positions from `first` on,
// each row to whole runs of GS_WARP positions; otherwise the entries stay in CSR.
template <class Index>
GS_KERNEL_FOR(GS_TILE_THREADS, 4)
place_long_rows(long long num_rows, long long part_rows, int which, long long first,
                          const Index *__restrict__ indptr, const long long *__restrict__ parts, int *__restrict__ rows,
                          long long *__restrict__ begins, long long *__restrict__ ends, int *__restrict__ first_chunk,
                          int *__restrict__ chunk_rows) {
  GS_SHARED(long long, sums, GS_TILE_WARPS);
  const int counter = GS_LONG + 2 * which;
  const bool is_last = blockIdx.x == gridDim.x - 1;
  if (!is_last && !parts[static_cast<long long>(blockIdx.x) * GS_COUNTS + counter]) return;
  const long long limit = static_cast<long long>(GS_FIRST_LIMIT) << which;
  long long place = gs_before(parts + counter, GS_COUNTS, sums);
  long long chunk = gs_before(parts + counter + 1, GS_COUNTS, sums);
  long long position = first + gs_before(parts + GS_LONG_POSITIONS, GS_COUNTS, sums);
  for (long long at = blockIdx.x * part_rows; at < (blockIdx.x + 1) * part_rows; at += blockDim.x) {
    const long long row = at + threadIdx.x;
    const long long length = row < num_rows ? gs_row_length(indptr, row) : 0;
    const bool is_long = length > limit;
    long long num_long, num_chunks, num_positions;
    const long long i = place + gs_scan<Sum>(static_cast<long long>(is_long), sums, &num_long);
    if (!num_long) continue;
    const long long c = chunk + gs_scan<Sum>(is_long ? gs_chunks(length) : 0ll, sums, &num_chunks);
    const long long p = position + gs_scan<Sum>(is_long ? gs_whole_runs(length) : 0ll, sums, &num_positions);
    if (is_long) {
      rows[i] = int(row);
      begins[i] = first < 0 ? static_cast<long long>(indptr[row]) : p;
      ends[i] = begins[i] + length;
      first_chunk[i] = int(c);
      for (long long j = 0; j < gs_chunks(length); ++j) chunk_rows[c + j] = int(i);
    }
    place += num_long;
    chunk += num_chunks;
    position += num_positions;
  }
  if (is_last && threadIdx.x == 0) first_chunk[place] = int(chunk);
}

// Write a record for each chunk of the long rows, a thread each.
template <class Row>
GS_KERNEL list_chunks(int num_chunks, const Row *__restrict__ rows, const long long *__restrict__ begins,
                      const long long *__restrict__ ends, const int *__restrict__ first_chunk,
                      const int *__restrict__ chunk_rows, Chunk *__restrict__ chunks) {
  const long long number = gs_thread();
  if (number >= num_chunks) return;
  const int place = chunk_rows[number], first = first_chunk[place];
  Chunk chunk;
  chunk.begin = begins[place] + (number - first) * GS_CHUNK;
  const long long left = ends[place] - chunk.begin;
  chunk.size = left < GS_CHUNK ? int(left) : int(GS_CHUNK);
  chunk.row = rows[place];
  chunk.place = place;
  chunk.first = first;
  chunk.chunks = first_chunk[place + 1] - first;
  chunk.unused = 0;
  chunks[number] = chunk;
}

// Rows that are sorted together, by one block (gsparse.kernels.gpu.SORTING_SCOPE).
enum { GS_SCOPE = 1024 };

// Sort the rows of each scope by decreasing length, and rows of equal length in order, by a bitonic sort of (length,
// row) in shared memory (GS_SCOPE keys). Long rows, and places past the last row, come last, as -1. `counts` receives
// the number of positions of slices, for each part of the rows and then for all rows; it is 0 at first.
template <class Index>
GS_KERNEL sort_rows(int num_rows, int num_places, long long long_length, const Index *__restrict__ indptr,
                    long long part_rows, int num_parts, int *__restrict__ rows, Count *__restrict__ counts) {
  GS_SHARED(Count, keys, GS_SCOPE);
  const Count excluded = 1ull << 63;  // a key above those of all rows that take part
  const long long first = static_cast<long long>(blockIdx.x) * GS_SCOPE;
  for (int i = threadIdx.x; i < GS_SCOPE; i += blockDim.x) {
    const long long length = first + i < num_rows ? gs_row_length(indptr, first + i) : long_length + 1;
    keys[i] = (length > long_length ? excluded : Count(0x7fffffffll - length) << 16) + i;
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
    if (first + i < num_places) rows[first + i] = keys[i] >= excluded ? -1 : int(first + (keys[i] & 0xffff));
  // The first row of a slice is its longest.
  const int slice = int(threadIdx.x) * GS_WARP;
  long long positions = 0;
  if (slice < GS_SCOPE && keys[slice] < excluded)
    positions = GS_WARP * (0x7fffffffll - static_cast<long long>(keys[slice] >> 16));
  positions = gs_group_sum<GS_WARP>(positions);
  if (threadIdx.x % GS_WARP || !positions) return;
  atomicAdd(counts + first / part_rows, Count(positions));
  atomicAdd(counts + num_parts, Count(positions));
}

// Write where each slice begins. A warp owns a slice. Its number of positions is its number of rows times the length of
// its longest row. `counts` has the positions of each part. `rows` is the order of the rows, or null. If `short_rows`
// is not null, it receives the rows in natural order, with -1 for long rows and past the last row.
template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS)
place_slices(long long num_rows, long long part_rows, long long num_slices, long long long_length, int stride,
                       const long long *__restrict__ counts, const int *__restrict__ rows,
                       const Index *__restrict__ indptr, long long *__restrict__ offsets,
                       int *__restrict__ short_rows) {
  GS_SHARED(long long, sums, GS_TILE_WARPS);
  long long position = gs_before(counts, stride, sums);
  for (long long at = blockIdx.x * part_rows; at < (blockIdx.x + 1) * part_rows; at += blockDim.x) {
    const long long place = at + threadIdx.x, slice = place / GS_WARP;
    const bool inside = slice < num_slices;
    long long row = -1, num_positions;
    const long long length = inside ? gs_row_at(place, num_rows, long_length, rows, indptr, &row) : 0;
    const long long longest = gs_group_max<GS_WARP>(length);
    const bool is_first = inside && place % GS_WARP == 0;
    const long long offset = position + gs_scan<Sum>(is_first ? longest * GS_WARP : 0ll, sums, &num_positions);
    if (is_first) offsets[slice] = offset;
    if (inside && short_rows)
      short_rows[place] = row < num_rows && gs_row_length(indptr, row) <= long_length ? int(row) : -1;
    position += num_positions;
  }
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) offsets[num_slices] = position;
}

// Copy items of the rows, columns or values, to the positions of ELLPACK or of slices. A thread owns a place: it writes
// its row's items, then padding. Writes are coalesced; reads are not, because each thread walks a row. For ELLPACK,
// `slice_offsets` is null: it is one slice of `pitch` rows that is `width` wide.
template <class Item, class Index>
GS_KERNEL lay_out(long long num_rows, long long num_places, long long long_length, const int *__restrict__ rows,
                  const long long *__restrict__ slice_offsets, long long pitch, int width,
                  const Index *__restrict__ indptr, const Item *__restrict__ items, Item padding,
                  Item *__restrict__ out) {
  const long long place = gs_thread();
  if (place >= num_places) return;
  long long row;
  const long long length = gs_row_at(place, num_rows, long_length, rows, indptr, &row);
  const Item *row_items = items + (length ? indptr[row] : 0);
  if (slice_offsets) {
    const long long slice = place / GS_WARP, offset = slice_offsets[slice];
    width = int((slice_offsets[slice + 1] - offset) / GS_WARP);
    out += offset + place % GS_WARP;
  } else {
    out += place;
  }
#pragma unroll 4
  for (int j = 0; j < width; ++j) out[j * pitch] = j < length ? row_items[j] : padding;
}

// Copy the items of the long rows, each row from its own position on, with padding to the end of its last run. A warp
// owns a chunk; reads and writes are coalesced.
template <class Item, class Index>
GS_KERNEL lay_out_long(int num_chunks, const Chunk *__restrict__ chunks, const Index *__restrict__ indptr,
                       const Item *__restrict__ items, Item padding, Item *__restrict__ out) {
  const int number = int(gs_thread() / GS_WARP);
  if (number >= num_chunks) return;
  const Chunk chunk = chunks[number];
  const Item *row_items = items + indptr[chunk.row] + static_cast<long long>(number - chunk.first) * GS_CHUNK;
  const long long size = gs_whole_runs(chunk.size);
  for (long long k = threadIdx.x % GS_WARP; k < size; k += GS_WARP)
    out[chunk.begin + k] = k < chunk.size ? row_items[k] : padding;
}

// ---------------------------------------------------------------------------- lanes of rows
//
// The entries of each row in frequent columns, and their positions (gsparse.formats.row_lanes).
//
// A warp owns a row and reads neighbouring entries (coalesced). A ballot numbers the entries in frequent columns among
// the lanes. No shared memory is used. `numbers` is null if no column is frequent.

// The number of a column that is not frequent.
enum { GS_RARE = 0xFFFF };

// Return the number of lanes before this lane in which the condition holds.
__device__ __forceinline__ int gs_lanes_before(bool condition) {
  const unsigned long long lanes = gs_ballot(condition);
  return gs_num_bits(lanes & ((1ull << threadIdx.x % GS_WARP) - 1));
}

// Return the number of lanes of a row of this length: see `lane_rows` of gsparse.kernels.set_up.
__device__ __forceinline__ long long gs_lanes_of_row(long long length, long long most_steps) {
  const long long wanted = (length + most_steps - 1) / most_steps;
  if (wanted > GS_WARP) return (wanted + GS_WARP - 1) / GS_WARP * GS_WARP;
  long long lanes = 1;
  while (lanes < wanted) lanes *= 2;
  return lanes;
}

// found = four arrays over the rows: a key, the number of lanes, and their steps with frequent and with rare columns.
// Keys sort rows by decreasing number of lanes, then of all steps, then of frequent steps. There are fewer than 2**20
// lanes and 2**21 steps.
template <class Index>
GS_KERNEL lane_rows(long long num_rows, long long most_steps, const Index *__restrict__ indptr,
                   const Index *__restrict__ indices, const unsigned short *__restrict__ numbers,
                   long long *__restrict__ found) {
  const long long row = gs_thread() / GS_WARP;
  if (row >= num_rows) return;
  const long long length = indptr[row + 1] - indptr[row];
  long long frequent = 0;
  for (long long k = indptr[row] + threadIdx.x % GS_WARP; numbers && k < indptr[row + 1]; k += GS_WARP)
    frequent += numbers[indices[k]] != GS_RARE;
  frequent = gs_group_sum<GS_WARP>(frequent);
  if (threadIdx.x % GS_WARP) return;
  const long long lanes = gs_lanes_of_row(length, most_steps);
  const long long frequent_steps = (frequent + lanes - 1) / lanes, rare_steps = (length - frequent + lanes - 1) / lanes;
  found[row] = -((lanes << 42) + ((frequent_steps + rare_steps) << 21) + frequent_steps);
  found[row + num_rows] = lanes;
  found[row + 2 * num_rows] = frequent_steps;
  found[row + 3 * num_rows] = rare_steps;
}

// positions[k] = the position of entry k. All frequent positions precede the rare positions.
template <class Index>
GS_KERNEL lane_positions(long long num_rows, long long num_frequent_positions, int group, const Index *__restrict__ indptr,
                        const Index *__restrict__ indices, const unsigned short *__restrict__ numbers,
                        const long long *__restrict__ places, const int *__restrict__ all_lanes,
                        const long long *__restrict__ frequent_offsets, const long long *__restrict__ rare_offsets,
                        long long *__restrict__ positions) {
  const long long row = gs_thread() / GS_WARP;
  if (row >= num_rows) return;
  const long long place = places[row], begin = indptr[row], length = indptr[row + 1] - begin;
  const int lanes = all_lanes[place / GS_WARP];
  long long num_frequent = 0;
  for (long long first = 0; first < length; first += GS_WARP) {
    const long long j = first + threadIdx.x % GS_WARP;
    const bool is_frequent = j < length && numbers && numbers[indices[begin + j]] != GS_RARE;
    const long long before = num_frequent + gs_lanes_before(is_frequent);
    num_frequent += gs_num_lanes(is_frequent);
    if (j >= length) continue;
    const long long number = is_frequent ? before : j - before, lane = place + number % lanes;
    const long long offset = is_frequent ? frequent_offsets[lane / GS_WARP]
                                         : num_frequent_positions + rare_offsets[lane / GS_WARP];
    const long long step = number / lanes, size = is_frequent ? 1 : group;
    positions[begin + j] = offset + step / size * size * GS_WARP + lane % GS_WARP * size + step % size;
  }
}
