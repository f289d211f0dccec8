"""Matrices of given entries, diagonals, ones or random numbers, for `gsparse.sparse`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.dtypes import HOST_ONLY
from gsparse.device.select import get_device
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.operands import in_format, made
from gsparse.matrix.sparse_operations import csr_of
from gsparse.sparse.canonical import canonical, from_coordinates, identity, without_zeros

_AUTO = object()


def coo_array(arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False, *, device: Any = None) -> Any:
    """Return the matrix that `scipy.sparse.coo_array` would describe, in CSR, with repeated entries added up.

    Parameters
    ----------
    arg1 : (data, (row, col)) or anything that GpuSparseMatrix takes
        Arrays of the host are copied to the device, and sorted and added up there.
    shape, dtype, copy : optional
        As those of GpuSparseMatrix.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default where `arg1` does.

    Returns
    -------
    GpuSparseMatrix
        In canonical form. Synchronizes.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2), device="cpu").toarray()
    array([[0., 3.],
           [0., 0.]])
    """
    matrix = GpuSparseMatrix(arg1, shape, dtype, copy, device=device)
    if matrix.dtype.char in HOST_ONLY or matrix.ndim != 2:
        return matrix
    home = matrix.device
    with home.active(), home.memory_guard():
        csr = canonical(home, csr_of(matrix, matrix, False))
    return made(home, csr, None)


def diags_array(
    diagonals: Any,
    /,
    *,
    offsets: Any = 0,
    shape: Any = None,
    format: str | None = None,
    dtype: Any = _AUTO,
    device: Any = None,
) -> Any:
    """Return the matrix with the given diagonals, as `scipy.sparse.diags_array` does.

    Parameters
    ----------
    diagonals : sequence of array_like
        The diagonals, or one number for each of them, on the host.
    offsets : sequence of int, or int
        Their places: 0 is the main diagonal, and positive numbers lie above it.
    shape : (int, int), optional
        By default the smallest square matrix that holds the diagonals.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    dtype : dtype, optional
        Of the result; by default as `scipy.sparse.diags_array` chooses it.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives and is made, after SciPy has checked the diagonals on the host.

    Returns
    -------
    GpuSparseMatrix
        In canonical form, without entries for zeros. Synchronizes.

    Raises
    ------
    ValueError
        If the diagonals do not fit the shape, or if an offset occurs twice.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(3, 3), device="cpu").toarray()
    array([[ 2., -1.,  0.],
           [-1.,  2., -1.],
           [ 0., -1.,  2.]])
    """
    options = {} if dtype is _AUTO else {"dtype": dtype}
    dia = sp.diags_array(diagonals, offsets=offsets, shape=shape, format="dia", **options)
    home = get_device(device)
    if dia.dtype.char in HOST_ONLY:
        return in_format(GpuSparseMatrix(dia, device=home), format)
    with home.active(), home.memory_guard():
        xp, width = home.xp, min(dia.data.shape[1], dia.shape[1])
        order = np.argsort(dia.offsets)
        data = home.upload(np.ascontiguousarray(dia.data[order, :width]))
        columns = xp.arange(width, dtype=np.int64)
        places = home.upload(dia.offsets[order].astype(np.int64))
        rows = columns - places[:, None]
        inside = (rows >= 0) & (rows < dia.shape[0])
        columns = xp.broadcast_to(columns, rows.shape)
        csr = from_coordinates(home, dia.shape, rows[inside], columns[inside], data[inside])
        csr = without_zeros(home, csr)
    return made(home, csr, format)


def eye_array(
    m: int, n: int | None = None, *, k: int = 0, dtype: Any = float, format: str | None = None, device: Any = None
) -> Any:
    """Return a matrix with ones on a diagonal, as `scipy.sparse.eye_array` does.

    Parameters
    ----------
    m, n : int
        Numbers of rows and columns; n is m by default.
    k : int
        The diagonal: 0 is the main one, and positive numbers lie above it.
    dtype : dtype
        Of the result.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives and is made.

    Returns
    -------
    GpuSparseMatrix
        In canonical form.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.eye_array(2, 3, k=1, device="cpu").toarray()
    array([[0., 1., 0.],
           [0., 0., 1.]])
    """
    shape = (int(m), int(m if n is None else n))
    parsed = np.dtype(dtype)
    home = get_device(device)
    if parsed.char in HOST_ONLY or min(*shape, shape[0] + k, shape[1] - k) < 0:  # (SciPy refuses the latter.)
        return in_format(GpuSparseMatrix(sp.eye_array(*shape, k=k, dtype=parsed), device=home), format)
    with home.active(), home.memory_guard():
        csr = identity(home, shape, int(k), parsed)
    return made(home, csr, format)


def random_array(shape: Any, *, format: str | None = None, device: Any = None, **options: Any) -> Any:
    """Return a random matrix, the one that `scipy.sparse.random_array` draws from the same generator.

    Parameters
    ----------
    shape : (int, int)
        Numbers of rows and columns.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives. The numbers are drawn on the host.
    **options : optional
        ``density``, ``dtype``, ``rng`` and ``data_sampler`` of `scipy.sparse.random_array`.

    Returns
    -------
    GpuSparseMatrix
        In canonical form.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.random_array((10, 20), density=0.1, rng=0, device="cpu").nnz
    20
    """
    return in_format(GpuSparseMatrix(sp.random_array(shape, **options), device=device), format)
