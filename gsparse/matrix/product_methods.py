"""Methods for products, and for the plan: the format that products read, and the launch for several columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from gsparse.device.dtypes import COMPUTE_DTYPES, HOST_ONLY, Array
from gsparse.device.interchange import DenseInput, parse_dense
from gsparse.errors import DtypeError, ShapeError
from gsparse.files.checks import scipy_matrices
from gsparse.formats import Csr, CsrEntries, StoredMatrix
from gsparse.formats.launch import Panel
from gsparse.matrix.dense_operands import is_scalar
from gsparse.matrix.elementwise import scale
from gsparse.matrix.host_operations import counted_scipy_array, run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.sparse_operations import is_sparse, multiply_sparse
from gsparse.plan.choice import Plan
from gsparse.plan.columns import ColumnsPlan
from gsparse.products.bsr import DenseBlocks
from gsparse.products.multiply import multiply, multiply_columns_quickly, multiply_quickly
from gsparse.products.prepared import PreparedMatrix
from gsparse.profiling.recording import recorded_call

# The property is not called `blocksize` as in SciPy, because SciPy's methods, such as `resize` and `sum`, treat a
# matrix with an attribute of this name as BSR.


def declared_block_shape(self: MatrixLike) -> tuple[int, int] | None:
    """Return the block size of the BSR source; None without one, or if the matrix no longer consists of such blocks.

    Synchronizes.
    """
    declared = self._arrays.options.block_shape
    if declared is None:
        return None
    declared = declared[::-1] if self._by_columns else declared
    is_divided = all(size % block == 0 for size, block in zip(_found_block_shape(self), declared, strict=True))
    return declared if is_divided else None


def _found_block_shape(matrix: MatrixLike) -> tuple[int, int]:
    if matrix.dtype.char in HOST_ONLY:
        return 1, 1
    structure, device = matrix._arrays.current(matrix._stored_shape).structure, matrix.device
    with device.active(), device.memory_guard():
        rows, columns = structure.part(DenseBlocks).blocksize
    return (columns, rows) if matrix._by_columns else (rows, columns)


def _own_types(matrix: MatrixLike) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the dtypes of values and computation for a product with a vector of the matrix's dtype."""
    if matrix.dtype.char in HOST_ONLY:
        raise DtypeError(f"no device multiplies values of {matrix.dtype}, SciPy does it: use astype(float)")
    dtype = matrix.dtype if matrix.dtype in COMPUTE_DTYPES else np.dtype(np.int64)
    return dtype, dtype


def _planned(matrix: MatrixLike) -> PreparedMatrix:
    """Return the prepared matrix. Its next product follows a plan, unless it is the result of an operation."""
    prepared = matrix._prepared()[0]
    if not prepared.is_result:
        prepared.plan_for_many_products()
    return prepared


class Plans(MatrixLike):
    """Methods that show the chosen format, and the reason."""

    @property
    def plan(self) -> Plan:
        """The format chosen for A @ x with x of A's dtype, the reason, and the other candidates. Prints as a table.

        Raises
        ------
        DtypeError
            If no device multiplies values of the matrix's dtype.
        """
        types = _own_types(self)
        return _planned(self).plan(*types)

    def plan_for(self, columns: int) -> ColumnsPlan:
        """Return how ``A @ X`` with a row-major X runs on this device and on a GPU, and why. Synchronizes at first.

        Parameters
        ----------
        columns : int
            Number of columns of X, which has the matrix's dtype.

        Returns
        -------
        ColumnsPlan
            Prints as text.

        Examples
        --------
        >>> import gsparse, scipy.sparse
        >>> A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(5, format="csr"), device="cpu")
        >>> A.plan_for(8).launch.columns_per_load
        2
        """
        types = _own_types(self)
        pack = next((n for n in (4, 2) if n * types[1].itemsize <= 16 and columns % n == 0), 1)
        return _planned(self).columns_plan(Panel(columns, pack), *types)

    @property
    def stored(self) -> StoredMatrix:
        """The arrays that A @ x reads, in the plan's format: a frozen dataclass of `gsparse.formats`."""
        types = _own_types(self)
        stored: StoredMatrix | Csr = _planned(self).product(*types).stored
        return CsrEntries.of(stored) if isinstance(stored, Csr) else stored

    @property
    def block_shape(self) -> tuple[int, int]:
        """Rows and columns of the full dense blocks of which the matrix consists, SciPy's `blocksize`. Synchronizes.

        It is the size in the BSR matrix from which this matrix was made, if the blocks are still full. Otherwise it is
        the largest size up to 8 x 8. (1, 1) means that there are no blocks, or that no device supports the dtype.
        """
        return declared_block_shape(self) or _found_block_shape(self)


