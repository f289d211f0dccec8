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
from gsparse.cli.common import Command, UsageError, add_device, add_json, describe, print_result, show_elapsed
from gsparse.cli.info import plan_as_dict
from gsparse.device.threads import available_cpus
from gsparse.linalg import cg
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

__all__ = ["COMMAND"]

# Grid points per side, for which SciPy's solve takes a few seconds.
_SIDE = 64
# Tolerance of both solves, and the largest relative difference between their solutions that counts as agreement.
_RTOL, _AGREEMENT = 1e-8, 1e-5
# Repetitions of a product and of a solve. The fastest one counts, because the threads of both libraries slow each
# other down on a busy machine.
_PRODUCTS, _SOLVES = 20, 3
# The share of the machine's load average that this command causes itself.
_OWN_LOAD = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``demo``."""
    parser.add_argument("-n", "--n", type=int, default=_SIDE, metavar="N", help=f"N^3 unknowns (default: {_SIDE}^3)")
    add_device(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Build the matrix, multiply, solve, and compare with SciPy.

    Return 1 if a product or a solution differs, or if a solve has not converged.
    """
    if options.n < 2:
        raise UsageError(f"-n: at least 2, got {options.n}")
    data, indices, indptr, shape = stencil(options.n, 7)
    S = sp.csr_array((data, indices, indptr), shape=shape)
    with show_elapsed("choosing a format, and compiling"):
        begin = time.perf_counter()
        A = GpuSparseMatrix(S, device=options.device)
        first_product, b = A @ np.ones(shape[1]), np.ones(shape[0])
        setup = time.perf_counter() - begin
    with show_elapsed("solving with gsparse"):
        cg(A, b, rtol=_RTOL, maxiter=2, full_output=True)  # Compiles the solver's kernels.
        solution, our_times = _time_calls(lambda: cg(A, b, rtol=_RTOL, full_output=True))
    with show_elapsed("solving with SciPy"):
        iterations: list[None] = []
        (x, info), their_times = _time_calls(
            lambda: scipy.sparse.linalg.cg(S, b, rtol=_RTOL, callback=lambda _: iterations.append(None))
        )
    difference = float(np.linalg.norm(solution.x - x) / np.linalg.norm(x))
    checks = {
        "the products disagree": np.allclose(first_product, S @ np.ones(shape[1])),
        "a solve has not converged": solution.info == info == 0,
        "the solutions disagree": difference < _AGREEMENT,
    }
    faults = [fault for fault, is_right in checks.items() if not is_right]
    result = {
        "problem": f"7-point Poisson problem, {options.n}^3 unknowns",
        "device": A.device.name,
        "setup_seconds": setup,
        "product_seconds": {
            name: min(_time_calls(lambda M=M: M @ b, _PRODUCTS)[1])  # type: ignore[misc]
            for name, M in (("gsparse", A), ("scipy", S))
        },
        "solve_seconds": {"gsparse": min(our_times), "scipy": min(their_times)},
        "iterations": {"gsparse": solution.iterations, "scipy": len(iterations) // _SOLVES},
        "relative_difference": difference,
        "agree": not faults,
        "faults": faults,
        "plan": plan_as_dict(A.plan),
    }
    print_result(result, _text(result, A, S), options)
    return 1 if faults else 0


def _time_calls(call: Callable[[], Any], times: int = _SOLVES) -> tuple[Any, list[float]]:
    """Return the result of the last call and the seconds of each. Copies of vectors to and from the device count."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - begin)
    return result, seconds


def _busy_warning() -> str:
    """Return a warning that the times are unreliable if other programs use the CPUs, else an empty string."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return (
        f"\nthis machine is busy (load {load:.1f}, {available_cpus()} CPUs): the times are unreliable"
        if (load > available_cpus() + _OWN_LOAD)
        else ""
    )


def _text(result: dict[str, Any], A: GpuSparseMatrix, S: sp.csr_array) -> str:
    def line(label: str, key: str, factor: float, unit: str) -> str:
        ours, scipys = (result[key][library] * factor for library in ("gsparse", "scipy"))
        return f"{label:<26}{ours:>12.3f} {unit:<3}{scipys:>12.3f} {unit:<3}{scipys / max(ours, 1e-12):>8.2f} x"

    iterations = result["iterations"]
    return "\n".join([
        f"{result['problem']}: {describe(S)}",
        "",
        str(A.plan),
        "",
        f"{'':<26}{'gsparse':>12}    {'SciPy':>12}",
        line("A @ x", "product_seconds", 1e3, "ms"),
        line("conjugate gradients", "solve_seconds", 1, "s"),
        f"{'iterations':<26}{iterations['gsparse']:>12}    {iterations['scipy']:>12}",
        "",
        f"gsparse on {result['device']}; set-up and first product {result['setup_seconds']:.2f} s (compiled kernels "
        "are cached for the next run)",
        f"solutions differ by {result['relative_difference']:.1e}"
        f"{''.join(f'; {fault.upper()}' for fault in result['faults'])}{_busy_warning()}",
    ])  # fmt: skip


COMMAND = Command("solve a model problem beside SciPy, in at most a minute", add_arguments, run)
