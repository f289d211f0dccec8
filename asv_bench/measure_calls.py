"""Time small calls of products on a GPU, beside CuPy's, in one run: ``python asv_bench/measure_calls.py``.

The products of a tridiagonal matrix are called one after the other, without waiting for the device until the last one,
so that the time of a call is that of the host, unless the device takes longer. Each line shows the microseconds of a
call of gsparse, those of its peer, and the peer's over gsparse's (x). A goal is the x that the project aims at. The
median of several samples counts, and the peers take turns. The peers are:

    RawKernel       only the launches of the same product, with the same arguments, made by CuPy
    bound kernel    only the launches of the same product, as gsparse makes them: what is left of a call without checks
    CuPy            the same product of CuPy's matrix (cuSPARSE)
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import cupyx.scipy.sparse as cusp
import scipy.sparse as sp
from measure_solvers import Row, print_row, row, seconds

from gsparse import GpuSparseMatrix
from gsparse.bench.timing import Sampler, medians
from gsparse.device.gpu import GpuDevice
from gsparse.kernels.steps import queue

ROWS, COLUMNS = (1000, 100_000), (1, 4, 16, 64)
# Calls that are timed together, and samples of which the median counts.
CALLS, SAMPLES = 500, 15
# x that the project aims at: over RawKernel, and over CuPy's product.
RAW_GOALS, CUPY_GOAL = {"A.matvec(x, out=y)": 1 / 0.6, "A @ x": 1.1}, 4.0


class LaunchedByCupy(GpuDevice):
    """A GPU whose kernels CuPy launches. It records the launches, so that they can be repeated."""

    def __init__(self) -> None:
        super().__init__()
        self._launch = None
        self.launches: list[Callable[[], None]] = []

    def kernel(self, source: str, expression: str) -> Callable[..., None]:
        kernel = super().kernel(source, expression)

        def launch(*args: Any, **options: Any) -> None:
            self.launches.append(partial(kernel, *args, **options))
            kernel(*args, **options)

        return launch

    def launches_of(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Return a function that repeats the launches of a call, which has been made before."""
        self.launches.clear()
        call()
        return partial(queue, tuple(self.launches))


def bound_kernel(A: GpuSparseMatrix, x: Any, y: Any) -> Callable[[], None]:
    """Return the launches of A·x, without the checks of a call."""
    prepared, _ = A._prepared()
    is_vector = x.ndim == 1 or x.shape[1] == 1
    product = prepared.product(A.dtype, A.dtype) if is_vector else prepared.columns(A.dtype, A.dtype)
    return partial(product.multiply, x, y, *product.scalars, False)


def microseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median time of each call, when many are made one after the other."""

    def sample(call: Callable[[], Any]) -> float:
        def batch() -> None:
            for _ in range(CALLS):
                call()

        return seconds(batch) / CALLS

    for call in calls.values():
        call()
    samplers = {name: Sampler(partial(sample, call)) for name, call in calls.items()}
    return {name: 1e6 * float(time) for name, time in medians(samplers, SAMPLES).items()}


def products(rows: int) -> Iterator[tuple[str, Any, Callable[[Any, Any, Any], Any]]]:
    """Yield the name of each product, its operand, and a function of a matrix, the operand and an output array."""
    random = cupy.random.default_rng(0)
    x = random.standard_normal(rows)
    yield "A.matvec(x, out=y)", x, lambda A, x, y: A.matvec(x, out=y)
    yield "A @ x", x, lambda A, x, y: A @ x
    for k in COLUMNS:
        yield f"A @ X, k = {k}", random.standard_normal((rows, k)), lambda A, x, y: A @ x


def measure(rows: int) -> Iterator[Row]:
    S = sp.diags_array([1.0, 2.0, 1.5], offsets=[-1, 0, 1], shape=(rows, rows), format="csr")
    device = LaunchedByCupy()
    A, same, theirs = GpuSparseMatrix(S), GpuSparseMatrix(S, device=device), cusp.csr_matrix(sp.csr_matrix(S))
    for name, x, product in products(rows):
        y = cupy.empty(x.shape)
        raw = bound_kernel(same, x, y)
        raw()
        times = microseconds(
            {
                "ours": partial(product, A, x, y),
                "RawKernel": device.launches_of(raw),
                "bound kernel": bound_kernel(A, x, y),
                "CuPy": partial(theirs.__matmul__, x),
            }
        )
        goals = {"RawKernel": RAW_GOALS.get(name), "CuPy": CUPY_GOAL}
        for peer in ("RawKernel", "bound kernel", "CuPy"):
            yield row(f"{name}, {rows} rows", times["ours"], peer, times[peer], "µs", goals.get(peer))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    rows = []
    for size in ROWS:
        for measured in measure(size):
            rows.append(measured)
            print_row(measured)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
