"""Rows, columns and entries of a matrix: what slices, lists and masks select."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of


def select_rows(device: Device, csr: Csr, rows: Array | range) -> Csr:
    """Return the rows of the given numbers, in the given order, with repetitions.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Values of any dtype.
    rows : array of integers, shape (m,), or range
        On the device, each from 0 to ``num_rows - 1``.

    Returns
    -------
    Csr
        Of shape (m, num_cols). The entries of each row keep their order. Synchronizes.
    """
    if not isinstance(rows, range) or rows.step != 1:
        taken = kernels_of(device).sparse_rows.take_rows(device, csr, _as_array(device, rows))
        return replace(taken, is_canonical=csr.is_canonical)
    return kernels_of(device).sparse_rows.slice_rows(device, csr, rows.start, len(rows))


def select_columns(device: Device, csr: Csr, columns: Array | range) -> Csr:
    """Return the columns of the given numbers, in the given order, with repetitions.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Values of any dtype.
    columns : array of integers, shape (n,), or range
        On the device, each from 0 to ``num_cols - 1``.

    Returns
    -------
    Csr
        Of shape (num_rows, n). Entries keep their order within each row, as in SciPy: they are sorted if `columns`
        rise and the entries of `csr` are sorted. Synchronizes.
    """
    numbers = _as_array(device, columns)
    places = kernels_of(device).sparse_rows.places_of(device, numbers, csr.num_cols, csr.indices.dtype)  # synchronizes
    if places is None:
        return _repeat_columns(device, csr, numbers)
    selected = kernels_of(device).sparse_rows.map_columns(device, csr, places, len(columns))
    is_canonical = csr.is_canonical and isinstance(columns, range) and columns.step > 0
    return replace(selected, is_canonical=is_canonical)


def _repeat_columns(device: Device, csr: Csr, columns: Array) -> Csr:
    """Return the selected columns, of which some are selected several times. Synchronizes.

    `order` lists the places of `columns` by column; those of column c are ``order[first[c]:first[c + 1]]``. An entry in
    column c becomes as many entries as c has places, one in each.
    """
    xp, index = device.xp, csr.indices.dtype
    counts = kernels_of(device).sparse_rows.count_numbers(device, columns, csr.num_cols)
    first = xp.zeros(csr.num_cols + 1, np.int64)
    xp.cumsum(counts, out=first[1:])
    order = kernels_of(device).transpose.stable_order(device, columns, csr.num_cols)
    ends = xp.zeros(csr.nnz + 1, np.int64)
    xp.cumsum(counts[csr.indices], out=ends[1:])
    nnz = int(ends[-1])  # synchronizes
    index = index if nnz <= MAX_INT32 else np.dtype(np.int64)
    entries = kernels_of(device).sparse_rows.row_numbers(device, ends, nnz)
    number = xp.arange(entries.size, dtype=np.int64) - ends[entries]
    places = order[first[csr.indices[entries]] + number].astype(index)
    return Csr((csr.num_rows, int(columns.size)), ends[csr.indptr].astype(index), places, csr.data[entries])


def _as_array(device: Device, numbers: Array | range) -> Array:
    if not isinstance(numbers, range):
        return numbers
    return device.xp.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)


def triangle(device: Device, csr: Csr, offset: int, upper: bool) -> Csr:
    """Return the entries on and above diagonal `offset`, or on and below it. Synchronizes."""
    return replace(kernels_of(device).sparse_rows.triangle(device, csr, offset, upper), is_canonical=csr.is_canonical)
