// setup_survey.cu - one pass over the structure of a matrix: whether it is valid, statistics of its rows, and how much
// memory each way to share the work out needs. Also the dense blocks of a matrix: found and arranged
// (gsparse.formats.bsr).
//
// Each of the first `num_parts` blocks owns a part of the rows (parts.cuh), and its threads take one row at a time. All
// blocks share the columns, in runs of GS_WARP, which they read coalesced. Every thread collects its statistics in
// registers. The warps of a block combine these in shared memory with atomics (`facts`, one word for each statistic),
// and the blocks combine the results in global memory (`words`). All statistics are integers, so the order does not
// matter.
#include "parts.cuh"

// ---------------------------------------------------------------------------- sizes of blocks that rows contradict
//
// A matrix consists of aligned blocks of R x C elements that are full if
//   - rows come in groups of R with the same columns: row i has those of row i - 1 unless R divides i, and
//   - the columns of each row come in groups of C neighbours, of which the first is a multiple of C.
// The two conditions are independent of each other.

// The largest number of rows and columns of a block (gsparse.formats.bsr.MAX_BLOCK).
enum { GS_MAX_BLOCK = 8 };
// A bit for each number of rows, 2 to 8, and 16 places above it one for each number of columns.
enum : unsigned { GS_ALL_ROWS = 0x1fcu, GS_ALL_COLUMNS = 0x1fcu << 16 };

// Return a bit for each number of columns that the entry at `place` of a row contradicts. `before` is the column of the
// entry before it.
__device__ __forceinline__ unsigned gs_contradicted_columns(long long place, long long column, long long before) {
  unsigned bits = 0;
#pragma unroll
  for (int size = 2; size <= GS_MAX_BLOCK; ++size) {
    const bool begins = place % size == 0;
    if (begins ? column % size != 0 : column != before + 1) bits |= 1u << (16 + size);
  }
  return bits;
}

// Return a bit for each number, from 2 on, that does not divide `number`.
__device__ __forceinline__ unsigned gs_no_divisors(long long number) {
  unsigned bits = 0;
#pragma unroll
  for (int size = 2; size <= GS_MAX_BLOCK; ++size)
    if (number % size) bits |= 1u << size;
  return bits;
}

// Return a bit for each number of rows and of columns that a row contradicts, by the lengths and the first GS_MAX_BLOCK
// entries of this row and the one before it. Row pointers may be invalid: nothing outside of the `nnz` entries is read.
template <class Index>
__device__ __forceinline__ unsigned gs_first_contradictions(long long row, long long nnz, const Index *indptr,
                                                            const Index *indices) {
  const long long begin = indptr[row], length = gs_row_length(indptr, row);
  const long long before = row ? static_cast<long long>(indptr[row - 1]) : begin;
  if (before < 0 || begin < before || length < 0 || length > nnz - begin) return 0;
  const unsigned if_differs = gs_no_divisors(row);
  bool differs = row && begin - before != length;
  unsigned bits = gs_no_divisors(length) << 16;
  long long previous = -1;
  for (int place = 0; place < GS_MAX_BLOCK && place < length; ++place) {
    const long long column = indices[begin + place];
    bits |= gs_contradicted_columns(place, column, previous);
    if (row && !differs) differs = indices[before + place] != column;
    previous = column;
  }
  return differs ? bits | if_differs : bits;
}

// ---------------------------------------------------------------------------- the survey

// The statistics of the whole matrix, in words that are 0 at first. A maximum is stored as an unsigned number of the
// same order (gs_ordered), and a minimum as the complement of that number, so that atomicMax computes both, and 0 means
// "none". The span is never negative, so it is stored directly. The counts of all parts together follow (parts.cuh).
enum {
  GS_SHORTEST,      // the least and the greatest row length
  GS_LONGEST,
  GS_EMPTY,         // the number of empty rows
  GS_SQUARES,       // the sum of the squared row lengths
  GS_LONG_ENTRIES,  // the entries of rows longer than `long_length`
  GS_FALLS,         // the number of rows of negative length: row pointers that decrease
  GS_FIRST,         // the first and the last row pointer
  GS_LAST,
  GS_LOW,           // the least and the greatest column index
  GS_HIGH,
  GS_UNSORTED,      // the number of entries whose column is not greater than that of the entry before, in the same row
  GS_SPAN,          // the largest distance between two columns of one run
  GS_CONTRADICTED,  // the sizes of dense blocks that some rows of each part contradict, a bit for each (GS_ALL_ROWS)
  GS_FACTS
};

// Return an unsigned number that is ordered as the signed one.
__device__ __forceinline__ Count gs_ordered(long long v) { return Count(v) ^ 1ull << 63; }

