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
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char *, int);
void AnnotateIgnoreReadsEnd(const char *, int);
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
}
#endif
#if !defined(__x86_64__) || defined(GS_EMU_UCONTEXT)
#define GS_EMU_UC 1  // ucontext is portable, but each switch is a system call
#include <ucontext.h>
#endif

// A function that is compiled once. Inlined into each of hundreds of kernels, these functions took a third of the
// compile time.
#define GS_EMU_ONCE __attribute__((noinline)) inline

namespace gs_emu {

typedef unsigned long long u64;
struct dim3 { unsigned x = 1, y = 1, z = 1; };
struct Error { std::string what; };
[[noreturn]] inline void fail(const std::string &what) { throw Error{what}; }

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

// Tell TSan about ordering: everything before a release of `address` happens before everything after its acquire.
inline void release(void *address) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(address);
#endif
  (void)address;
}
inline void acquire(void *address) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(address);
#endif
  (void)address;
}

// ---------------------------------------------------------------- state
enum State { READY, AT_BARRIER, IN_WARP, DONE };
enum Op { SHUFFLE, BALLOT, SYNC_WARP };

struct Context {  // a machine context: a GPU thread's fiber, or the scheduler
#if defined(GS_EMU_UC)
  ucontext_t uc;
#else
  void *sp = nullptr;
#endif
  void *asan_stack = nullptr, *tsan_fiber = nullptr;
  const void *bottom = nullptr;
  size_t size = 0;
};
struct Lane : Context {
  State state = DONE;
  dim3 tid;
  unsigned id = 0, lane = 0, warp = 0;
  int line = 0;  // source line of the barrier or collective at which the thread waits
  Op op = SHUFFLE;
  u64 mask = 0, in = 0, out = 0;
  int source = 0;  // lane that a shuffle reads
};
struct Warp { u64 arrived = 0; unsigned phase = 0; char *sync = nullptr; };
struct SharedArray { const void *key; void *memory; };
struct Launch {
  dim3 grid, block;
  size_t dynamic = 0, limit = 0;  // bytes of shared memory
  u64 seed = 0;
  void (*call)(void *) = nullptr;
  void *arg = nullptr;
};
struct Block {  // the block that an OS thread runs, and the fibers that it keeps for the next block
  const Launch *launch = nullptr;
  dim3 bid;
  unsigned size = 0, alive = 0, waiting = 0, phase = 0;
  std::vector<Lane *> lanes;
  std::vector<Warp> warps;
  std::vector<SharedArray> shared;
  size_t shared_bytes = 0;
  void *dynamic = nullptr;
  std::vector<char> sync;  // addresses for release and acquire: two for the block's barrier, two for each warp
  Context scheduler;
  std::string error;
};
inline thread_local Block *block = nullptr;
inline thread_local Lane *current = nullptr;
inline thread_local Block *kept = nullptr;

// ---------------------------------------------------------------- fibers
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 32 << 10;
#endif
constexpr size_t kGuardBytes = 4096;

#if !defined(GS_EMU_UC)
extern "C" void gs_emu_switch(void **save_sp, void *to_sp);
asm(".text\n.p2align 4\n.weak gs_emu_switch\n.hidden gs_emu_switch\ngs_emu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#endif

inline void jump(Context *from, Context *to) {
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to->tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from->asan_stack, to->bottom, to->size);
#endif
#if defined(GS_EMU_UC)
  swapcontext(&from->uc, &to->uc);
#else
  gs_emu_switch(&from->sp, to->sp);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->asan_stack, nullptr, nullptr);
