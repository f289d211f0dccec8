"""`A.stats` counts the products of solvers, and `gsparse.total_stats` those of all matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg as la

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.counters import Stats, recorded_products
from gsparse.linalg import (
    bicgstab,
    cg,
    chebyshev,
    eigs,
    eigsh,
    expm_multiply,
    fgmres,
    gmres,
    jacobi,
    lobpcg,
    lsmr,
    lsqr,
    minres,
    svds,
)
from gsparse.linalg.krylov import solve_loop
from gsparse.matrix import product_methods
from tests.conftest import make_device
from tests.linalg.problems import Count, laplacian, right_hand_side

S = laplacian(9)
B = right_hand_side(S)

SOLVES: dict[str, Callable[[Any], Any]] = {
    "cg": lambda A: cg(A, B),
    "cg, several right-hand sides": lambda A: cg(A, right_hand_side(S, 3)),
    "cg, preconditioned": lambda A: cg(A, B, M=jacobi(A)),
    "cg, refined": lambda A: cg(A, B, inner_dtype="float32"),
    "cg, with a callback": lambda A: cg(A, B, callback=Count()),
    "minres": lambda A: minres(A, B, check=True),
    "bicgstab": lambda A: bicgstab(A, B),
    "gmres": lambda A: gmres(A, B, restart=7),
    "fgmres": lambda A: fgmres(A, B, M=jacobi(A)),
    "lsqr": lambda A: lsqr(A, B),
    "lsmr": lambda A: lsmr(A, B),
    "chebyshev": lambda A: chebyshev(A, B),
    "lobpcg": lambda A: lobpcg(A, np.eye(S.shape[0], 3), maxiter=4, tol=1.0),
    "eigsh": lambda A: eigsh(A, 2, tol=1e-4),
    "eigs": lambda A: eigs(A, 2, tol=1e-4),
    "svds": lambda A: svds(A, 2, tol=1e-4),
    "expm_multiply": lambda A: expm_multiply(A, B),
    "accelerated": lambda A: la.cg(A.accelerated(), B),
}


class CountingKernel:
    """A product's kernel that counts its calls."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.calls = kernel, 0
        if hasattr(kernel, "num_dots"):
            self.num_dots = kernel.num_dots

    def __call__(self, *args: Any) -> None:
        self.calls += 1
        self.kernel(*args)


def watch_kernels(monkeypatch: pytest.MonkeyPatch, A: GpuSparseMatrix) -> list[CountingKernel]:
    """Count the launches of every kernel that multiplies by A."""
    prepared, kernels = A._prepared()[0], []
    for name in ("product", "columns"):
        make = getattr(prepared, name)

        def counting(*types: Any, make: Any = make) -> Any:
            found = make(*types)
            kernels.append(CountingKernel(found.multiply))
            change = found._replace if hasattr(found, "_replace") else lambda **parts: replace(found, **parts)
            return change(multiply=kernels[-1])

        monkeypatch.setattr(prepared, name, counting)
    for name in ("multiply_quickly", "multiply_columns_quickly"):  # these keep kernels of their own
        monkeypatch.setattr(product_methods, name, lambda *args: None)
    return kernels


@pytest.mark.parametrize("name", SOLVES)
@pytest.mark.filterwarnings("ignore:Exited:UserWarning")
def test_every_product_of_a_solve_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A = GpuSparseMatrix(S, device="cpu", symmetric=True)  # symmetric, so that transposed products use the same kernels
    kernels = watch_kernels(monkeypatch, A)
    SOLVES[name](A)
    assert A.stats.products == sum(kernel.calls for kernel in kernels) > 3
    assert "data" not in A.stats.host_operations


def test_products_recorded_in_a_graph_count_at_each_launch() -> None:
    first, second = Stats(), Stats()
    before = gsparse.total_stats().products
    with recorded_products() as count:
        for stats in (first, second, first):
            stats.count_product()
    assert (first.products, second.products) == (0, 0)
    count()
    count()
    assert (first.products, second.products) == (4, 2)
    assert gsparse.total_stats().products == before + 6
    first.count_product()
    assert first.products == 5


@pytest.mark.parametrize(("longest", "num_alone"), [(np.inf, 2), (0.0, 1)], ids=["timed again", "long"])
def test_launches_of_a_graph_are_counted(monkeypatch: pytest.MonkeyPatch, longest: float, num_alone: int) -> None:
    device = make_device("emulated:32")
    A = GpuSparseMatrix(laplacian(25), device=device)
    launches = []

    def capture(call: Callable[[], None]) -> Callable[[], None]:
        """Replace a CUDA graph: its launch calls nothing that counts."""
        call()

        def launch() -> None:
            with recorded_products():
                call()
            launches.append(call)

        return launch

    monkeypatch.setattr(device, "capture", capture)
    monkeypatch.setattr(solve_loop, "_ITERATIONS_PER_GRAPH", ((np.inf, 5),))
    monkeypatch.setattr(solve_loop, "_LONG_ITERATION", longest)
    monkeypatch.setattr(solve_loop, "_MANY_UNKNOWNS", 625)
    cg(A, right_hand_side(laplacian(25)))  # compiles, so that the first iteration below compiles nothing
    launches.clear()
    before = A.stats.products
    found = cg(A, right_hand_side(laplacian(25)), rtol=1e-12, full_output=True)
    assert found.info == 0
    assert len(launches) > 1
    # With x0, before the graph is recorded, in its launches, and for the true residual.
    assert A.stats.products - before == 1 + num_alone + 5 * len(launches) + 1


def test_products_of_copies_count_in_the_total() -> None:
    A = GpuSparseMatrix(S, device="cpu")
    before = gsparse.total_stats()
    for M in (A, A.copy(), A.T, 2 * A):
        M @ B
    A.tolil()
    after = gsparse.total_stats()
    assert after.products - before.products == 4
    assert after.host_operations - before.host_operations == {"tolil": 1}
    assert A.stats.products == 1
    after.products = 0
    assert gsparse.total_stats().products > 0, "what was given is a copy"