// Combine a statistic of all lanes of the warp with the statistic of the block. All lanes must take part.
GS_CALLED void gs_combine_max(Count *facts, int fact, Count v) {
  v = gs_group_max<GS_WARP>(v);
  if (threadIdx.x % GS_WARP == 0 && v) atomicMax(facts + fact, v);
}
GS_CALLED void gs_combine_sum(Count *facts, int fact, long long v) {
  v = gs_group_sum<GS_WARP>(v);
  if (threadIdx.x % GS_WARP == 0 && v) atomicAdd(facts + fact, Count(v));
}

// Columns that a thread has in flight.
enum { GS_RUNS = 4 };

// Survey the columns, a warp for each run of GS_WARP entries: the smallest and the largest column, the widest run if
// `spans` is true, and the number of entries whose column is not larger than the one before.
template <class Index>
__device__ __forceinline__ void gs_survey_columns(long long nnz, const Index *__restrict__ indices, Count *facts,
                                                  bool spans) {
  const int lane = threadIdx.x % GS_WARP;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x * GS_RUNS;
  long long low = 0x7fffffffffffffffll, high = -low - 1, unsorted = 0, widest = 0;
  for (long long first = gs_thread() / GS_WARP * GS_WARP * GS_RUNS; first < nnz; first += step) {
    Index column[GS_RUNS];
#pragma unroll
    for (int i = 0; i < GS_RUNS; ++i) {
      const long long k = first + i * GS_WARP + lane;
      column[i] = indices[k < nnz ? k : nnz - 1];
    }
#pragma unroll
    for (int i = 0; i < GS_RUNS; ++i) {
      const long long k = first + i * GS_WARP + lane;
      const Index before = gs_shfl_up(column[i], 1, GS_WARP);
      if (k < nnz && k > 0) unsorted += column[i] <= (lane ? before : indices[k - 1]);
      Index least = column[i], most = column[i];
      if (spans) {  // positions past the end repeat the last column, which does not change the span of its run
        least = gs_group_min<GS_WARP>(least);
        most = gs_group_max<GS_WARP>(most);
        const long long span = static_cast<long long>(most) - static_cast<long long>(least);
        if (lane == 0 && span > widest) widest = span;
      }
      if (least < low) low = least;
      if (most > high) high = most;
    }
  }
  gs_combine_sum(facts, GS_UNSORTED, unsorted);
  if (nnz <= 0) return;
  gs_combine_max(facts, GS_SPAN, Count(widest));
  gs_combine_max(facts, GS_LOW, ~gs_ordered(low));
  gs_combine_max(facts, GS_HIGH, gs_ordered(high));
}

// The arrays of the matrix, and the part of the rows that a block surveys.
struct SurveyedRows {
  long long num_rows, part_rows;  // all rows, and those of a part
  long long nnz, long_length;     // entries, and the length above which a row is long
};

// Examine whether the first rows of part blockIdx.x contradict that the matrix consists of dense blocks. Most matrices
// without blocks are recognized by that, and are not examined again.
template <class Index>
__device__ __forceinline__ void gs_survey_block_sizes(const SurveyedRows &rows, const Index *__restrict__ indptr,
                                                      const Index *__restrict__ indices, Count *facts) {
  const long long row = blockIdx.x * rows.part_rows + threadIdx.x;
  if (threadIdx.x >= GS_MAX_BLOCK || row >= rows.num_rows) return;
  const unsigned bits = gs_first_contradictions(row, rows.nnz, indptr, indices);
  if (bits) atomicOr(facts + GS_CONTRADICTED, Count(bits));
}

