"""Operators have a shape and a product. Solvers call the product as ``apply(x, y)``, which writes y."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.counters import Stats
from gsparse.device.dtypes import COMPUTE_DTYPES, Array, storage_dtype
from gsparse.device.interchange import parse_dense
from gsparse.device.select import device_of, get_device
from gsparse.errors import DeviceError, DtypeError, ShapeError
from gsparse.linalg.registry import names_of
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix

# ``apply(x, y)`` writes the product into y. Both are one-dimensional; several columns are stored one after the other.
Apply = Callable[[Array, Array], None]


class RankGroup(Protocol):
    """Communication for solvers whose vectors are divided among ranks. All ranks make the same calls in order."""

    def allreduce(self, values: Array) -> None:
        """Sum a device array over all ranks, in place and in stream order. All ranks get the same bits."""

    def agreed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the values that the first rank passed, on all ranks. Synchronizes."""

    def tabled(self, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
        """Return a table with a row of values for each rank, and the number of this rank's row. Synchronizes."""

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait until ``is_done()`` is true; raise an error if another rank is lost meanwhile."""

    def observe(self, iteration: Any) -> None:
        """Inspect the loop of a running solve when the host has read its scalars, or raise an error to end it."""


class Operator(ABC):
    """A linear map between vectors on a device. Preconditioners are operators; SciPy accepts them as `M` too.

    Attributes
    ----------
    shape : (int, int)
    dtype : dtype
    is_resident : bool
        Whether a product runs on the device only, and neither synchronizes nor allocates. Then a CUDA graph can record
        it.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    is_resident: bool = True

    @property
    def matrices(self) -> tuple[DeviceMatrix, ...]:
        """The matrices that hold the entries; empty if the entries cannot be read."""
        return ()

    @property
    def ranks(self) -> RankGroup | None:
        """The ranks that share the operator if this object is one rank's part of it; otherwise None."""
        return None

    @property
    def scaling(self) -> Array | None:
        """The diagonal, if the operator is a diagonal matrix whose diagonal is known; otherwise None."""
        return None

    @property
    def whole_shape(self) -> tuple[int, int]:
        """The shape of the whole operator if this object is one rank's part of it; otherwise `shape`."""
        return self.shape

    @property
    def first_index(self) -> int:
        """The index, in the whole vector, of the first element that this rank holds."""
        return 0

    @abstractmethod
    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        """Return the ``apply`` that multiplies `columns` vectors of `dtype` by this operator, or by its adjoint."""

    def matvec(self, x: Array) -> Array:
        """Multiply by a vector, as SciPy and CuPy require of an operator.

        Parameters
        ----------
        x : array_like, shape (N,) or (N, 1)
            On the host (the call synchronizes) or on the device (the product is queued on the current stream).

        Returns
        -------
        array, shape (M,) or (M, 1)
            On the host or on the device, as `x`.

        Raises
        ------
        ShapeError, DeviceError, DeviceMemoryError
        """
        return self._product(x, adjoint=False)

    def rmatvec(self, x: Array) -> Array:
        """Multiply the adjoint by a vector.

        Parameters
        ----------
        x : array_like, shape (M,) or (M, 1)
            As for `matvec`.

        Returns
        -------
        array, shape (N,) or (N, 1)
            On the host or on the device, as `x`.

        Raises
        ------
        ShapeError, DeviceError, DeviceMemoryError
        """
        return self._product(x, adjoint=True)

    def matmat(self, X: Array) -> Array:
        """Multiply by several vectors at once, as SciPy's block solvers require of an operator.

        Parameters
        ----------
        X : array_like, shape (N, k)
            As for `matvec`.

        Returns
        -------
        array, shape (M, k)
            On the host or on the device, as `X`.

        Raises
        ------
        ShapeError, DeviceError, DeviceMemoryError
        """
        return self._product(X, adjoint=False)

    def rmatmat(self, X: Array) -> Array:
        """Multiply the adjoint by several vectors at once.

        Parameters
        ----------
        X : array_like, shape (M, k)
            As for `matvec`.

        Returns
        -------
        array, shape (N, k)
            On the host or on the device, as `X`.

        Raises
        ------
        ShapeError, DeviceError, DeviceMemoryError
        """
        return self._product(X, adjoint=True)

    def __matmul__(self, x: Array) -> Array:
        return self._product(x, adjoint=False)

    def _product(self, x: Array, *, adjoint: bool) -> Array:
        vector = parse_dense(x)
        device = vector.gpu or self.home()
        dtype = solve_dtype(vector, self)
        rows, size = self.shape[::-1] if adjoint else self.shape
        if vector.ndim not in (1, 2) or vector.shape[0] != size:
            raise ShapeError(f"this operator takes arrays of shape ({size},) or ({size}, k), got {vector.shape}")
        other_axes = vector.shape[:0:-1]
        columns = math.prod(other_axes)
        with device.active(), device.memory_guard():
            if not columns:
                product = device.empty((0, rows), dtype)
            else:
                product = self._product_of(device, vector.flat(device, dtype, columns), columns, adjoint)
            product = vector.copy_back(device, product)
        return vector.returned(product.reshape(*other_axes, rows).T)

    def _product_of(self, device: Device, x: Array, columns: int, adjoint: bool) -> Array:
        """Return the product with columns that are stored one after the other on the device, as a new array."""
        y = device.empty(columns * self.shape[1 if adjoint else 0], x.dtype)
        self.bind(device, x.dtype, columns, adjoint=adjoint)(x, y)
        return y

    def home(self) -> Device:
        """Return the device on which products with host vectors run."""
        return get_device()


class _BoundProduct:
    """The product of a matrix with one vector, as an `Apply`. It counts its calls in the statistics of the matrix.

    If ``dots`` is passed, the kernel also writes partial sums of conj(x)·y into it.

    Attributes
    ----------
    num_dots : int
        Number of partial sums that the kernel writes; 0 if it cannot compute them.
    """

    def __init__(self, multiply: Any, scalars: tuple[Any, Any], conjugate: bool, stats: Stats) -> None:
        self._multiply, self._scalars, self._conjugate, self._stats = multiply, scalars, conjugate, stats
        self.num_dots: int = getattr(multiply, "num_dots", 0)

    def __call__(self, x: Array, y: Array, dots: Array | None = None) -> None:
        if dots is None:
            self._multiply(x, y, *self._scalars, self._conjugate)
        else:
            self._multiply(x, y, *self._scalars, self._conjugate, dots)
        self._stats.count_product()


class MatrixOperator(Operator):
    """A sparse matrix on the device, or a transposed or conjugated view of one."""

    def __init__(self, matrix: DeviceMatrix) -> None:
        self.matrix, self.dtype = matrix, np.dtype(matrix.dtype)
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))

    @property
    def matrices(self) -> tuple[DeviceMatrix, ...]:
        return (self.matrix,)

    def home(self) -> Device:
        return self.matrix.device

    def bind(
        self,
        device: Device,
        dtype: np.dtype[Any],
        columns: int = 1,
        *,
        adjoint: bool = False,
        alpha: float = 1,
        beta: float = 0,
    ) -> Apply:
        """Prepare for products ``y = alpha·A·x + beta·y``."""
        if device is not self.matrix.device:
            raise DeviceError(
                f"the matrix lives on {self.matrix.device.name}, the vectors on {device.name}: bring one to the other"
            )
        prepared, conjugate = self.matrix._prepared(transpose=adjoint, adjoint=adjoint)
        prepared.plan_for_many_products()
        storage = storage_dtype(self.dtype, dtype)
        scalars = dtype.type(alpha), dtype.type(beta)
        if columns == 1:
            return _BoundProduct(prepared.product(storage, dtype).multiply, scalars, conjugate, self.matrix.stats)
        multiply = prepared.columns(storage, dtype).multiply

        def apply(x: Array, y: Array) -> None:
            X, Y = x.reshape(columns, -1).T, y.reshape(columns, -1).T
            multiply(X, Y, *scalars, conjugate)
            self.matrix.stats.count_product()

        return apply


