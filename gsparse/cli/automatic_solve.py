"""``solve`` without a named method: `gsparse.linalg.solve` chooses, and falls back to other methods."""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import scipy.sparse as sp

from gsparse import linalg
from gsparse.cli.common import can_show_progress, describe, show_elapsed
from gsparse.errors import ConvergenceWarning
from gsparse.linalg.result import SolveResult, largest
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

__all__ = ["describe_automatic_solve", "solve_automatically"]

# Python's arguments in the advice of `gsparse.linalg.solve`, and the options of this command.
_OPTIONS = {"rtol": "--rtol", "maxiter": "--maxiter"}


def solve_automatically(options: argparse.Namespace, S: sp.csr_array, b: Any) -> tuple[SolveResult, dict[str, Any]]:
    """Solve, and return the result, and the report that ``--json`` prints."""
    with show_elapsed("choosing a format"):
        A = GpuSparseMatrix(S, device=options.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the text and the exit code say so
        limits = {"rtol": options.rtol, "maxiter": options.maxiter}
        result = linalg.solve(A, b, damp=options.damp, progress=can_show_progress(), **limits)
    advice = result.advice
    for argument, option in _OPTIONS.items():
        advice = advice.replace(argument, option)
    method, _, preconditioner = result.method.partition(" with ")
    report = {
        "file": options.file,
        "shape": S.shape,
        "entries": S.nnz,
        "tried": [attempt.method for attempt in result.attempts],
        "outcomes": [attempt.outcome for attempt in result.attempts],
        "warm_up_seconds": None,  # part of "seconds", as the time for the preconditioner is
        "precond_seconds": None,
        "device": A.device.name,
        "method": method,
        "why": result.why,
        "precond": preconditioner or "none",
        "rtol": options.rtol,
        "converged": result.info == 0,
        "reason": result.reason,
        "advice": advice,
        "iterations": result.iterations,
        "seconds": result.seconds,
        "relative_residual": result.relative_residual,
        "history": result.residuals,
        "output": options.output,
    }
    return result, report


def describe_automatic_solve(result: SolveResult, report: dict[str, Any], S: sp.csr_array) -> str:
    """Return the lines that are printed."""
    lines = [
        f"{report['file'].name}: {describe(S)}, on {report['device']}",
        *(str(attempt) for attempt in result.attempts),
        f"{report['reason']} in {report['seconds']:.3g} s, with the time to compile or load kernels",
        f"norm(b - A x) / norm(b) = {largest(report['relative_residual']):.3e}",
        *([report["advice"]] if report["advice"] else []),
        *([f"wrote {report['output']}"] if report["output"] else []),
    ]
    return "\n".join(lines)
