"""The system A·x = b of one solve: checked, on one device and in one dtype.

It also returns the solution as the kind of array that the caller passed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dense import DenseInput, parse_dense
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError, ShapeError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.operators import Operator, as_operator, device_for, solve_dtype
from gsparse.linalg.random_vectors import hashed_vector
from gsparse.sparse.reductions import sums_of_squares

__all__ = ["LinearSystem", "make_linear_system", "parse_dtype", "parse_right_hand_side"]


@dataclass(eq=False)
class LinearSystem:
    """The operators and vectors of one solve.

    Attributes
    ----------
    device : Device
    dtype : dtype
        The dtype of all vectors.
    A : Operator
    M : Operator or None
        The preconditioner.
    b : array, shape (columns * M,)
        On the device, one column after the other, for a matrix of M rows and N columns.
    x : array, shape (columns * N,)
        Likewise. It begins as the initial guess, and the solve overwrites it.
    columns : int
        Number of right-hand sides.
    has_guess : bool
        Whether `x` may begin with a value other than zero.
    guess : array, optional
        The initial guess, if the caller has passed an array.
    b_input : DenseInput
        b as the caller passed it: the solution is returned as the same kind of array.
    shape : tuple of int
        Shape of the solution that is returned to the caller.
    """

    device: Device
    dtype: np.dtype[Any]
    A: Operator
    M: Operator | None
    b: Array
    x: Array
    columns: int
    has_guess: bool
    b_input: DenseInput
    shape: tuple[int, ...]
    guess: Array | None = None

    @contextmanager
    def solving(self) -> Iterator[None]:
        """Make the device current within this block, and run its work on a stream of its own."""
        with self.device.active(), self.device.memory_guard(), self.device.own_stream():
            yield

    def tolerances(self, rtol: float, atol: float) -> npt.NDArray[np.float64]:
        """Return the residual norm that each right-hand side has to reach. Synchronizes.

        Where b is zero, x is set to zero and the tolerance is infinite.
        """
        norms = self.norms(self.b)
        for column in np.flatnonzero(norms == 0):
            self.x.reshape(self.columns, -1)[column] = 0
        return np.where(norms == 0, np.inf, np.maximum(float(atol), float(rtol) * norms))

    def residual_norms(self, shift: float = 0.0) -> npt.NDArray[np.float64]:
        """Return norm(b - (A - shift·I)·x) of each column for the present x, computed with a product. Synchronizes."""
        product = self.device.xp.zeros(self.b.size, self.dtype)
        self.A.bind(self.device, self.dtype, self.columns)(self.x, product)
        with np.errstate(all="ignore"):
            residual = self.b - product
            return self.norms(residual + shift * self.x if shift else residual)

    def scales(self) -> npt.NDArray[np.float64]:
        """Return what residuals are relative to: norm(b) of each column, or 1 where b is zero. Synchronizes."""
        norms = self.norms(self.b)
        return np.where(norms == 0, 1.0, norms)

    def norms(self, flat: Array) -> npt.NDArray[np.float64]:
        """Return the norm of each column over all ranks. Synchronizes."""
        return np.sqrt(self.sum_over_ranks(sums_of_squares(self.device, flat.reshape(self.columns, -1))))

    def sum_over_ranks(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add host values up over all ranks that share the vectors. Synchronizes."""
        ranks = self.A.ranks
        if ranks is None:
            return values
        on_device = self.device.xp.array(values)
        ranks.allreduce(on_device)
        return self.device.read_async(on_device, ranks.wait)()

    def nonfinite_inputs(self) -> list[str]:
        """Return the names of the inputs that contain NaN or infinity, which may explain a breakdown. Synchronizes."""
        values = getattr(getattr(self.A, "matrix", None), "device_data", None)
        inputs = {"b": self.b, "x0": self.guess, "A": values}
        with self.device.active():
            is_nonfinite = [self._has_nonfinite(v) for v in inputs.values()]
        counts = self.sum_over_ranks(np.array(is_nonfinite, dtype=np.float64))
        return [name for name, count in zip(inputs, counts, strict=True) if count]

    def unsolvable_row(self) -> int | None:
        """Return the first row in which A is zero and b is not, which no x solves; None if there is none. Synchronizes.

        A row is zero if its product with a vector that looks random is zero. The answer is None for ranks.
        """
        if self.A.ranks is not None:
            return None
        size = self.A.shape[0]
        with self.device.active(), np.errstate(all="ignore"):
            product = self.device.xp.ones(size, self.dtype)
            self.A.bind(self.device, self.dtype)(hashed_vector(self.device, size, self.dtype), product)
            is_unsolvable = (product == 0) & (self.b.reshape(self.columns, -1) != 0).any(axis=0)
            rows = self.device.download(self.device.xp.flatnonzero(is_unsolvable)[:1])
        return int(rows[0]) if rows.size else None

    def _has_nonfinite(self, values: Any) -> bool:
        """Return whether an array of the host or of the device, or None, contains NaN or infinity. Synchronizes."""
        if values is None or values.dtype.kind not in "fc":
            return False
        if device_of(values) is None:
            return not np.isfinite(values).all()
        return kernels_of(self.device).first_where(self.device, values.reshape(-1), "not finite") is not None

    def deliver(self, x: Array) -> Array:
        """Return flat columns as the caller gets them: the kind of array that b was, one of them as a vector."""
        x = x.reshape(self.columns, -1).T
        if self.b_input.is_on_host:
            x = self.device.download(x)
        x = x.reshape(self.shape) if self.columns == 1 else x
        return self.b_input.returned(x)


