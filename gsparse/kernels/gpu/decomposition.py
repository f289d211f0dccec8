"""Krylov decompositions on the GPU (contract: `gsparse.kernels.basis`; kernels: `src/decomposition.cu`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES, Array
from gsparse.kernels import basis
from gsparse.kernels.gpu.basis import THREADS, BasisLaunch
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.steps import Call, queue

_SOURCE = "decomposition.cu"


class Decomposition(basis.Decomposition):
    """Two kernels per step. If the operator is Hermitian, the first one has a single block."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        device, m, dtype = self.device, self.capacity, self.u.dtype
        self._launch = BasisLaunch(self.size, dtype, dtype, device.multiprocessors)
        num_partials = (m + 2) * self._launch.max_blocks
        # Partial sums of the products with u, and of those with w.
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
        """Return the partial sums of s of step j, and their number for each sum, 0 in the first step."""
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
        return self.device.bind_kernel(_SOURCE, kernel, (blocks,), (THREADS,), args)


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    variants: list[tuple[str, tuple[int, ...]]] = [("sums", ()), ("project", ()), ("predict", ())]
    variants += [("orthogonalize", (0,)), ("orthogonalize", (1,))]
    dtypes = [dtype for dtype in COMPUTE_DTYPES if dtype.kind in "fc"]
    return [(_SOURCE, expression(f"decomposition_{name}", d, *variant)) for d in dtypes for name, variant in variants]
