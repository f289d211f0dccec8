// packs.cuh - neighbouring elements that one instruction loads or stores.
#pragma once
#include "scalar.cuh"

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
