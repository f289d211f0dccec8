"""The calls of an iteration, and the scalars and recent residuals of a solve on the device and on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call, Multiplication, Program, Step
from gsparse.linalg.operators import Operator, RankGroup
from gsparse.profiling import recording

# Number of residuals per right-hand side that the device stores until the host reads them. If one kernel runs many
# iterations, this is also the largest number of iterations per launch.
HISTORY_LENGTH = 64


@dataclass(frozen=True, eq=False)
class IterationPart:
    """A call of an iteration, and what it computes.

    Attributes
    ----------
    call : callable
    operations : tuple of Step and Multiplication
        The operations that the call performs. Empty if it only completes an earlier call.
    operator : Operator, optional
        The operator of the multiplications.
    """

    call: Call
    operations: tuple[Step | Multiplication, ...]
    operator: Operator | None = None

    def __call__(self) -> None:
        self.call()


@dataclass(eq=False)
class SolveState:
    """The scalars of a program on the device and the recent residuals, for each right-hand side.

    Attributes
    ----------
    device : Device
    program : Program
    dtype : dtype
        The dtype of the vectors.
    columns : int
        Number of right-hand sides.
    capacity : int
        Size of the ring buffer of residuals: iteration i is stored at position i modulo the capacity.
    ranks : RankGroup, optional
        The ranks that share the vectors. The sums of a pass are added up over all of them, so every rank has the same
        scalars.
    partial_sums : dict
        Dict from the name of a sum to its partial sums, stored as the kernels of the device need them.
    """

    device: Device
    program: Program
    dtype: np.dtype[Any]
    columns: int
    capacity: int = HISTORY_LENGTH
    ranks: RankGroup | None = None
    buffer: Array = field(init=False, repr=False)
    partial_sums: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._is_fresh = True
        self._cell_dtype = np.dtype(np.complex128 if self.dtype.kind == "c" else np.float64)
        self._num_cells = len(self.program.cells) * self.columns * (self._cell_dtype.itemsize // 8)
        self.buffer = self.device.xp.zeros(self._num_cells + self.columns * self.capacity, np.float64)

    @property
    def cells(self) -> Array:
        """All scalars, on the device. The scalars of one right-hand side are contiguous."""
        return self.buffer[: self._num_cells].view(self._cell_dtype)

    @property
    def history(self) -> Array:
        """The recent residuals on the device, `capacity` of them for each right-hand side."""
        return self.buffer[self._num_cells :]

    @property
    def reduce(self) -> Callable[[Array], None] | None:
        """The function that sums an array over all ranks in place; None if no ranks share the vectors."""
        return None if self.ranks is None else self.ranks.allreduce

    def bind(self, name: str, vectors: Mapping[str, Array]) -> Call:
        """Return the call that runs the pass `name` of the program on these vectors."""
        (step,) = (step for step in self.program.steps if step.name == name)
        bind: Callable[..., Call] = kernels_of(self.device).steps.bind_step
        return bind(self.device, self.program, step, vectors, self)

    def set(self, **scalars: Any) -> None:
        """Write scalars from the host: one value for all right-hand sides, or one for each.

        Synchronizes, except in the first call.
        """
        buffer = np.zeros(self.buffer.size) if self._is_fresh else self.device.download(self.buffer)
        self._is_fresh = False
        cells = buffer[: self._num_cells].view(self._cell_dtype).reshape(self.columns, -1)
        for name, value in scalars.items():
            if name in self.program.deferred_sums:
                raise KeyError(f"{name} is a sum of passes, not a scalar to be set")
            cells[:, self.program.cells[name]] = value
        self.buffer[...] = self.device.upload(buffer)

    def read(self) -> Snapshot:
        """Read all scalars. Synchronizes."""
        return self.read_async()()

    def read_async(self) -> Callable[[], Snapshot]:
        """Queue a copy of all scalars to the host. Return a function that waits for this copy and returns it."""
        copied = self.device.read_async(self.buffer, None if self.ranks is None else self.ranks.wait)
        if recording.recorder is not None:
            copied = recording.timed(copied, "wait", "for the scalars of a solve")
        return lambda: self.snapshot(copied())

    def snapshot(self, buffer: npt.NDArray[np.float64]) -> Snapshot:
        """Return `buffer`, a host copy of all scalars and residuals, as a `Snapshot`."""
        cells = buffer[: self._num_cells].view(self._cell_dtype).reshape(self.columns, -1)
        return Snapshot(self.program.cells, cells, buffer[self._num_cells :].reshape(self.columns, -1))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A host copy of the scalars and the recent residuals.

    Attributes
    ----------
    positions : dict of str to int
        Position of each scalar in a row of `cells`.
    cells : ndarray, shape (columns, num_scalars)
    history : ndarray, shape (columns, capacity)
    """

    positions: dict[str, int]
    cells: npt.NDArray[Any]
    history: npt.NDArray[np.float64]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.cells[:, self.positions[name]]

    @property
    def stop(self) -> npt.NDArray[np.int64]:
        return self["verdict" if "verdict" in self.positions else "stop"].real.astype(np.int64)

    @property
    def have_all_stopped(self) -> bool:
        """Whether every right-hand side has stopped."""
        return bool(self.stop.all())

    @property
    def iterations(self) -> npt.NDArray[np.int64]:
        return self["iteration"].real.astype(np.int64)
