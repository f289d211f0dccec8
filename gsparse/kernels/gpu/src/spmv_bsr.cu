// spmv_bsr.cu - y = alpha*A*x + beta*y for A in BSR, dense blocks in slices (gsparse.formats.bsr).
//
// A slice holds GS_WARP parts of block rows, and has a thread for each of their scalar rows. The threads of a part read
// the same block column and the same elements of x, which the first-level cache serves to all of them at once, and
// neighbouring values. For blocks of 2 x 2, and the parts a, b, c, ...:
//
//     thread               0    1    2    3    4    5   ...
//     scalar row          a.0  a.1  b.0  b.1  c.0  c.1  ...
//     step 0, column 0    a00  a10  b00  b10  c00  c10  ...     one block of each part; every read of values is
//             column 1    a01  a11  b01  b11  c01  c11  ...     coalesced
//     step 1, column 0    ...                                   the next block of each part
//
// A block row has one part if there are enough rows to fill the device; otherwise its blocks are divided among
// `row_lanes` parts, which follow one another. Their sums are added up through shared memory (one value for each
// thread), always in the same order. Padding is marked in its column and skipped. Warps in the first blocks of the
// launch multiply the chunks of long block rows (long_rows.cuh).
#include "long_rows.cuh"

// The largest number of rows and columns of a block (gsparse.formats.bsr.MAX_BLOCK), and of threads of a launch.
enum { GS_MAX_BLOCK = 8, GS_BSR_THREADS = GS_WARP * GS_MAX_BLOCK };

// The number of blocks that a thread loads at the same time: as many as have at most 48 bytes of values, but at most
// six. Fewer would not hide the latency of memory; with more, registers would not suffice for enough warps.
template <class T, int COLUMNS> struct BlockBatch {
  enum { fitting = 48 / (int(sizeof(T)) * COLUMNS), size = fitting < 1 ? 1 : fitting > 6 ? 6 : fitting };
};

// Blocks as a thread reads them: `rows` is the number of scalar rows of a block.
template <class Value, class Column, class T, int COLUMNS> struct Blocks {
  const Column *columns;
  const int *bases;
  const Value *values;
  const T *table;
  const T *x;
  int rows;
  int conjugate;

  // Return where the values of the first column of a run's blocks begin.
  __device__ __forceinline__ long long values_of(long long run) const { return run * COLUMNS * GS_WARP * rows; }

  // Return `sum` plus the products with x of one scalar row of SIZE blocks, at the positions first, first + GS_WARP,
  // ... The first value of these is at position `value`. If WHOLE is false, only the first `count` blocks exist.
  template <bool WHOLE, int SIZE>
  __device__ __forceinline__ T add_batch(long long first, long long value, int count, T sum) const {
    Column column[SIZE];
    int base[SIZE];
    Value codes[SIZE][COLUMNS];
    T element[SIZE][COLUMNS];
    bool is_block[SIZE];
    const int stride = GS_WARP * rows;  // from one column of a block to the next
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      is_block[i] = WHOLE || i < count;
      const int step = is_block[i] ? i : 0;
      column[i] = gs_load(columns + first + step * GS_WARP);
      base[i] = gs_base(columns, bases, first + step * GS_WARP);
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) codes[i][c] = gs_code(values, value + (step * COLUMNS + c) * stride);
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      is_block[i] = is_block[i] && !gs_is_padding(column[i]);
      const T *elements = x + static_cast<long long>(base[i] + int(column[i])) * COLUMNS;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) element[i][c] = is_block[i] ? gs_load(elements + c) : Scalar<T>::zero();
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        T a = gs_decode(codes[i][c], table);
        if (conjugate) a = Scalar<T>::conjugate(a);
        sum = is_block[i] ? gs_fma(a, element[i][c], sum) : sum;
      }
    return sum;
  }

  // Return the product with x of one scalar row of a part: `thread` of a slice with `width` steps that begins at
  // position `offset`.
  __device__ __forceinline__ T multiply(long long offset, int width, int thread) const {
    enum { SIZE = BlockBatch<T, COLUMNS>::size };
    T sum = Scalar<T>::zero();
    long long first = offset + thread / rows, value = values_of(offset / GS_WARP) + thread;
    const long long step = static_cast<long long>(SIZE) * COLUMNS * GS_WARP * rows;
    int j = 0;
    for (; j + SIZE <= width; j += SIZE, first += SIZE * GS_WARP, value += step)
      sum = add_batch<true, SIZE>(first, value, SIZE, sum);
    return j < width ? add_batch<false, SIZE>(first, value, width - j, sum) : sum;
  }

  // Return the product with x of scalar row r of a chunk of a long block row, which is valid in the warp's first lane.
  __device__ __forceinline__ T multiply_chunk(const Chunk &chunk, int r) const {
    const int lane = threadIdx.x % GS_WARP, count = (chunk.size - lane + GS_WARP - 1) / GS_WARP;
    long long first = chunk.begin + lane, value = values_of(chunk.begin / GS_WARP) + lane * rows + r;
    T sum = Scalar<T>::zero();
    for (int j = 0; j < count; ++j, first += GS_WARP, value += COLUMNS * GS_WARP * rows)
      sum = add_batch<true, 1>(first, value, 1, sum);
    return gs_group_sum<GS_WARP>(sum);
  }
};

