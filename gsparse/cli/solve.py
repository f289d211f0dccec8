"""``solve``: solve A·x = b or a least-squares problem from files."""

from __future__ import annotations

import argparse
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import scipy.io
import scipy.sparse as sp

from gsparse import linalg
from gsparse.bench.command import PICTURES, UsageError, require_folder, require_picture
from gsparse.bench.problems import read_matrix
from gsparse.cli import common
from gsparse.cli.common import Command
from gsparse.errors import ConvergenceWarning
from gsparse.files import read_file
from gsparse.linalg.registry import find_method, names_of
from gsparse.linalg.result import SolveResult
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.plot.axes import save_picture
from gsparse.plot.runs import convergence
from gsparse.writing import replacing

# Methods that need only a matrix and a right-hand side. chebyshev also needs bounds of the spectrum, and block_jacobi a
# block size.
SOLVERS = tuple(name for name in names_of("solver") if name != "chebyshev")
LEAST_SQUARES = names_of("solver", least_squares=True)
PRECONDITIONERS = tuple(name for name in names_of("preconditioner") if name != "block_jacobi")
# The suffix of files from numpy.save, and the suffixes of the formats in which x can be written.
_ARRAY_SUFFIX = ".npy"
OUTPUTS = (_ARRAY_SUFFIX, ".mtx")
# Iterations per cycle of gmres and fgmres, whose own `maxiter` counts cycles.
_CYCLE = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``solve``."""
    common.add_matrix(parser)
    add = parser.add_argument
    meaning = "b: .npy, or any matrix file (default: A times ones; if that is 0, A times cos(0), cos(1), ...)"
    add("--rhs", type=Path, metavar="FILE", help=meaning)
    add("--rhs-name", metavar="NAME", help="the variable to read from a .mat file that holds several")
    add("--method", choices=SOLVERS, help="default: chosen for the matrix; another one follows if it fails")
    add("--precond", choices=PRECONDITIONERS, help="with --method (default: none)")
    meaning = "tolerance of the residual, relative to |b| (lsmr, lsqr, minres: to |A| |x|; default: 1e-8)"
    add("--rtol", type=float, default=1e-8, metavar="R", help=meaning)
    add("--maxiter", type=int, metavar="N", help="maximum number of iterations (default: the method's)")
    meaning = "minimize |b - A x|^2 + D^2 |x|^2, as ridge regression with the parameter D^2 does (default: 0)"
    add("--damp", type=float, default=0.0, metavar="D", help=meaning)
    common.add_device(parser)
    add("-o", "--output", type=Path, metavar="FILE", help=f"write x: {', '.join(OUTPUTS)}")
    add("--force", action="store_true", help="overwrite an existing file")
    add("--plot", type=Path, metavar="FILE", help=f"draw the residuals: {', '.join(PICTURES)}")
    add("--progress", action="store_true", help="show a progress bar (needs tqdm)")
    common.add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Read the problem, solve, and write x. Return 0 if the solve converged, else 1."""
    check_options(options)
    S = read_matrix(options.file, options.name)
    S = S if S.dtype.kind in "fc" else S.astype(np.float64)
    b, origin = read_right_hand_side(options, S)
    A = GpuSparseMatrix(S, device=options.device)
    try:
        result = _solve_by_method(options, A, b) if options.method else _solve_automatically(options, A, b)
    except (ValueError, TypeError) as error:  # the library's messages say what it requires
        raise UsageError(str(error)) from error
    if options.output:
        write_solution(options.output, result.x)
    if options.plot:
        save_picture(options.plot, partial(convergence, result))
    method, _, precond = result.method.partition(" with ")
    report = {"file": options.file, "shape": S.shape, "entries": S.nnz, "device": A.device.name, "rhs": origin}
    report |= {"tried": [each.method for each in result.attempts], "method": method or options.method}
    report |= {"outcomes": [each.outcome for each in result.attempts], "why": result.why}
    report |= {"precond": precond or options.precond or "none", "rtol": options.rtol, "converged": result.info == 0}
    report |= {"reason": result.reason, "advice": result.advice, "iterations": result.iterations}
    report |= {"seconds": result.seconds, "relative_residual": result.relative_residual}
    report |= {"history": result.residuals, "output": options.output}
    common.print_result(report, _text(report, result, S), options)
    return 0 if result.info == 0 else 1


