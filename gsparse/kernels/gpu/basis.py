"""Krylov bases on the GPU (contract: `gsparse.kernels.basis`; kernels: `src/basis.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.kernels import basis
from gsparse.kernels.basis import Call
from gsparse.kernels.gpu.catalogue import expression

__all__ = ["Arnoldi"]

_SOURCE = "basis.cu"
# GS_BASIS_THREADS, GS_BASIS_COLUMNS, GS_BASIS_BLOCKS: as many blocks a multiprocessor as have room for their registers,
# so that all run at a time.
_THREADS, _COLUMNS, _BLOCKS = 256, 8, 2
_COMBINING_BLOCKS = 3
# The most teams that share a block's threads; vectors beyond what they can hold are read once more.
_TEAMS = 32


class Arnoldi(basis.Arnoldi):
    """Two kernels an iteration; the last block of each to finish does the small part."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        device, state, m = self.device, self.state, self.restart
        wide = state.cells.dtype
        most = _BLOCKS * device.multiprocessors
        self._partials = device.empty(self.columns * (m + 2) * most, wide)
        self._sums = device.empty(self.columns * (m + 2), wide)
        self._arrivals = device.xp.zeros(self.columns, np.uint32)
        # (struct Small, and what follows it, in basis.cu)
        small = device.empty(self.columns * (5 * (m + 1) + 1 + (m + 1) ** 2 + m * m), wide)
        coefficients = device.empty(self.columns * (2 * m + 1), self.w.dtype)
        cells = (state.cells, np.int32(len(state.program.cells)), state.history, np.int32(state.capacity))
        self._small = (
            np.int32(m), np.int32(self.flexible), np.float64(self.epsilon), self._sums, small, coefficients, *cells,
            *map(np.int32, self.places),
        )  # fmt: skip

    def project(self, j: int) -> Call:
        return self._pass("project", j)

    def orthogonalize(self, j: int) -> Call:
        return self._pass("orthogonalize", j, int(j <= _TEAMS * _COLUMNS))

    def _pass(self, name: str, j: int, *variant: int) -> Call:
        teams = min(_TEAMS, 1 << (-(-max(j, 1) // _COLUMNS) - 1).bit_length())
        tile = _THREADS // teams * max(1, 16 // self.w.itemsize)
        grid = (max(1, min(-(-self.size // tile), _BLOCKS * self.device.multiprocessors)), self.columns)
        kernel = self._kernel(name, self.vectors.dtype, self.w.dtype, *variant)
        split = np.int32(self.reduce is not None)
        sizes = (np.int64(self.size), np.int32(j), np.int32(teams), split)
        args = (*sizes, self.vectors, self.w, self.u, self._partials, self._arrivals, *self._small)

        def launch() -> None:
            kernel(grid, (_THREADS,), args)

        reduce = self.reduce
        if reduce is None:
            return launch
        after = self._kernel(f"after_{name}", self.w.dtype)

        def launch_around() -> None:
            launch()
            reduce(self._sums)
            after((1, self.columns), (_THREADS,), (np.int32(j), *self._small))

        return launch_around

    def combine(self, x: Array) -> Call:
        combined = self.preconditioned if self.flexible else self.vectors
        solve, add = self._kernel("solve", x.dtype), self._kernel("combine", combined.dtype, x.dtype)
        tile = _THREADS * max(1, 16 // x.itemsize)
        grid = (max(1, min(-(-self.size // tile), _COMBINING_BLOCKS * self.device.multiprocessors)), self.columns)
        args = (np.int64(self.size), combined, x, *self._small)

        def launch() -> None:
            solve((1, self.columns), (self.device.lanes,), self._small)
            add(grid, (_THREADS,), args)

        return launch

    def _kernel(self, name: str, *types: Any) -> Any:
        return self.device.kernel(_SOURCE, expression(f"basis_{name}", *types))
