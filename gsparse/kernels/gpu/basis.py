"""Krylov bases on the GPU (contract: `gsparse.kernels.basis`; kernels: `src/basis.cu`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels import basis
from gsparse.kernels.calls import Call, queue
from gsparse.kernels.gpu.expressions import expression

__all__ = ["Arnoldi"]

_SOURCE = "basis.cu"
# GS_BASIS_THREADS, GS_BASIS_COLUMNS, GS_BASIS_BLOCKS: as many blocks a multiprocessor as have room for their registers,
# so that all run at a time.
_THREADS, _COLUMNS, _BLOCKS = 256, 8, 2
_COMBINING_BLOCKS = 3
# GS_BASIS_TEAMS, the most that share a warp's lanes; vectors beyond what they can hold are read once more.
_TEAMS = 8


class Arnoldi(basis.Arnoldi):
    """Two kernels an iteration. The host need not know what a cycle has come to: `settle` is left to the next pass."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        device, state, m = self.device, self.state, self.restart
        wide = state.cells.dtype
        most = self.columns * (m + 2) * self._most_blocks
        self._of_u, self._of_w = device.empty(most, wide), device.empty(most, wide)
        # (struct Small, and what follows it, in arnoldi.cuh)
        self._sums = device.xp.zeros((2, self.columns * 2 * (m + 1)), wide)
        small = device.empty(self.columns * (5 * (m + 1) + 3 + (m + 1) ** 2 + m * m), wide)
        coefficients = device.empty(self.columns * m, self.w.dtype)
        cells = (state.cells, np.int32(len(state.program.cells)), state.history, np.int32(state.capacity))
        self._small = (
            np.int32(m), np.int32(self.flexible), np.float64(self.epsilon), self._sums, small, coefficients, *cells,
            *map(np.int32, self.places),
        )  # fmt: skip

    def project(self, j: int) -> Call:
        kernel = self._kernel("project", self.vectors.dtype, self.w.dtype)
        before = (self._of_w, np.int32(self._blocks(j - 1) if j else 0))
        calls = [self._over_elements(kernel, j, self.vectors, self.w, self.u, *before, self._of_u)]
        if self.reduce is not None or not self._is_held(j):
            calls.append(self._add_up(j, self._of_u, of_w=False))
        if self.reduce is not None:
            calls.append(self._reduce(j))
        return partial(queue, calls)

    def orthogonalize(self, j: int) -> Call:
        kernel = self._kernel("orthogonalize", self.vectors.dtype, self.w.dtype, int(self._is_held(j)))
        m, blocks = self.restart, self._blocks(j)
        products = (self._of_u, np.int64((m + 2) * blocks), np.int32(blocks))
        if self.reduce is not None:
            products = (self._sums[j % 2][m + 1 :], np.int64(2 * (m + 1)), np.int32(1))
        return self._over_elements(kernel, j, self.vectors, self.w, self.u, *products, self._of_w)

    def settle(self, j: int) -> Call:
        blocks = self._blocks(j) if self.reduce is None else 0  # (none: what they left has been added up)
        args = (np.int32(j), self._of_w, np.int32(blocks), *self._small)
        last = partial(self._kernel("settle", self.w.dtype), (1, self.columns), (_THREADS,), args)
        if self.reduce is None:
            return last
        return partial(queue, [self._add_up(j, self._of_w, of_w=True), self._reduce(j + 1), last])

    def _add_up(self, j: int, partials: Array, *, of_w: bool) -> Call:
        args = (np.int32(j), np.int32(of_w), partials, np.int32(self._blocks(j)), *self._small)
        return partial(self._kernel("sums", self.w.dtype), (1, self.columns), (_THREADS,), args)

    def _reduce(self, j: int) -> Call:
        assert self.reduce is not None
        return partial(self.reduce, self._sums[j % 2])

    def _over_elements(self, kernel: Any, j: int, *args: Any) -> Call:
        grid = (1 + self._blocks(j), self.columns)
        sizes = (np.int64(self.size), np.int32(j), np.int32(self._teams(j)))
        return partial(kernel, grid, (_THREADS,), (*sizes, *args, *self._small))

    def _teams(self, j: int) -> int:
        """Give how many teams share a warp in iteration j: as few as hold the vectors, more where tiles are few."""
        teams, most = 1, min(_TEAMS, 1 << (max(j, 1) - 1).bit_length())
        while teams < most and (j > teams * _COLUMNS or self._tiles(2 * teams) <= self._most_blocks):
            teams *= 2
        return teams

    def _tiles(self, teams: int) -> int:
        in_flight = 1 if self.w.dtype.name == "complex128" else 16 // self.vectors.dtype.itemsize  # (InFlight)
        return int(-(-self.size // (_THREADS // teams * in_flight)))

    @property
    def _most_blocks(self) -> int:
        return int(_BLOCKS * self.device.multiprocessors - 1)

    def _blocks(self, j: int) -> int:
        """Give the number of blocks that go over elements in iteration j; there is one more."""
        return max(1, min(self._tiles(self._teams(j)), self._most_blocks))

    def _is_held(self, j: int) -> bool:
        return j <= _TEAMS * _COLUMNS

    def combine(self, x: Array) -> Call:
        combined = self.preconditioned if self.flexible else self.vectors
        settle = self.settle(self.restart - 1)
        solve, add = self._kernel("solve", x.dtype), self._kernel("combine", combined.dtype, x.dtype)
        tile = _THREADS * max(1, 16 // x.itemsize)
        grid = (max(1, min(-(-self.size // tile), _COMBINING_BLOCKS * self.device.multiprocessors)), self.columns)
        args = (np.int64(self.size), combined, x, *self._small)

        def launch() -> None:
            settle()
            solve((1, self.columns), (self.device.lanes,), self._small)
            add(grid, (_THREADS,), args)

        return launch

    def _kernel(self, name: str, *types: Any) -> Any:
        return self.device.kernel(_SOURCE, expression(f"basis_{name}", *types))