#endif
}
inline void yield() {
  Lane *me = current;
  jump(me, &block->scheduler);
  current = me;
}
inline void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &block->scheduler.bottom, &block->scheduler.size);
#endif
  for (;;) {  // a fiber runs one GPU thread after another, each of another block
    { Quiet q; acquire(&block->scheduler); }
    try {
      block->launch->call(block->launch->arg);
    } catch (const Error &e) {
      Quiet q;
      if (block->error.empty())
        block->error = e.what + " [block " + std::to_string(block->bid.x) + " thread " + std::to_string(current->id) + "]";
    }
    Lane *me;
    Context *to;
    { Quiet q; me = current; to = &block->scheduler; release(&block->lanes); me->state = DONE; }
    jump(me, to);
    { Quiet q; current = me; }
  }
}
inline Lane *new_lane() {
  Lane *l = new Lane;
  void *map = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) { perror("emulator: mmap of a stack"); abort(); }
  mprotect(map, kGuardBytes, PROT_NONE);
  char *stack = (char *)map + kGuardBytes;
  l->bottom = stack; l->size = kStackBytes;
#if defined(GS_EMU_UC)
  getcontext(&l->uc);
  l->uc.uc_stack.ss_sp = stack; l->uc.uc_stack.ss_size = kStackBytes; l->uc.uc_link = nullptr;
  makecontext(&l->uc, fiber_main, 0);
#else
  void **top = (void **)(stack + kStackBytes - 16);
  *--top = nullptr;  // aligns rsp at entry as a call instruction would
  *--top = (void *)&fiber_main;
  top -= 6;  // the registers that gs_emu_switch pops
  memset(top, 0, 6 * sizeof *top);
  l->sp = top;
#endif
#if defined(__SANITIZE_THREAD__)
  l->tsan_fiber = __tsan_create_fiber(0);
#endif
  return l;
}
inline void delete_lane(Lane *l) {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(l->tsan_fiber);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(l->bottom, kStackBytes);  // otherwise the next owner would inherit our red zones
#endif
  munmap((char *)l->bottom - kGuardBytes, kStackBytes + kGuardBytes);
  delete l;
}

