"""What solvers multiply by: anything with a shape and a product, as a call ``apply(x, y)`` that writes y."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.counters import Stats
from gsparse.device.dense import parse_dense
from gsparse.device.dtypes import COMPUTE_DTYPES, Array, storage_dtype
from gsparse.device.select import device_of, get_device
from gsparse.errors import DeviceError, ShapeError
from gsparse.linalg.registry import names_of
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix

__all__ = ["Apply", "Operator", "Ranks", "as_operator", "device_for"]

# ``apply(x, y)``: y becomes the product; both are flat, one column after the other.
Apply = Callable[[Array, Array], None]


class Ranks(Protocol):
    """What a solver needs of the ranks that share its vectors. All call the same in the same order."""

    def allreduce(self, values: Array) -> None:
        """Add an array of the device up over all ranks, in place and in the stream's order: the same bits on each."""
        ...

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for what has been queued; raise where another rank is lost."""
        ...

    def look(self, iteration: Any) -> None:
        """See an `Iteration` as it is now, whenever the host has looked at its scalars; raise where it is to end."""
        ...


class Operator(ABC):
    """A linear map between resident vectors. Preconditioners are operators; SciPy takes them as `M` too.

    Attributes
    ----------
    shape : (int, int)
    dtype : dtype
    is_resident : bool
        Whether a product stays on the device, neither waits nor allocates, and so can be part of a CUDA graph.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    is_resident: bool = True

    @property
    def ranks(self) -> Ranks | None:
        """Those that have the other rows, where this is one rank's part of an operator; vectors are parts then too."""
        return None

    @property
    def whole_shape(self) -> tuple[int, int]:
        """The shape of what this is one rank's rows of; else its own."""
        return self.shape

    @abstractmethod
    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        """Make ready for products of `columns` vectors of `dtype`, and give the call that computes them."""

    def matvec(self, x: Array) -> Array:
        """Multiply by a vector: what SciPy and CuPy ask of an operator.

        Parameters
        ----------
        x : array_like, shape (N,) or (N, 1)
            Of the host (synchronizes) or of the device (queued on the current stream).

        Returns
        -------
        array, shape (M,) or (M, 1)
            Where `x` is.

        Raises
        ------
        ShapeError, DeviceMemoryError
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
            Where `x` is.

        Raises
        ------
        ShapeError, DeviceMemoryError
        """
        return self._product(x, adjoint=True)

    def matmat(self, X: Array) -> Array:
        """Multiply by several vectors at once: what SciPy's block solvers ask of an operator.

        Parameters
        ----------
        X : array_like, shape (N, k)
            As for `matvec`.

        Returns
        -------
        array, shape (M, k)
            Where `X` is.

        Raises
        ------
        ShapeError, DeviceMemoryError
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
            Where `X` is.

        Raises
        ------
        ShapeError, DeviceMemoryError
        """
        return self._product(X, adjoint=True)

    def __matmul__(self, x: Array) -> Array:
        return self._product(x, adjoint=False)

    def _product(self, x: Array, *, adjoint: bool) -> Array:
        vector = parse_dense(x)
        device = vector.home or self.home()
        dtype = np.dtype(np.result_type(vector.dtype, self.dtype, np.float32))
        rows, size = self.shape[::-1] if adjoint else self.shape
        if vector.ndim not in (1, 2) or vector.shape[0] != size:
            raise ShapeError(f"this operator takes vectors of {size} elements, or columns, got shape {vector.shape}")
        other_axes = vector.shape[:0:-1]
        columns = math.prod(other_axes)
        with device.active(), device.memory_guard():
            if not columns:
                product = device.empty((0, rows), dtype)
            else:
                product = self._computed(device, vector.flat(device, dtype, columns), columns, adjoint)
            product = vector.moved_back(device, product)
        return vector.returned(product.reshape(*other_axes, rows).T)

    def _computed(self, device: Device, x: Array, columns: int, adjoint: bool) -> Array:
        """Give the product with vectors on the device, one after the other, as a new one."""
        y = device.empty(columns * self.shape[1 if adjoint else 0], x.dtype)
        self.bind(device, x.dtype, columns, adjoint=adjoint)(x, y)
        return y

    def home(self) -> Device:
        """Give the device that products of host vectors run on."""
        return get_device()


