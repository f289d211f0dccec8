"""Krylov bases and decompositions on the GPU, and the launch shapes of the passes over the vectors.

The contract is in `gsparse.kernels.basis`, the kernels in `src/basis.cu` and `src/basis.cuh`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels import basis
from gsparse.kernels.gpu.launch import FLOATS, Source, constant, expression
from gsparse.kernels.steps import Call, queue

_HEADER = "basis.cuh"
# Number of threads of a block, and number of vectors that a team of threads holds in registers.
THREADS, _TEAM_VECTORS = constant(_HEADER, "GS_BASIS_THREADS"), constant(_HEADER, "GS_TEAM_VECTORS")
# A multiprocessor has enough registers for `_BLOCKS` blocks of a kernel that reads the basis. A launch for one
# right-hand side has at most `_BLOCKS` blocks per multiprocessor, so all of its blocks run at the same time.
_BLOCKS = constant(_HEADER, "GS_BASIS_BLOCKS")
# Maximum number of teams of a warp. A pass reads the vectors that these teams cannot hold in registers more than once.
_TEAMS = constant(_HEADER, "GS_BASIS_TEAMS")
# Number of bytes of each vector that a thread loads at the same time, unless the vectors are complex128.
_BYTES_IN_FLIGHT = constant(_HEADER, "GS_BYTES_IN_FLIGHT")

_SOURCE = Source("basis.cu", THREADS)
# Maximum number of blocks of basis_combine per multiprocessor. All blocks then run at the same time.
_COMBINING_BLOCKS = 3


@dataclass(frozen=True)
class BasisLaunch:
    """The numbers of teams and blocks of a pass over the first j vectors of a basis.

    Attributes
    ----------
    size : int
        Number of elements of a vector.
    stored, computed : dtype
        The dtypes of the basis and of the vectors w and u.
    multiprocessors : int
    """

    size: int
    stored: np.dtype[Any]
    computed: np.dtype[Any]
    multiprocessors: int

    @property
    def max_blocks(self) -> int:
        return int(_BLOCKS * self.multiprocessors - 1)

    def teams(self, j: int) -> int:
        """Return the number of teams: enough to hold j vectors, or more if all tiles still have a block."""
        teams, max_teams = 1, min(_TEAMS, 1 << (max(j, 1) - 1).bit_length())
        while teams < max_teams and (j > teams * _TEAM_VECTORS or self._tiles(2 * teams) <= self.max_blocks):
            teams *= 2
        return teams

    def _tiles(self, teams: int) -> int:
        in_flight = 1 if self.computed.name == "complex128" else _BYTES_IN_FLIGHT // self.stored.itemsize
        return int(-(-self.size // (THREADS // teams * in_flight)))

    def blocks(self, j: int) -> int:
        """Return the number of blocks that process tiles. One more block finishes the previous iteration."""
        return max(1, min(self._tiles(self.teams(j)), self.max_blocks))

    @staticmethod
    def is_held(j: int) -> bool:
        """Return whether the largest number of teams can hold j vectors in registers, so a pass reads each once."""
        return j <= _TEAMS * _TEAM_VECTORS


class Arnoldi(basis.Arnoldi):
    """The Arnoldi process with two kernels per iteration.

    The kernels of an iteration also finish the previous iteration. `finish_column` is needed only if the host must read
    the result before the next iteration.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        device, state, m = self.device, self.state, self.restart
        wide = state.cells.dtype
        device.compile_ahead("gmres", self.vectors.dtype, np.dtype(np.int32))
        self._launch = BasisLaunch(self.size, self.vectors.dtype, self.w.dtype, device.multiprocessors)
        # Partial sums of the inner products with u, and with w.
        num_partials = self.columns * (m + 2) * self._launch.max_blocks
        self._of_u, self._of_w = device.empty(num_partials, wide), device.empty(num_partials, wide)
        # The arguments for `SmallProblems` in arnoldi.cuh, in the same order.
        self._sums = device.xp.zeros((2, self.columns * 2 * (m + 1)), wide)
        # The sizes of the parts of `SmallProblem`: p for even and odd j, norms, y, the right-hand side, scales,
        # num_finished, Q and R.
        problem_size = 2 * (m + 1) + 2 + (m + 1) + (m + 1) + (m + 1) + 1 + (m + 1) ** 2 + m * m
        memory = (device.empty(self.columns * problem_size, wide), np.int64(problem_size))
        coefficients = device.empty(self.columns * m, self.w.dtype)
        cells = (state.cells, np.int32(len(state.program.cells)), state.history, np.int32(state.capacity))
        self._small_problems = (
            np.int32(m), np.int32(self.flexible), np.float64(self.epsilon), self._sums, *memory, coefficients, *cells,
            *map(np.int32, self.places),
        )  # fmt: skip

    def project(self, j: int) -> Call:
        name = _name("project", self.vectors.dtype, self.w.dtype)
        # The partial sums that the previous iteration has left.
        before = (self._of_w, np.int32(self._launch.blocks(j - 1) if j else 0))
        calls = [self._over_elements(name, j, self.vectors, self.w, self.u, *before, self._of_u)]
        if self.reduce is not None or not self._launch.is_held(j):
            calls.append(self._add_up(j, self._of_u, of_w=False))
        if self.reduce is not None:
            calls.append(self._reduce(j))
        return partial(queue, calls)

    def orthogonalize(self, j: int) -> Call:
        name = _name("orthogonalize", self.vectors.dtype, self.w.dtype, int(self._launch.is_held(j)))
        m, blocks = self.restart, self._launch.blocks(j)
        products = (self._of_u, np.int64((m + 2) * blocks), np.int32(blocks))
        if self.reduce is not None:
            products = (self._sums[j % 2][m + 1 :], np.int64(2 * (m + 1)), np.int32(1))
        return self._over_elements(name, j, self.vectors, self.w, self.u, *products, self._of_w)

    def finish_column(self, j: int) -> Call:
        blocks = self._launch.blocks(j) if self.reduce is None else 0  # 0: `reduce` has added them up
        args = (np.int32(j), self._of_w, np.int32(blocks), *self._small_problems)
        last = self._bind(_name("finish_column", self.w.dtype), (1, self.columns), THREADS, args)
        if self.reduce is None:
            return last
        return partial(queue, [self._add_up(j, self._of_w, of_w=True), self._reduce(j + 1), last])

    def _add_up(self, j: int, partials: Array, *, of_w: bool) -> Call:
        args = (np.int32(j), np.int32(of_w), partials, np.int32(self._launch.blocks(j)), *self._small_problems)
        return self._bind(_name("sums", self.w.dtype), (1, self.columns), THREADS, args)

    def _reduce(self, j: int) -> Call:
        assert self.reduce is not None
        return partial(self.reduce, self._sums[j % 2])

    def _over_elements(self, name: str, j: int, *args: Any) -> Call:
        grid = (1 + self._launch.blocks(j), self.columns)
        sizes = (np.int64(self.size), np.int32(j), np.int32(self._launch.teams(j)))
        return self._bind(name, grid, THREADS, (*sizes, *args, *self._small_problems))

    def combine(self, x: Array) -> Call:
        combined = self.preconditioned if self.flexible else self.vectors
        finish = self.finish_column(self.restart - 1)
        tile = THREADS * max(1, 16 // x.itemsize)
        grid = (max(1, min(-(-self.size // tile), _COMBINING_BLOCKS * self.device.multiprocessors)), self.columns)
        args = (np.int64(self.size), combined, x, *self._small_problems)
        solve = self._bind(_name("solve", x.dtype), (1, self.columns), self.device.lanes, self._small_problems)
        add = self._bind(_name("combine", combined.dtype, x.dtype), grid, THREADS, args)
        return partial(queue, (finish, solve, add))

    def _bind(self, name: str, grid: tuple[int, int], threads_per_block: int, args: tuple[Any, ...]) -> Call:
        return self.device.bind_kernel(_SOURCE.file, name, grid, (threads_per_block,), args)


def _name(name: str, *types: Any) -> str:
    return expression(f"basis_{name}", *types)


class Decomposition(basis.Decomposition):
    """Krylov decompositions with two kernels per step. For a Hermitian operator, the first runs in one block."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        device, m, dtype = self.device, self.capacity, self.u.dtype
        self._launch = BasisLaunch(self.size, dtype, dtype, device.multiprocessors)
        num_partials = (m + 2) * self._launch.max_blocks
        # Partial sums of the inner products with u, and with w.
        self._of_u, self._of_w = (device.empty(num_partials, self.table.dtype) for _ in range(2))

    def project(self, j: int, first: int) -> Call:
        args = (self.vectors, self.w, self.u, *self._before(j, first), self._s(j, first), self._of_u)
        calls = [self._over_elements("project", j, *args)]
        if self.reduce is not None or not self._launch.is_held(j):
            calls.append(self._add_up(j + 1, self._of_u, self._launch.blocks(j), self._p(j)))
        if self.reduce is not None:
            calls.append(partial(self.reduce, self._p(j) if j == first else self.table[j]))
        return partial(queue, calls)

    def predict(self, j: int, first: int) -> Call:
        dots, num_dots = self.state.partial_sums["wu"]
        calls: list[Call] = []
        before = self._before(j, first)
        if self.reduce is not None and j > first:
            calls = [self._add_up(j + 1, *before, self._s(j, first)), partial(self.reduce, self._s(j, first))]
            before = (self._of_w, np.int32(0))
        sizes = (np.int32(j), np.int32(first), np.int32(self.capacity))
        last_s = self._s(j - 1, first) if j > first else self._s(j, first)
        rows = (last_s, self._s(j, first), self._p(j), self.memory[self.capacity + 2 :])
        args = (*sizes, *before, dots, np.int32(num_dots), *rows)
        calls.append(self._bind("predict", 1, args))
        return calls[0] if len(calls) == 1 else partial(queue, calls)

    def orthogonalize(self, j: int, first: int) -> Call:
        is_held, p = self._launch.is_held(j), self._p(j)
        is_added = self.hermitian or self.reduce is not None
        products = (p, np.int32(1)) if is_added else (self._of_u, np.int32(self._launch.blocks(j)))
        args = (self.vectors, self.w, self.u, *products, self._s(j, first), p, self._of_w)
        return self._over_elements("orthogonalize", j, *args, variant=(int(is_held),))

    def measure(self, j: int, z: Array) -> Call:
        args = (self.vectors, self.w, z, self._of_w, np.int32(0), self._s(j, j), self._of_w)
        return self._over_elements("project", j, *args)

    def finish(self, j: int) -> Call:
        row = self.table[j, 0]
        call = self._add_up(j + 1, *self._before(j, -1), row)
        return call if self.reduce is None else partial(queue, [call, partial(self.reduce, row)])

    def _before(self, j: int, first: int) -> tuple[Array, Any]:
        """Return the partial sums of s for step j, and how many there are per element of s; 0 in the first step."""
        blocks = 0 if j == first else self._launch.blocks(j if self.measures else j - 1)
        return self._of_w, np.int32(blocks)

    def _add_up(self, count: int, partials: Array, blocks: Any, row: Array) -> Call:
        args = (np.int32(count), partials, np.int32(blocks), row)
        return self._bind("sums", 1, args)

    def _over_elements(self, name: str, j: int, *args: Any, variant: tuple[int, ...] = ()) -> Call:
        sizes = (np.int64(self.size), np.int32(j), np.int32(self._launch.teams(j)))
        return self._bind(name, 1 + self._launch.blocks(j), (*sizes, *args), *variant)

    def _bind(self, name: str, blocks: int, args: tuple[Any, ...], *variant: int) -> Call:
        kernel = expression(f"decomposition_{name}", self.u.dtype, *variant)
        return self.device.bind_kernel(_SOURCE.file, kernel, (blocks,), (THREADS,), args)


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    pairs = [(s, c) for s, c in product(FLOATS, FLOATS) if s.kind == c.kind and s.itemsize <= c.itemsize]
    return [
        *_SOURCE.variants("basis_sums basis_finish_column basis_solve", FLOATS),
        *_SOURCE.variants("basis_project basis_combine", pairs),
        *_SOURCE.variants("basis_orthogonalize", pairs, (0, 1)),
        *_SOURCE.variants("decomposition_sums decomposition_project decomposition_predict", FLOATS),
        *_SOURCE.variants("decomposition_orthogonalize", FLOATS, (0, 1)),
    ]
