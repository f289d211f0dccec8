"""The transpose on the CPU, by a counting sort by columns (Gustavson 1978) that is divided among threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.threads import get_num_threads, run_parts
from gsparse.formats import Csr
from gsparse.kernels.cpu.compiling import compiled
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.cpu.rows import first_row, lower_bound
from gsparse.kernels.cpu.sparse_rows import ITEMS

# Smallest number of entries per team (see `csr_transpose`). A team also has at least one entry per column on average,
# because it counts the entries of each column.
_SMALLEST_TEAM = 2**16
_MOST_TEAMS = 16
# Number of shares of rows in which entries are compared with their mirror images.
_SHARES = 64


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Return the transpose. The entries in each row of the result are in the order of the rows of `csr`.

    The rows are divided among a few teams, each of which counts its entries in each column. The counts tell where each
    team's entries begin in each row of the result, so that the teams can write their entries independently.
    """
    teams = max(1, min(get_num_threads(), csr.nnz // max(csr.num_cols, _SMALLEST_TEAM), _MOST_TEAMS))
    index, (num_rows, num_cols) = csr.indices.dtype, csr.shape
    counts = np.zeros((teams, num_cols), index)
    run_parts(_count_columns, csr.nnz + num_rows, csr.indptr, csr.indices, counts)
    indptr = np.zeros(num_cols + 1, index)
    _place_teams(counts, indptr)
    columns, data = np.empty(csr.nnz, index), np.empty(csr.nnz, csr.dtype)
    items = np.dtype(ITEMS[csr.dtype.itemsize])
    rows, transposed = (csr.indptr, csr.indices, csr.data.view(items)), (columns, data.view(items))
    run_parts(_place_entries, csr.nnz + num_rows, counts, rows, transposed)
    return Csr((num_cols, num_rows), indptr, columns, data, csr.is_canonical)


def stable_order(device: Device, keys: Array, bound: int, numbers: Array | None = None) -> Array:
    """Return the numbers of the keys, sorted by key with NumPy's stable sort."""
    order = np.argsort(keys, kind="stable")
    return order if numbers is None else numbers[order]


def order_by_row(device: Device, rows: Array, num_rows: int) -> tuple[Array, Array]:
    """Return the order that sorts the entries by row, and the row pointers. Use NumPy's stable sort."""
    indptr = np.zeros(num_rows + 1, rows.dtype)
    np.cumsum(np.bincount(rows, minlength=num_rows)[:num_rows], out=indptr[1:])
    return np.argsort(rows, kind="stable"), indptr


def is_symmetric(device: Device, csr: Csr, hermitian: bool, tolerance: float = 0.0) -> bool:
    """Search the mirror image of each entry below the diagonal, and stop at the first pair that differs."""
    differs, balances = np.zeros(1, np.bool_), np.zeros(_SHARES, np.int64)
    run_parts(
        _compare_mirrored, csr.nnz + csr.num_rows, csr.indptr, csr.indices, csr.data, hermitian, differs, balances
    )
    if not differs[0] and not balances.sum():
        return True
    return tolerance > 0 and _is_near(csr, _adjoint(device, csr, hermitian), tolerance)


def _adjoint(device: Device, csr: Csr, hermitian: bool) -> Csr:
    transposed = csr_transpose(device, csr)
    return transposed.with_data(np.conjugate(transposed.data)) if hermitian else transposed


def _is_near(csr: Csr, other: Csr, tolerance: float) -> bool:
    """Return whether two matrices differ by at most `tolerance` times the largest magnitude in the row of `csr`."""
    one, two = (sp.csr_array((part.data, part.indices, part.indptr), shape=part.shape) for part in (csr, other))
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, for which the comparison is false.
        difference = sp.csr_array(one - two)
    allowed, filled = np.zeros(csr.num_rows), np.flatnonzero(np.diff(csr.indptr))
    if filled.size:
        allowed[filled] = tolerance * np.maximum.reduceat(_sizes(csr.data), csr.indptr[filled])
    return bool((_sizes(difference.data) <= np.repeat(allowed, np.diff(difference.indptr))).all())


def _sizes(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return magnitudes. For a complex number, return the larger magnitude of its parts, which cannot overflow."""
    sizes: npt.NDArray[np.float64] = np.maximum(np.abs(values.real), np.abs(values.imag)).astype(np.float64)
    return sizes


# ---------------------------------------------------------------------------------------------------------- kernels


@compiled
def _compare_mirrored(
    part: int,
    num_parts: int,
    indptr: Array,
    indices: Array,
    data: Array,
    hermitian: bool,
    differs: Array,
    balances: Array,
) -> None:
    """Compare entries below the diagonal with their mirror images, until a thread finds a difference.

    Each share also stores its number of entries above the diagonal minus its number of entries below the diagonal.
    """
    for share in range(part, balances.size, num_parts):
        balance = 0
        for row in range(first_row(share, balances.size, indptr), first_row(share + 1, balances.size, indptr)):
            if differs[0]:
                return
            for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
                column = indices[np.uint64(k)]
                if column > row:
                    balance += 1
                    continue
                balance -= column < row
                end = indptr[np.uint64(column + 1)]
                low = lower_bound(indices, indptr[np.uint64(column)], end, row)
                if low == end or indices[np.uint64(low)] != row:
                    differs[0] = True
                    return
                mirrored = data[np.uint64(low)]
                if data[np.uint64(k)] != (np.conjugate(mirrored) if hermitian else mirrored):
                    differs[0] = True
                    return
        balances[share] = balance


@compiled
def _count_columns(part: int, num_parts: int, indptr: Array, indices: Array, counts: Array) -> None:
    """Count the entries that each team has in each column."""
    num_teams = counts.shape[0]
    for team in range(part, num_teams, num_parts):
        begin, end = first_row(team, num_teams, indptr), first_row(team + 1, num_teams, indptr)
        for k in range(indptr[np.uint64(begin)], indptr[np.uint64(end)]):
            counts[np.uint64(team), np.uint64(indices[np.uint64(k)])] += 1


@jitted
def _place_teams(counts: Array, indptr: Array) -> None:
    """Replace each team's count by the position in the result of the team's first entry of this column."""
    place = indptr[0]
    for column in range(counts.shape[1]):
        for team in range(counts.shape[0]):
            count = counts[np.uint64(team), np.uint64(column)]
            counts[np.uint64(team), np.uint64(column)] = place
            place += count
        indptr[np.uint64(column + 1)] = place


@compiled
def _place_entries(
    part: int, num_parts: int, places: Array, rows: tuple[Array, Array, Array], transposed: tuple[Array, Array]
) -> None:
    """Write each team's entries to the result. `places` has each team's position for its next entry of a column."""
    num_teams = places.shape[0]
    indptr, indices, data = rows
    new_indices, new_data = transposed
    for team in range(part, num_teams, num_parts):
        for row in range(first_row(team, num_teams, indptr), first_row(team + 1, num_teams, indptr)):
            for k in range(indptr[np.uint64(row)], indptr[np.uint64(row + 1)]):
                column = np.uint64(indices[np.uint64(k)])
                place = np.uint64(places[np.uint64(team), column])
                places[np.uint64(team), column] += 1
                new_indices[place], new_data[place] = row, data[np.uint64(k)]
