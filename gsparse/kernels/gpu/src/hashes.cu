// hashes.cu - numbers that look random. A thread computes one; neighbouring threads write neighbouring ones (coalesced).
#include "scalar.cuh"

// The odd numbers by which a hash is multiplied (gsparse.kernels.cpu.steps.MULTIPLIERS).
enum : unsigned { GS_FIRST_MULTIPLIER = 2654435761u, GS_SECOND_MULTIPLIER = 2246822507u };

__device__ __forceinline__ void gs_set_real(float *out, double real) { *out = float(real); }
__device__ __forceinline__ void gs_set_real(double *out, double real) { *out = real; }
template <class R> __device__ __forceinline__ void gs_set_real(Complex<R> *out, double real) { *out = {R(real), R(0)}; }

// out[i] = h / 2^32 - 1/2 for the hash h of i + 1 + offset.
template <class T> GS_KERNEL fill_hashes(long long size, unsigned offset, T *__restrict__ out) {
  const long long i = gs_thread();
  if (i >= size) return;
  unsigned h = (unsigned(i) + 1u + offset) * GS_FIRST_MULTIPLIER;
  h ^= h >> 16;
  h *= GS_SECOND_MULTIPLIER;
  h ^= h >> 16;
  gs_set_real(out + i, h * 0x1p-32 - 0.5);
}
