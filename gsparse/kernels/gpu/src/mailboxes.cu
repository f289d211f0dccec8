// mailboxes.cu - messages that ranks write into each other's memory (gsparse/kernels/mailboxes.py has the drawing).
//
// Each thread accesses pairs of words, 16 bytes at once, and neighbouring threads access neighbouring pairs
// (coalesced). Every word has a stamp, so readers need no flag, and writers no fence, which takes longer than the
// transfer of a small message. The kernels that read wait for words of other ranks. Once the host sets the flag
// GS_IS_STOPPED, they stop waiting.
#include "scalar.cuh"

// Elements of `flags`: the host sets the first to 1 to end all waits. A kernel stores in the second the sender of a
// message of unexpected size, plus 1.
enum { GS_IS_STOPPED = 0, GS_DISAGREES = 1 };
// Threads of a block, and number of loads of a waiting thread between two polls of the stop flag. Polls are rare,
// because each reads host memory.
enum { GS_MAILBOX_THREADS = 256, GS_LOADS_PER_POLL = 1024 };

typedef unsigned long long Word;

__device__ __forceinline__ void gs_post_pair(Word *pair, unsigned stamp, unsigned first, unsigned second) {
  const Word high = static_cast<Word>(stamp) << 32;
  gs_post(pair, high | first, high | second);
}

// Wait until both words have the stamp. The values are of no use if the host has stopped the wait.
__device__ __forceinline__ void gs_wait_for_pair(const Word *pair, unsigned stamp, const unsigned *flags,
                                                 unsigned &first, unsigned &second) {
  Word a, b;
  for (unsigned loads = 1;; ++loads) {
    gs_collect(pair, a, b);
    if (unsigned(a >> 32) == stamp && unsigned(b >> 32) == stamp) break;
    if (loads % GS_LOADS_PER_POLL == 0 && gs_fresh(flags + GS_IS_STOPPED)) break;
  }
  first = unsigned(a);
  second = unsigned(b);
}

// Let the last block to finish advance `count` stamps, which all blocks have read by then. All threads must take part.
__device__ __forceinline__ void gs_finish_messages(unsigned *stamps, int count, unsigned *finished_blocks) {
  GS_SHARED(int, is_last, 1);
  __syncthreads();
  if (threadIdx.x == 0) is_last[0] = atomicAdd(finished_blocks, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!is_last[0]) return;
  for (int i = threadIdx.x; i < count; i += blockDim.x) stamps[i] += 1;
  if (threadIdx.x == 0) *finished_blocks = 0;
}

__device__ __forceinline__ unsigned gs_word(const unsigned *words, long long i, long long count) {
  return i < count ? words[i] : 0u;
}

// Write a message into a box of another rank's memory. `stamp` is the number of the last message that both ranks have
// sent. Only collect_words and sum_over_ranks advance it, so each post must be followed by a collect from the same
// rank.
GS_KERNEL_OF(GS_MAILBOX_THREADS)
post_words(long long count, const unsigned *__restrict__ words, Word *__restrict__ box, long long half_words,
           const unsigned *__restrict__ stamp) {
  const unsigned next_stamp = *stamp + 1;
  const long long first = gs_thread(), step = static_cast<long long>(gridDim.x) * blockDim.x;
  box += next_stamp % 2 * half_words;
  if (first == 0) gs_post_pair(box, next_stamp, unsigned(count), 0u);
  for (long long i = first; 2 * i < count; i += step)
    gs_post_pair(box + 2 + 2 * i, next_stamp, gs_word(words, 2 * i, count), gs_word(words, 2 * i + 1, count));
}

// Wait for a message in a box of this rank, and copy it.
GS_KERNEL_OF(GS_MAILBOX_THREADS)
collect_words(long long count, unsigned *__restrict__ words, const Word *box, long long half_words, unsigned *stamp,
              unsigned *finished_blocks, unsigned *flags, unsigned peer) {
  const unsigned next_stamp = *stamp + 1;
  const long long thread = gs_thread(), step = static_cast<long long>(gridDim.x) * blockDim.x;
  unsigned first, second;
  box += next_stamp % 2 * half_words;
  if (thread == 0) {
    gs_wait_for_pair(box, next_stamp, flags, first, second);
    if (first != unsigned(count) && !gs_fresh(flags + GS_IS_STOPPED)) flags[GS_DISAGREES] = peer + 1;
  }
  for (long long i = thread; 2 * i < count; i += step) {
    gs_wait_for_pair(box + 2 + 2 * i, next_stamp, flags, first, second);
    words[2 * i] = first;
    if (2 * i + 1 < count) words[2 * i + 1] = second;
  }
  gs_finish_messages(stamp, 1, finished_blocks);
}

// Replace values by their sum over all ranks, which each rank adds in the order of the ranks. theirs[p] is this rank's
// box in the memory of rank p, and boxes[p] that of rank p in this rank's memory. `stamps` has one for each rank. These
// messages have no header: all ranks pass the same count.
template <class T>
GS_KERNEL_OF(GS_MAILBOX_THREADS)
sum_over_ranks(long long count, unsigned *values, int rank, int num_ranks, Word *const *theirs, Word *const *boxes,
               long long half_words, unsigned *stamps, unsigned *finished_blocks, const unsigned *flags) {
  typedef Message<T, int(8 / sizeof(T))> Pair;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = gs_thread(); 2 * i < count; i += step) {
    Pair own, total;
    own.halves[0] = gs_word(values, 2 * i, count);
    own.halves[1] = gs_word(values, 2 * i + 1, count);
    for (int other = 1; other < num_ranks; ++other) {
      const int peer = (rank + other) % num_ranks;
      const unsigned stamp = stamps[peer] + 1;
      gs_post_pair(theirs[peer] + stamp % 2 * half_words + 2 * i, stamp, own.halves[0], own.halves[1]);
    }
    for (int peer = 0; peer < num_ranks; ++peer) {
      Pair message = own;
      const unsigned stamp = stamps[peer] + 1;
      if (peer != rank)
        gs_wait_for_pair(boxes[peer] + stamp % 2 * half_words + 2 * i, stamp, flags, message.halves[0],
                         message.halves[1]);
#pragma unroll
      for (int k = 0; k < int(8 / sizeof(T)); ++k)
        total.numbers[k] = peer ? gs_add(total.numbers[k], message.numbers[k]) : message.numbers[k];
    }
    values[2 * i] = total.halves[0];
    if (2 * i + 1 < count) values[2 * i + 1] = total.halves[1];
  }
  gs_finish_messages(stamps, num_ranks, finished_blocks);
}
