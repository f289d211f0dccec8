// block_sizes.cuh - which sizes of dense blocks the rows of a matrix contradict.
//
// A matrix consists of aligned blocks of R x C elements that are full if
//   - rows come in groups of R with the same columns: row i has those of row i - 1 unless R divides i, and
//   - the columns of each row come in groups of C neighbours, of which the first is a multiple of C.
// The two conditions are independent of each other.
#pragma once
#include "parts.cuh"

// The largest number of rows and columns of a block (gsparse.formats.bsr.MAX_BLOCK).
enum { GS_MAX_BLOCK = 8 };
// A bit for each number of rows, 2 to 8, and 16 places above it one for each number of columns.
enum : unsigned { GS_ALL_ROWS = 0x1fcu, GS_ALL_COLUMNS = 0x1fcu << 16 };

// Return a bit for each number of columns that the entry at `place` of a row contradicts. `before` is the column of the
// entry before it.
__device__ __forceinline__ unsigned gs_contradicted_columns(long long place, long long column, long long before) {
  unsigned bits = 0;
#pragma unroll
  for (int size = 2; size <= GS_MAX_BLOCK; ++size) {
    const bool begins = place % size == 0;
    if (begins ? column % size != 0 : column != before + 1) bits |= 1u << (16 + size);
  }
  return bits;
}

// Return a bit for each number, from 2 on, that does not divide `number`.
__device__ __forceinline__ unsigned gs_no_divisors(long long number) {
  unsigned bits = 0;
#pragma unroll
  for (int size = 2; size <= GS_MAX_BLOCK; ++size)
    if (number % size) bits |= 1u << size;
  return bits;
}

// Return a bit for each number of rows and of columns that a row contradicts, by the lengths and the first GS_MAX_BLOCK
// entries of this row and the one before it. Row pointers may be invalid: nothing outside of the `nnz` entries is read.
template <class Index>
__device__ __forceinline__ unsigned gs_first_contradictions(long long row, long long nnz, const Index *indptr,
                                                            const Index *indices) {
  const long long begin = indptr[row], length = gs_row_length(indptr, row);
  const long long before = row ? static_cast<long long>(indptr[row - 1]) : begin;
  if (before < 0 || begin < before || length < 0 || length > nnz - begin) return 0;
  const unsigned if_differs = gs_no_divisors(row);
  bool differs = row && begin - before != length;
  unsigned bits = gs_no_divisors(length) << 16;
  long long previous = -1;
  for (int place = 0; place < GS_MAX_BLOCK && place < length; ++place) {
    const long long column = indices[begin + place];
    bits |= gs_contradicted_columns(place, column, previous);
    if (row && !differs) differs = indices[before + place] != column;
    previous = column;
  }
  return differs ? bits | if_differs : bits;
}
