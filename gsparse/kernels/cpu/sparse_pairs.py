"""Operations on two sparse matrices, entry by entry. The contract is in `gsparse.kernels.algebra`.

The sorted rows of both matrices are merged. The rows are divided into shares of consecutive rows. A share's number of
result entries is not known in advance, so each share begins at the position that it would have if no entries coincided.
Then the entries of all shares are moved, so that no gaps are left:

    place      sources[0]           sources[1]               sources[2]
    merged     | entries 0 |  gap   | entries 1 |    gap     | entries 2 |  gap
    moved      | entries 0 | entries 1 | entries 2 |
    place      counts[0]   counts[1]   counts[2]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import get_num_threads, is_for_one_thread, run_parts
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.algebra import COMPARISONS, OPERATIONS
from gsparse.kernels.cpu.compiling import compiled, inlined, specialized
from gsparse.kernels.cpu.jit import OPTIONS
from gsparse.kernels.cpu.sparse_rows import Rows, drop_zeros

# ------------------------------------------------------------------------------------------------------- operations


def _less(a: Any, b: Any) -> Any:
    """Return a < b in compiled code. As in SciPy, complex numbers are compared by real part, then by imaginary part."""
    return a < b


@overload(_less, jit_options=OPTIONS)  # type: ignore[arg-type]
def _less_in_compiled_code(a: Any, b: Any) -> Callable[[Any, Any], Any]:
    # Numba requires the annotations of `_less`.
    def less_real(a: Any, b: Any) -> Any:
        return a < b

    def less_complex(a: Any, b: Any) -> Any:
        return a.imag < b.imag if a.real == b.real else a.real < b.real

    return less_complex if isinstance(a, types.Complex) else less_real


@inlined
def _plus(a: Any, b: Any) -> Any:
    return a + b


@inlined
def _minus(a: Any, b: Any) -> Any:
    return a - b


@inlined
def _times(a: Any, b: Any) -> Any:
    return a * b


@inlined
def _maximum(a: Any, b: Any) -> Any:
    return b if _less(a, b) else a


@inlined
def _minimum(a: Any, b: Any) -> Any:
    return b if _less(b, a) else a


@inlined
def _ne(a: Any, b: Any) -> Any:
    return a != b


@inlined
def _lt(a: Any, b: Any) -> Any:
    return _less(a, b)


@inlined
def _gt(a: Any, b: Any) -> Any:
    return _less(b, a)


_FUNCTIONS: tuple[Any, ...] = (_plus, _minus, _times, _maximum, _minimum, _ne, _lt, _gt)
_OPERATIONS = dict(zip(OPERATIONS, _FUNCTIONS, strict=True))
# Number of values in a share of the loop that combines matrices of the same structure and counts nonzero results.
_KEPT_SHARE = 4096
# Number of entries of both matrices in a share. Merging fewer entries takes less time than starting a thread.
_ENTRIES_PER_SHARE = 1 << 17
# With at most this number of threads, entries are moved within their arrays. This needs no new memory, but uses only
# one thread per array. A larger number of threads copies the entries to new arrays in parallel instead.
_THREADS_THAT_MOVE = 2


# ---------------------------------------------------------------------------------------------------------- kernels


def combine_rows(device: Device, operation: str, a: Csr, b: Csr, unsigned: bool = False) -> Csr:
    """Combine values if the structures are the same, otherwise merge the rows."""
    alike = _combine_alike(operation, a, b, unsigned) if a.nnz == b.nnz > 0 else None
    if alike is None:
        return _merged(operation, a, b, unsigned)
    values, num_kept = alike
    c = Csr(a.shape, a.indptr, a.indices, values, True, a.longest)
    return c if num_kept == c.nnz else replace(drop_zeros(device, c), is_canonical=True)


def _merged(operation: str, a: Csr, b: Csr, unsigned: bool) -> Csr:
    """Merge the rows into arrays with a place for each entry of both matrices. Then close the gaps between shares."""
    a_rows, b_rows, most, num_threads = _rows(a, unsigned), _rows(b, unsigned), a.nnz + b.nnz, get_num_threads()
    merge_rows, cost = _merge_rows(_OPERATIONS[operation]), most + a.num_rows
    num_shares = num_threads if num_threads <= _THREADS_THAT_MOVE else most // _ENTRIES_PER_SHARE
    firsts, sources = np.array([0, a.num_rows]), np.zeros(1, np.int64)
    if num_shares > 1 and not is_for_one_thread(merge_rows, cost):
        offsets = np.add(a.indptr, b.indptr, dtype=np.int64)
        firsts = np.searchsorted(offsets, np.linspace(0, most, num_shares + 1).astype(np.int64))
        firsts[-1] = a.num_rows
        sources = offsets[firsts[:-1]]
    counts, ends = np.zeros(firsts.size, np.int64), np.zeros(a.num_rows + 1, np.int64)
    indices = np.empty(most, a.indices.dtype)
    data = np.empty(most, np.bool_ if operation in COMPARISONS else a_rows[2].dtype)
    run_parts(merge_rows, cost, firsts, sources, a_rows, b_rows, (ends, indices, data), counts)
    if sources.size > 1:
        np.cumsum(counts, out=counts)
        run_parts(_count_from_start, a.num_rows, firsts, counts, ends)
        if num_threads <= _THREADS_THAT_MOVE:
            run_parts(_move, cost, sources, counts, indices, data)
        else:
            merged = indices, data
            indices, data = (np.empty(int(counts[-1]), array.dtype) for array in merged)
            run_parts(_copy, cost, sources, counts, merged, (indices, data))
    nnz = int(counts[-1])
    # Release the memory after the last entry without a copy. This is safe, because nothing else refers to the arrays.
    indices.resize(nnz, refcheck=False)
    data.resize(nnz, refcheck=False)
    index = a.indices.dtype if nnz <= MAX_INT32 else np.dtype(np.int64)
    return Csr(
        a.shape,
        ends.astype(index, copy=False),
        indices.astype(index, copy=False),
        data.view(np.int64) if data.dtype == np.uint64 else data,
    )


def _combine_alike(operation: str, a: Csr, b: Csr, unsigned: bool) -> tuple[Array, int] | None:
    """Return the combined values, and the number of values that are not 0; None if the structures differ."""
    for one, other in ((a.indptr, b.indptr), (a.indices, b.indices)):
        if one is not other and (one != other).any():
            return None
    (*_, a_data), (*_, b_data) = _rows(a, unsigned), _rows(b, unsigned)
    results = np.empty(a.nnz, np.bool_ if operation in COMPARISONS else a_data.dtype)
    kept = np.zeros(a.nnz // _KEPT_SHARE + 1, np.int64)
    run_parts(_combine_values(_OPERATIONS[operation]), a.nnz, a_data, b_data, results, kept)
    return (results.view(np.int64) if results.dtype == np.uint64 else results), int(kept.sum())


def _rows(csr: Csr, unsigned: bool) -> Rows:
    return csr.indptr, csr.indices, csr.data.view(np.uint64) if unsigned else csr.data


@inlined
def _bounds(indptr: Array, row: int) -> tuple[Any, Any]:
    return np.uint64(indptr[np.uint64(row)]), np.uint64(indptr[np.uint64(row + 1)])


combined: Any = None  # the operation: a global variable of each kernel that `specialized` returns


@specialized
def _combine_values(part: int, num_parts: int, a_data: Array, b_data: Array, results: Array, kept: Array) -> None:
    """Combine values. ``kept[s]`` becomes the number of nonzero results in share s of `_KEPT_SHARE` values."""
    for share in range(part * kept.size // num_parts, (part + 1) * kept.size // num_parts):
        count, end = np.int64(0), min((share + 1) * _KEPT_SHARE, results.size)
        for k in range(share * _KEPT_SHARE, end):
            result = combined(a_data[np.uint64(k)], b_data[np.uint64(k)])
            results[np.uint64(k)] = result
            count += result != 0
        kept[np.uint64(share)] = count


@inlined
def _write(c_indices: Array, c_data: Array, place: Any, column: Any, value: Any) -> Any:
    """Write an entry, and return the position for the following entry, which overwrites the entry if it is 0."""
    c_indices[place], c_data[place] = column, value
    return place + np.uint64(value != 0)


@specialized
def _merge_rows(
    part: int,
    num_parts: int,
    firsts: Array,
    sources: Array,
    a_rows: Rows,
    b_rows: Rows,
    merged: Rows,
    counts: Array,
) -> None:
    """Merge the rows of the shares that this part owns.

    Share s writes its entries from position ``sources[s]`` on. ``ends[row + 1]`` becomes the number of the share's
    entries up to the end of the row. ``counts[s + 1]`` becomes the number of all entries of the share.
    """
    a_indptr, a_indices, a_data = a_rows
    b_indptr, b_indices, b_data = b_rows
    ends, c_indices, c_data = merged
    zero, one, num_shares = a_data.dtype.type(0), np.uint64(1), sources.size
    for share in range(part * num_shares // num_parts, (part + 1) * num_shares // num_parts):
        first = np.uint64(sources[share])
        place = first
        for row in range(firsts[share], firsts[share + 1]):
            (i, a_end), (j, b_end) = _bounds(a_indptr, row), _bounds(b_indptr, row)
            while i < a_end and j < b_end:
                column, other = a_indices[i], b_indices[j]
                if column == other:
                    place = _write(c_indices, c_data, place, column, combined(a_data[i], b_data[j]))
                    i, j = i + one, j + one
                elif column < other:
                    place = _write(c_indices, c_data, place, column, combined(a_data[i], zero))
                    i += one
                else:
                    place = _write(c_indices, c_data, place, other, combined(zero, b_data[j]))
                    j += one
            while i < a_end:
                place = _write(c_indices, c_data, place, a_indices[i], combined(a_data[i], zero))
                i += one
            while j < b_end:
                place = _write(c_indices, c_data, place, b_indices[j], combined(zero, b_data[j]))
                j += one
            ends[np.uint64(row + 1)] = place - first
        counts[share + 1] = place - first


@compiled
def _count_from_start(part: int, num_parts: int, firsts: Array, counts: Array, ends: Array) -> None:
    """Add the number of all earlier shares' entries to the ends of each share's rows."""
    num_shares = firsts.size - 1
    for share in range(part * num_shares // num_parts, (part + 1) * num_shares // num_parts):
        for row in range(firsts[share], firsts[share + 1]):
            ends[np.uint64(row + 1)] += counts[share]


@inlined
def _copy_entries(source: Array, first: Any, target: Array, place: Any, end: Any) -> None:
    for k in range(end - place):
        target[np.uint64(place + k)] = source[np.uint64(first + k)]


@compiled
def _move(part: int, num_parts: int, sources: Array, counts: Array, indices: Array, data: Array) -> None:
    """Move the entries of all shares to the front, in order. At most two threads work, one per array."""
    for array in range(part * 2 // num_parts, (part + 1) * 2 // num_parts):
        for share in range(1, sources.size):
            if array == 0:
                _copy_entries(indices, sources[share], indices, counts[share], counts[share + 1])
            else:
                _copy_entries(data, sources[share], data, counts[share], counts[share + 1])


@compiled
def _copy(
    part: int,
    num_parts: int,
    sources: Array,
    counts: Array,
    merged: tuple[Array, Array],
    entries: tuple[Array, Array],
) -> None:
    """Copy the entries of some shares to their final positions."""
    num_shares = sources.size
    for share in range(part * num_shares // num_parts, (part + 1) * num_shares // num_parts):
        _copy_entries(merged[0], sources[share], entries[0], counts[share], counts[share + 1])
        _copy_entries(merged[1], sources[share], entries[1], counts[share], counts[share + 1])
