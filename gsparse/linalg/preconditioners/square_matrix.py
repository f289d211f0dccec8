"""A square matrix in canonical form, from which preconditioners take diagonals, triangles and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError, FactorizationError, ShapeError, StructureError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.operators import MatrixOperator, rounded_to_double
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix
from gsparse.plan.choice import EXPECTED_PRODUCTS
from gsparse.sparse.canonical import canonical

# The system of a small block counts as singular if its matrix times the computed solution differs from the right-hand
# side by at least this much in an element.
MAX_ERROR = 1e-2
# Largest asymmetry that counts as rounding error, in units of eps times the largest magnitude in a row. Such errors
# occur because assembly may add the same contributions in different orders to entries (i, j) and (j, i).
_ROUNDING = 32
# Key in `SquareMatrix.shared`, under which methods store the smallest and the largest real part of the diagonal's
# elements if they know them. If any element is not positive, the first number is 0.
DIAGONAL_RANGE = "diagonal range"


@dataclass(frozen=True, eq=False)
class SquareMatrix:
    """A square CSR matrix on a device, with sorted columns, no duplicates and floating-point values.

    Attributes
    ----------
    device : Device
    csr : Csr
    operator : MatrixOperator
        The matrix as it was passed, for products.
    """

    # Whether an empty row counts as a row of the identity when a diagonal block is inverted.
    FILLS_EMPTY_ROWS: ClassVar[bool] = False

    device: Device
    csr: Csr
    operator: MatrixOperator

    @staticmethod
    @contextmanager
    def of(A: Any, name: str, *, keep: bool = False, finite: bool = True) -> Iterator[SquareMatrix]:
        """Read the matrix that a user passed to the preconditioner `name`. Its device is current in the ``with`` block.

        With `keep`, `operator` is a copy, so later writes to the caller's matrix do not change its products. With
        `finite`, the values are checked.

        Raises
        ------
        ShapeError
            If the matrix is not square.
        TypeError
            If its entries cannot be read, as those of a LinearOperator.
        FactorizationError
            If a value is NaN or infinite and `finite` is true.
        """
        matrix = as_matrix(A, name)
        if matrix.shape[0] != matrix.shape[1]:
            raise ShapeError(f"{name} needs a square matrix, got shape {matrix.shape}: use lsqr or lsmr without M")
        device = matrix.device
        with device.active(), device.memory_guard():
            operator = MatrixOperator(matrix.copy() if keep else matrix)
            csr = canonical_csr(matrix)
            device.compile_ahead(name, csr.dtype, csr.indices.dtype)
            square = SquareMatrix(device, csr, operator)
            if finite:
                square.check_finite(name)
            yield square
            device.synchronize()  # synchronizes: afterwards, any stream may read results of this one

    @property
    def size(self) -> int:
        return self.csr.num_rows

    @property
    def whole_size(self) -> int:
        """Number of rows on all ranks, if this matrix holds the rows of one rank; otherwise `size`."""
        return self.operator.whole_shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = np.dtype(self.csr.dtype)
        return dtype

    @cached_property
    def shared(self) -> dict[Any, Any]:
        """Results that several methods share for this matrix, such as an order of its rows."""
        return {}

    @cached_property
    def rows(self) -> Array:
        """The row number of each entry, as a device array."""
        return kernels_of(self.device).sparse_rows.row_numbers(self.device, self.csr.indptr, self.csr.nnz)

    @cached_property
    def keys(self) -> Array:
        """Row number times `size` plus column number, for each entry; ascending."""
        return self.rows.astype(np.int64) * self.size + self.csr.indices

    @cached_property
    def stored_diagonal(self) -> Array:
        """The diagonal, with zeros for elements that are not stored."""
        return kernels_of(self.device).sparse_rows.diagonal_entries(self.device, self.csr, 0)

    @cached_property
    def stores_positive_diagonal(self) -> bool:
        """Whether all elements of `stored_diagonal` are positive. May synchronize the first time."""
        known: tuple[float, float] | None = self.shared.get(DIAGONAL_RANGE)
        if known is not None:
            return known[0] > 0
        return kernels_of(self.device).reductions.first_where(self.device, self.stored_diagonal, "not positive") is None

    @cached_property
    def diagonal(self) -> Array:
        """The diagonal by which methods divide: `stored_diagonal`, unless a subclass replaces some of its zeros."""
        return self.stored_diagonal

    def inverse_diagonal(self, name: str) -> Array:
        """Return the reciprocals of the diagonal. Synchronizes.

        Raises
        ------
        FactorizationError
            If an element is 0.
        """
        row = None
        if not self.stores_positive_diagonal:
            row = kernels_of(self.device).reductions.first_where(self.device, self.diagonal, "zero")
        if row is not None:
            fault = f"{name} divides by the diagonal, which is 0 in row {row}: reorder the rows, or use isai(A)"
            raise self.error_of_row(row, name, fault)
        return 1 / self.diagonal

    def error_of_row(self, row: int, name: str, fault: str) -> FactorizationError:
        """Return the error that the method `name` cannot use a row. Synchronizes.

        Parameters
        ----------
        row : int
        name : str
        fault : str
            The message, which is used if the row has entries: what is wrong with the row, and what to try.
        """
        begin, end = self.device.download(self.csr.indptr[row : row + 2])
        if begin == end:
            fault = f"{name}: row {row} has no entries, so A is singular: remove this row and its column"
        return FactorizationError(fault)

    def row_sums(self) -> Array:
        """Return the sum of the magnitudes of each row."""
        xp = self.device.xp
        magnitudes = self.csr.with_data(xp.abs(self.csr.data))
        sums, dtype = xp.empty(self.size, magnitudes.dtype), np.dtype(magnitudes.dtype)
        self.operator_of(magnitudes, products=1).bind(self.device, dtype)(xp.ones(self.csr.num_cols, dtype), sums)
        return sums

    def check_finite(self, name: str) -> None:
        """Raise an error if a value is NaN or infinite. Synchronizes."""
        entry = kernels_of(self.device).reductions.first_where(self.device, self.csr.data, "not finite")
        if entry is not None:
            row, value = int(self.rows[entry]), self.csr.data[entry].item()  # synchronizes
            raise FactorizationError(f"{name} needs finite values, row {row} of the matrix holds {value}: replace it")

    def has_positive_diagonal(self) -> bool:
        """Return whether all elements of the diagonal are positive. Synchronizes."""
        if self.stores_positive_diagonal or self.diagonal is self.stored_diagonal:
            return self.stores_positive_diagonal
        return kernels_of(self.device).reductions.first_where(self.device, self.diagonal, "not positive") is None

    def is_hermitian(self) -> bool:
        """Return whether the matrix was declared Hermitian or, without a declaration, is Hermitian up to rounding.

        Synchronizes.
        """
        return self._is_hermitian_within(_ROUNDING * float(np.finfo(self.dtype).eps))

    def is_roughly_hermitian(self) -> bool:
        """Return whether the matrix was declared Hermitian or, if not declared, is so up to half of the digits.

        Synchronizes.
        """
        return self._is_hermitian_within(float(np.sqrt(np.finfo(self.dtype).eps)))

    def equals_adjoint(self, tolerance: float = 0.0) -> bool:
        """Return whether the matrix equals its conjugate transpose. Synchronizes.

        `is_symmetric` of `gsparse.kernels.algebra` describes the tolerance.
        """
        is_complex = self.dtype.kind == "c"
        return bool(kernels_of(self.device).transpose.is_symmetric(self.device, self.csr, is_complex, tolerance))

    def _is_hermitian_within(self, tolerance: float) -> bool:
        declared = self.operator.matrix._prepared()[0].options.symmetric
        if declared is None:
            return self.equals_adjoint(tolerance)
        return declared == "hermitian" or (bool(declared) and self.dtype.kind != "c")

    def operator_of(self, csr: Csr, products: int = EXPECTED_PRODUCTS) -> MatrixOperator:
        """Return a matrix with these CSR arrays as an operator. `products` is the expected number of its products."""
        return operator_of(self.device, csr, products)

    @property
    def structure(self) -> Csr:
        """The matrix without its values."""
        return self.csr.with_data(self.device.no_values(self.dtype))

    def check_structure(self, device: Device, known: Csr, name: str) -> None:
        """Raise an error if this matrix cannot update the preconditioner `name`. Synchronizes.

        Parameters
        ----------
        device : Device
            The device of the preconditioner.
        known : Csr
            The `structure` of the matrix from which the preconditioner was computed.
        name : str
        """
        csr = self.csr
        if self.device is not device:
            raise DeviceError(
                f"the preconditioner lives on {device.name}, the matrix on {self.device.name}: use {name}(A)"
            )
        if csr.dtype != known.dtype:
            raise DtypeError(f"update needs a matrix of {known.dtype}, got {csr.dtype}: use A.astype, or {name}(A)")
        self.check_places(known, name)

    def check_places(self, known: Csr, name: str) -> None:
        """Raise a StructureError unless the entries are at the same positions as those of `known`. Synchronizes."""
        csr, device = self.csr, self.device
        is_same = (csr.shape, csr.nnz) == (known.shape, known.nnz) and all(
            one is two or kernels_of(device).reductions.first_where(device, one == two, "zero") is None  # synchronizes
            for one, two in ((csr.indptr, known.indptr), (csr.indices, known.indices))
        )
        if not is_same:
            raise StructureError(
                f"update needs the structure of the set-up, of shape {known.shape} with {known.nnz} entries; "
                f"this one of shape {csr.shape} with {csr.nnz} entries has them at other places: use {name}(A)"
            )


def operator_of(device: Device, csr: Csr, products: int = EXPECTED_PRODUCTS) -> MatrixOperator:
    """Return a matrix with these CSR arrays as an operator. `products` is the expected number of its products."""
    matrix = GpuSparseMatrix(
        (csr.data, csr.indices, csr.indptr),
        shape=csr.shape,
        device=device,
        expected_products=products,
        symmetric=False,
    )
    return MatrixOperator(matrix)


def as_matrix(A: Any, name: str) -> DeviceMatrix:
    """Return a user's argument as a matrix whose entries can be read.

    Raises
    ------
    TypeError
        If its entries cannot be read, as those of a LinearOperator. The message names the method `name`.
    """
    if isinstance(A, MatrixOperator):
        return A.matrix
    if isinstance(A, DeviceMatrix):
        return rounded_to_double(A)
    if sp.issparse(A) or (hasattr(A, "tocsr") and device_of(A) is not None):
        return rounded_to_double(GpuSparseMatrix(A))
    if hasattr(A, "matvec") or np.ndim(A) != 2:
        remedy = "A.tocsr(), or call solve(A, b) or cg(A, b, M=amg(A))" if hasattr(A, "tocsr") else "a sparse matrix"
        raise TypeError(f"{name} reads the entries of a matrix on one device, got {type(A).__name__}: pass {remedy}")
    return rounded_to_double(GpuSparseMatrix(A if device_of(A) is not None else sp.csr_array(np.asarray(A))))


def canonical_csr(matrix: DeviceMatrix) -> Csr:
    """Return the floating-point entries of a matrix, with sorted columns and without duplicates. Synchronizes."""
    csr = canonical_entries(matrix)
    return csr if csr.dtype.kind in "fc" else csr.with_data(csr.data.astype(np.float64))


def canonical_entries(matrix: DeviceMatrix) -> Csr:
    """Return the entries of a matrix in its dtype, with sorted columns and without duplicates. Synchronizes."""
    device, (prepared, conjugated) = matrix.device, matrix._prepared()
    csr = prepared.csr
    if not prepared.is_canonical:
        csr = canonical(device, csr)
    return csr.with_data(device.xp.conj(csr.data)) if conjugated else csr


def reciprocals(xp: Any, values: Array, otherwise: float = 0) -> Array:
    """Return the reciprocals of values, and `otherwise` for each value of zero."""
    is_zero = values == 0
    return xp.where(is_zero, otherwise, 1 / xp.where(is_zero, 1, values))


def solve_batch(xp: Any, systems: Array, right: Array) -> tuple[Array, Array]:
    """Solve many small dense systems. Return the solutions, and for each system whether it is regular."""
    if not systems.size:
        return right.copy(), xp.ones(len(systems), bool)
    try:
        solutions = xp.linalg.solve(systems, right)
    except np.linalg.LinAlgError:  # NumPy raises it if one of the systems is exactly singular
        is_regular = xp.linalg.matrix_rank(systems) == systems.shape[1]
        solutions = xp.full_like(right, np.nan)
        solutions[is_regular] = xp.linalg.solve(systems[is_regular], right[is_regular])
    with np.errstate(invalid="ignore", over="ignore"):
        errors = xp.abs(xp.matmul(systems, solutions) - right).max(axis=(1, 2))
    return solutions, errors < MAX_ERROR
