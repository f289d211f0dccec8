// parts.cuh - the rows of a matrix in equal parts, one for each block.
//
// The survey (setup_survey.cu) counts for each part what later kernels (setup_rows.cu) will write. A block of such a
// kernel adds up the counts of all parts before its own, which is the place of its first item in the output. So all
// blocks write in the order of the rows, in one launch, and without waiting for each other.
//
//     part              0          1          2
//     rows              0 .. 1023  1024 ..    2048 ..
//     long rows         2          0          3             counted by the survey
//     block 2 writes its long rows at places 2, 3 and 4     2 + 0 before it
//
// Within a part, a thread owns one row at a time; neighbouring threads own neighbouring rows. Shared memory holds one
// value for each warp, for scans over the block.
#pragma once
#include "long_rows.cuh"
#include "tiles.cuh"

typedef unsigned long long Count;

// The counters of a part.
enum {
  GS_SLICE_POSITIONS,  // positions of slices (blocked ELLPACK in natural order)
  GS_SHORT_POSITIONS,  // the same without the long rows, which are stored separately
  GS_LONG_POSITIONS,   // positions of the long rows
  GS_LONG              // from here on, for each limit 16, 32, ..., 1024: the rows longer than that, and their chunks
};
enum { GS_FIRST_LIMIT = 16, GS_LIMITS = 7, GS_COUNTS = GS_LONG + 2 * GS_LIMITS };

template <class Index> __device__ __forceinline__ long long gs_row_length(const Index *indptr, long long row) {
  return static_cast<long long>(indptr[row + 1]) - static_cast<long long>(indptr[row]);
}

// Store the row at a place of the slices in *row, and return its number of entries: 0 if the place has no row, or the
// row is long. `rows` is null if rows keep their order.
template <class Index>
__device__ __forceinline__ long long gs_row_at(long long place, long long num_rows, long long long_length,
                                               const int *rows, const Index *indptr, long long *row) {
  *row = rows ? static_cast<long long>(rows[place]) : place;
  if (*row < 0 || *row >= num_rows) return 0;
  const long long length = gs_row_length(indptr, *row);
  return length > long_length ? 0 : length;
}

__device__ __forceinline__ long long gs_chunks(long long length) { return (length + GS_CHUNK - 1) / GS_CHUNK; }
__device__ __forceinline__ long long gs_whole_runs(long long length) {
  return (length + GS_WARP - 1) / GS_WARP * GS_WARP;
}

// Return the sum of a count over all parts before this block's part, in all threads. `counts` points to the count of
// part 0; the counts of the following parts are `stride` words apart. All threads must take part.
__device__ __forceinline__ long long gs_before(const long long *counts, int stride, long long *sums) {
  long long sum = 0, total;
  for (int part = threadIdx.x; part < int(blockIdx.x); part += blockDim.x) sum += counts[part * stride];
  gs_scan<Sum>(sum, sums, &total);
  return total;
}
