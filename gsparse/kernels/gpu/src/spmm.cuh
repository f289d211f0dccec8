// spmm.cuh - what one lane does in a product with k dense columns (spmm_csr.cu): it reads its columns of X in the rows
// that a run of entries of A names, adds up, and writes its columns of Y.
//
// A lane makes LOADS loads of EACH neighbouring columns for each entry. The load of one lane is next to that of its
// neighbours, so that a row-major X is read coalesced. For 4 column lanes, LOADS = 2 and EACH = 2:
//
//     columns of X     0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15
//     load 0           |lane 0 |lane 1 |lane 2 |lane 3 |
//     load 1                                           |lane 0 |lane 1 |lane 2 |lane 3 |
//                      <----------- spacing ---------->
#pragma once
#include "long_rows.cuh"

// The number of threads in a block (gsparse.kernels.gpu.spmm).
enum { GS_SPMM_THREADS = 256 };

// The dense matrix X, with any strides.
template <class T, class Index> struct DenseMatrix {
  const T *data;           // column 0 of row 0
  Index row_bytes;         // from one row to the next
  long long column_bytes;  // from one column to the next
};

// Which columns a lane owns: EACH from `first` on, EACH from first + spacing on, and so on.
struct LaneColumns {
  int first, spacing;
  int num_columns;  // the number of columns of X; columns past it do not exist
};

template <class T, int EACH> struct alignas(sizeof(T) * EACH) Pack { T at[EACH]; };

template <class T, int EACH> __device__ __forceinline__ Pack<T, EACH> gs_load_pack(const Pack<T, EACH> *p) {
#if !defined(GS_EMU) && !defined(GS_HIP)
  union { uint4 words; Pack<T, EACH> pack; } four;
  union { uint2 words; Pack<T, EACH> pack; } two;
  if (sizeof(T) * EACH == sizeof(uint4)) {
    four.words = __ldg(reinterpret_cast<const uint4 *>(p));
    return four.pack;
  }
  if (sizeof(T) * EACH == sizeof(uint2)) {
    two.words = __ldg(reinterpret_cast<const uint2 *>(p));
    return two.pack;
  }
  Pack<T, EACH> one;
  one.at[0] = gs_load(p->at);
  return one;
#else
  return *p;
#endif
}

// Store with the hint that the data is not read again, so that it displaces less of X from the caches.
template <class T, int EACH> __device__ __forceinline__ void gs_store_pack(Pack<T, EACH> *p, Pack<T, EACH> pack) {
#if !defined(GS_EMU) && !defined(GS_HIP)
  union { uint4 words; Pack<T, EACH> pack; } four;
  union { uint2 words; Pack<T, EACH> pack; } two;
  if (sizeof(T) * EACH == sizeof(uint4)) {
    four.pack = pack;
    __stcs(reinterpret_cast<uint4 *>(p), four.words);
    return;
  }
  if (sizeof(T) * EACH == sizeof(uint2)) {
    two.pack = pack;
    __stcs(reinterpret_cast<uint2 *>(p), two.words);
    return;
  }
#endif
  *p = pack;
}

// Store a lane's columns of a row of Y as alpha*sums + beta*Y, see gs_store. `sums` holds EACH sums for each of LOADS
// loads. `y` points to column 0 of the row, and `stride` is the number of elements from one column to the next.
// `packed` says whether EACH neighbouring columns of Y lie side by side and are aligned, as those of X always do.
template <int LOADS, int EACH, class T>
__device__ __forceinline__ void gs_store_columns(const T *sums, const LaneColumns &columns, T *y, long long stride,
                                                 int packed, T alpha, T beta, int read_y) {
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    const int column = columns.first + i * columns.spacing;
    if (column >= columns.num_columns) continue;
    T *target = y + column * stride;
    Pack<T, EACH> pack;
    if (EACH > 1 && packed) {
      if (read_y) pack = *reinterpret_cast<const Pack<T, EACH> *>(target);
#pragma unroll
      for (int e = 0; e < EACH; ++e) gs_store(pack.at + e, sums[i * EACH + e], alpha, beta, read_y);
      gs_store_pack(reinterpret_cast<Pack<T, EACH> *>(target), pack);
    } else {
#pragma unroll
      for (int e = 0; e < EACH; ++e) gs_store(target + e * stride, sums[i * EACH + e], alpha, beta, read_y);
    }
  }
}

