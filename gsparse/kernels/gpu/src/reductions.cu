// reductions.cu - one value from each run of consecutive values: sums, extremes, and where the extremes are. Also which
// values pass a test: the first one, and how many.
//
// Runs are rows of a matrix, or pieces of long rows. A group of `width` consecutive lanes owns a run. Lane i reads
// values i, i + width, i + 2 width, ..., so neighbouring lanes read neighbouring values. The lanes then combine their
// results in a tree of shuffles. The order depends only on the bounds of the runs, so the same input gives the same
// bits.
//
// Run r holds data[bounds[r]] to data[bounds[r + 1] - 1]. A bound beyond `size`, the number of values, stands for
// `size`.
#include "sums.cuh"
#include "tiles.cuh"

__device__ __forceinline__ long long gs_clamped(long long bound, long long size) { return bound < size ? bound : size; }

// ---------------------------------------------------------------------------- sums

// The terms of a sum, by number (gsparse.kernels.algebra.TERMS): values, absolute values, squares of absolute values,
// or 1 for each value that is not 0. Sums of floating-point values are computed in double precision.
enum { GS_VALUE, GS_ABSOLUTE, GS_SQUARE, GS_NONZERO };

// The absolute value of a complex number, scaled so that squares neither overflow nor vanish.
__device__ __forceinline__ double gs_length(double re, double im) {
  const double a = gs_extent(re), b = gs_extent(im), big = a > b ? a : b, small = a > b ? b : a;
  if (!(big > 0) || big - big != 0) return a + b;  // 0, infinite, or not a number
  const double ratio = small / big;
  return big * sqrt(1 + ratio * ratio);
}

template <class R> __device__ __forceinline__ double gs_term(R value, int terms, double *) {
  const double wide = Widen<double>::from(value);
  return terms == GS_VALUE ? wide : terms == GS_ABSOLUTE ? gs_extent(wide) : wide * wide;
}
template <class R> __device__ __forceinline__ double gs_term(Complex<R> value, int terms, double *) {
  const double re = Widen<double>::from(value.re), im = Widen<double>::from(value.im);
  return terms == GS_ABSOLUTE ? gs_length(re, im) : re * re + im * im;
}
template <class R> __device__ __forceinline__ Complex<double> gs_term(Complex<R> value, int, Complex<double> *) {
  return {Widen<double>::from(value.re), Widen<double>::from(value.im)};
}
template <class T> __device__ __forceinline__ long long gs_term(T value, int, long long *) {
  return !gs_equal(value, Scalar<T>::zero());
}
__device__ __forceinline__ long long gs_term(long long value, int terms, long long *) {
  return terms == GS_NONZERO ? value != 0 : value;
}

// The sum of the terms of each run; 0 for an empty run.
template <class T, class Index, class Out>
GS_KERNEL sum_entries(int terms, int width, long long num_runs, long long size, const Index *__restrict__ bounds,
                      const T *__restrict__ data, Out *__restrict__ sums) {
  const long long run = gs_thread() / width;
  const int lane = threadIdx.x % width;
  Out sum = Scalar<Out>::zero();
  if (run < num_runs) {
    const long long end = gs_clamped(bounds[run + 1], size);
    for (long long k = bounds[run] + lane; k < end; k += width)
      sum = gs_add(sum, gs_term(data[k], terms, static_cast<Out *>(nullptr)));
  }
  sum = gs_group_sum(sum, width);
  if (run < num_runs && lane == 0) sums[run] = sum;
}

