// port.cuh - everything that depends on the target: CUDA (NVRTC), HIP (hipRTC, or plain clang with -DGS_BARE), or the
// CPU emulator of the tests (-DGS_EMU). Other files test GS_EMU and GS_HIP only where they load and store wide words
// (scalar.cuh, spmm.cuh), and to round a product on its own (weights.cuh).
// The host passes -DGS_WARP=<lanes of a warp>: 32 on NVIDIA, 64 on AMD's CDNA. No other file assumes one of them.
#pragma once
#ifndef GS_WARP
#error "compile with -DGS_WARP=32 or -DGS_WARP=64"
#endif
#if defined(GS_EMU)
#include "emulator.h"
#elif defined(__HIP__) || defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define GS_HIP 1
#if defined(GS_BARE)
#include "hip_bare.h"
#elif !defined(__HIPCC_RTC__)
#include <hip/hip_runtime.h>
#endif
#if defined(__GFX9__) && defined(__HIP_DEVICE_COMPILE__)
static_assert(GS_WARP == 64, "gfx9 (CDNA) has warps of 64 lanes");
#endif
#endif

// A function that is compiled once and called, because it is needed many times and would take long to compile.
#define GS_CALLED __device__ __attribute__((noinline))

// The largest block that may be launched (gsparse.formats.launch.THREADS_PER_BLOCK), which bounds the registers of a
// thread. Kernels that name their number of threads may have more, up to GS_LARGEST_BLOCK.
#define GS_MAX_THREADS 512
#define GS_LARGEST_BLOCK 640

#if !defined(GS_EMU)
#define GS_KERNEL __global__ void __launch_bounds__(GS_MAX_THREADS)
#define GS_KERNEL_OF(threads) __global__ void __launch_bounds__(threads)
// A kernel whose blocks wait for each other. `runs_together` (gsparse.device.compilation) recognizes it by this name,
// so that all of its blocks are launched at the same time.
#define GS_KERNEL_TOGETHER(threads) __global__ void __launch_bounds__(threads)
// Limit registers so that a multiprocessor can hold `blocks` blocks. HIP counts warps of a SIMD unit instead, which is
// the same number for blocks of 256 threads.
#define GS_KERNEL_FOR(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define GS_SHARED(T, name, count) __shared__ T name[count]
// Shared memory of the size that the launch asks for. A kernel has one such array.
#define GS_DYN_SHARED(T, name)                                                                                         \
  extern __shared__ __attribute__((aligned(16))) unsigned char gs_dynamic_shared[];                                    \
  T *const name = reinterpret_cast<T *>(gs_dynamic_shared)
#if defined(GS_HIP)
// The maskless forms are valid on every ROCm; the *_sync forms want a 64-bit mask from ROCm 7 on.
template <class T> __device__ __forceinline__ T gs_shfl_down(T v, int d, int w) { return __shfl_down(v, d, w); }
template <class T> __device__ __forceinline__ T gs_shfl_up(T v, int d, int w) { return __shfl_up(v, d, w); }
template <class T> __device__ __forceinline__ T gs_shfl(T v, int s, int w) { return __shfl(v, s, w); }
template <class T> __device__ __forceinline__ T gs_ldg(const T *p) { return *p; }
__device__ __forceinline__ void gs_syncwarp() { __builtin_amdgcn_wave_barrier(); }
#else
__device__ __forceinline__ void gs_syncwarp() { __syncwarp(); }
template <class T> __device__ __forceinline__ T gs_shfl_down(T v, int d, int w) {
  return __shfl_down_sync(0xffffffffu, v, d, w);
}
template <class T> __device__ __forceinline__ T gs_shfl_up(T v, int d, int w) {
  return __shfl_up_sync(0xffffffffu, v, d, w);
}
template <class T> __device__ __forceinline__ T gs_shfl(T v, int s, int w) { return __shfl_sync(0xffffffffu, v, s, w); }
template <class T> __device__ __forceinline__ T gs_ldg(const T *p) { return __ldg(p); }
#endif
#endif

