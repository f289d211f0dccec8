// emulator.h - runs a CUDA/HIP kernel source on the CPU (g++ -std=c++17 -DGS_EMU -DGS_WARP=32|64), for tests only.
//
// Every GPU thread is a fiber. One OS thread runs one block at a time. It runs a fiber until the GPU thread waits, at
// __syncthreads or in a warp collective, and then switches to the next fiber. The emulator reports these errors:
//   - barriers: divergent, deadlocked, or reached after other threads have left the kernel;
//   - warp collectives: a lane missing, lanes at different collectives, a read from a lane that does not take part;
//   - shared memory: more than the limit (and it is filled with NaN, so that a read before a write shows in the result);
//   - arguments: a wrong number of them, or a type or width that differs from the kernel's signature.
// A seed determines the order in which threads run, so a missing barrier usually shows as a wrong result.
// Under -fsanitize=address, shared memory is on the heap, and overruns are reported. Under -fsanitize=thread, each GPU
// thread is a thread for TSan, and only barriers order them, so data races are reported in any order of execution.
//
// The kernels of a source are compiled with this header. What does not depend on them is in emulator.cpp, which is
// compiled once into a library of its own: for each source anew, it took half of the time.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char *, int);
void AnnotateIgnoreReadsEnd(const char *, int);
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
}
#endif