// Gathers columns of X and adds them up. The entries of A are in CSR: `indices` and `data`. If AHEAD is 1, the entries
// of the next batch are loaded while those of X are on their way.
template <class Stored, class T, class Index, int LOADS, int EACH, int AHEAD> struct Gather {
  // Entries that are processed together: their columns and values are loaded first, then the elements of X, and then
  // all are added up. All lanes of a group load the same entry, which is one access, and takes no longer than a
  // shuffle. Each lane has four loads of X in flight, which is as many as the registers allow with GS_SPMM_BLOCKS.
  enum { COLUMNS = LOADS * EACH, BATCH = LOADS > 2 ? 1 : 4 / LOADS };
  typedef Pack<T, EACH> Packed;
  const Index *indices;
  const Stored *data;
  const char *x[LOADS];  // where each load begins in row 0; for columns past the end, where column 0 begins
  Index row_bytes;
  int conjugate;
  LaneColumns columns;
  T sums[COLUMNS];

  __device__ __forceinline__ Gather(const Index *indices, const Stored *data, const DenseMatrix<T, Index> &matrix,
                                    const LaneColumns &columns, int conjugate)
      : indices(indices), data(data), row_bytes(matrix.row_bytes), conjugate(conjugate), columns(columns) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int column = columns.first + i * columns.spacing;
      x[i] = reinterpret_cast<const char *>(matrix.data) +
             (column < columns.num_columns ? column : 0) * matrix.column_bytes;
    }
    clear();
  }
  // Return the distance of the lane's c-th column from its first one.
  __device__ __forceinline__ int offset(int c) const { return c / EACH * columns.spacing + c % EACH; }
  __device__ __forceinline__ bool has_column(int c) const { return columns.first + offset(c) < columns.num_columns; }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sums[c] = Scalar<T>::zero();
  }
  // Count rows of X from `row` on: in row patterns, `indices` holds offsets from the row's own number.
  __device__ __forceinline__ void shift(long long row) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) x[i] += row * row_bytes;
  }
  template <class P> __device__ __forceinline__ T value(P k) const {
    const T stored = Widen<T>::from(gs_load(data + k));
    return conjugate ? Scalar<T>::conjugate(stored) : stored;
  }
  // Load this lane's columns of a row of X.
  __device__ __forceinline__ void read(Index row, Packed *elements) const {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)
      elements[i] = gs_load_pack(reinterpret_cast<const Packed *>(x[i] + static_cast<long long>(row) * row_bytes));
  }
  __device__ __forceinline__ void add(T a, const Packed *elements) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sums[c] = gs_fma(a, elements[c / EACH].at[c % EACH], sums[c]);
  }
  // The columns and values of a batch of entries.
  struct Batch {
    Index row[BATCH];
    T a[BATCH];
  };
  // Load the entries at positions first, first + stride, ...: BATCH of them, or the first `count` if WHOLE is false.
  template <bool WHOLE, class P> __device__ __forceinline__ void load(P first, P stride, int count, Batch *batch) const {
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (WHOLE || b < count) {
        batch->row[b] = gs_load(indices + first + b * stride);
        batch->a[b] = value(first + b * stride);
      }
  }
  // Load the rest of a run: a whole batch, or less.
  template <class P> __device__ __forceinline__ void load_some(P first, P stride, int left, Batch *batch) const {
    if (left >= BATCH) load<true>(first, stride, BATCH, batch);
    else if (left > 0) load<false>(first, stride, left, batch);
  }
  // Add a batch, or its first `count` entries if WHOLE is false. Meanwhile load the batch at `next`, of `left` entries.
  template <bool WHOLE, class P>
  __device__ __forceinline__ void add_batch(const Batch &batch, int count, P next, P stride, int left, Batch *ahead) {
    Packed elements[BATCH][LOADS];
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (WHOLE || b < count) read(batch.row[b], elements[b]);
    load_some(next, stride, left, ahead);
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (WHOLE || b < count) add(batch.a[b], elements[b]);
  }
  // Add `count` entries, at positions first, first + stride, ...
  template <class P> __device__ __forceinline__ void add_run(P first, P stride, int count) {
    Batch batch, ahead;
    if (AHEAD) load_some(first, stride, count, &batch);
    for (; count >= BATCH; count -= BATCH) {
      if (!AHEAD) load<true>(first, stride, BATCH, &batch);
      first += BATCH * stride;
      add_batch<true>(batch, BATCH, first, stride, AHEAD ? count - BATCH : 0, &ahead);
      if (AHEAD) batch = ahead;
    }
    if (count <= 0) return;
    if (!AHEAD) load<false>(first, stride, count, &batch);
    add_batch<false>(batch, count, first, stride, 0, &ahead);
  }
  // Add up over the lanes of a group of `width` that own the same columns. The first lane of each column has the sum.
  __device__ __forceinline__ void add_lanes(int column_lanes, int width) {
    for (int d = width / 2; d >= column_lanes; d /= 2) {
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sums[c] = gs_add(sums[c], gs_lane_after(sums[c], d, width));
    }
  }
  // Store this lane's columns of a row of Y, see gs_store_columns.
  __device__ __forceinline__ void store(T *y, long long stride, int packed, T alpha, T beta, int read_y) const {
    gs_store_columns<LOADS, EACH>(sums, columns, y, stride, packed, alpha, beta, read_y);
  }
};