def _solve_automatically(options: argparse.Namespace, A: GpuSparseMatrix, b: Any) -> SolveResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the text and the exit code report this
        return linalg.solve(
            A, b, rtol=options.rtol, maxiter=options.maxiter, damp=options.damp, progress=options.progress
        )


def _solve_by_method(options: argparse.Namespace, A: GpuSparseMatrix, b: Any) -> SolveResult:
    """Call a solver by its name, with the tolerance and the limit of iterations under the solver's own names."""
    method = find_method(options.method, "solver")
    arguments = dict.fromkeys(("atol", "btol") if method.least_squares else ("rtol",), options.rtol)
    arguments |= method.limits(options.maxiter, _CYCLE)
    if method.least_squares:
        arguments["damp"] = options.damp
    elif options.precond:
        arguments["M"] = find_method(options.precond, "preconditioner").function(A)
    result: SolveResult = method.function(A, b, full_output=True, progress=options.progress, **arguments)
    return result


def check_options(options: argparse.Namespace) -> None:
    """Raise an error if options contradict each other, before a file is read."""
    if options.output and options.output.exists() and not options.force:
        raise UsageError(f"{options.output} exists already: give another name, or --force")
    if options.output:
        if options.output.suffix.lower() not in OUTPUTS:
            raise UsageError(f"-o {options.output}: x is written as {' or '.join(OUTPUTS)}")
        require_folder("-o", options.output)
    if options.plot:
        require_picture(options.plot)
    if options.precond and options.method in (None, *LEAST_SQUARES):
        raise UsageError("--precond goes with a --method that takes one, such as cg or gmres")
    if options.damp and options.method not in (None, *LEAST_SQUARES):
        raise UsageError(f"--damp goes with --method {' or '.join(LEAST_SQUARES)}, or without --method")


def read_right_hand_side(options: argparse.Namespace, S: sp.csr_array) -> tuple[Any, str]:
    """Return b, and a sentence about its origin.

    Without `--rhs`, b is A times a vector, so that a solution exists. The elements of the vector are ones or, if the
    rows of A add up to zero as in a Laplacian, cosines.
    """
    if options.rhs is None:
        b = S @ np.ones(S.shape[1], S.dtype)
        noise = S.shape[1] * np.finfo(np.result_type(b, np.float32)).eps * abs(S).sum(axis=1)
        if (abs(b) > noise).any():
            return b, "b is A times a vector of ones (--rhs FILE reads another)"
        return S @ np.cos(np.arange(S.shape[1])), "b is A times cos(0), cos(1), ... (--rhs FILE reads another)"
    if options.rhs.suffix.lower() == _ARRAY_SUFFIX:
        b = _load_array(options.rhs)
    else:
        stored = read_file(options.rhs, options.rhs_name)
        if stored.shape == S.shape and S.shape[1] > 1 and options.rhs_name is None:
            raise UsageError(
                f"--rhs {options.rhs.name}: it has the shape of the matrix, {S.shape}; give the file of b, and in a "
                ".mat file name its variable with --rhs-name"
            )
        b = stored.toarray()
    is_vector = b.ndim == 2 and (b.shape[1] == 1 or (b.shape[0] == 1 and S.shape[0] > 1))
    return b.reshape(-1) if is_vector else b, f"b is read from {options.rhs}"


def _load_array(path: Path) -> Any:
    with path.open("rb") as file, suppress(ValueError, EOFError, BadZipFile):
        b = np.load(file, allow_pickle=False)
        if isinstance(b, np.ndarray):
            return b
    raise UsageError(f"--rhs {path.name} is not an array: write one with numpy.save")


def write_solution(path: Path, x: Any) -> None:
    """Write x in NumPy's format, or as a Matrix Market array with one column per right-hand side."""
    with replacing(path) as file:
        if path.suffix.lower() == _ARRAY_SUFFIX:
            np.save(file, x)
        else:
            scipy.io.mmwrite(file, x[:, None] if x.ndim == 1 else x)


def _text(report: dict[str, Any], result: SolveResult, S: sp.csr_array) -> str:
    lines = [f"{report['file'].name}: {common.describe(S)}, on {report['device']}", report["rhs"]]
    lines.append(f"{report['method']}, preconditioner {report['precond']}: {result}")
    return "\n".join([*lines, *([f"wrote {report['output']}"] if report["output"] else [])])


COMMAND = Command("solve A x = b, or a least-squares problem, from files", add_arguments, run)
