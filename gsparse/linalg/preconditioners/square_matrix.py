"""A square matrix made ready for what preconditioners take out of it: diagonals, triangles, blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import FactorizationError, ShapeError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.operators import MatrixOperator
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix
from gsparse.plan.choice import EXPECTED_PRODUCTS

__all__ = ["SquareMatrix", "first_where", "on_host", "rows_of", "select", "solve_each"]

# Of a column of the identity, in any element, where a small system is as good as singular.
_MAX_ERROR = 1e-2
# Asymmetry that rounding leaves in an assembled matrix, in units of eps and of the largest magnitude in a row: elements
# are added up in another order on the other side of the diagonal.
_ROUNDING = 32


@dataclass(frozen=True, eq=False)
class SquareMatrix:
    """Entries on a device: columns rise within each row, none twice; values are floating.

    Attributes
    ----------
    device : Device
    csr : Csr
    operator : MatrixOperator
        The matrix as it came, for products.
    """

    device: Device
    csr: Csr
    operator: MatrixOperator

    @staticmethod
    @contextmanager
    def of(A: Any, name: str, *, keep: bool = False, finite: bool = True) -> Iterator[SquareMatrix]:
        """Read what a caller gave the preconditioner `name`, and work on its device within the block.

        With `keep`, `operator` is for products from now on, which later writes to the caller's matrix do not change.
        With `finite`, the values are checked.

        Raises
        ------
        ShapeError
            Where it is not square.
        TypeError
            Where it has no entries to read: a LinearOperator.
        FactorizationError
            Where a value is NaN or infinite and `finite` is true.
        """
        matrix = _as_matrix(A, name)
        if matrix.shape[0] != matrix.shape[1]:
            raise ShapeError(f"{name} needs a square matrix, got shape {matrix.shape}: use lsqr or lsmr without it")
        device = matrix.device
        with device.active(), device.memory_guard():
            operator = MatrixOperator(matrix.copy() if keep else matrix)
            square = SquareMatrix(device, _canonical(matrix), operator)
            if finite:
                square.check_finite(name)
            yield square
            device.synchronize()  # synchronizes: what was made on this stream is read on any from now on

    @property
    def size(self) -> int:
        return self.csr.num_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(self.csr.dtype)
        return found

    @cached_property
    def rows(self) -> Array:
        """Row of each entry."""
        return rows_of(self.device, self.csr)

    @cached_property
    def keys(self) -> Array:
        """Place of each entry in the dense matrix, row by row: they rise."""
        return self.rows.astype(np.int64) * self.size + self.csr.indices

    @cached_property
    def diagonal(self) -> Array:
        """Diagonal, 0 where no entry is."""
        found = self.device.xp.zeros(self.size, self.dtype)
        on_diagonal = self.csr.indices == self.rows
        found[self.rows[on_diagonal]] = self.csr.data[on_diagonal]
        return found

    def inverse_diagonal(self, name: str) -> Array:
        """Give 1 over the diagonal. Synchronizes.

        Raises
        ------
        FactorizationError
            Where an element is 0.
        """
        row = first_where(self.device, self.diagonal == 0)
        if row is not None:
            raise FactorizationError(
                f"{name} divides by the diagonal, which is 0 in row {row}: reorder the rows, or use isai(A)"
            )
        return 1 / self.diagonal

    def row_sums(self) -> Array:
        """Give the sum of each row's magnitudes."""
        xp = self.device.xp
        magnitudes = self.csr.with_data(xp.abs(self.csr.data))
        sums, dtype = xp.empty(self.size, magnitudes.dtype), np.dtype(magnitudes.dtype)
        self.operator_of(magnitudes, products=1).bind(self.device, dtype)(xp.ones(self.size, dtype), sums)
        return sums

    def check_finite(self, name: str) -> None:
        """Refuse values that are NaN or infinite, of which nothing could be made. Synchronizes."""
        entry = first_where(self.device, ~self.device.xp.isfinite(self.csr.data))
        if entry is not None:
            row, value = int(self.rows[entry]), self.csr.data[entry].item()  # synchronizes
            raise FactorizationError(f"{name} needs finite values, row {row} of the matrix holds {value}: replace it")

    def is_hermitian(self) -> bool:
        """Tell whether the matrix is Hermitian: as was declared, else up to rounding. Synchronizes."""
        return self._is_declared_or_near(_ROUNDING * float(np.finfo(self.dtype).eps))

    def is_roughly_hermitian(self) -> bool:
        """Tell whether the matrix is Hermitian: as was declared, else to half of its digits. Synchronizes."""
        return self._is_declared_or_near(float(np.sqrt(np.finfo(self.dtype).eps)))

    def equals_adjoint(self, tolerance: float = 0.0) -> bool:
        """Compare with the conjugate transpose, see `is_symmetric` of `gsparse.kernels.contract`. Synchronizes."""
        is_complex = self.dtype.kind == "c"
        return bool(kernels_of(self.device).is_symmetric(self.device, self.csr, is_complex, tolerance))

    def _is_declared_or_near(self, tolerance: float) -> bool:
        declared = self.operator.matrix.operand()[0].request.symmetric
        if declared is None:
            return self.equals_adjoint(tolerance)
        return declared == "hermitian" or (bool(declared) and self.dtype.kind != "c")

    def operator_of(self, csr: Csr, products: int = EXPECTED_PRODUCTS) -> MatrixOperator:
        """Give a matrix of these arrays, for about so many products."""
        matrix = GpuSparseMatrix(
            (csr.data, csr.indices, csr.indptr),
            shape=csr.shape,
            device=self.device,
            expected_products=products,
            symmetric=False,
        )
        return MatrixOperator(matrix)


