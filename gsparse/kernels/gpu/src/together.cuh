// together.cuh - iterations of a solver in one kernel, whose blocks all run at the same time (cooperative launch). The
// kernels are generated (gsparse.kernels.gpu.iteration_source shows one).
//
// Blocks send each other numbers through global memory: sums, and elements of vectors. A number is cut into words of 64
// bits, each of which has 32 bits of it and the number of the exchange in which it was sent, its stamp:
//
//     bits   63 ... 32    31 ... 0
//            stamp        half of a double
//
// A reader repeats its load until it sees the stamp for which it waits. So no flag, no counter and no order of writes
// is needed, and no fence, which would take 0.7 us on an H200. A number has two places, which exchanges use
// alternately. Before a block overwrites a place, it has received a sum from every other block; and each of them sends
// that sum only after it has read the place.
#pragma once
#include "steps.cuh"

// Loads of elements of other blocks that a thread begins before it waits for the first one, and the smallest number of
// far entries of each row that it multiplies at once.
enum { GS_FAR_LOADS = 8, GS_MIN_FAR_ENTRIES = 2 };

// Send numbers to a place with room for them. Words w and w + 1 are `distance` words from w + 2 and w + 3.
template <class T, int COUNT>
__device__ __forceinline__ void gs_send(unsigned long long *place, long long distance, const Message<T, COUNT> &message,
                                        unsigned stamp) {
  const unsigned long long high = static_cast<unsigned long long>(stamp) << 32;
  if (Message<T, COUNT>::WORDS == 1) return gs_send(place, high | message.halves[0]);
#pragma unroll
  for (int w = 0; w + 1 < Message<T, COUNT>::WORDS; w += 2)
    gs_send(place + w / 2 * distance, high | message.halves[w], high | message.halves[w + 1]);
}

// Read numbers from their place. Return whether all of them have the stamp.
template <class T, int COUNT>
__device__ __forceinline__ bool gs_receive(const unsigned long long *place, long long distance,
                                           Message<T, COUNT> &message, unsigned stamp) {
  unsigned long long first, second;
  if (Message<T, COUNT>::WORDS == 1) {
    gs_receive(place, first);
    message.halves[0] = unsigned(first);
    return unsigned(first >> 32) == stamp;
  }
  bool is_complete = true;
#pragma unroll
  for (int w = 0; w + 1 < Message<T, COUNT>::WORDS; w += 2) {
    gs_receive(place + w / 2 * distance, first, second);
    message.halves[w] = unsigned(first);
    message.halves[w + 1] = unsigned(second);
    is_complete &= (unsigned(first >> 32) == stamp) & (unsigned(second >> 32) == stamp);
  }
  return is_complete;
}

// Return the sum of the values that all warps have written to shared memory.
template <class C> __device__ __forceinline__ C gs_total_of_warps(const C *sums, int count) {
  C total = sums[0];
  for (int w = 1; w < count; ++w) total = gs_add(total, sums[w]);
  return total;
}

// Replace each of COUNT sums of a thread by the sum over all threads of the grid. All blocks add up in the same order,
// so all threads get the same bits. No exchange has more than MOST sums. `words` has room for 2 * MOST messages of each
// block, and `shared` for 2 * MOST * GS_MAX_WARPS values. `number` is the number of the exchange. All threads must take
// part.
template <int COUNT, int MOST, class C>
__device__ __forceinline__ void gs_exchange(C *sums, unsigned long long *words, unsigned number, C *shared) {
  const int blocks = int(gridDim.x), warps = int(blockDim.x) / GS_WARP;
  const int warp = int(threadIdx.x) / GS_WARP, lane = int(threadIdx.x) % GS_WARP;
  Message<C, COUNT> message;
  words += static_cast<long long>(number % 2) * blocks * Message<C, MOST>::WORDS;
#pragma unroll
  for (int s = 0; s < COUNT; ++s) {
    sums[s] = gs_group_sum<GS_WARP>(sums[s]);
    if (lane == 0) shared[s * GS_MAX_WARPS + warp] = sums[s];
  }
  __syncthreads();
  if (blocks == 1) {
#pragma unroll
    for (int s = 0; s < COUNT; ++s) sums[s] = gs_total_of_warps(shared + s * GS_MAX_WARPS, warps);
    __syncthreads();
    return;
  }
  if (warp == 0) {
#pragma unroll
    for (int s = 0; s < COUNT; ++s)
      message.numbers[s] = gs_group_sum<GS_WARP>(lane < warps ? shared[s * GS_MAX_WARPS + lane] : Scalar<C>::zero());
    if (lane == 0) gs_send(words + 2 * blockIdx.x, 2ll * blocks, message, number);
    gs_syncwarp();
  }
#pragma unroll
  for (int s = 0; s < COUNT; ++s) sums[s] = Scalar<C>::zero();
  for (int b = threadIdx.x; b < blocks; b += blockDim.x) {
    while (!gs_receive(words + 2 * b, 2ll * blocks, message, number)) {
    }
#pragma unroll
    for (int s = 0; s < COUNT; ++s) sums[s] = gs_add(sums[s], message.numbers[s]);
  }
  shared += MOST * GS_MAX_WARPS;  // The first half may still be read by the first warp.
#pragma unroll
  for (int s = 0; s < COUNT; ++s) {
    sums[s] = gs_group_sum<GS_WARP>(sums[s]);
    if (lane == 0) shared[s * GS_MAX_WARPS + warp] = sums[s];
  }
  __syncthreads();
  const int readers = (blocks + GS_WARP - 1) / GS_WARP;  // warps that have read words
#pragma unroll
  for (int s = 0; s < COUNT; ++s)
    sums[s] = gs_total_of_warps(shared + s * GS_MAX_WARPS, readers < warps ? readers : warps);
}