// Arithmetic that keeps subnormal numbers. CuPy always passes -ftz=true, which would flush those of float32 to zero.
#if defined(GS_EMU)
__device__ __forceinline__ float gs_fma(float a, float b, float c) { return a * b + c; }
__device__ __forceinline__ double gs_fma(double a, double b, double c) { return a * b + c; }
__device__ __forceinline__ double gs_widen(float a) { return a; }
#elif defined(GS_HIP)
__device__ __forceinline__ float gs_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
__device__ __forceinline__ double gs_fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
__device__ __forceinline__ double gs_widen(float a) { return a; }
#else
__device__ __forceinline__ float gs_fma(float a, float b, float c) { return __fmaf_ieee_rn(a, b, c); }
__device__ __forceinline__ double gs_fma(double a, double b, double c) { return __fma_rn(a, b, c); }
__device__ __forceinline__ double gs_widen(float a) {
  double wide;
  asm("cvt.f64.f32 %0, %1;" : "=d"(wide) : "f"(a));
  return wide;
}
#endif

// Read a value that another thread may have written during this launch: not from the cache of this multiprocessor.
#if defined(GS_EMU)
template <class T> __device__ __forceinline__ T gs_fresh(const T *p) {
  T v;
  __atomic_load(p, &v, __ATOMIC_ACQUIRE);
  return v;
}
#else
template <class T> __device__ __forceinline__ T gs_fresh(const T *p) { return *static_cast<const volatile T *>(p); }
#endif

// Words that blocks send to each other while a kernel runs. Each word arrives as a whole, at any time and in any order.
// A pair of words has an address that is a multiple of 16. A plain load could find an old word in a cache.
#if defined(GS_EMU) || defined(GS_HIP)
#if defined(GS_EMU)
__device__ __forceinline__ void gs_send(unsigned long long *place, unsigned long long word) {
  __atomic_store(place, &word, __ATOMIC_RELEASE);
}
__device__ __forceinline__ void gs_receive(const unsigned long long *place, unsigned long long &word) {
  word = gs_fresh(place);
}
#else
__device__ __forceinline__ void gs_send(unsigned long long *place, unsigned long long word) {
  __hip_atomic_store(place, word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
__device__ __forceinline__ void gs_receive(const unsigned long long *place, unsigned long long &word) {
  word = __hip_atomic_load(place, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
#endif
__device__ __forceinline__ void gs_send(unsigned long long *pair, unsigned long long first, unsigned long long second) {
  gs_send(pair, first);
  gs_send(pair + 1, second);
}
__device__ __forceinline__ void gs_receive(const unsigned long long *pair, unsigned long long &first,
                                           unsigned long long &second) {
  gs_receive(pair, first);
  gs_receive(pair + 1, second);
}
#else
__device__ __forceinline__ void gs_send(unsigned long long *place, unsigned long long word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(place)), "l"(word) : "memory");
}
__device__ __forceinline__ void gs_send(unsigned long long *pair, unsigned long long first, unsigned long long second) {
  asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(pair)), "l"(first),
               "l"(second)
               : "memory");
}
__device__ __forceinline__ void gs_receive(const unsigned long long *place, unsigned long long &word) {
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(__cvta_generic_to_global(place)) : "memory");
}
__device__ __forceinline__ void gs_receive(const unsigned long long *pair, unsigned long long &first,
                                           unsigned long long &second) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(__cvta_generic_to_global(pair))
               : "memory");
}
#endif