class DenseOperator(Operator):
    """A dense array, multiplied by the array module. It is not resident: CuPy refuses cuBLAS during graph capture."""

    is_resident = False

    def __init__(self, array: Array) -> None:
        self.array, self.shape, self.dtype = array, array.shape, np.dtype(array.dtype)

    def home(self) -> Device:
        return device_of(self.array) or get_device()

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        array = self.array if device.owns(self.array) else device.upload(np.asarray(self.array))
        array = array.conj().T if adjoint else array
        array = array.astype(dtype, copy=False)

        def apply(x: Array, y: Array) -> None:
            device.xp.matmul(x.reshape(columns, -1), array.T, out=y.reshape(columns, -1))

        # Multiply once now, so that CuPy loads cuBLAS here and not during the solve.
        apply(device.xp.zeros(columns * array.shape[1], dtype), device.xp.zeros(columns * array.shape[0], dtype))
        return apply


class ForeignOperator(Operator):
    """Any object with `matvec`: SciPy's LinearOperator (on host vectors) or CuPy's (on device vectors)."""

    is_resident = False

    def __init__(self, operator: Any) -> None:
        self.operator, self.shape = operator, (int(operator.shape[0]), int(operator.shape[1]))
        self.dtype = np.dtype(getattr(operator, "dtype", None) or np.float64)
        modules = {base.__module__.partition(".")[0] for base in type(operator).__mro__}
        self.takes_device_arrays = "cupyx" in modules

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        name = "rmatvec" if adjoint else "matvec"
        product = getattr(self.operator, name)
        is_direct = self.takes_device_arrays or device.is_host

        def apply(x: Array, y: Array) -> None:
            for source, target in zip(x.reshape(columns, -1), y.reshape(columns, -1), strict=True):
                # Pass a copy: the operator may write to its argument, which is a vector of the solver.
                result = product(source.copy() if is_direct else device.download(source))
                target[...] = (result if is_direct else device.upload(np.asarray(result).astype(dtype))).reshape(-1)

        return apply


