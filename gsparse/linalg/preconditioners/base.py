"""What preconditioners have in common: passes bound to the arrays they are applied to, and a home."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import DeviceError, DtypeError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.calls import Call
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.solve_loop import State
from gsparse.linalg.operators import Apply, Operator

__all__ = ["Passes", "Preconditioner"]

# `d` is a diagonal. A relaxation that a residual is needed after leaves b where that is to be.
PROGRAM = Program(
    "preconditioner",
    "x b r d",
    (
        Step("copy", each="x = b"),
        Step("scale", each="x = d * b"),
        Step("begin", each="x = size * b"),
        Step("begin_scaled", each="x = size * d * b"),
        Step("begin_residual", each="x = size * b; r = b"),
        Step("begin_scaled_residual", each="x = size * d * b; r = b"),
        Step("relax", each="x += size * (b - r)"),
        Step("relax_scaled", each="x += size * d * (b - r)"),
        Step("relax_residual", each="x += size * (b - r); r = b"),
        Step("relax_scaled_residual", each="x += size * d * (b - r); r = b"),
    ),
)
_STEPS = {step.name: step for step in PROGRAM.steps}

# ``build(x, y)``: the calls that make y the product with x; ``build(x, y)`` itself may allocate and wait.
Build = Callable[[Array, Array], list[Call]]


class Passes:
    """Passes over vectors of one kind.

    Parameters
    ----------
    device : Device
    dtype : dtype
    columns : int
        Vectors side by side.
    """

    def __init__(self, device: Device, dtype: np.dtype[Any], columns: int) -> None:
        self.device, self.dtype, self.columns = device, dtype, columns
        self._states: dict[float, State] = {}

    def bind(self, name: str, size: float = 1.0, **vectors: Array) -> Call:
        """Bind a pass to vectors and to its `size`."""
        state = self._states.get(size)
        if state is None:
            state = self._states[size] = State(self.device, PROGRAM, self.dtype, self.columns, capacity=1)
            state.set(size=size)
        bind: Callable[..., Call] = kernels_of(self.device).bind_step
        return bind(self.device, PROGRAM, _STEPS[name], vectors, state)

    def vector(self, rows: int) -> Array:
        """Allocate room for vectors."""
        return self.device.xp.zeros(self.columns * rows, self.dtype)

    def diagonal(self, values: Array, *, adjoint: bool = False) -> Array:
        """Give a diagonal as passes take it: in their dtype, once for each column."""
        xp = self.device.xp
        values = xp.conj(values) if adjoint else values
        values = values.astype(self.dtype, copy=False)
        return xp.tile(values, self.columns) if self.columns > 1 else values


class Preconditioner(Operator):
    """An approximate inverse on one device.

    Parameters
    ----------
    device : Device
    size : int
        Rows and columns.
    dtype : dtype
        Vectors have to be complex where this is.
    kind : str
        The function that makes such preconditioners.
    num_entries : int, optional
        Entries that a product reads, where it reads a matrix of its own.
    """

    def __init__(
        self, device: Device, size: int, dtype: np.dtype[Any], kind: str, num_entries: int | None = None
    ) -> None:
        self.device, self.shape, self.dtype = device, (size, size), np.dtype(dtype)
        self._kind, self._num_entries = kind, num_entries
        self._latest: tuple[Any, ...] = (None,)

    def __repr__(self) -> str:
        entries = "" if self._num_entries is None else f", {self._num_entries} entries"
        return (
            f"<{self._kind} preconditioner of shape {self.shape}, dtype {self.dtype}{entries}, on {self.device.name}>"
        )

    def home(self) -> Device:
        return self.device

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        if device is not self.device:
            raise DeviceError(
                f"the preconditioner lives on {self.device.name}, the vectors on {device.name}: bring one to the other"
            )
        if self.dtype.kind == "c" and dtype.kind != "c":
            raise DtypeError(f"a {self.dtype} preconditioner needs complex vectors, got {dtype}: solve in complex128")
        build = self._prepare(Passes(device, dtype, columns), adjoint)
        calls: dict[tuple[int, int], list[Call]] = {}

        def apply(x: Array, y: Array) -> None:
            key = _address(x), _address(y)
            if key not in calls:
                calls[key] = build(x, y)
            for call in calls[key]:
                call()

        return apply

    @abstractmethod
    def _prepare(self, passes: Passes, adjoint: bool) -> Build:
        """Allocate what products need, and give what binds them to arrays."""

    def _computed(self, device: Device, x: Array, columns: int, adjoint: bool) -> Array:
        """Multiply in buffers kept from the last time: SciPy comes once an iteration, each time with another vector."""
        key = (device, x.dtype, columns, adjoint, device.stream_key())
        latest = self._latest
        if latest[0] != key:
            bound = self.bind(device, x.dtype, columns, adjoint=adjoint)
            latest = self._latest = (key, bound, device.xp.empty_like(x), device.xp.empty_like(x))
        _, bound, source, target = latest
        source[...] = x
        bound(source, target)
        return target.copy()


def _address(array: Array) -> int:
    pointer = getattr(array.data, "ptr", None)  # (CuPy's)
    return int(array.ctypes.data if pointer is None else pointer)