// ---------------------------------------------------------------- functions that kernels call
GS_EMU_ONCE void barrier(int line) {
  Quiet q;
  if (block->alive < block->size)
    fail("__syncthreads at line " + std::to_string(line) + " after " + std::to_string(block->size - block->alive) +
         " threads exited");
  // Barriers use two addresses in turn, so that a thread that is already at the next barrier is not ordered before us.
  char *sync = &block->sync[block->phase % 2];
  release(sync);
  current->state = AT_BARRIER; current->line = line;
  ++block->waiting;
  yield();
  acquire(sync);
}
inline u64 warp_mask(unsigned warp) {  // the last warp of a block may be partial
  unsigned count = std::min(block->size - warp * GS_WARP, (unsigned)GS_WARP);
  return count == 64 ? ~0ull : (1ull << count) - 1;
}
GS_EMU_ONCE u64 collective(Op op, u64 in, int source, int line) {  // all lanes of the warp must call this
  Lane *me = current, **lanes = &block->lanes[me->warp * GS_WARP];
  Warp &warp = block->warps[me->warp];
  const u64 mask = warp_mask(me->warp);
  me->op = op; me->in = in; me->source = source; me->line = line; me->state = IN_WARP;
  warp.arrived |= 1ull << me->lane;
  if (mask & ~warp.arrived) { yield(); return me->out; }  // the last lane that arrives computes the results of all
  warp.arrived = 0;
  ++warp.phase;
  u64 votes = 0;
  for (int i = 0; i < GS_WARP; ++i)
    if (mask >> i & 1) {
      if (lanes[i]->op != op || lanes[i]->line != line)
        fail("lanes of a warp met at different collectives: lines " + std::to_string(lanes[i]->line) + " and " +
             std::to_string(line));
      votes |= (lanes[i]->in & 1) << i;
    }
  for (int i = 0; i < GS_WARP; ++i)
    if (mask >> i & 1) {
      const int from = lanes[i]->source;
      if (op == SHUFFLE && !(mask >> from & 1))
        fail("shuffle reads lane " + std::to_string(from) + ", which does not take part");
      lanes[i]->out = op == SHUFFLE ? lanes[from]->in : votes;
      lanes[i]->state = READY;
    }
  return me->out;
}
GS_EMU_ONCE u64 shuffle_bits(u64 bits, int source, int line) {
  if (source < 0 || source >= GS_WARP) fail("shuffle reads lane " + std::to_string(source));
  return collective(SHUFFLE, bits, source, line);
}
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
[[noreturn]] GS_EMU_ONCE void fail_group(int width) { fail("shuffle crosses its group of " + std::to_string(width)); }
template <class T> T shuffle_xor(T v, int x, int w, int line) {
  if (x < 0 || x >= w) fail_group(w);
  return shuffle(v, lane_id() ^ x, line);
}
template <class T> T shuffle_index(T v, int s, int w, int line) {
  return shuffle(v, group_begin(w) + (s & (w - 1)), line);
}
GS_EMU_ONCE u64 ballot(bool vote, int line) { Quiet q; return collective(BALLOT, vote, 0, line); }
GS_EMU_ONCE void sync_warp(int line) {  // orders memory accesses of the warp's lanes; shuffles and ballots do not
  Quiet q;
  Warp &warp = block->warps[current->warp];
  char *sync = warp.sync + warp.phase % 2;
  release(sync);
  collective(SYNC_WARP, 0, 0, line);
  acquire(sync);
}
inline void *nan_filled(size_t bytes) { return memset(malloc(bytes), 0xff, bytes); }
GS_EMU_ONCE void *shared_array(const void *key, size_t bytes) {
  Quiet q;
  for (const SharedArray &s : block->shared)
    if (s.key == key) return s.memory;
  block->shared_bytes += bytes;
  if (block->shared_bytes > block->launch->limit)
    fail("shared memory over the limit: " + std::to_string(block->shared_bytes) + " bytes of " +
         std::to_string(block->launch->limit));
  block->shared.push_back({key, nan_filled(bytes)});
  return block->shared.back().memory;
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

// ---------------------------------------------------------------- scheduler
inline void free_shared(Block &b) {
  for (const SharedArray &s : b.shared) free(s.memory);
  b.shared.clear();
  free(b.dynamic); b.dynamic = nullptr;
}
// The random number generator SplitMix64 (Steele, Lea and Flood 2014). <random> would double the compile time of the
// headers.
inline u64 next_random(u64 &state) {
  u64 bits = state += 0x9e3779b97f4a7c15;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return bits ^ bits >> 31;
}
inline std::vector<unsigned> start_block(Block &b, dim3 bid) {  // returns the order in which the threads run
  const Launch &L = *b.launch;
  b.bid = bid; b.size = b.alive = L.block.x * L.block.y * L.block.z;
  b.waiting = b.phase = 0; b.shared_bytes = L.dynamic;
  free_shared(b);
  if (L.dynamic) b.dynamic = nan_filled(L.dynamic);
  const unsigned num_warps = (b.size + GS_WARP - 1) / GS_WARP;
  b.warps.assign(num_warps, {});
  b.sync.assign(2 + 2 * num_warps, 0);
  for (unsigned w = 0; w < num_warps; ++w) b.warps[w].sync = &b.sync[2 + 2 * w];
  while (b.lanes.size() < b.size) b.lanes.push_back(new_lane());
  // Thread i gets another fiber than thread i of the previous block. With the same one, TSan would assume that it runs
  // after that thread.
  std::rotate(b.lanes.begin(), b.lanes.begin() + 1, b.lanes.end());
  std::vector<unsigned> order(b.size);
  for (unsigned i = 0; i < b.size; ++i) {
    Lane *l = b.lanes[i];
    order[i] = i;
    l->state = READY; l->id = i; l->lane = i % GS_WARP; l->warp = i / GS_WARP;
    l->tid = {i % L.block.x, i / L.block.x % L.block.y, i / (L.block.x * L.block.y)};
  }
  if (L.seed == 1) std::reverse(order.begin(), order.end());
  if (L.seed > 1) {
    u64 state = L.seed * 1000003 + bid.x + (u64)L.grid.x * (bid.y + (u64)L.grid.y * bid.z);
    for (unsigned i = b.size; i > 1; --i) std::swap(order[i - 1], order[next_random(state) % i]);
  }
  return order;
}
inline void open_barrier(Block &b) {  // all running threads have arrived, and must be at the same barrier
  int line = -1;
  for (unsigned i = 0; i < b.size; ++i) {
    Lane *l = b.lanes[i];
    if (l->state != AT_BARRIER) continue;
    if (line >= 0 && l->line != line)
      return void(b.error = "divergent __syncthreads: lines " + std::to_string(line) + " and " + std::to_string(l->line));
    line = l->line;
    l->state = READY;
  }
  b.waiting = 0;
  ++b.phase;
}
inline std::string deadlock(const Block &b) {
  unsigned in_warp = 0;
  for (unsigned i = 0; i < b.size; ++i) in_warp += b.lanes[i]->state == IN_WARP;
  return "deadlock: " + std::to_string(b.waiting) + " threads at __syncthreads, " + std::to_string(in_warp) +
         " in a warp collective, " + std::to_string(b.size - b.alive) + " exited [block " + std::to_string(b.bid.x) + "]";
}
inline void run_block(Block &b, dim3 bid) {
  Quiet q;
  const std::vector<unsigned> order = start_block(b, bid);
  release(&b.scheduler);
  while (b.alive) {
    bool ran = false;
    for (unsigned i : order)
      while (b.lanes[i]->state == READY) {  // continue at once if another lane has completed the collective meanwhile
        ran = true;
        current = b.lanes[i];
        jump(&b.scheduler, current);
        if (!b.error.empty()) return;
        if (b.lanes[i]->state == DONE && --b.alive && b.waiting)
          return void(b.error = "thread " + std::to_string(i) + " exited while others wait at __syncthreads");
      }
    if (b.waiting && b.waiting == b.alive) open_barrier(b);
    else if (!ran) b.error = deadlock(b);
    if (!b.error.empty()) return;
  }
}
inline void drop_kept() {
  Quiet q;
  if (!kept) return;
  free_shared(*kept);
  for (Lane *l : kept->lanes) delete_lane(l);
  delete kept;
  kept = nullptr;
}
// Linux allows a process 65 530 memory mappings. The stack of a fiber and its guard page take two of them, and each
// module has its own fibers. So only the main thread keeps fibers between launches, at most 256 per module, and
// emulator.py calls gs_emu_drop for all but the most recently used modules.
constexpr size_t kKeptLanes = 256;
inline void trim_kept() {
  if (!kept) return;
  if (syscall(SYS_gettid) != getpid()) return drop_kept();
  Quiet q;
  for (; kept->lanes.size() > kKeptLanes; kept->lanes.pop_back()) delete_lane(kept->lanes.back());
}
inline Block &kept_block() {
  if (!kept) {
    kept = new Block;
#if defined(__SANITIZE_THREAD__)
    kept->scheduler.tsan_fiber = __tsan_get_current_fiber();
#endif
  }
  return *kept;
}
// With fewer blocks than this, creating another OS thread and its fibers costs more time than it saves. Blocks that wait
// for each other need a thread each, which `os_threads` = 0 stands for.
constexpr u64 kMinBlocksPerThread = 16;
GS_EMU_ONCE std::string run(Launch &L, unsigned os_threads) {
  const u64 num_blocks = (u64)L.grid.x * L.grid.y * L.grid.z;
  std::atomic<u64> next{0};
  std::mutex lock;
  std::string error;
  auto work = [&] {
    Block &b = kept_block();
    { Quiet q; block = &b; b.launch = &L; }
    for (u64 i; (i = next++) < num_blocks;) {
      run_block(b, {(unsigned)(i % L.grid.x), (unsigned)(i / L.grid.x % L.grid.y), (unsigned)(i / ((u64)L.grid.x * L.grid.y))});
      if (b.error.empty()) continue;
      Quiet q;
      std::lock_guard<std::mutex> guard(lock);
      // The fibers of this block have stopped in the middle of the kernel and cannot be used again: they are leaked.
      error = b.error; next = num_blocks; kept = nullptr;
      return;
    }
    acquire(&b.lanes);
  };
  std::vector<std::thread> others;
  const u64 num_threads = os_threads ? std::min<u64>(os_threads, num_blocks / kMinBlocksPerThread) : num_blocks;
  for (u64 t = 1; t < num_threads; ++t)
    others.emplace_back([&] { work(); drop_kept(); });
  work();
  trim_kept();
  for (std::thread &t : others) t.join();
  return error;
}

inline std::string refusal(const Launch &L, u64 max_threads) {  // the reason why CUDA would refuse the launch, or ""
  if ((u64)L.block.x * L.block.y * L.block.z > max_threads) return "a block has more threads than GS_LARGEST_BLOCK";
  if (L.dynamic > L.limit) return "dynamic shared memory over the limit: " + std::to_string(L.dynamic) + " bytes";
  return "";
}

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
GS_EMU_ONCE std::string signature_of(const Code *codes, size_t count) {
  std::string signature;
  for (const Code *c = codes; c < codes + count; ++c)
    signature += c->kind + (c->size ? std::to_string(c->size) : "") + (c->is_pointer ? "* " : " ");
  return signature;
}
template <class... P, size_t... I> void apply(void (*k)(P...), void **args, std::index_sequence<I...>) {
  k(*(P *)args[I]...);
}
template <class... P> struct Bound {
  void (*kernel)(P...);
  void **args;
  static void call(void *self) {
    Bound *b = (Bound *)self;
    apply(b->kernel, b->args, std::index_sequence_for<P...>{});
  }
};
struct Entry {
  const char *name;
  std::string signature;
  void *kernel;
  std::string (*go)(void *kernel, void **args, Launch &L, unsigned os_threads);
};
template <class... P> Entry entry(const char *name, void (*kernel)(P...)) {
  static constexpr Code codes[] = {code_of<P>()...};
  return {name, signature_of(codes, sizeof...(P)), (void *)kernel, [](void *k, void **args, Launch &L, unsigned os_threads) {
            Bound<P...> bound{(void (*)(P...))k, args};
            L.call = &Bound<P...>::call; L.arg = &bound;
            return run(L, os_threads);
          }};
}
}  // namespace gs_emu