namespace gs_emu {

typedef unsigned long long u64;
struct dim3 { unsigned x = 1, y = 1, z = 1; };

// While an object of this type exists, TSan ignores memory accesses. The emulator uses it for its own data, which the
// kernel does not access.
struct Quiet {
#if defined(__SANITIZE_THREAD__)
  Quiet() { AnnotateIgnoreReadsBegin("", 0); AnnotateIgnoreWritesBegin("", 0); }
  ~Quiet() { AnnotateIgnoreWritesEnd("", 0); AnnotateIgnoreReadsEnd("", 0); }
#else
  Quiet() {}
#endif
};

// ---------------------------------------------------------------- the table of kernels, which Python calls
struct Code { char kind; size_t size; bool is_pointer; };
template <class T> constexpr Code code_of() {  // dtype.kind and itemsize of NumPy; the kind of our Complex is "c"
  if constexpr (std::is_pointer<T>::value) {
    const Code pointee = code_of<std::remove_cv_t<std::remove_pointer_t<T>>>();
    return {pointee.kind, pointee.size, true};
  } else if constexpr (std::is_void<T>::value) return {'v', 0, false};
  else
    return {std::is_same<T, bool>::value ? 'b' : std::is_floating_point<T>::value ? 'f' : std::is_class<T>::value ? 'c'
            : std::is_signed<T>::value ? 'i' : 'u', sizeof(T), false};
}
template <class... P> inline constexpr Code codes_of[] = {code_of<P>()...};
template <class... P, size_t... I> void apply(void (*kernel)(P...), void **args, std::index_sequence<I...>) {
  kernel(*(P *)args[I]...);
}
template <class... P> void call(void *kernel, void **args) {
  apply((void (*)(P...))kernel, args, std::index_sequence_for<P...>{});
}
struct Entry {
  const Code *codes;  // of its parameters
  size_t num_codes;
  void *kernel;
  void (*call)(void *kernel, void **args);
  u64 largest_block;  // threads
};
template <class... P> Entry entry(void (*kernel)(P...), u64 largest_block) {
  return {codes_of<P...>, sizeof...(P), (void *)kernel, call<P...>, largest_block};
}

// ---------------------------------------------------------------- what kernels read and call
struct Launch {
  const Entry *entry;
  void **args;
  dim3 grid, block;
  size_t dynamic, limit;  // bytes of shared memory
  u64 seed;
};
struct Lane {  // a GPU thread
  dim3 tid;
  unsigned id = 0, lane = 0, warp = 0;
};
struct Block {
  const Launch *launch = nullptr;
  dim3 bid;
  void *dynamic = nullptr;
};
// Those that this OS thread runs. In contrast to thread_local, no access asks whether they have been initialized.
extern __thread Block *block;
extern __thread Lane *current;

void barrier(int line);
u64 shuffle_bits(u64 bits, int source, int line);
[[noreturn]] void fail_group(int width);
u64 ballot(bool vote, int line);
void sync_warp(int line);  // orders memory accesses of the warp's lanes; shuffles and ballots do not
void *shared_array(const void *key, size_t bytes);

template <class T> T shuffle(T value, int source, int line) {
  static_assert(std::is_arithmetic<T>::value && sizeof(T) <= 8, "CUDA shuffles numbers of 4 or 8 bytes");
  Quiet q;
  u64 bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = shuffle_bits(bits, source, line);
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline int lane_id() { return (int)current->lane; }
inline int group_begin(int width) { return lane_id() & ~(width - 1); }
template <class T> T shuffle_down(T v, int d, int w, int line) {
  return shuffle(v, lane_id() + d < group_begin(w) + w ? lane_id() + d : lane_id(), line);
}
template <class T> T shuffle_up(T v, int d, int w, int line) {
  return shuffle(v, lane_id() - d >= group_begin(w) ? lane_id() - d : lane_id(), line);
}
template <class T> T shuffle_xor(T v, int x, int w, int line) {
  if (x < 0 || x >= w) fail_group(w);
  return shuffle(v, lane_id() ^ x, line);
}
template <class T> T shuffle_index(T v, int s, int w, int line) {
  return shuffle(v, group_begin(w) + (s & (w - 1)), line);
}
template <class T, class F> T atomic_update(T *p, F f) {  // returns the previous value
  T before, after;
  // __threadfence does nothing in the emulator, so atomics themselves order memory accesses. This makes it correct for
  // a kernel to publish data with a fence and an atomic.
  __atomic_load(p, &before, __ATOMIC_RELAXED);
  do after = f(before);
  while (!__atomic_compare_exchange(p, &before, &after, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  return before;
}
}  // namespace gs_emu

#define GS_EMU_EXPORT extern "C" __attribute__((visibility("default")))
#define GS_EMU_TABLE(...)                                                                                              \
  static const gs_emu::Entry gs_emu_table[] = {__VA_ARGS__};                                                           \
  GS_EMU_EXPORT const gs_emu::Entry *gs_emu_entry(unsigned kernel) { return &gs_emu_table[kernel]; }

// ---------------------------------------------------------------- keywords, variables and functions of CUDA and HIP
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (gs_emu::current->tid)
#define blockIdx (gs_emu::block->bid)
#define blockDim (gs_emu::block->launch->block)
#define gridDim (gs_emu::block->launch->grid)
#define __syncthreads() gs_emu::barrier(__LINE__)
#define __syncwarp() gs_emu::sync_warp(__LINE__)
#define __threadfence()
#define __threadfence_block()

// ---------------------------------------------------------------- macros and functions of port.cuh
#define GS_KERNEL void
#define GS_KERNEL_OF(threads) void
#define GS_KERNEL_TOGETHER(threads) void
#define GS_KERNEL_FOR(threads, blocks) void
#define GS_SHARED(T, name, count)                                                                                      \
  static char gs_emu_key_##name;                                                                                       \
  T *name = static_cast<T *>(gs_emu::shared_array(&gs_emu_key_##name, (count) * sizeof(T)))
#define GS_DYN_SHARED(T, name) T *name = reinterpret_cast<T *>(gs_emu::block->dynamic)
// A collective is identified by the source line of its caller, which is a helper of port.cuh or the kernel.
template <class T> T gs_shfl_down(T v, int d, int w, int line = __builtin_LINE()) { return gs_emu::shuffle_down(v, d, w, line); }
template <class T> T gs_shfl_up(T v, int d, int w, int line = __builtin_LINE()) { return gs_emu::shuffle_up(v, d, w, line); }
template <class T> T gs_shfl_xor(T v, int x, int w, int line = __builtin_LINE()) { return gs_emu::shuffle_xor(v, x, w, line); }
template <class T> T gs_shfl(T v, int s, int w, int line = __builtin_LINE()) { return gs_emu::shuffle_index(v, s, w, line); }
inline unsigned long long gs_ballot(bool vote, int line = __builtin_LINE()) { return gs_emu::ballot(vote, line); }
inline void gs_syncwarp(int line = __builtin_LINE()) { gs_emu::sync_warp(line); }
template <class T> T gs_ldg(const T *p) { return *p; }
template <class T, class U> T atomicAdd(T *p, U v) { return gs_emu::atomic_update(p, [=](T old) { return T(old + T(v)); }); }
template <class T, class U> T atomicMax(T *p, U v) { return gs_emu::atomic_update(p, [=](T old) { return std::max(old, T(v)); }); }
template <class T, class U> T atomicOr(T *p, U v) { return gs_emu::atomic_update(p, [=](T old) { return T(old | T(v)); }); }
template <class T> T atomicCAS(T *p, T expected, T v) { return gs_emu::atomic_update(p, [=](T old) { return old == expected ? v : old; }); }
