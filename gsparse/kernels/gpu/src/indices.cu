// indices.cu - lists of row or column numbers by which a user selects: checked, and turned into places. A thread has a
// number; neighbouring threads have neighbouring ones. Blocks leave counts of what is wrong (tiles.cuh).
#include "tiles.cuh"

// checked[i] = numbers[i], or numbers[i] + size for a negative one, which is counted from the end. If `checked` is
// null, negative numbers are out of range. *total becomes how many numbers are out of range.
template <class Number>
GS_KERNEL_OF(GS_TILE_THREADS) check_numbers(long long count, long long size, const Number *__restrict__ numbers,
                                            long long *__restrict__ checked, long long *__restrict__ offsets,
                                            unsigned *__restrict__ arrivals, long long *__restrict__ total) {
  GS_SHARED(int, sums, GS_TILE_WARPS);
  int wrong = 0, all;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long k = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    if (k >= count) continue;
    const long long number = numbers[k];
    wrong += number < (checked ? -size : 0) || number >= size;
    if (checked) checked[k] = number < 0 ? number + size : number;
  }
  gs_scan<Sum>(wrong, sums, &all);
  gs_leave_count(all, Tally{offsets, arrivals, total});
}

// counts[n] = how many of the numbers are n, where `counts` is 0 before. Only integers are added, so that the order of the
// threads does not matter.
template <class Number>
GS_KERNEL_OF(GS_TILE_THREADS) count_numbers(long long count, const Number *__restrict__ numbers,
                                            long long *__restrict__ counts) {
  typedef unsigned long long Unsigned;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long k = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    if (k < count) atomicAdd(reinterpret_cast<Unsigned *>(counts) + numbers[k], Unsigned(1));
  }
}

__device__ __forceinline__ int gs_claim_place(int *place, int number) { return atomicCAS(place, -1, number); }
__device__ __forceinline__ long long gs_claim_place(long long *place, long long number) {
  typedef unsigned long long Unsigned;
  return static_cast<long long>(atomicCAS(reinterpret_cast<Unsigned *>(place), Unsigned(-1), Unsigned(number)));
}

// places[numbers[i]] = i, where `places` is -1 before. *total becomes how many numbers are there more than once; then
// the places are of no use.
template <class Index>
GS_KERNEL_OF(GS_TILE_THREADS) place_numbers(long long count, const long long *__restrict__ numbers,
                                            Index *__restrict__ places, long long *__restrict__ offsets,
                                            unsigned *__restrict__ arrivals, long long *__restrict__ total) {
  GS_SHARED(int, sums, GS_TILE_WARPS);
  int repeated = 0, all;
#pragma unroll
  for (int i = 0; i < GS_TILE_ITEMS; ++i) {
    const long long k = static_cast<long long>(blockIdx.x) * GS_TILE + i * GS_TILE_THREADS + threadIdx.x;
    if (k < count) repeated += gs_claim_place(places + numbers[k], Index(k)) != Index(-1);
  }
  gs_scan<Sum>(repeated, sums, &all);
  gs_leave_count(all, Tally{offsets, arrivals, total});
}
