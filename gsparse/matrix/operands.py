"""Operands and results of the functions of `gsparse.sparse`, which live in `gsparse.matrix`."""

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
from gsparse.sparse.canonical import canonical


def matrices_of(device: Any, parts: Any, *, none_is_zero: bool = False) -> tuple[Device, list[Any]]:
    """Return the device of an operation, and its operands there as matrices. With `none_is_zero`, None stays None."""
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
    """Return the device of an operation and the sorted CSR arrays of its operands; None for extended precision."""
    home, matrices = matrices_of(device, parts)
    return home, [sorted_csr(home, matrix) for matrix in matrices]


def sorted_csr(home: Device, matrix: Any, dtype: np.dtype[Any] | None = None) -> Csr | None:
    """Return sorted CSR arrays. With `dtype`, values are converted to it before repeated entries are added up."""
    if matrix.dtype.char in HOST_ONLY:
        return None
    csr = csr_of(matrix, matrix, False)
    with home.active(), home.memory_guard():
        return canonical(home, csr if dtype is None else csr.with_data(csr.data.astype(dtype, copy=False)))


def on_host(part: Any) -> Any:
    """Return an operand as SciPy takes it on the host."""
    if is_device_matrix(part):
        coo: Any = part
        return coo.tocoo()
    return part.get() if device_of(part) is not None else part


def made(home: Device, csr: Csr, format: str | None, operands: Sequence[Any] = ()) -> Any:
    """Return a matrix over new device arrays, of the flavour of the operands."""
    arrays = MatrixArrays.of_result(home, MatrixOptions(), csr)
    return in_format(matrix_over(GpuSparseMatrix, arrays, csr.shape), format, operands)


def in_format(matrix: Any, format: str | None, operands: Sequence[Any] = ()) -> Any:
    """Return a matrix in a format: a `CsrMatrix` if an operand is one and none is a sparse array, as in SciPy."""
    if any(isinstance(part, MatrixFlavour) for part in operands) and not any(
        isinstance(part, sp.sparray) for part in operands
    ):
        matrix = CsrMatrix(matrix)
    return matrix if format is None else matrix.asformat(format)