class _BoundProduct:
    """A product of a matrix as `Apply`, counted; where its kernel can, it leaves partial sums of conj(x)·y too.

    Attributes
    ----------
    num_dots : int
        How many; 0 where it cannot.
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
        """Make ready for ``y = alpha·A·x + beta·y``."""
        if device is not self.matrix.device:
            raise DeviceError(
                f"the matrix lives on {self.matrix.device.name}, the vectors on {device.name}: bring one to the other"
            )
        operand, conjugate = self.matrix.operand(transpose=adjoint, adjoint=adjoint)
        storage = storage_dtype(self.dtype, dtype)
        scalars = dtype.type(alpha), dtype.type(beta)
        if columns == 1:
            return _BoundProduct(operand.product(storage, dtype).multiply, scalars, conjugate, self.matrix.stats)
        multiply = operand.columns(storage, dtype).multiply

        def apply(x: Array, y: Array) -> None:
            X, Y = x.reshape(columns, -1).T, y.reshape(columns, -1).T
            multiply(X, Y, *scalars, conjugate)
            self.matrix.stats.count_product()

        return apply


class DenseOperator(Operator):
    """A dense array, multiplied by the array module (which cannot be captured: CuPy refuses cuBLAS there)."""

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

        apply(device.xp.zeros(columns * array.shape[1], dtype), device.xp.zeros(columns * array.shape[0], dtype))
        return apply


class ForeignOperator(Operator):
    """Anything with `matvec`: SciPy's LinearOperator (host vectors) or CuPy's (device vectors)."""

    is_resident = False

    def __init__(self, operator: Any) -> None:
        self.operator, self.shape = operator, (int(operator.shape[0]), int(operator.shape[1]))
        self.dtype = np.dtype(getattr(operator, "dtype", None) or np.float64)
        self.takes_device_arrays = type(operator).__module__.partition(".")[0] == "cupyx" or any(
            base.__module__.partition(".")[0] == "cupyx" for base in type(operator).__mro__
        )

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        name = "rmatvec" if adjoint else "matvec"
        product = getattr(self.operator, name)
        direct = self.takes_device_arrays or device.is_host

        def apply(x: Array, y: Array) -> None:
            for source, target in zip(x.reshape(columns, -1), y.reshape(columns, -1), strict=True):
                found = product(source if direct else device.download(source))
                target[...] = (found if direct else device.upload(np.asarray(found).astype(dtype))).reshape(-1)

        return apply


def as_operator(A: Any, device: Device, name: str = "A") -> Operator:
    """Give the operator for whatever a caller has: our matrices, SciPy's and CuPy's, dense arrays, LinearOperators.

    Parameters
    ----------
    A : object
    device : Device
        Where a matrix of the host goes.
    name : str
        What the caller calls it.

    Raises
    ------
    TypeError
        Where it has no product.
    """
    if isinstance(A, Operator):
        return A
    if isinstance(A, DeviceMatrix):
        return MatrixOperator(A)
    if sp.issparse(A) or (hasattr(A, "tocsr") and device_of(A) is not None):
        return MatrixOperator(GpuSparseMatrix(A, device=device))
    if hasattr(A, "matvec") and hasattr(A, "shape"):
        return ForeignOperator(A)
    array = A if device_of(A) is not None else np.asarray(A)
    if array.ndim != 2 or array.dtype.kind not in "biufc":
        raise TypeError(_no_operator(A, array, name))
    return DenseOperator(array if array.dtype.kind in "fc" else array.astype(np.float64))


def _no_operator(given: Any, array: Array, name: str) -> str:
    """Say what is required instead of what came; for a preconditioner's name, or what makes one, how to make it."""
    came = type(given).__name__
    if array.ndim:
        came += f" of {array.dtype} with shape {array.shape}"
    module = "gsparse.linalg"
    function = given if isinstance(given, str) else getattr(given, "__name__", "")
    if name == "M" and not array.ndim:
        is_ours = callable(given) and getattr(given, "__module__", "").startswith(module)
        is_known = is_ours or function in names_of("preconditioner")
        remedy = f": M={module}.{function if is_known else 'jacobi'}(A)"
    else:
        remedy = ": one has a shape and matvec"
    return f"{name} must be a matrix or operator, got {came}{remedy}"


def device_for(*parts: Any) -> Device:
    """Give the device to solve on: that of the matrix, else of the vectors, else the default."""
    for part in parts:
        if isinstance(part, DeviceMatrix):
            return part.device
        if isinstance(part, Operator):
            return part.home()
        found = None if part is None else device_of(part)
        if found is not None:  # on GPUs only
            return found
    return get_device()


def solve_dtype(*parts: Any) -> np.dtype[Any]:
    """Give the floating dtype that a solve with these computes in, as SciPy chooses it."""
    kinds = [np.dtype(part.dtype) for part in parts if part is not None and getattr(part, "dtype", None) is not None]
    dtype = np.dtype(np.result_type(*kinds)) if kinds else np.dtype(np.float64)
    return dtype if dtype in COMPUTE_DTYPES and dtype.kind in "fc" else np.dtype(np.result_type(dtype, np.float64))