#define GS_EMU_EXPORT extern "C" __attribute__((visibility("default")))
#define GS_EMU_TABLE(...)                                                                                              \
  static const gs_emu::Entry gs_emu_table[] = {__VA_ARGS__};                                                           \
  GS_EMU_EXPORT const char *gs_emu_signature(unsigned kernel) { return gs_emu_table[kernel].signature.c_str(); }       \
  GS_EMU_EXPORT void gs_emu_drop() { gs_emu::drop_kept(); }                                                            \
  GS_EMU_EXPORT int gs_emu_launch(unsigned kernel, const unsigned *grid, const unsigned *block, size_t dynamic,        \
                                  size_t limit, uint64_t seed, unsigned os_threads, void **args, char *error,          \
                                  size_t error_size) {                                                                 \
    gs_emu::Launch L;                                                                                                  \
    L.grid = {grid[0], grid[1], grid[2]}; L.block = {block[0], block[1], block[2]};                                    \
    L.dynamic = dynamic; L.limit = limit; L.seed = seed;                                                               \
    const gs_emu::Entry &e = gs_emu_table[kernel];                                                                     \
    std::string what = gs_emu::refusal(L, GS_LARGEST_BLOCK);                                                             \
    if (what.empty()) what = e.go(e.kernel, args, L, os_threads);                                                      \
    snprintf(error, error_size, "%s", what.c_str());                                                                   \
    return !what.empty();                                                                                              \
  }

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
