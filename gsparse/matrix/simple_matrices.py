"""Functions that make matrices from entries, diagonals, ones or random numbers, and that parse operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY
from gsparse.device.select import device_of, get_device
from gsparse.formats import Csr
from gsparse.matrix.arrays import MatrixArrays
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.matrix_flavour import CsrMatrix, MatrixFlavour
from gsparse.matrix.matrix_like import is_device_matrix, matrix_over
from gsparse.matrix.sparse_operations import csr_of
from gsparse.products.planning import MatrixOptions
from gsparse.sparse.canonical import canonical, from_coordinates, identity, without_zeros


def matrices_of(device: Any, parts: Any, *, none_is_zero: bool = False) -> tuple[Device, list[Any]]:
    """Return the device of an operation, and its operands as matrices on it. With `none_is_zero`, None stays None."""
    for part in parts:
        if isinstance(part, tuple) or (part is None and not none_is_zero):
            raise TypeError(
                f"a matrix is required, got {part!r}: pass a sparse or dense one; gsparse.sparse.csr_array makes one "
                "of a shape or of arrays"
            )
    homes = (part.device if is_device_matrix(part) else device_of(part) for part in parts)
    found = next((home for home in homes if home is not None), None) if device is None else None
    home = get_device(device) if found is None else found
    return home, [None if part is None else _on_device(home, part) for part in parts]


def _on_device(home: Device, part: Any) -> Any:
    if is_device_matrix(part) and part.device is home and part.ndim == 2:
        return part
    if not (sp.issparse(part) or hasattr(part, "tocsr")) and device_of(part) is None:
        part = np.atleast_2d(np.asarray(part))
    elif sp.issparse(part) and part.ndim == 1:
        part = part.reshape(1, -1)
    return GpuSparseMatrix(part, device=home)


def csr_operands(device: Any, *parts: Any) -> tuple[Device, list[Csr | None]]:
    """Return the device of an operation, and each operand's sorted CSR arrays, or None if it is extended precision."""
    home, matrices = matrices_of(device, parts)
    return home, [sorted_csr(home, matrix) for matrix in matrices]


def sorted_csr(home: Device, matrix: Any, dtype: np.dtype[Any] | None = None) -> Csr | None:
    """Return CSR arrays with sorted columns, or None for extended precision.

    If `dtype` is not None, values are converted to this dtype before repeated entries are added up.
    """
    if matrix.dtype.char in HOST_ONLY:
        return None
    csr = csr_of(matrix, matrix, False)
    with home.active(), home.memory_guard():
        return canonical(home, csr if dtype is None else csr.with_data(csr.data.astype(dtype, copy=False)))


def on_host(part: Any) -> Any:
    """Return an operand in a form that SciPy accepts, on the host."""
    if is_device_matrix(part):
        coo: Any = part
        return coo.tocoo()
    return part.get() if device_of(part) is not None else part


def made(home: Device, csr: Csr, format: str | None, operands: Sequence[Any] = ()) -> Any:
    """Return a matrix with new device arrays, in a format and of the class that `in_format` chooses."""
    arrays = MatrixArrays.of_result(home, MatrixOptions(), csr)
    return in_format(matrix_over(GpuSparseMatrix, arrays, csr.shape), format, operands)


def in_format(matrix: Any, format: str | None, operands: Sequence[Any] = ()) -> Any:
    """Convert a matrix to `format`, and to a `CsrMatrix` if an operand is one and none is a sparse array."""
    if any(isinstance(part, MatrixFlavour) for part in operands) and not any(
        isinstance(part, sp.sparray) for part in operands
    ):
        matrix = CsrMatrix(matrix)
    return matrix if format is None else matrix.asformat(format)


_AUTO = object()


def coo_array(arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False, *, device: Any = None) -> Any:
    """Return the matrix that `scipy.sparse.coo_array` would describe, in CSR, with repeated entries added up.

    Parameters
    ----------
    arg1 : (data, (row, col)) or anything that GpuSparseMatrix takes
        Arrays of the host are copied to the device, and sorted and added up there.
    shape, dtype, copy : optional
        See `GpuSparseMatrix`.
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
        For each diagonal, its elements or one number for all of them; on the host.
    offsets : sequence of int, or int
        The place of each diagonal: 0 is the main diagonal, and diagonals with positive numbers lie above it.
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