// Survey the rows of part blockIdx.x, a thread for each row at a time: the extremes and sums of their lengths, and what
// each format will need for them. All threads of the block take part.
template <class Index>
__device__ __forceinline__ void gs_survey_rows(const SurveyedRows &rows, const Index *__restrict__ indptr,
                                               const Index *__restrict__ indices, Count *facts) {
  long long counts[GS_COUNTS] = {};
  long long shortest = 0x7fffffffffffffffll, longest = -shortest - 1;
  long long empty = 0, squares = 0, long_entries = 0, falls = 0, unsorted = 0;
  const long long end = (blockIdx.x + 1) * rows.part_rows;
  for (long long row = blockIdx.x * rows.part_rows + threadIdx.x; row < end; row += blockDim.x) {
    const bool owned = row < rows.num_rows;
    const long long length = owned ? gs_row_length(indptr, row) : 0;
    const bool is_long = length > rows.long_length;
    const long long width = gs_group_max<GS_WARP>(length), short_width = gs_group_max<GS_WARP>(is_long ? 0ll : length);
    if (!owned) continue;
    if (row % GS_WARP == 0) {  // only the first lane has the maximum of the slice
      counts[GS_SLICE_POSITIONS] += GS_WARP * width;
      counts[GS_SHORT_POSITIONS] += GS_WARP * short_width;
    }
    if (length < shortest) shortest = length;
    if (length > longest) longest = length;
    empty += length == 0;
    squares += length * length;
    falls += length < 0;
    long_entries += is_long ? length : 0;
    counts[GS_LONG_POSITIONS] += is_long ? gs_whole_runs(length) : 0;
#pragma unroll
    for (int l = 0; l < GS_LIMITS; ++l) {
      const bool over = length > static_cast<long long>(GS_FIRST_LIMIT) << l;
      counts[GS_LONG + 2 * l] += over;
      counts[GS_LONG + 2 * l + 1] += over ? gs_chunks(length) : 0;
    }
    // A step from one row into the next must not count, but gs_survey_columns counts it: subtract it here.
    const long long begin = indptr[row];
    if (begin > 0 && begin < rows.nnz && length > 0) unsorted -= indices[begin] <= indices[begin - 1];
  }
  gs_combine_max(facts, GS_SHORTEST, longest < shortest ? 0 : ~gs_ordered(shortest));
  gs_combine_max(facts, GS_LONGEST, longest < shortest ? 0 : gs_ordered(longest));
  gs_combine_sum(facts, GS_EMPTY, empty);
  gs_combine_sum(facts, GS_SQUARES, squares);
  gs_combine_sum(facts, GS_LONG_ENTRIES, long_entries);
  gs_combine_sum(facts, GS_FALLS, falls);
  gs_combine_sum(facts, GS_UNSORTED, unsorted);
#pragma unroll
  for (int i = 0; i < GS_COUNTS; ++i) gs_combine_sum(facts, GS_FACTS + i, counts[i]);
}

// `capacity` is the number of elements of `indices`. Row pointers may be invalid: nothing is read outside of the
// arrays, whatever their values are. Counts of each part go to `parts`, statistics and counts of the whole matrix to
// `words`.
template <class Index>
GS_KERNEL survey(long long num_rows, int num_parts, long long part_rows, long long capacity, long long long_length,
                 int spans, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                 Count *__restrict__ words, long long *__restrict__ parts) {
  GS_SHARED(Count, facts, GS_FACTS + GS_COUNTS);
  for (int i = threadIdx.x; i < GS_FACTS + GS_COUNTS; i += blockDim.x) facts[i] = 0;
  __syncthreads();
  const long long last = indptr[num_rows], nnz = last < 0 ? 0 : last < capacity ? last : capacity;
  if (int(blockIdx.x) < num_parts) {
    const SurveyedRows rows{num_rows, part_rows, nnz, long_length};
    gs_survey_rows(rows, indptr, indices, facts);
    gs_survey_block_sizes(rows, indptr, indices, facts);
  }
  gs_survey_columns(nnz, indices, facts, spans != 0);
  __syncthreads();
  for (int i = threadIdx.x; i < GS_FACTS + GS_COUNTS; i += blockDim.x) {
    const bool is_extreme = i == GS_SHORTEST || i == GS_LONGEST || i == GS_LOW || i == GS_HIGH || i == GS_SPAN;
    if (int(blockIdx.x) < num_parts && i >= GS_FACTS)
      parts[static_cast<long long>(blockIdx.x) * GS_COUNTS + i - GS_FACTS] = static_cast<long long>(facts[i]);
    if (blockIdx.x == 0 && i == GS_FIRST) facts[i] = Count(indptr[0]);
    if (blockIdx.x == 0 && i == GS_LAST) facts[i] = Count(last);
    if (!facts[i]) continue;
    if (is_extreme) atomicMax(words + i, facts[i]);
    else if (i == GS_CONTRADICTED) atomicOr(words + i, facts[i]);
    else atomicAdd(words + i, facts[i]);
  }
}

// ---------------------------------------------------------------------------- blocks

// Set a bit of *contradicted for each number of rows, and of columns, with which the matrix does not consist of blocks.
// A warp owns every step-th row. It ends when all bits are set; without blocks, the first rows set all bits.
template <class Index>
GS_KERNEL full_blocks(long long num_rows, const Index *__restrict__ indptr, const Index *__restrict__ indices,
                      unsigned *contradicted) {
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x / GS_WARP;
  const int lane = threadIdx.x % GS_WARP;
  for (long long row = gs_thread() / GS_WARP; row < num_rows; row += step) {
    const long long begin = indptr[row], length = gs_row_length(indptr, row);
    const unsigned if_differs = gs_no_divisors(row);
    unsigned bits = gs_no_divisors(length) << 16;
    const bool same_length = row == 0 || gs_row_length(indptr, row - 1) == length;
    if (!same_length) bits |= if_differs;
    for (long long place = lane; place < length; place += GS_WARP) {
      const long long column = indices[begin + place];
      bits |= gs_contradicted_columns(place, column, place ? static_cast<long long>(indices[begin + place - 1]) : -1);
      if (if_differs && same_length && indices[begin - length + place] != column) bits |= if_differs;
      if (gs_fresh(contradicted) == (GS_ALL_ROWS | GS_ALL_COLUMNS)) return;
    }
    if (bits & ~gs_fresh(contradicted)) atomicOr(contradicted, bits);
  }
}