// The sum of the terms of all values, in one launch. Each block adds up every gridDim.x-th tile of values. The last
// block to arrive adds up the sums of all blocks, in order.
template <class T, class Out>
GS_KERNEL_OF(GS_TILE_THREADS) sum_values(int terms, long long size, const T *__restrict__ data,
                                         Out *__restrict__ partials, unsigned *__restrict__ arrivals,
                                         Out *__restrict__ total) {
  GS_SHARED(Out, shared, GS_MAX_WARPS);
  Out sum = Scalar<Out>::zero();
  for (long long tile = blockIdx.x; tile * GS_TILE < size; tile += gridDim.x) {
#pragma unroll
    for (int i = 0; i < GS_TILE_ITEMS; ++i) {
      const long long k = tile * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
      if (k < size) sum = gs_add(sum, gs_term(data[k], terms, static_cast<Out *>(nullptr)));
    }
  }
  sum = gs_block_sum(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
  if (!gs_is_last_block(arrivals)) return;
  sum = Scalar<Out>::zero();
  for (unsigned b = threadIdx.x; b < gridDim.x; b += GS_TILE_THREADS) sum = gs_add(sum, gs_fresh(partials + b));
  sum = gs_block_sum(sum, shared);
  if (threadIdx.x == 0) {
    *total = sum;
    *arrivals = 0;
  }
}

// ---------------------------------------------------------------------------- tests of values

// Tests (gsparse.kernels.algebra.TESTS). A value passes several tests together if it passes one of them.
enum { GS_ZERO = 1, GS_NOT_ZERO = 2, GS_NOT_FINITE = 4, GS_NOT_POSITIVE = 8 };

__device__ __forceinline__ bool gs_is_finite(double a) { return a - a == 0; }
__device__ __forceinline__ bool gs_passes(double re, double im, int tests) {
  const bool is_zero = re == 0 && im == 0, is_nan = re != re || im != im;
  return (tests & GS_ZERO && is_zero) || (tests & GS_NOT_ZERO && !is_zero) ||
         (tests & GS_NOT_FINITE && (is_nan || !gs_is_finite(re) || !gs_is_finite(im))) ||
         (tests & GS_NOT_POSITIVE && !(re > 0));
}
__device__ __forceinline__ bool gs_passes(long long value, int tests) { return gs_passes(double(value), 0.0, tests); }
__device__ __forceinline__ bool gs_passes(unsigned char value, int tests) { return gs_passes(double(value), 0.0, tests); }
template <class R> __device__ __forceinline__ bool gs_passes(R value, int tests) {
  return gs_passes(Widen<double>::from(value), 0.0, tests);
}
template <class R> __device__ __forceinline__ bool gs_passes(Complex<R> value, int tests) {
  return gs_passes(Widen<double>::from(value.re), Widen<double>::from(value.im), tests);
}

// Set *total to the number of values from the first value that passes the tests to the end; 0 if no value passes.
template <class T>
GS_KERNEL_OF(GS_TILE_THREADS) first_where(int tests, long long size, const T *__restrict__ data,
                                          long long *__restrict__ offsets, unsigned *__restrict__ arrivals,
                                          long long *__restrict__ total) {
  GS_SHARED(long long, shared, GS_TILE_WARPS);
  long long rest = 0, most;
  gs_visit_tile(size, [&](long long k) {
    if (rest == 0 && gs_passes(data[k], tests)) rest = size - k;
  });
  gs_scan<Maximum>(rest, shared, &most);
  gs_leave_maximum(most, Tally{offsets, arrivals, total});
}

// Set *total to the number of values that pass the tests.
template <class T>
GS_KERNEL_OF(GS_TILE_THREADS) count_where(int tests, long long size, const T *__restrict__ data,
                                          long long *__restrict__ offsets, unsigned *__restrict__ arrivals,
                                          long long *__restrict__ total) {
  int passing = 0;
  gs_visit_tile(size, [&](long long k) { passing += gs_passes(data[k], tests); });
  gs_leave_counts(passing, Tally{offsets, arrivals, total});
}

// ---------------------------------------------------------------------------- extremes

// The kinds of extremes, by number (gsparse.kernels.algebra.EXTREMES). NaN is the result of a maximum or a minimum, as
// in NumPy, but is ignored by the kinds that begin with F.
enum { GS_MAXIMUM, GS_MINIMUM, GS_FMAX, GS_FMIN };

__device__ __forceinline__ bool gs_is_least(int extreme) { return extreme == GS_MINIMUM || extreme == GS_FMIN; }

// Whether b replaces a as the extreme; false if they are equal.
template <class T> __device__ __forceinline__ bool gs_beats(int extreme, long long flip, T a, T b) {
  const bool a_is_nan = !gs_equal(a, a), b_is_nan = !gs_equal(b, b);
  if (a_is_nan || b_is_nan) return a_is_nan != b_is_nan && b_is_nan == (extreme == GS_MAXIMUM || extreme == GS_MINIMUM);
  return gs_is_least(extreme) ? gs_less(b, a, flip) : gs_less(a, b, flip);
}

// Whether b, found at position j, replaces a, found at position i. If they are equal, the first position wins. Position
// -1 means that no value has been found.
template <class T>
__device__ __forceinline__ bool gs_replaces(int extreme, long long flip, T a, long long i, T b, long long j) {
  if (j < 0) return false;
  return i < 0 || gs_beats(extreme, flip, a, b) || (j < i && !gs_beats(extreme, flip, b, a));
}

// Find the extreme of a run, and its first position; -1 for an empty run. Both are valid in the first lane of a group.
// All lanes of a warp must take part.
template <class T, class Index>
__device__ __forceinline__ void gs_search_run(int extreme, long long flip, int width, long long run, long long num_runs,
                                              long long size, const Index *bounds, const T *data, T &best,
                                              long long &position) {
  const int lane = threadIdx.x % width;
  best = Scalar<T>::zero();
  position = -1;
  if (run < num_runs) {
    const long long end = gs_clamped(bounds[run + 1], size);
    for (long long k = bounds[run] + lane; k < end; k += width) {
      const T value = data[k];
      if (position < 0 || gs_beats(extreme, flip, best, value)) {
        best = value;
        position = k;
      }
    }
  }
  for (int d = width / 2; d > 0; d >>= 1) {  // A lane at the end of its group gets its own value, which changes nothing.
    const T value = gs_lane_after(best, d, width);
    const long long place = gs_shfl_down(position, d, width);
    if (gs_replaces(extreme, flip, best, position, value, place)) {
      best = value;
      position = place;
    }
  }
}

// The extreme of each run; 0 for an empty run. Where lengths[r + 1] - lengths[r] < full, a value 0 takes part.
template <class T, class Index>
GS_KERNEL extreme_entries(int extreme, long long flip, int width, long long num_runs, long long size,
                          const Index *__restrict__ bounds, const T *__restrict__ data, long long full,
                          const Index *__restrict__ lengths, T *__restrict__ extremes) {
  const long long run = gs_thread() / width;
  T best;
  long long position;
  gs_search_run(extreme, flip, width, run, num_runs, size, bounds, data, best, position);
  if (run >= num_runs || threadIdx.x % width != 0) return;
  const bool has_zero = static_cast<long long>(lengths[run + 1]) - lengths[run] < full;
  if (position >= 0 && has_zero && gs_beats(extreme, flip, best, Scalar<T>::zero())) best = Scalar<T>::zero();
  extremes[run] = best;
}

// The position in `data` of the first value that is the extreme of its run; -1 for an empty run.
template <class T, class Index>
GS_KERNEL extreme_positions(int extreme, long long flip, int width, long long num_runs, long long size,
                            const Index *__restrict__ bounds, const T *__restrict__ data,
                            long long *__restrict__ positions) {
  const long long run = gs_thread() / width;
  T best;
  long long position;
  gs_search_run(extreme, flip, width, run, num_runs, size, bounds, data, best, position);
  if (run < num_runs && threadIdx.x % width == 0) positions[run] = position;
}

// The column of the extreme of each row, where positions[row] is that of its extreme entry. A thread owns a row.
//
// Columns rise within rows, so a row that lacks a column has columns 0, 1, ..., m - 1 first, and its first missing
// column m is found by binary search. An extreme entry on the wrong side of 0, or NaN, yields to the 0 in column m, as
// in SciPy. An entry that is 0 yields if it comes later.
template <class T, class Index>
GS_KERNEL extreme_columns(int extreme, long long flip, long long num_rows, long long num_cols,
                          const Index *__restrict__ indptr, const Index *__restrict__ indices,
                          const T *__restrict__ data, const long long *__restrict__ positions,
                          long long *__restrict__ columns) {
  const long long row = gs_thread();
  if (row >= num_rows) return;
  const long long begin = indptr[row], length = indptr[row + 1] - begin, position = positions[row];
  if (length == 0) {
    columns[row] = 0;
    return;
  }
  const T value = data[position], zero = Scalar<T>::zero();
  columns[row] = indices[position];
  if (length == num_cols || (gs_is_least(extreme) ? gs_less(value, zero, flip) : gs_less(zero, value, flip))) return;
  long long missing = 0, high = length;
  while (missing < high) {
    const long long middle = missing + (high - missing) / 2;
    if (indices[begin + middle] == middle) missing = middle + 1;
    else high = middle;
  }
  if (!gs_equal(value, zero) || missing < indices[position]) columns[row] = missing;
}