// Where products go, and with which factors.
template <class T> struct Target {
  T *y;
  T alpha, beta;
  int read_y;
};

// Do the work of one warp for a chunk: multiply it with x, and add up its block row if it is the last of its chunks.
// The first lane stores the products of a finished block row.
template <class Reader, class T, class RowDots>
__device__ __forceinline__ void gs_multiply_block_chunk(const Reader &blocks, const LongRows<T> &long_rows,
                                                        const Target<T> &target, RowDots &dots) {
  const int number = int(gs_thread() / GS_WARP), lane = threadIdx.x % GS_WARP, rows = blocks.rows;
  if (number >= long_rows.num_chunks) return;
  const Chunk chunk = long_rows.chunks[number];
  const bool is_whole = chunk.chunks == 1;
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    const T sum = blocks.multiply_chunk(chunk, r);
    if (lane) continue;
    const long long i = static_cast<long long>(chunk.row) * rows + r;
    if (is_whole) dots.add(blocks.x + i, gs_store(target.y + i, sum, target.alpha, target.beta, target.read_y));
    else long_rows.partials[static_cast<long long>(number) * rows + r] = sum;
  }
  if (is_whole) return;
  if (!gs_is_last_warp(long_rows.arrivals + chunk.place, chunk.chunks)) return;
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    T sum = Scalar<T>::zero();
    for (int c = lane; c < chunk.chunks; c += GS_WARP)
      sum = gs_add(sum, gs_fresh(long_rows.partials + static_cast<long long>(chunk.first + c) * rows + r));
    sum = gs_group_sum<GS_WARP>(sum);
    const long long i = static_cast<long long>(chunk.row) * rows + r;
    if (lane == 0) dots.add(blocks.x + i, gs_store(target.y + i, sum, target.alpha, target.beta, target.read_y));
  }
  if (lane == 0) long_rows.arrivals[chunk.place] = 0u;
}

// `order` is the part at each place of the slices, -1 where there is none; it is null if parts keep their order. A
// block of the launch owns as many slices as it has threads for.
template <class Value, class Column, class T, int COLUMNS, template <class> class Dots>
GS_KERNEL_OF(GS_BSR_THREADS) bsr(long long num_parts, long long num_slices, int rows, int row_lanes,
                                 const long long *__restrict__ slice_offsets, const int *__restrict__ order,
                                 int num_chunks, const Chunk *__restrict__ chunks, T *partials, unsigned *arrivals,
                                 const Column *__restrict__ columns, const int *__restrict__ bases,
                                 const Value *__restrict__ values, const T *__restrict__ table,
                                 const T *__restrict__ x, T *__restrict__ y, T alpha, T beta, int read_y,
                                 int conjugate, typename Wide<T>::type *block_dots) {
  GS_SHARED(T, sums, GS_BSR_THREADS);
  typedef Blocks<Value, Column, T, COLUMNS> Reader;
  const LongRows<T> long_rows = {num_chunks, chunks, partials, arrivals};
  const Reader blocks = {columns, bases, values, table, x, rows, conjugate};
  Dots<T> dots(block_dots);
  const int chunk_blocks = gs_chunk_blocks(num_chunks);
  if (int(blockIdx.x) < chunk_blocks) {
    gs_multiply_block_chunk(blocks, long_rows, Target<T>{y, alpha, beta, read_y}, dots);
  } else {
    const int threads = GS_WARP * rows, thread = int(threadIdx.x) % threads;
    const long long slice = (static_cast<long long>(blockIdx.x) - chunk_blocks) * (int(blockDim.x) / threads) +
                            int(threadIdx.x) / threads;
    const long long place = slice * GS_WARP + thread / rows;
    const long long part = slice >= num_slices ? -1 : order ? order[place] : place;
    bool has_row = part >= 0 && part < num_parts;
    T sum = Scalar<T>::zero();
    if (has_row) {
      const long long offset = slice_offsets[slice];
      sum = blocks.multiply(offset, int((slice_offsets[slice + 1] - offset) / GS_WARP), thread);
    }
    if (row_lanes > 1) {
      sums[threadIdx.x] = sum;
      __syncthreads();
      has_row = has_row && part % row_lanes == 0;
      if (has_row)
        for (int lane = 1; lane < row_lanes; ++lane) sum = gs_add(sum, sums[int(threadIdx.x) + lane * rows]);
    }
    if (has_row) {
      const long long i = part / row_lanes * rows + thread % rows;
      sum = gs_store(y + i, sum, alpha, beta, read_y);
      dots.add(x + i, sum);
    }
  }
  dots.leave();
}
