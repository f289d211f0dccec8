"""A·x = b made ready: checked, on one device, in one dtype; and the way back to the caller's kind of array."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse._typing import Array
from gsparse.device import Device, device_of
from gsparse.errors import DeviceError, DtypeError, ShapeError
from gsparse.interchange import Library, library_of, taken
from gsparse.linalg.operators import Operator, as_operator, device_for, solve_dtype

__all__ = ["System", "dtype_of", "make_system"]


@dataclass(eq=False)
class System:
    """Operators and vectors of one solve.

    Attributes
    ----------
    device : Device
    dtype : dtype
        Of all vectors.
    A : Operator
    M : Operator or None
        The preconditioner.
    b, x : array, shape (columns * rows,)
        On the device, one column after the other; `x` begins as the guess and belongs to the solve.
    columns : int
        Right-hand sides.
    has_guess : bool
        Whether `x` may be other than 0.
    guess : array, optional
        What `x` began as, where the caller gave it.
    on_host : bool
        Whether the caller gave a host array for b.
    shape : tuple of int
        Of the solution as the caller gets it.
    library : Library, optional
        That of b where it is neither NumPy's nor CuPy's: whose arrays the caller gets.
    """

    device: Device
    dtype: np.dtype[Any]
    A: Operator
    M: Operator | None
    b: Array
    x: Array
    columns: int
    has_guess: bool
    on_host: bool
    shape: tuple[int, ...]
    library: Library | None = None
    guess: Array | None = None

    @contextmanager
    def solving(self) -> Iterator[None]:
        """Solve within this block: on the device, on a stream of its own."""
        with self.device.active(), self.device.memory_guard(), self.device.apart():
            yield

    def tolerances(self, rtol: float, atol: float) -> npt.NDArray[np.float64]:
        """Give the residual norm to reach for each right-hand side; where b is 0, x is, and any residual will do."""
        if not isinstance(atol, float | int | np.number) or atol < 0:
            raise ValueError(f"atol must be a real, non-negative number, got {atol!r}")
        squares = np.array([float(self.device.xp.vdot(v, v).real) for v in self.b.reshape(self.columns, -1)])
        norms = np.sqrt(self.total(squares))
        for column in np.flatnonzero(norms == 0):
            self.x.reshape(self.columns, -1)[column] = 0
        return np.where(norms == 0, np.inf, np.maximum(float(atol), float(rtol) * norms))

    def total(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Add numbers of the host up over all ranks that share the vectors. Synchronizes."""
        ranks = self.A.ranks
        if ranks is None:
            return values
        on_device = self.device.xp.array(values)
        ranks.allreduce(on_device)
        return self.device.peek(on_device, ranks.wait)()

    def nonfinite(self) -> list[str]:
        """Name what was given and holds NaN or infinity: why a solve may have broken down. Synchronizes."""
        values = getattr(getattr(self.A, "matrix", None), "device_data", None)
        given = {"b": self.b, "x0": self.guess, "A": values}
        with self.device.active():
            bad = [
                v is not None and not bool((np if device_of(v) is None else self.device.xp).isfinite(v).all())
                for v in given.values()
            ]
        total = self.total(np.array(bad, dtype=np.float64))
        return [name for name, count in zip(given, total, strict=True) if count]

    def deliver(self, x: Array) -> Array:
        """Give flat columns to the caller: of the kind b was, a vector where there is one right-hand side."""
        x = x.reshape(self.columns, -1).T
        if self.on_host:
            x = self.device.download(x)
        x = x.reshape(self.shape) if self.columns == 1 else x
        return x if self.library is None else self.library.give(x)


def make_system(A: Any, b: Any, x0: Any = None, M: Any = None, *, square: bool = True, dtype: Any = None) -> System:
    """Check and bring together what a solver was given.

    Raises
    ------
    ShapeError, DeviceError, TypeError
        Saying what is required and what came.
    """
    library = library_of(b)
    b, x0 = taken(b), taken(x0)
    device = device_for(A, b, M)
    with device.active(), device.memory_guard():
        return replace(_make_system(device, A, b, x0, M, square, dtype), library=library)


def _make_system(device: Device, A: Any, b: Any, x0: Any, M: Any, square: bool, dtype: Any) -> System:
    operator, preconditioner = as_operator(A, device), None if M is None else as_operator(M, device, "M")
    rows, size = operator.shape
    if square and rows != size:
        raise ShapeError(f"expected square matrix, but got shape={(rows, size)}: use lsqr or lsmr for least squares")
    if preconditioner is not None and preconditioner.shape != operator.shape:
        raise ShapeError(f"matrix and preconditioner have different shapes: {operator.shape}, {preconditioner.shape}")
    home = device_of(b)
    if home is not None and home is not device:  # on GPUs only
        raise DeviceError(f"the matrix lives on {device.name}, b on {home.name}: bring one to the other")
    b = np.asarray(b) if home is None else b
    if b.ndim not in (1, 2) or b.shape[0] != rows:
        raise ShapeError(f"A and b have incompatible dimensions: shapes {operator.shape} and {b.shape}")
    columns = 1 if b.ndim == 1 else int(b.shape[1])
    if dtype is None:
        dtype = solve_dtype(operator, b)
    flat = flatten(device, b, dtype, columns)
    x, guess = device.xp.zeros(columns * size, dtype), None
    if isinstance(x0, str):
        if x0 != "Mb":
            raise ValueError(f"x0 must be an array or 'Mb', got {x0!r}")
        x0_flat = flat if preconditioner is None else x
        if preconditioner is not None:
            preconditioner.bind(device, dtype, columns)(flat, x)
        x[...] = x0_flat
    elif x0 is not None:
        guess = x0 if device_of(x0) is not None else np.asarray(x0)
        if guess.size != columns * size or guess.shape[0] != size:
            raise ShapeError(f"shapes of A {operator.shape} and x0 {guess.shape} are incompatible")
        x[...] = flatten(device, guess, dtype, columns)
    shape = (size,) if columns == 1 else (size, columns)  # (SciPy's: a vector also for a column)
    return System(
        device, dtype, operator, preconditioner, flat, x, columns, x0 is not None, home is None, shape, guess=guess
    )


def flatten(device: Device, array: Array, dtype: np.dtype[Any], columns: int) -> Array:
    """Bring an array of the caller's to the device, one column after the other."""
    by_columns = array.reshape(-1, columns).T
    if device.owns(array) and device_of(array) is not None:  # on GPUs only
        return device.xp.ascontiguousarray(by_columns.astype(dtype, copy=False)).reshape(-1)
    home = device_of(array)
    host = array if home is None else home.download(array)
    return device.upload(np.ascontiguousarray(host.reshape(-1, columns).T.astype(dtype)).reshape(-1))


def dtype_of(given: Any, name: str) -> np.dtype[Any]:
    """Give the dtype that an argument of this name asks for."""
    try:
        found: np.dtype[Any] = np.dtype(given)
    except TypeError as error:
        raise DtypeError(f"{name} must be a dtype, got {given!r}") from error
    return found