// Two copies of a vector: one is read while the other is written.
template <class T> struct Copies {
  enum { WORDS = Message<T>::WORDS };
  unsigned long long *readable, *other;
  unsigned stamp;  // of the readable copy

  __device__ __forceinline__ Copies(unsigned long long *words, int size)
      : readable(words), other(words + static_cast<long long>(WORDS) * size), stamp(0) {}
  __device__ __forceinline__ void send(int i, T value, unsigned number) {
    Message<T> message;
    message.numbers[0] = value;
    gs_send(other + static_cast<long long>(WORDS) * i, 2, message, number);
  }
  __device__ __forceinline__ bool receive(int i, T &value) const {
    Message<T> message;
    const bool is_complete = gs_receive(readable + static_cast<long long>(WORDS) * i, 2, message, stamp);
    value = message.numbers[0];
    return is_complete;
  }
  // Let the copy that was sent in exchange `number` be the readable one.
  __device__ __forceinline__ void swap(unsigned number) {
    unsigned long long *const former = readable;
    readable = other;
    other = former;
    stamp = number;
  }
};

// Consecutive rows of a square matrix, which a block keeps in shared memory as ELLPACK: entry k of its row i is number
// k * num_rows + i. Thread t owns the rows t, t + THREADS, t + 2 * THREADS ... of them. The near entries of a row, whose
// columns are rows of this block, come before its far entries.
//
//     values    | entry 0 of rows 0 1 2 3 ... | entry 1 of rows 0 1 2 3 ... | ...
//     columns   the same: of a near entry, the column's place among the block's rows; of a far one, the column
//     source    the block's own elements of the vector that is multiplied
template <class T, int ROWS> struct OwnRows {
  T *values, *source;
  int *columns;
  int num_rows;
  int num_near[ROWS], lengths[ROWS];  // near entries and all entries of the thread's rows

  // Copy the rows from `begin` on from CSR. `memory` has room for `width` entries of each row, and for `source`.
  template <class Index>
  __device__ __forceinline__ void copy(const Index *indptr, const Index *indices, const T *data, int begin, int width,
                                       unsigned char *memory) {
    values = reinterpret_cast<T *>(memory);
    source = values + static_cast<long long>(width) * num_rows;
    columns = reinterpret_cast<int *>(source + num_rows);
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      const int row = int(threadIdx.x) + e * int(blockDim.x);
      num_near[e] = lengths[e] = 0;
      if (row >= num_rows) continue;
      const Index first = indptr[begin + row], end = indptr[begin + row + 1];
      int next_far = int(end - first);
      lengths[e] = next_far;
      for (Index k = first; k < end; ++k) {
        const int column = int(indices[k]);
        const bool is_near = column >= begin && column < begin + num_rows;
        const int place = (is_near ? num_near[e]++ : --next_far) * num_rows + row;
        values[place] = gs_load(data + k);
        columns[place] = is_near ? column - begin : column;
      }
    }
  }

  // Replace `product` by the products of the thread's rows and a vector. `own` has the thread's elements of the vector;
  // element(column, value) computes an element that another block owns from NUM_COPIES received vectors, and returns
  // false if one has not arrived. All threads must take part.
  template <int NUM_COPIES, class Element>
  __device__ __forceinline__ void multiply(const T *own, T *product, Element element) {
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      const int row = int(threadIdx.x) + e * int(blockDim.x);
      if (row < num_rows) source[row] = own[e];
    }
    __syncthreads();
    bool has_more = false;
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      const int row = int(threadIdx.x) + e * int(blockDim.x);
      T sum = Scalar<T>::zero();
      for (int k = 0; k < num_near[e]; ++k)
        sum = gs_fma(values[k * num_rows + row], source[columns[k * num_rows + row]], sum);
      product[e] = sum;
      has_more = has_more || num_near[e] < lengths[e];
    }
    constexpr int WANTED = GS_FAR_LOADS / (ROWS * NUM_COPIES), LEAST = GS_MIN_FAR_ENTRIES;
    constexpr int TOGETHER = WANTED > LEAST ? WANTED : LEAST;
    for (int start = 0; has_more; start += TOGETHER) {
      T factors[ROWS][TOGETHER];
      while (!load_far_elements(start, factors, element)) {
      }
      has_more = add_far_entries(start, factors, product);
    }
  }

  // Load the elements of the vector for far entries of each row, from entry number `start` on. Return false if an
  // element has not arrived. In place of an entry that does not exist, any element is loaded, so that all loads begin
  // before the thread waits for the first one.
  template <int TOGETHER, class Element>
  __device__ __forceinline__ bool load_far_elements(int start, T (&factors)[ROWS][TOGETHER], Element element) {
    bool is_complete = true;
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
#pragma unroll
      for (int u = 0; u < TOGETHER; ++u) {
        const int k = num_near[e] + start + u;
        const bool exists = k < lengths[e];
        const int column = exists ? columns[k * num_rows + int(threadIdx.x) + e * int(blockDim.x)] : 0;
        is_complete &= element(column, factors[e][u]) | !exists;
      }
    }
    return is_complete;
  }

  // Add these entries to the products, and return whether there are more.
  template <int TOGETHER>
  __device__ __forceinline__ bool add_far_entries(int start, const T (&factors)[ROWS][TOGETHER], T *product) {
    bool has_more = false;
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      const int row = int(threadIdx.x) + e * int(blockDim.x);
#pragma unroll
      for (int u = 0; u < TOGETHER; ++u) {
        const int k = num_near[e] + start + u;
        if (k < lengths[e]) product[e] = gs_fma(values[k * num_rows + row], factors[e][u], product[e]);
      }
      has_more = has_more || num_near[e] + start + TOGETHER < lengths[e];
    }
    return has_more;
  }
};