// The same for a pair of words in memory that another process, maybe on another GPU, reads or writes at the same time.
#if defined(GS_EMU)
__device__ __forceinline__ void gs_post(unsigned long long *pair, unsigned long long first, unsigned long long second) {
  gs_send(pair, first, second);
}
__device__ __forceinline__ void gs_collect(const unsigned long long *pair, unsigned long long &first,
                                           unsigned long long &second) {
  std::this_thread::yield();  // The process that writes may wait for this processor.
  gs_receive(pair, first, second);
}
#elif defined(GS_HIP)
__device__ __forceinline__ void gs_post(unsigned long long *pair, unsigned long long first, unsigned long long second) {
  __hip_atomic_store(pair, first, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  __hip_atomic_store(pair + 1, second, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ __forceinline__ void gs_collect(const unsigned long long *pair, unsigned long long &first,
                                           unsigned long long &second) {
  first = __hip_atomic_load(pair, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  second = __hip_atomic_load(pair + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
#else
__device__ __forceinline__ void gs_post(unsigned long long *pair, unsigned long long first, unsigned long long second) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(pair)), "l"(first),
               "l"(second)
               : "memory");
}
__device__ __forceinline__ void gs_collect(const unsigned long long *pair, unsigned long long &first,
                                           unsigned long long &second) {
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(__cvta_generic_to_global(pair))
               : "memory");
}
#endif

// Load and store values that nobody reads again in this launch, so that the cache evicts them first.
#if defined(GS_EMU)
template <class T> __device__ __forceinline__ T gs_load_once(const T *p) { return *p; }
template <class T> __device__ __forceinline__ void gs_store_once(T *p, T v) { *p = v; }
#elif defined(GS_HIP)
template <class T> __device__ __forceinline__ T gs_load_once(const T *p) { return __builtin_nontemporal_load(p); }
template <class T> __device__ __forceinline__ void gs_store_once(T *p, T v) { __builtin_nontemporal_store(v, p); }
#else
template <class T> __device__ __forceinline__ T gs_load_once(const T *p) { return __ldcs(p); }
template <class T> __device__ __forceinline__ void gs_store_once(T *p, T v) { __stcs(p, v); }
#endif

// Count one more arrival and return the number of earlier arrivals. The last thread to arrive may then read what the
// others wrote before they arrived. (A relaxed atomic between two __threadfence() takes 0.3 to 2 us longer on an H200.)
#if defined(GS_EMU)
__device__ __forceinline__ unsigned gs_arrive(unsigned *arrivals) { return atomicAdd(arrivals, 1u); }
#elif defined(GS_HIP)
__device__ __forceinline__ unsigned gs_arrive(unsigned *arrivals) {
  return __hip_atomic_fetch_add(arrivals, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
#else
__device__ __forceinline__ unsigned gs_arrive(unsigned *arrivals) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(__cvta_generic_to_global(arrivals))
               : "memory");
  return before;
}
#endif

// Four functions: a bit for each lane of the warp in which the condition holds; whether there is such a lane; the
// number of bits of a word; and the number of lanes in which the condition holds.
#if defined(GS_EMU)
__device__ __forceinline__ bool gs_any(bool condition) { return gs_ballot(condition) != 0; }
__device__ __forceinline__ int gs_num_bits(unsigned word) { return __builtin_popcount(word); }
__device__ __forceinline__ int gs_num_bits(unsigned long long word) { return __builtin_popcountll(word); }
#elif defined(GS_HIP)
__device__ __forceinline__ unsigned long long gs_ballot(bool condition) { return __builtin_amdgcn_ballot_w64(condition); }
__device__ __forceinline__ bool gs_any(bool condition) { return gs_ballot(condition) != 0; }
__device__ __forceinline__ int gs_num_bits(unsigned word) { return __builtin_popcount(word); }
__device__ __forceinline__ int gs_num_bits(unsigned long long word) { return __builtin_popcountll(word); }
#else
__device__ __forceinline__ unsigned gs_ballot(bool condition) { return __ballot_sync(0xffffffffu, condition); }
__device__ __forceinline__ bool gs_any(bool condition) { return __any_sync(0xffffffffu, condition); }
__device__ __forceinline__ int gs_num_bits(unsigned word) { return __popc(word); }
__device__ __forceinline__ int gs_num_bits(unsigned long long word) { return __popcll(word); }
#endif
__device__ __forceinline__ int gs_num_lanes(bool condition) { return gs_num_bits(gs_ballot(condition)); }

// Return the number of this thread in a one-dimensional grid.
__device__ __forceinline__ long long gs_thread() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}
