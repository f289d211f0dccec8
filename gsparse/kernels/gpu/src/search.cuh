// search.cuh - binary search in sorted integers, for instance the columns of a row.
#pragma once
#include "port.cuh"

// The first position in [from, to) whose column is at least `column`; `to` if there is none.
template <class Index, class Position, class Column>
__device__ __forceinline__ Position gs_lower_bound(const Index *__restrict__ indices, Position from, Position to,
                                                   Column column) {
  while (from < to) {
    const Position middle = from + (to - from) / 2;
    if (indices[middle] < column) from = middle + 1;
    else to = middle;
  }
  return from;
}
