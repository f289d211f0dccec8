"""``demo``: a Poisson problem, its plan, and conjugate gradients beside SciPy's."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from gsparse.bench.problems import stencil
from gsparse.cli.common import Command, UsageError, add_device, add_json, describe, show, underway
from gsparse.cli.info import plan_of
from gsparse.device.threads import available_cpus
from gsparse.linalg import cg
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

__all__ = ["COMMAND"]

# Points a side: SciPy's solve takes a few seconds. And what the solutions may differ by, of tolerances of 1e-8.
_SIDE, _RTOL, _AGREEMENT = 64, 1e-8, 1e-5
# How often is timed, of which the fastest counts: libraries' threads hinder each other where a machine is busy.
_PRODUCTS, _SOLVES = 20, 3
# What this command itself adds to the load.
_OWN_LOAD = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``demo``."""
    parser.add_argument("-n", "--n", type=int, default=_SIDE, metavar="N", help=f"N^3 unknowns (default: {_SIDE}^3)")
    add_device(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Build, choose, multiply, solve, compare; 1 where the solutions differ."""
    if options.n < 2:
        raise UsageError(f"-n: at least 2, got {options.n}")
    data, indices, indptr, shape = stencil(options.n, 7)
    S = sp.csr_array((data, indices, indptr), shape=shape)
    with underway("choosing a format, and compiling"):
        begin = time.perf_counter()
        A = GpuSparseMatrix(S, device=options.device)
        first, b = A @ np.ones(shape[1]), np.ones(shape[0])
        setup = time.perf_counter() - begin
    with underway("solving with gsparse"):
        cg(A, b, rtol=_RTOL, maxiter=2)  # (which compiles what the solver needs)
        ours, our_times = _repeated(lambda: cg(A, b, rtol=_RTOL, full_output=True))
    with underway("solving with SciPy"):
        steps: list[None] = []
        (x, info), their_times = _repeated(
            lambda: scipy.sparse.linalg.cg(S, b, rtol=_RTOL, callback=lambda _: steps.append(None))
        )
    difference = float(np.linalg.norm(ours.x - x) / np.linalg.norm(x))
    agree = bool(ours.info == info == 0 and difference < _AGREEMENT and np.allclose(first, S @ np.ones(shape[1])))
    found = {
        "problem": f"7-point Poisson problem, {options.n}^3 unknowns",
        "device": A.device.name,
        "setup_seconds": setup,
        "product_seconds": {
            name: min(_repeated(lambda M=M: M @ b, _PRODUCTS)[1])  # type: ignore[misc]
            for name, M in (("gsparse", A), ("scipy", S))
        },
        "solve_seconds": {"gsparse": min(our_times), "scipy": min(their_times)},
        "iterations": {"gsparse": ours.iterations, "scipy": len(steps) // _SOLVES},
        "relative_difference": difference,
        "agree": agree,
        "plan": plan_of(A.plan),
    }
    show(found, _text(found, A, S), options)
    return 0 if agree else 1


def _repeated(call: Callable[[], Any], times: int = _SOLVES) -> tuple[Any, list[float]]:
    """Give what a call gives, and the seconds of each time; vectors come from the host and go back there."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        found = call()
        seconds.append(time.perf_counter() - begin)
    return found, seconds


def _busy() -> str:
    """Say that others are computing here, where that is known: times are of little worth then."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return (
        f"\nthis machine is busy (load {load:.1f}, {available_cpus()} CPUs): times say little"
        if (load > available_cpus() + _OWN_LOAD)
        else ""
    )


def _text(found: dict[str, Any], A: GpuSparseMatrix, S: sp.csr_array) -> str:
    def line(what: str, key: str, unit: float, name: str) -> str:
        ours, theirs = (found[key][who] * unit for who in ("gsparse", "scipy"))
        return f"{what:<26}{ours:>12.3f} {name:<3}{theirs:>12.3f} {name:<3}{theirs / max(ours, 1e-12):>8.2f} x"

    steps = found["iterations"]
    return "\n".join([
        f"{found['problem']}: {describe(S)}",
        "",
        str(A.plan),
        "",
        f"{'':<26}{'gsparse':>12}    {'SciPy':>12}",
        line("A @ x", "product_seconds", 1e3, "ms"),
        line("conjugate gradients", "solve_seconds", 1, "s"),
        f"{'iterations':<26}{steps['gsparse']:>12}    {steps['scipy']:>12}",
        "",
        f"gsparse on {found['device']}; set-up and first product {found['setup_seconds']:.2f} s (compiled kernels are "
        "kept for the next time)",
        f"solutions differ by {found['relative_difference']:.1e}{'' if found['agree'] else ': THEY DISAGREE'}{_busy()}",
    ])  # fmt: skip


COMMAND = Command("solve a model problem beside SciPy, in a minute at most", add_arguments, run)
