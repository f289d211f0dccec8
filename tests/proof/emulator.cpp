// emulator.cpp - the part of the emulator that does not depend on the kernels: fibers, barriers, collectives, launches.
//
// It is compiled into a library of its own, the runtime. All modules with the same options share it, and their launches
// take the same fibers in turn.
#include "emulator.h"
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) || defined(GS_EMU_UCONTEXT)
#define GS_EMU_UC 1  // ucontext is portable, but each switch is a system call
#include <ucontext.h>
#endif

namespace gs_emu {

__thread Block *block = nullptr;
__thread Lane *current = nullptr;

namespace {

struct Error { std::string what; };
[[noreturn]] void fail(const std::string &what) { throw Error{what}; }

// Tell TSan about ordering: everything before a release of `address` happens before everything after its acquire.
void release(void *address) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(address);
#endif
  (void)address;
}
void acquire(void *address) {
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
struct Fiber : Context, Lane {  // a GPU thread, and where it waits
  State state = DONE;
  int line = 0;  // source line of the barrier or collective at which the thread waits
  Op op = SHUFFLE;
  u64 in = 0, out = 0;
  int source = 0;  // lane that a shuffle reads
};
struct Warp { u64 arrived = 0; unsigned phase = 0; char *sync = nullptr; };
struct SharedArray { const void *key; void *memory; };
struct Worker : Block {  // the block that an OS thread runs, and the fibers that it keeps for the next block
  unsigned size = 0, alive = 0, waiting = 0, phase = 0;
  std::vector<Fiber *> fibers;
  std::vector<Warp> warps;
  std::vector<SharedArray> shared;
  size_t shared_bytes = 0;
  std::vector<char> sync;  // addresses for release and acquire: two for the block's barrier, two for each warp
  Context scheduler;
  std::string error;
};
thread_local Worker *kept = nullptr;
Worker &worker() { return *static_cast<Worker *>(block); }
Fiber *this_fiber() { return static_cast<Fiber *>(current); }

// ---------------------------------------------------------------- fibers
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 32 << 10;
#endif
constexpr size_t kGuardBytes = 4096;

#if !defined(GS_EMU_UC)
extern "C" void gs_emu_switch(void **save_sp, void *to_sp);
asm(".text\n.p2align 4\n.hidden gs_emu_switch\ngs_emu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#endif

void jump(Context *from, Context *to) {
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
void yield() {
  Fiber *me = this_fiber();
  jump(me, &worker().scheduler);
  current = me;
}
void fiber_main() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &worker().scheduler.bottom, &worker().scheduler.size);
#endif
  for (;;) {  // a fiber runs one GPU thread after another, each of another block
    { Quiet q; acquire(&worker().scheduler); }
    try {
      block->launch->entry->call(block->launch->entry->kernel, block->launch->args);
    } catch (const Error &e) {
      Quiet q;
      if (worker().error.empty())
        worker().error = e.what + " [block " + std::to_string(block->bid.x) + " thread " +
                         std::to_string(current->id) + "]";
    }
    Fiber *me;
    Context *to;
    { Quiet q; me = this_fiber(); to = &worker().scheduler; release(&worker().fibers); me->state = DONE; }
    jump(me, to);
    { Quiet q; current = me; }
  }
}
Fiber *new_fiber() {
  Fiber *l = new Fiber;
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
void delete_fiber(Fiber *l) {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(l->tsan_fiber);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(l->bottom, kStackBytes);  // otherwise the next owner would inherit our red zones
#endif
  munmap((char *)l->bottom - kGuardBytes, kStackBytes + kGuardBytes);
  delete l;
}
u64 warp_mask(unsigned warp) {  // the last warp of a block may be partial
  unsigned count = std::min(worker().size - warp * GS_WARP, (unsigned)GS_WARP);
  return count == 64 ? ~0ull : (1ull << count) - 1;
}
u64 collective(Op op, u64 in, int source, int line) {  // all lanes of the warp must call this
  Worker &b = worker();
  Fiber *me = this_fiber(), **lanes = &b.fibers[me->warp * GS_WARP];
  Warp &warp = b.warps[me->warp];
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
void *nan_filled(size_t bytes) { return memset(malloc(bytes), 0xff, bytes); }

// ---------------------------------------------------------------- scheduler
void free_shared(Worker &b) {
  for (const SharedArray &s : b.shared) free(s.memory);
  b.shared.clear();
  free(b.dynamic); b.dynamic = nullptr;
}
// The random number generator SplitMix64 (Steele, Lea and Flood 2014). <random> would double the compile time of the
// headers.
u64 next_random(u64 &state) {
  u64 bits = state += 0x9e3779b97f4a7c15;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return bits ^ bits >> 31;
}
std::vector<unsigned> start_block(Worker &b, dim3 bid) {  // returns the order in which the threads run
  const Launch &L = *b.launch;
  b.bid = bid; b.size = b.alive = L.block.x * L.block.y * L.block.z;
  b.waiting = b.phase = 0; b.shared_bytes = L.dynamic;
  free_shared(b);
  if (L.dynamic) b.dynamic = nan_filled(L.dynamic);
  const unsigned num_warps = (b.size + GS_WARP - 1) / GS_WARP;
  b.warps.assign(num_warps, {});
  b.sync.assign(2 + 2 * num_warps, 0);
  for (unsigned w = 0; w < num_warps; ++w) b.warps[w].sync = &b.sync[2 + 2 * w];
  while (b.fibers.size() < b.size) b.fibers.push_back(new_fiber());
  // Thread i gets another fiber than thread i of the previous block. With the same one, TSan would assume that it runs
  // after that thread.
  std::rotate(b.fibers.begin(), b.fibers.begin() + 1, b.fibers.end());
  std::vector<unsigned> order(b.size);
  for (unsigned i = 0; i < b.size; ++i) {
    Fiber *l = b.fibers[i];
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
void open_barrier(Worker &b) {  // all running threads have arrived, and must be at the same barrier
  int line = -1;
  for (unsigned i = 0; i < b.size; ++i) {
    Fiber *l = b.fibers[i];
    if (l->state != AT_BARRIER) continue;
    if (line >= 0 && l->line != line)
      return void(b.error = "divergent __syncthreads: lines " + std::to_string(line) + " and " +
                            std::to_string(l->line));
    line = l->line;
    l->state = READY;
  }
  b.waiting = 0;
  ++b.phase;
}
std::string deadlock(const Worker &b) {
  unsigned in_warp = 0;
  for (unsigned i = 0; i < b.size; ++i) in_warp += b.fibers[i]->state == IN_WARP;
  return "deadlock: " + std::to_string(b.waiting) + " threads at __syncthreads, " + std::to_string(in_warp) +
         " in a warp collective, " + std::to_string(b.size - b.alive) + " exited [block " + std::to_string(b.bid.x) +
         "]";
}
void run_block(Worker &b, dim3 bid) {
  Quiet q;
  const std::vector<unsigned> order = start_block(b, bid);
  release(&b.scheduler);
  while (b.alive) {
    bool ran = false;
    for (unsigned i : order)
      while (b.fibers[i]->state == READY) {  // continue at once if another lane has completed the collective meanwhile
        ran = true;
        current = b.fibers[i];
        jump(&b.scheduler, b.fibers[i]);
        if (!b.error.empty()) return;
        if (b.fibers[i]->state == DONE && --b.alive && b.waiting)
          return void(b.error = "thread " + std::to_string(i) + " exited while others wait at __syncthreads");
      }
    if (b.waiting && b.waiting == b.alive) open_barrier(b);
    else if (!ran) b.error = deadlock(b);
    if (!b.error.empty()) return;
  }
}
void drop_kept() {
  Quiet q;
  if (!kept) return;
  free_shared(*kept);
  for (Fiber *l : kept->fibers) delete_fiber(l);
  delete kept;
  kept = nullptr;
}
// Linux allows a process 65 530 memory mappings, and the stack of a fiber and its guard page take two of them. So only
// the main thread keeps fibers between launches, at most these.
constexpr size_t kKeptFibers = 256;
void trim_kept() {
  if (!kept) return;
  if (syscall(SYS_gettid) != getpid()) return drop_kept();
  Quiet q;
  for (; kept->fibers.size() > kKeptFibers; kept->fibers.pop_back()) delete_fiber(kept->fibers.back());
}
Worker &kept_worker() {
  if (!kept) {
    kept = new Worker;
#if defined(__SANITIZE_THREAD__)
    kept->scheduler.tsan_fiber = __tsan_get_current_fiber();
#endif
  }
  return *kept;
}
// With fewer blocks than this, creating another OS thread and its fibers costs more time than it saves. Blocks that
// wait for each other need a thread each, which `os_threads` = 0 stands for.
constexpr u64 kMinBlocksPerThread = 16;
std::string run(const Launch &L, unsigned os_threads) {
  const u64 num_blocks = (u64)L.grid.x * L.grid.y * L.grid.z;
  std::atomic<u64> next{0};
  std::mutex lock;
  std::string error;
  auto work = [&] {
    Worker &b = kept_worker();
    { Quiet q; block = &b; b.launch = &L; }
    for (u64 i; (i = next++) < num_blocks;) {
      run_block(b, {(unsigned)(i % L.grid.x), (unsigned)(i / L.grid.x % L.grid.y),
                    (unsigned)(i / ((u64)L.grid.x * L.grid.y))});
      if (b.error.empty()) continue;
      Quiet q;
      std::lock_guard<std::mutex> guard(lock);
      // The fibers of this block have stopped in the middle of the kernel and cannot be used again: they are leaked.
      error = b.error; next = num_blocks; kept = nullptr;
      return;
    }
    acquire(&b.fibers);
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
std::string refusal(const Launch &L) {  // the reason why CUDA would refuse the launch, or ""
  if ((u64)L.block.x * L.block.y * L.block.z > L.entry->largest_block)
    return "a block has more threads than GS_LARGEST_BLOCK";
  if (L.dynamic > L.limit) return "dynamic shared memory over the limit: " + std::to_string(L.dynamic) + " bytes";
  return "";
}

}  // namespace

// ---------------------------------------------------------------- functions that kernels call
void barrier(int line) {
  Quiet q;
  Worker &b = worker();
  if (b.alive < b.size)
    fail("__syncthreads at line " + std::to_string(line) + " after " + std::to_string(b.size - b.alive) +
         " threads exited");
  // Barriers use two addresses in turn, so that a thread that is already at the next barrier is not ordered before us.
  char *sync = &b.sync[b.phase % 2];
  release(sync);
  this_fiber()->state = AT_BARRIER; this_fiber()->line = line;
  ++b.waiting;
  yield();
  acquire(sync);
}
u64 shuffle_bits(u64 bits, int source, int line) {
  if (source < 0 || source >= GS_WARP) fail("shuffle reads lane " + std::to_string(source));
  return collective(SHUFFLE, bits, source, line);
}
void fail_group(int width) { fail("shuffle crosses its group of " + std::to_string(width)); }
u64 ballot(bool vote, int line) { Quiet q; return collective(BALLOT, vote, 0, line); }
void sync_warp(int line) {  // orders memory accesses of the warp's lanes; shuffles and ballots do not
  Quiet q;
  Warp &warp = worker().warps[current->warp];
  char *sync = warp.sync + warp.phase % 2;
  release(sync);
  collective(SYNC_WARP, 0, 0, line);
  acquire(sync);
}
void *shared_array(const void *key, size_t bytes) {
  Quiet q;
  Worker &b = worker();
  for (const SharedArray &s : b.shared)
    if (s.key == key) return s.memory;
  b.shared_bytes += bytes;
  if (b.shared_bytes > b.launch->limit)
    fail("shared memory over the limit: " + std::to_string(b.shared_bytes) + " bytes of " +
         std::to_string(b.launch->limit));
  b.shared.push_back({key, nan_filled(bytes)});
  return b.shared.back().memory;
}

}  // namespace gs_emu

// ---------------------------------------------------------------- what emulator.py calls
extern "C" void gs_emu_signature(const gs_emu::Entry *entry, char *text, size_t text_size) {
  std::string signature;
  for (const gs_emu::Code *c = entry->codes; c < entry->codes + entry->num_codes; ++c)
    signature += c->kind + (c->size ? std::to_string(c->size) : "") + (c->is_pointer ? "* " : " ");
  snprintf(text, text_size, "%s", signature.c_str());
}
extern "C" int gs_emu_launch(const gs_emu::Entry *entry, void **args, const unsigned *grid, const unsigned *block,
                             size_t dynamic, size_t limit, uint64_t seed, unsigned os_threads, char *error,
                             size_t error_size) {
  const gs_emu::Launch L = {
      entry, args, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, dynamic, limit, seed};
  std::string what = gs_emu::refusal(L);
  if (what.empty()) what = gs_emu::run(L, os_threads);
  snprintf(error, error_size, "%s", what.c_str());
  return !what.empty();
}
