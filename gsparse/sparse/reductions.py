"""Sums, minima and maxima of the rows, the columns and the whole of a matrix, as SciPy defines them.

Arrays stay on the device unless a docstring says otherwise. The parameter `longest` is the length of the longest row;
from it, kernels decide whether to divide long rows among threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse._interrupt import uninterrupted
from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of


def sum_of_rows(device: Device, csr: Csr, longest: int, terms: str = "value") -> Array:
    """Return, for each row, the sum of what `terms` takes of its entries. May synchronize.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        Values of a compute dtype. Rows may be unsorted and have duplicates.
    longest : int
        Number of entries of the longest row.
    terms : str
        One of `gsparse.kernels.algebra.TERMS`; for example, "square" adds up the squares of the values.

    Returns
    -------
    array, shape (num_rows,)
        int64 for sums of integers and counts; otherwise floating-point or complex, at least as precise as the values.
    """
    return kernels_of(device).reductions.sum_entries(device, csr.indptr, csr.data, terms, longest)


def sum_of_all(device: Device, data: Array, terms: str = "value") -> Array:
    """Return, in an array of shape (1,), the sum of what `terms` takes of all values, of which there is at least one.

    `terms` is as for `sum_of_rows`.
    """
    return kernels_of(device).reductions.sum_entries(device, None, data, terms, int(data.size))


def sums_of_squares(device: Device, vectors: Array) -> npt.NDArray[np.float64]:
    """Return the squared norms of floating-point vectors, on the host. Synchronizes once.

    Squares are added up in double precision: in single precision, squares of numbers above 2e19 would overflow, and
    those of numbers below 2e-23 would be zero.

    Parameters
    ----------
    device : Device
        The device of the vectors. It must be the active one.
    vectors : array, shape (num_vectors, size)
        Contiguous, with a vector in each row.

    Examples
    --------
    >>> import numpy
    >>> from gsparse.device.select import get_device
    >>> sums_of_squares(get_device("cpu"), numpy.array([[3, 4], [0, 1]], numpy.float32))
    array([25.,  1.])
    """
    if not vectors.size:
        return np.zeros(vectors.shape[0])
    if not device.is_host:
        sums = [sum_of_all(device, vector, "square") for vector in vectors]
        return device.download(sums[0] if len(sums) == 1 else device.xp.concatenate(sums))
    parts = vectors.view(vectors.real.dtype)
    on_host: npt.NDArray[np.float64] = np.einsum("ij,ij->i", parts, parts, dtype=np.float64)
    return on_host


def column_sums_on_host(csr: Csr, terms: str = "value") -> Array:
    """Return the sums of the columns, from arrays on the host; `terms` is as for `sum_of_rows`.

    The matrix is not transposed.

    On a GPU, this would need atomic operations, whose order differs from run to run.
    """
    with uninterrupted():
        from gsparse.kernels.cpu.reductions import sum_columns  # imports numba, so only if needed

    if terms == "nonzero":
        return np.bincount(csr.indices[csr.data != 0], minlength=csr.num_cols)
    values = csr.data if terms == "value" else np.abs(csr.data)
    return sum_columns(csr, values * values if terms == "square" else values)


def extreme_of_rows(device: Device, csr: Csr, longest: int, extreme: str, explicit: bool, unsigned: bool) -> Array:
    """Return the extreme element of each row, for example the greatest. May synchronize.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        A matrix in canonical form with values of a compute dtype.
    longest : int
        Number of entries of the longest row.
    extreme : str
        A key of `gsparse.kernels.algebra.EXTREMES`, such as "maximum".
    explicit : bool
        Whether only stored entries count; otherwise zeros that are not stored count too.
    unsigned : bool
        Whether the values, which are int64, hold the bits of uint64.

    Returns
    -------
    array, shape (num_rows,)
        The extremes, in the dtype of the values; 0 for a row without entries.
    """
    full = 0 if explicit else csr.num_cols
    return kernels_of(device).reductions.extreme_entries(device, csr.indptr, csr.data, extreme, longest, full, unsigned)


def positions_of_rows(device: Device, csr: Csr, longest: int, extreme: str, explicit: bool, unsigned: bool) -> Array:
    """Return, for each row, the column of its first extreme element; 0 for a row without entries. May synchronize.

    The parameters are those of `extreme_of_rows`.

    Returns
    -------
    array of int64, shape (num_rows,)
    """
    xp, kernels = device.xp, kernels_of(device)
    if not csr.nnz:
        return xp.zeros(csr.num_rows, np.int64)
    positions = kernels.reductions.extreme_positions(device, csr.indptr, csr.data, extreme, longest, unsigned)
    if not explicit:
        return kernels.reductions.extreme_columns(device, csr, positions, extreme, unsigned)
    return xp.where(positions < 0, 0, csr.indices[positions]).astype(np.int64)


def first_extreme(device: Device, csr: Csr, extreme: str, explicit: bool, dtype: np.dtype[Any]) -> Any:
    """Return the index of the first extreme element in the matrix flattened row by row. Synchronizes.

    The index is an int or an np.int64, as in SciPy. `extreme` is as for `extreme_of_rows`.

    Parameters
    ----------
    csr : Csr
        A matrix in canonical form with at least one entry and values of a compute dtype.
    explicit : bool
        Whether only stored entries count. The result is then an index into the stored entries, as in SciPy.
    dtype : dtype
        The dtype of the matrix before the conversion to the compute dtype.
    """
    kernels, unsigned = kernels_of(device), dtype == np.uint64
    found = kernels.reductions.extreme_positions(device, None, csr.data, extreme, csr.nnz, unsigned)
    position = int(found[0])  # synchronizes
    if explicit:
        return np.int64(position)
    value = device.download(csr.data[position : position + 1]).astype(dtype)[0]  # synchronizes
    rows = device.xp.searchsorted(csr.indptr, found.astype(csr.indptr.dtype), side="right")
    row = int(rows[0]) - 1  # synchronizes
    place = row * csr.num_cols + int(csr.indices[position])  # synchronizes
    beyond_zero = value < 0 if extreme == "minimum" else value > 0
    if beyond_zero or csr.nnz == csr.num_rows * csr.num_cols:
        return place
    missing = _first_missing(device, csr)
    return min(missing, np.int64(place)) if value == 0 else missing


def _first_missing(device: Device, csr: Csr) -> int:
    """Return the index of the first element without an entry in the matrix flattened row by row. Synchronizes."""
    xp, first_where = device.xp, kernels_of(device).reductions.first_where
    row = first_where(device, csr.indptr[1:] - csr.indptr[:-1] < csr.num_cols, "not zero") or 0  # synchronizes
    begin, end = int(csr.indptr[row]), int(csr.indptr[row + 1])  # synchronizes
    differs = csr.indices[begin:end] != xp.arange(end - begin)
    column = first_where(device, differs, "not zero")  # synchronizes
    return row * csr.num_cols + (end - begin if column is None else column)
