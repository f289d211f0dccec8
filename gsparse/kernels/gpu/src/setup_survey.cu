// setup_survey.cu - one pass over the structure of a matrix: whether it is valid, statistics of its rows, and how much
// memory each way to share the work out needs.
//
// The first `num_parts` blocks each own a part of the rows (parts.cuh), with a thread for one row at a time. All blocks
// share the columns, in runs of GS_WARP, which they read coalesced. Every thread collects its statistics in registers;
// the warps of a block combine theirs in shared memory with atomics (`facts`, one word for each), and the blocks
// combine them in global memory (`words`). They are integers that are added or compared, so that the order does not
// matter.
#include "block_sizes.cuh"

// The statistics of the whole matrix, in words that are 0 at first. An extreme is stored as an unsigned number of the
// same order (gs_ordered), a minimum as the complement of that number, so that atomicMax serves both and 0 means
// "none"; the span is never negative and stored as it is. After them follow the counts of all parts together
// (parts.cuh).
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
  GS_CONTRADICTED,  // the sizes of dense blocks that some rows of each part contradict, a bit for each (block_sizes.cuh)
  GS_FACTS
};

// Return an unsigned number that is ordered as the signed one.
__device__ __forceinline__ Count gs_ordered(long long v) { return Count(v) ^ 1ull << 63; }

// Combine a statistic of all lanes of the warp with that of the block. All lanes must take part.
GS_CALLED void gs_combine_max(Count *facts, int fact, Count v) {
#pragma unroll
  for (int d = GS_WARP / 2; d > 0; d >>= 1) {
    const Count other = gs_shfl_down(v, d, GS_WARP);
    if (other > v) v = other;
  }
  if (threadIdx.x % GS_WARP == 0 && v) atomicMax(facts + fact, v);
}
GS_CALLED void gs_combine_sum(Count *facts, int fact, long long v) {
  v = gs_group_sum<GS_WARP>(v);
  if (threadIdx.x % GS_WARP == 0 && v) atomicAdd(facts + fact, Count(v));
}

// Columns that a thread has in flight.
enum { GS_RUNS = 4 };

// Survey the columns, a warp for each run of GS_WARP entries: the least and the greatest, the widest run if `spans` is
// true, and steps from one entry to the next that do not increase.
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
#pragma unroll
        for (int d = GS_WARP / 2; d > 0; d >>= 1) {
          const Index a = gs_shfl_down(least, d, GS_WARP), b = gs_shfl_down(most, d, GS_WARP);
          if (a < least) least = a;
          if (b > most) most = b;
        }
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

// What is known about the arrays and the part of the rows that a block surveys.
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
    const long long width = gs_warp_max(length), short_width = gs_warp_max(is_long ? 0 : length);
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