def _multiply_vector(matrix: MatrixLike, x: DenseInput, out: Array | None = None, *, adjoint: bool = False) -> Array:
    """Multiply a matrix by a vector, or by a single column, as SciPy's `LinearOperator` passes it."""
    if x.ndim == 2 and x.shape[1] == 1 and out is None:
        vector = DenseInput(x.array.reshape(-1), x.gpu)
        product = multiply(matrix, vector, adjoint=adjoint)
        return x.returned(product.reshape(-1, 1))
    return multiply(matrix, x, out=out, adjoint=adjoint, ndim=1)


def _matmul_of_parsed(matrix: MatrixLike, other: Any) -> Any:
    """Return A @ other, for an operand of any kind."""
    if type(other) is not np.ndarray:  # These questions are skipped for the most common operand.
        if is_sparse(other):
            return multiply_sparse(matrix, other)
        if np.isscalar(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
    x = parse_dense(other)
    if x.ndim == 0:
        if x.dtype == object and not isinstance(other, np.ndarray):
            return NotImplemented  # The object is not an array; its own __rmatmul__ may define the product.
        raise ValueError("Scalar operands are not allowed, use '*' instead")
    if matrix.ndim == 1:
        return _multiply_row(matrix, x, x.array)
    if x.ndim > 2:
        raise ShapeError(f"a sparse matrix multiplies vectors and matrices, got {x.ndim} dimensions")
    return _multiply_vector(matrix, x) if x.shape[1:] == (1,) else multiply(matrix, x)


def _multiply_row(matrix: MatrixLike, x: DenseInput, array: Array) -> Any:
    """Multiply a matrix of one dimension, which is a row, by a vector or by dense columns.

    Returns
    -------
    scalar or array
        A scalar for a vector; an array with one element per column for several columns.
    """
    if matrix.dtype.char in HOST_ONLY:
        return x.returned(run_on_host(matrix, "dot", array))
    if array.ndim > 2 or array.shape[0] != matrix.shape[0]:
        raise ShapeError(f"dimension mismatch: A @ X with A of shape {matrix.shape} got X of shape {array.shape}")
    row = matrix._with_arrays(matrix._arrays, (1, *matrix.shape))
    row.stats = matrix.stats
    products = x.returned(row @ array)
    return products[0]


class Products(MatrixLike):
    """Products with vectors, dense columns and sparse matrices."""

    def matvec(self, x: Array, out: Array | None = None) -> Array:
        """Multiply by a vector: A·x.

        Parameters
        ----------
        x : array_like, shape (N,) or (N, 1)
            NumPy, or CuPy on this matrix's GPU.
        out : array, shape (M,), optional
            See `gsparse.spmv`.

        Returns
        -------
        array, shape (M,) or (M, 1)
            A NumPy array for a NumPy x (synchronizes), a CuPy array for a CuPy x (queued on the current stream).

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
            If x or out has another shape, a dtype that is not accepted, or another device, or if memory does not
            suffice.

        Examples
        --------
        >>> import gsparse, scipy.sparse
        >>> gsparse.GpuSparseMatrix(scipy.sparse.diags_array([2.0, 3.0]), device="cpu").matvec([1.0, 1.0])
        array([2., 3.])
        """
        arrays = self._arrays
        prepared = None if self._by_columns else arrays.up_to_date(self._shape)
        if prepared is not None:
            product = multiply_quickly(prepared, x, out, arrays.data.conjugated, self.stats)
            if product is not None:
                return product
        return _multiply_vector(self, parse_dense(x), out)

    def rmatvec(self, x: Array, out: Array | None = None) -> Array:
        """Multiply the adjoint by a vector: Aᴴ·x.

        Parameters
        ----------
        x : array_like, shape (M,) or (M, 1)
            As for `matvec`.
        out : array, shape (N,), optional
            See `gsparse.spmv`.

        Returns
        -------
        array, shape (N,) or (N, 1)
            As from `matvec`.

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
            As for `matvec`.
        """
        return _multiply_vector(self, parse_dense(x), out, adjoint=True)

    def matmat(self, X: Array, out: Array | None = None) -> Array:
        """Multiply by k dense columns: A·X.

        Parameters
        ----------
        X : array_like, shape (N, k)
            As for `gsparse.spmm`.
        out : array, shape (M, k), optional
            See `gsparse.spmm`.

        Returns
        -------
        array, shape (M, k)
            A NumPy array for a NumPy X (synchronizes), a CuPy array for a CuPy X (queued on the current stream).

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
            As for `matvec`.
        """
        arrays = self._arrays
        prepared = None if self._by_columns or out is not None else arrays.up_to_date(self._shape)
        if prepared is not None:
            product = multiply_columns_quickly(prepared, X, arrays.data.conjugated, self.stats)
            if product is not None:
                return product
        return multiply(self, X, out=out, ndim=2)

    def rmatmat(self, X: Array, out: Array | None = None) -> Array:
        """Multiply the adjoint by k dense columns: Aᴴ·X.

        Parameters
        ----------
        X : array_like, shape (M, k)
            As for `gsparse.spmm`.
        out : array, shape (N, k), optional
            See `gsparse.spmm`.

        Returns
        -------
        array, shape (N, k)
            As from `matmat`.

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
            As for `matvec`.
        """
        return multiply(self, X, out=out, adjoint=True, ndim=2)

    def dot(self, other: Any) -> Any:
        """Multiply by a scalar, a vector, dense columns or a sparse matrix, as SciPy's `dot`.

        Parameters
        ----------
        other : scalar, array_like or sparse array, shape (N,) or (N, k)
            A sparse matrix is multiplied on the device too, wherever it lives.

        Returns
        -------
        array or GpuSparseMatrix, shape (M,) or (M, k)
            Sparse where `other` is sparse or a scalar; otherwise as from `matvec` and `matmat`.

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
            As for `matvec`.
        """
        return scale(self, other) if is_scalar(other) else self @ other

    def as_linear_operator(self) -> LinearOperator:
        """Return an operator whose products run on the device, for code that requires a LinearOperator.

        Returns
        -------
        scipy.sparse.linalg.LinearOperator
            It refers to this matrix, so later writes change its products.
        """
        methods = {name: getattr(self, name) for name in ("matvec", "rmatvec", "matmat", "rmatmat")}
        return LinearOperator(self.shape, dtype=self.dtype, **methods)

    def __matmul__(self, other: Any) -> Any:
        """Return A @ other."""
        if isinstance(other, MatrixLike):
            return multiply_sparse(self, other)
        arrays = self._arrays
        prepared = None if self._by_columns else arrays.up_to_date(self._shape)
        if prepared is not None:
            conjugate, stats = arrays.data.conjugated, self.stats
            product = multiply_quickly(prepared, other, None, conjugate, stats)
            if product is None:
                product = multiply_columns_quickly(prepared, other, conjugate, stats)
            if product is not None:
                return product
        return _matmul_of_parsed(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        """Return other @ A."""
        if is_scalar(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        if is_sparse(other):
            return multiply_sparse(self, other, reflected=True)
        x = parse_dense(other)
        if x.ndim == 0:
            return NotImplemented
        if self.ndim == 1:
            return _multiply_row(self, x, x.array.T)
        rows = self.shape[0]
        if x.ndim > 2 or x.shape[-1] != rows:
            required = f"({rows},) or (k, {rows})"
            raise ShapeError(
                f"dimension mismatch: X @ A with A of shape {self.shape} takes X of shape {required}, got {x.shape}"
            )
        return x.returned(multiply(self, x.array.T, transpose=True).T)

    def _matmul_vector(self, other: Any) -> Any:
        """Return A @ other, for SciPy's code, which calls private methods with checked operands."""
        return self.dot(other)

    _matmul_multivector = _matmul_sparse = _matmul_vector

    @recorded_call("host", "product: {0.dtype} values")
    def _host_product(self, x: Array, *, transpose: bool, adjoint: bool) -> Array:
        """Multiply with SciPy, for dtypes that no device supports, such as longdouble."""
        array = counted_scipy_array(self, "product")
        with scipy_matrices():
            matrix = array.T.conj() if adjoint else array.T if transpose else array
        return matrix @ (x if isinstance(x, np.ndarray) else self.device.download(x))
