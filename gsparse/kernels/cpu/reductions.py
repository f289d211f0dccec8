"""Sums and extremes of runs of consecutive values, by NumPy. The contract is in `gsparse.kernels.algebra`.

Sums have the same bits as in SciPy. They are computed by NumPy's `reduceat`, which several threads call for long
arrays, or by NumPy's `sum` for a single run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from functools import reduce
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import run_parts
from gsparse.formats import Csr
from gsparse.kernels.cpu.compiling import compiled

# The tests of `gsparse.kernels.algebra.TESTS`, as functions.
_TESTS: dict[str, Callable[[Array], Array]] = {
    "zero": lambda values: values == 0,
    "not zero": lambda values: values != 0,
    "not finite": lambda values: ~np.isfinite(values),
    "not positive": lambda values: ~(values.real > 0),
}

# Columns of matrices with fewer entries than this are summed in one block, in the order of the rows. Larger matrices
# are divided into at most `_MOST_BLOCKS` blocks.
_SPLIT_ENTRIES, _MOST_BLOCKS = 2**18, 16


def sum_entries(device: Device, bounds: Array | None, data: Array, terms: str, longest: int) -> Array:
    """Return the sums, computed in the dtype of `_terms`."""
    if bounds is None and terms == "square":
        return np.vdot(data, data).real.reshape(1)
    values = _terms(data, terms)
    if bounds is None:
        return np.sum(values).reshape(1)
    if terms == "nonzero" and values.all():
        return np.diff(bounds).astype(np.int64)
    return _reduced(np.add, bounds, values, np.sum(values[:0]).dtype)


def first_where(device: Device, values: Array, *tests: str) -> int | None:
    """Return the first position where one of the tests is passed."""
    mask = _passing(values, tests)
    place = int(mask.argmax()) if mask.size else 0
    return place if mask.size and mask[place] else None


def count_where(device: Device, values: Array, *tests: str) -> int:
    """Return the number of values that pass at least one of the tests."""
    return int(np.count_nonzero(_passing(values, tests)))


def _passing(values: Array, tests: tuple[str, ...]) -> Array:
    return reduce(np.logical_or, (_TESTS[test](values) for test in tests)).ravel()


def sum_columns(csr: Csr, values: Array) -> Array:
    """Return the sum of the values in each column, where ``values[k]`` is the value of entry k.

    The entries are divided into blocks, whose sums are added. The number of blocks depends only on the structure, so
    the sums do not depend on the number of threads.
    """
    blocks = 1 if csr.nnz < _SPLIT_ENTRIES else min(max(2, csr.nnz // (4 * max(csr.num_cols, 1))), _MOST_BLOCKS)
    sums = np.zeros((blocks, csr.num_cols), values.dtype)
    run_parts(_add_to_columns, csr.nnz, csr.indices, values, sums)
    return sums[0] if blocks == 1 else np.add.reduce(sums, axis=0)


def _reduced(function: np.ufunc, bounds: Array, values: Array, dtype: Any) -> Array:
    """Return ``function.reduce`` of each run of values; 0 for an empty run."""
    runs, reduced = _runs_with_values(bounds), np.zeros(bounds.size - 1, dtype)
    if runs.size < reduced.size:
        reduced[runs] = _reduced(function, np.append(bounds[runs], bounds[-1]), values, dtype) if runs.size else 0
        return reduced
    run_parts(_reduce_runs, values.size, copy_context(), function, bounds, values, reduced)
    return reduced


def _reduce_runs(
    part: int, num_parts: int, context: Context, function: np.ufunc, bounds: Array, values: Array, reduced: Array
) -> None:
    """Reduce the runs of one part, none of which is empty. NumPy releases the GIL in `reduceat`."""
    first, last = (number * reduced.size // num_parts for number in (part, part + 1))
    if first == last:
        return
    begin, end = bounds[first], bounds[last]
    context.copy().run(function.reduceat, values[begin:end], bounds[first:last] - begin, out=reduced[first:last])


@compiled
def _add_to_columns(part: int, num_parts: int, indices: Array, values: Array, sums: Array) -> None:
    blocks = sums.shape[0]
    for block in range(part, blocks, num_parts):
        for k in range(block * indices.size // blocks, (block + 1) * indices.size // blocks):
            sums[np.uint64(block), np.uint64(indices[np.uint64(k)])] += values[np.uint64(k)]


def _terms(data: Array, terms: str) -> Array:
    if terms == "value":
        return data
    if terms == "nonzero":
        return data != 0
    sizes = np.abs(data)
    return sizes if terms == "absolute" else sizes * sizes


def extreme_entries(
    device: Device,
    bounds: Array | None,
    data: Array,
    extreme: str,
    longest: int,
    full: int = 0,
    unsigned: bool = False,
) -> Array:
    """Return the extreme of each run; 0 for an empty run."""
    values, compare = data.view(np.uint64) if unsigned else data, getattr(np, extreme)
    if bounds is None:
        return compare.reduce(values).reshape(1).view(data.dtype)
    extremes, lengths = _reduced(compare, bounds, values, values.dtype), np.diff(bounds)
    have_zero = (lengths < full) & (lengths > 0)
    if have_zero.any():
        extremes[have_zero] = compare(extremes[have_zero], 0)
    return extremes.view(data.dtype)


def extreme_positions(
    device: Device, bounds: Array | None, data: Array, extreme: str, longest: int, unsigned: bool = False
) -> Array:
    """Find the extremes, and then the first value of each run that equals the run's extreme."""
    values = data.view(np.uint64) if unsigned else data
    if bounds is None and extreme in ("maximum", "minimum"):
        return np.array([values.argmax() if extreme == "maximum" else values.argmin()])
    bounds = np.array([0, data.size]) if bounds is None else bounds
    positions, runs = np.full(bounds.size - 1, -1, np.int64), _runs_with_values(bounds)
    if runs.size:
        starts = bounds[runs]
        extremes = np.repeat(getattr(np, extreme).reduceat(values, starts), np.diff(bounds)[runs])
        is_extreme: Any = values == extremes
        if values.dtype.kind in "fc":
            is_extreme |= np.isnan(values) & np.isnan(extremes)
        numbers = np.where(is_extreme, np.arange(values.size), values.size)
        positions[runs] = np.minimum.reduceat(numbers, starts)
    return positions


def extreme_columns(device: Device, csr: Csr, positions: Array, extreme: str, unsigned: bool = False) -> Array:
    """For each row, find the first column without an entry, and compare the extreme entry with 0."""
    columns, rows = np.zeros(csr.num_rows, np.int64), _runs_with_values(csr.indptr)
    if not rows.size:
        return columns
    starts, lengths = csr.indptr[rows].astype(np.int64), np.diff(csr.indptr)[rows].astype(np.int64)
    # A row with columns 0, 1, ..., m - 1 and then columns greater than m has no entry in column m.
    places = np.arange(csr.nnz) - np.repeat(starts, lengths)
    missing = np.minimum.reduceat(np.where(csr.indices == places, np.repeat(lengths, lengths), places), starts)
    places_of_extremes = positions[rows]
    values, found = csr.data[places_of_extremes], csr.indices[places_of_extremes].astype(np.int64)
    if unsigned:
        values = values.view(np.uint64)
    beyond_zero = values < 0 if extreme in ("minimum", "fmin") else values > 0
    stays = beyond_zero | (lengths == csr.num_cols) | ((values == 0) & (found < missing))
    columns[rows] = np.where(stays, found, missing)
    return columns


def _runs_with_values(bounds: Array) -> Array:
    return np.flatnonzero(np.diff(bounds))