def as_operator(A: Any, device: Device, name: str = "A") -> Operator:
    """Return the operator for a matrix or operator that a caller passed.

    Parameters
    ----------
    A : Operator, GpuSparseMatrix or a view of one, other sparse array, dense array, or LinearOperator
    device : Device
        The device to which a host matrix is copied.
    name : str
        The name of the argument, for the error message.

    Raises
    ------
    TypeError
        If A is none of these.
    """
    if isinstance(A, Operator):
        return A
    if isinstance(A, DeviceMatrix):
        return MatrixOperator(rounded_to_double(A))
    if sp.issparse(A) or (hasattr(A, "tocsr") and device_of(A) is not None):
        return MatrixOperator(rounded_to_double(GpuSparseMatrix(A, device=device)))
    if hasattr(A, "matvec") and hasattr(A, "shape"):
        return ForeignOperator(A)
    array = A if device_of(A) is not None else np.asarray(A)
    if array.ndim != 2 or array.dtype.kind not in "biufc":
        raise TypeError(_not_an_operator(A, array, name))
    return DenseOperator(array if array.dtype.kind in "fc" else array.astype(np.float64))


def rounded_to_double(matrix: DeviceMatrix) -> DeviceMatrix:
    """Return a copy in double precision of a matrix in extended precision (`longdouble`), else the matrix itself."""
    dtype = matrix.dtype
    if dtype.kind not in "fc" or dtype in COMPUTE_DTYPES:
        return matrix
    rounded: DeviceMatrix = matrix.astype(solve_dtype(matrix))
    return rounded


def _not_an_operator(argument: Any, array: Array, name: str) -> str:
    """Return the error message for an `argument` that is no operator.

    If a caller has passed a name or a function as `M`, the message shows the call that makes a preconditioner.
    """
    description = type(argument).__name__
    if array.ndim:
        description += f" of {array.dtype} with shape {array.shape}"
    module = "gsparse.linalg"
    function = argument if isinstance(argument, str) else getattr(argument, "__name__", "")
    if name == "M" and not array.ndim:
        is_ours = callable(argument) and getattr(argument, "__module__", "").startswith(module)
        is_known = is_ours or function in names_of("preconditioner")
        remedy = f": M={module}.{function if is_known else 'jacobi'}(A)"
    else:
        remedy = ": pass a matrix of two dimensions, or an object with shape and matvec"
    return f"{name} must be a matrix or operator, got {description}{remedy}"


def device_for(*parts: Any) -> Device:
    """Return the device of the first argument that is on one; otherwise the default device."""
    for part in parts:
        if isinstance(part, DeviceMatrix):
            return part.device
        if isinstance(part, Operator):
            return part.home()
        device = None if part is None else device_of(part)
        if device is not None:  # an array without one is on the host
            return device
    return get_device()


def solve_dtype(*parts: Any) -> np.dtype[Any]:
    """Return the floating-point dtype in which a solve with these operands computes, as SciPy chooses it.

    Raises
    ------
    DtypeError
        If an operand does not consist of numbers.
    """
    dtypes = [np.dtype(part.dtype) for part in parts if part is not None and getattr(part, "dtype", None) is not None]
    dtype = np.dtype(np.result_type(*dtypes)) if dtypes else np.dtype(np.float64)
    if dtype.kind not in "biufc":
        raise DtypeError(f"matrices and vectors must consist of numbers, got {dtype}: use astype(float)")
    if dtype in COMPUTE_DTYPES and dtype.kind in "fc":
        return dtype
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)  # rounds extended precision
