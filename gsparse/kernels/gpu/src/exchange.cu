// exchange.cu - what ranks exchange: messages that they write into each other's memory (gsparse/kernels/exchange.py has
// the drawing), and the entries of vectors that other ranks need.
//
// A thread accesses pairs of words of a message (16 bytes in one access), and neighbouring threads access neighbouring
// pairs (coalesced). Every word has a stamp. So readers need no flag, and writers need no fence, which would take
// longer than the transfer of a small message. Kernels that read wait for words of other ranks, until the host sets the
// flag GS_IS_STOPPED.
#include "sums.cuh"

// Elements of `flags`. The host sets the first element to 1 to end all waits. If a message has an unexpected size, a
// kernel stores the number of its sender, plus 1, in the second element.
enum { GS_IS_STOPPED = 0, GS_DISAGREES = 1 };
// Threads of a block, and number of loads of a waiting thread between two polls of the stop flag. Polls are rare,
// because each reads host memory.
enum { GS_MAILBOX_THREADS = 256, GS_LOADS_PER_POLL = 1024 };

typedef unsigned long long Word;

// A message to or from one rank. Kernels take an array of messages (`letters`). All blocks with the same blockIdx.y
// process the same message.
struct Letter {
  long long count;   // of words of 32 bits
  unsigned *words;   // the contents
  Word *box;         // of two halves
  long long peer;    // the other rank
};

__device__ __forceinline__ void gs_post_pair(Word *pair, unsigned stamp, unsigned first, unsigned second) {
  const Word high = static_cast<Word>(stamp) << 32;
  gs_post(pair, high | first, high | second);
}

// Wait until both words have the stamp. If the host has stopped the wait, the values must not be used.
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

// Let the last block that finishes, among all with its blockIdx.y, advance `count` stamps. All of these blocks have
// read the stamps by then. All threads must take part.
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

// Write messages into the boxes of this rank in the memory of others. stamps[p] is the number of the last message that
// this rank and rank p have sent each other. Only collect_words and sum_over_ranks advance it, so each post must be
// followed by a collect from the same rank.
GS_KERNEL_OF(GS_MAILBOX_THREADS)
post_words(const Letter *__restrict__ letters, long long half_words, const unsigned *__restrict__ stamps) {
  const Letter letter = letters[blockIdx.y];
  const unsigned stamp = stamps[letter.peer] + 1;
  const long long thread = gs_thread(), step = static_cast<long long>(gridDim.x) * blockDim.x;
  Word *const half = letter.box + stamp % 2 * half_words;
  if (thread == 0) gs_post_pair(half, stamp, unsigned(letter.count), 0u);
  for (long long i = thread; 2 * i < letter.count; i += step)
    gs_post_pair(half + 2 + 2 * i, stamp, gs_word(letter.words, 2 * i, letter.count),
                 gs_word(letter.words, 2 * i + 1, letter.count));
}

// Wait for messages in boxes of this rank, and copy them. `finished_blocks` has a count for each rank.
GS_KERNEL_OF(GS_MAILBOX_THREADS)
collect_words(const Letter *__restrict__ letters, long long half_words, unsigned *stamps, unsigned *finished_blocks,
              unsigned *flags) {
  const Letter letter = letters[blockIdx.y];
  const unsigned stamp = stamps[letter.peer] + 1;
  const long long thread = gs_thread(), step = static_cast<long long>(gridDim.x) * blockDim.x;
  const Word *const half = letter.box + stamp % 2 * half_words;
  unsigned first, second;
  if (thread == 0) {
    gs_wait_for_pair(half, stamp, flags, first, second);
    if (first != unsigned(letter.count) && !gs_fresh(flags + GS_IS_STOPPED))
      flags[GS_DISAGREES] = unsigned(letter.peer) + 1;
  }
  for (long long i = thread; 2 * i < letter.count; i += step) {
    gs_wait_for_pair(half + 2 + 2 * i, stamp, flags, first, second);
    letter.words[2 * i] = first;
    if (2 * i + 1 < letter.count) letter.words[2 * i + 1] = second;
  }
  gs_finish_messages(stamps + letter.peer, 1, finished_blocks + letter.peer);
}

// Replace values by their sums over all ranks. Each rank adds in the order of the ranks. theirs[p] is this rank's box
// in the memory of rank p, and boxes[p] is rank p's box in this rank's memory. `stamps` has an element for each rank.
// These messages have no header, because all ranks pass the same count.
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

// ---------------------------------------------------------------------------- entries of vectors
//
// Pack the entries of a vector that other ranks need, and add what arrives from them.
//
// A thread owns one exchanged entry; in scatter_add, it owns every step-th entry. It accesses neighbouring elements of
// the packed array (coalesced), and the elements of the vector whose positions are in `numbers`.

// out[i] = x[numbers[i]].
template <class T, class Index>
GS_KERNEL gather(long long count, const T *__restrict__ x, const Index *__restrict__ numbers, T *__restrict__ out) {
  const long long i = gs_thread();
  if (i < count) out[i] = x[numbers[i]];
}

enum { GS_HALO_THREADS = 256 };

// y[numbers[i]] += values[i], for distinct numbers. With BlockDots, each block also writes its partial sum of
// conj(x[numbers[i]]) * values[i] to `block_dots`.
template <class T, class Index, template <class> class Dots>
GS_KERNEL_OF(GS_HALO_THREADS)
scatter_add(long long count, const T *__restrict__ values, const Index *__restrict__ numbers, T *__restrict__ y,
            const T *__restrict__ x, typename Wide<T>::type *__restrict__ block_dots) {
  Dots<T> dots(block_dots);
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = gs_thread(); i < count; i += step) {
    y[numbers[i]] = gs_add(y[numbers[i]], values[i]);
    dots.add(x + numbers[i], values[i]);
  }
  dots.leave();
}