def _as_matrix(A: Any, name: str) -> DeviceMatrix:
    if isinstance(A, MatrixOperator):
        return A.matrix
    if isinstance(A, DeviceMatrix):
        return A
    if sp.issparse(A) or (hasattr(A, "tocsr") and device_of(A) is not None):
        return GpuSparseMatrix(A)
    if hasattr(A, "matvec") or np.ndim(A) != 2:
        raise TypeError(f"{name} reads the entries of a matrix, got {type(A).__name__}: pass a sparse matrix")
    return GpuSparseMatrix(A if device_of(A) is not None else sp.csr_array(np.asarray(A)))


def _canonical(matrix: DeviceMatrix) -> Csr:
    operand, conjugated = matrix.operand()
    if not operand.is_canonical:
        host = on_host(matrix.device, operand.csr)
        host.sum_duplicates()
        operand = GpuSparseMatrix(host, device=matrix.device).operand()[0]
    csr = operand.csr
    if csr.dtype.kind not in "fc":
        csr = csr.with_data(csr.data.astype(np.float64))
    return csr.with_data(matrix.device.xp.conj(csr.data)) if conjugated else csr


def on_host(device: Device, csr: Csr) -> sp.csr_array:
    """Bring CSR arrays to the host. Synchronizes."""
    parts = (device.download(part) for part in (csr.data, csr.indices, csr.indptr))
    return sp.csr_array(tuple(parts), shape=csr.shape)


def rows_of(device: Device, csr: Csr) -> Array:
    """Give the row of each entry."""
    xp = device.xp
    return (xp.searchsorted(csr.indptr, xp.arange(csr.nnz), side="right") - 1).astype(csr.indices.dtype)


def select(device: Device, csr: Csr, mask: Array, data: Array) -> Csr:
    """Give the entries of each row where `mask` is true."""
    xp, index = device.xp, csr.indptr.dtype
    before = xp.zeros(csr.nnz + 1, index)
    before[1:] = xp.cumsum(mask, dtype=index)
    return Csr(csr.shape, before[csr.indptr], csr.indices[mask], data[mask])


def solve_each(xp: Any, systems: Array, right: Array) -> tuple[Array, Array]:
    """Solve many small dense systems; give the solutions and which of them are any good."""
    if not systems.size:
        return right.copy(), xp.ones(len(systems), bool)
    try:
        found = xp.linalg.solve(systems, right)
    except np.linalg.LinAlgError:  # NumPy's, where one of them is singular to the last bit
        whole = xp.linalg.matrix_rank(systems) == systems.shape[1]
        found = xp.full_like(right, np.nan)
        found[whole] = xp.linalg.solve(systems[whole], right[whole])
    with np.errstate(invalid="ignore", over="ignore"):
        errors = xp.abs(xp.matmul(systems, found) - right).max(axis=(1, 2))
    return found, errors < _MAX_ERROR


def first_where(device: Device, mask: Array) -> int | None:
    """Give the first place where a mask is true. Synchronizes."""
    if not mask.size or not bool(mask.any()):  # synchronizes
        return None
    return int(device.xp.argmax(mask))  # synchronizes
