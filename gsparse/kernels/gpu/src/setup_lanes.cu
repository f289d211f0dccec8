// setup_lanes.cu - the entries of each row in frequent columns, and their positions (gsparse.formats.row_lanes).
//
// A warp owns a row and reads neighbouring entries (coalesced). A ballot numbers the entries in frequent columns among
// the lanes. No shared memory is used. `numbers` is null if no column is frequent.
#include "scalar.cuh"

// The number of a column that is not frequent.
enum { GS_RARE = 0xFFFF };

// Return the number of lanes before this one in which the condition holds.
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

// found = four arrays over the rows: a key, the number of lanes, and their steps with frequent and with rare columns. Keys
// rise as the numbers of lanes fall, then those of all steps, then those of frequent steps. There are fewer than 2**20
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

// positions[k] = the position of entry k: those of all frequent positions first, then those of the rare ones.
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