// Write the parts of block rows as CSR: their row pointers, and the columns of their blocks. A warp owns a block row.
template <class Index>
GS_KERNEL block_parts(long long num_block_rows, int rows, int columns, int row_lanes, const Index *__restrict__ indptr,
                      const Index *__restrict__ indices, Index *__restrict__ part_indptr,
                      Index *__restrict__ block_columns) {
  const long long row = gs_thread() / GS_WARP;
  const int lane = threadIdx.x % GS_WARP;
  if (row >= num_block_rows) return;
  const long long begin = indptr[row * rows], length = gs_row_length(indptr, row * rows) / columns;
  const long long first = begin / (rows * columns);
  for (int part = lane; part < row_lanes; part += GS_WARP)
    part_indptr[row * row_lanes + part] = Index(first + part * length / row_lanes);
  if (row == num_block_rows - 1 && lane == 0) part_indptr[num_block_rows * row_lanes] = Index(first + length);
  for (long long j = lane; j < length; j += GS_WARP)
    block_columns[first + j] = Index(indices[begin + j * columns] / columns);
}

// Where the values of the blocks of a block row lie in CSR: element (r, c) of its block j is at
// begin + r * row_length + j * columns + c.
struct BlockRow { long long begin, row_length, first_block; };

template <class Index>
__device__ __forceinline__ BlockRow gs_block_row(const Index *part_indptr, long long row, int row_lanes, int rows,
                                                 int columns) {
  const long long first = part_indptr[row * row_lanes], last = part_indptr[(row + 1) * row_lanes];
  return {first * rows * columns, (last - first) * columns, first};
}

// Copy items, one for each entry of CSR, to the positions of the elements of blocks in slices. A thread owns a scalar
// row of a place of the slices: it writes the items of its part of that row, then zeros. Writes are coalesced.
template <class Item, class Index>
GS_KERNEL lay_out_blocks(long long num_parts, long long num_slices, long long long_length, int rows, int columns,
                         int row_lanes, const int *__restrict__ order, const long long *__restrict__ slice_offsets,
                         const Index *__restrict__ part_indptr, const Item *__restrict__ items, Item zero,
                         Item *__restrict__ out) {
  const int threads = GS_WARP * rows;
  const long long slice = gs_thread() / threads;
  const int thread = int(gs_thread() % threads), r = thread % rows;
  if (slice >= num_slices) return;
  long long part;
  const long long length = gs_row_at(slice * GS_WARP + thread / rows, num_parts, long_length, order, part_indptr, &part);
  const long long width = (slice_offsets[slice + 1] - slice_offsets[slice]) / GS_WARP;
  out += slice_offsets[slice] * rows * columns + thread;
  if (length) {
    const BlockRow source = gs_block_row(part_indptr, part / row_lanes, row_lanes, rows, columns);
    items += source.begin + r * source.row_length + (part_indptr[part] - source.first_block) * columns;
  }
#pragma unroll 4
  for (long long i = 0; i < width * columns; ++i) out[i * threads] = i < length * columns ? items[i] : zero;
}

// The same for long block rows. A warp owns a chunk of blocks, a lane every GS_WARP-th block of it.
template <class Item, class Index>
GS_KERNEL lay_out_long_blocks(int num_chunks, const Chunk *__restrict__ chunks, int rows, int columns,
                              const Index *__restrict__ part_indptr, const Item *__restrict__ items, Item zero,
                              Item *__restrict__ out) {
  const int number = int(gs_thread() / GS_WARP), lane = threadIdx.x % GS_WARP;
  if (number >= num_chunks) return;
  const Chunk chunk = chunks[number];
  const BlockRow source = gs_block_row(part_indptr, chunk.row, 1, rows, columns);
  items += source.begin + static_cast<long long>(number - chunk.first) * GS_CHUNK * columns;
  out += chunk.begin * rows * columns;
  for (int k = lane; k < gs_whole_runs(chunk.size); k += GS_WARP)
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c)
        out[(k / GS_WARP * columns + c) * GS_WARP * rows + lane * rows + r] =
            k < chunk.size ? items[r * source.row_length + k * columns + c] : zero;
}