def parse_right_hand_side(b: Any) -> DenseInput:
    """Parse the right-hand side that a caller passed to a solver, and refuse sparse ones with a TypeError."""
    if hasattr(b, "tocsr"):
        raise TypeError("b is a sparse matrix, but solvers take dense right-hand sides: pass b.toarray()")
    return parse_dense(b)


def make_linear_system(
    A: Any, b: Any, x0: Any = None, M: Any = None, *, square: bool = True, dtype: Any = None
) -> LinearSystem:
    """Check the arguments of a solver, and bring them to one device and one dtype.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, TypeError
        If the arguments do not fit together. The message says what is required and what was passed.
    ValueError
        If `x0` is a string other than "Mb".
    """
    b_input = parse_right_hand_side(b)
    guess = x0 if x0 is None or isinstance(x0, str) else parse_dense(x0)
    device = device_for(A, b_input.array, M)
    with device.active(), device.memory_guard():
        return _make_system(device, A, b_input, guess, M, square, dtype)


def _make_system(
    device: Device, A: Any, b: DenseInput, x0: DenseInput | str | None, M: Any, square: bool, dtype: Any
) -> LinearSystem:
    operator, preconditioner = as_operator(A, device), None if M is None else as_operator(M, device, "M")
    rows, size = operator.shape
    if square and rows != size:
        raise ShapeError(f"expected square matrix, but got shape={(rows, size)}: use lsqr or lsmr for least squares")
    if preconditioner is not None and preconditioner.shape != operator.shape:
        raise ShapeError(
            f"matrix and preconditioner have different shapes: {operator.shape}, {preconditioner.shape}: M must have "
            "the shape of A"
        )
    if b.gpu is not None and b.gpu is not device:  # on GPUs only
        raise DeviceError(f"the matrix lives on {device.name}, b on {b.gpu.name}: bring one to the other")
    if b.ndim not in (1, 2) or b.shape[0] != rows:
        raise ShapeError(
            f"A and b have incompatible dimensions, shapes {operator.shape} and {b.shape}: b must have shape "
            f"({rows},) or ({rows}, k)"
        )
    columns = 1 if b.ndim == 1 else int(b.shape[1])
    if dtype is None:
        dtype = solve_dtype(operator, b)
    if isinstance(x0, DenseInput) and x0.dtype.kind == "c" and dtype.kind != "c":
        dtype = np.dtype(np.result_type(dtype, np.complex64))  # a real solve would drop the guess's imaginary part
    flat = b.flat(device, dtype, columns)
    if device.is_host and np.may_share_memory(flat, b.array):
        flat = flat.copy()  # If the caller's array is read-only, numba would compile every kernel again for it.
    x, guess = device.xp.zeros(columns * size, dtype), None
    if isinstance(x0, str):
        if x0 != "Mb":
            raise ValueError(f"x0 must be an array or 'Mb', got {x0!r}")
        x0_flat = flat if preconditioner is None else x
        if preconditioner is not None:
            preconditioner.bind(device, dtype, columns)(flat, x)
        x[...] = x0_flat
    elif x0 is not None:
        guess = x0.array
        if guess.size != columns * size or guess.shape[:1] != (size,):
            required = f"({size},)" if columns == 1 else f"({size}, {columns})"
            raise ShapeError(
                f"shapes of A {operator.shape} and x0 {guess.shape} are incompatible: x0 must have shape {required}"
            )
        x[...] = x0.flat(device, dtype, columns)
    shape = (size,) if columns == 1 else (size, columns)  # like SciPy, one column gives a vector
    return LinearSystem(device, dtype, operator, preconditioner, flat, x, columns, x0 is not None, b, shape, guess)


def parse_dtype(value: Any, name: str) -> np.dtype[Any]:
    """Return the dtype that the argument `name` asks for."""
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError as error:
        raise DtypeError(f"{name} must be a dtype, got {value!r}") from error
    return dtype
