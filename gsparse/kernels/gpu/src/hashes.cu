// hashes.cu - numbers that look random. A thread computes one; neighbouring threads write neighbouring ones (coalesced).
#include "scalar.cuh"

// The odd numbers by which a hash is multiplied (gsparse.kernels.cpu.hashes.MULTIPLIERS).
enum : unsigned { GS_FIRST_MULTIPLIER = 2654435761u, GS_SECOND_MULTIPLIER = 2246822507u };

// out[i] = h / 2^32 - 1/2 for the hash h of i + 1 + offset.
template <class T> GS_KERNEL fill_hashes(long long size, unsigned offset, T *__restrict__ out) {
  const long long i = gs_thread();
  if (i >= size) return;
  unsigned h = (unsigned(i) + 1u + offset) * GS_FIRST_MULTIPLIER;
  h ^= h >> 16;
  h *= GS_SECOND_MULTIPLIER;
  h ^= h >> 16;
  out[i] = gs_narrow(h * 0x1p-32 - 0.5, static_cast<T *>(nullptr));
}
