"""``solve``: solve A·x = b or a least-squares problem from files, in this process or on several workers."""

from __future__ import annotations

import argparse
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from gsparse import linalg
from gsparse.cli.automatic_solve import describe_automatic_solve, solve_automatically
from gsparse.cli.common import (
    Command,
    UsageError,
    add_device,
    add_force,
    add_json,
    add_matrix,
    can_show_progress,
    describe,
    print_result,
    read_matrix,
    refuse_overwrite,
    require_folder,
    show_elapsed,
)
from gsparse.device.select import default_device_name
from gsparse.errors import FileFormatError
from gsparse.files import SUFFIXES, npz, read_file
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import find_method, names_of
from gsparse.linalg.result import SolveResult, largest
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.writing import replacing

__all__ = ["COMMAND"]

# Methods that need only a matrix and a right-hand side. Chebyshev iteration also needs bounds of the spectrum.
SQUARE = tuple(name for name in names_of("solver", least_squares=False) if name != "chebyshev")
LEAST_SQUARES = names_of("solver", least_squares=True)
# Methods whose stopping test is relative to |A| |x|, as SciPy's is. The test of the others is relative to |b|.
_RELATIVE_TO_MATRIX = names_of("solver", relative_to_matrix=True)
PRECONDITIONERS = names_of("preconditioner")
# Preconditioners of blocks of rows.
_OF_BLOCKS = ("block_jacobi", "gauss_seidel", "sor", "ic0", "ilu0", "amg")
# Default number of rows of a block of block_jacobi, meant for several unknowns per grid point. The others have 1.
_BLOCK_SIZE = 4
# Iterations, or cycles, of the warm-up call. It compiles or loads the kernels, which the time of the solve leaves out.
_WARM_UP_ITERATIONS = 1
# The suffix of numpy.save's files, and the formats in which x is written.
_ARRAY_SUFFIX = ".npy"
OUTPUTS = (_ARRAY_SUFFIX, ".mtx")
# Iterations of a cycle of gmres and fgmres, whose own `maxiter` counts cycles.
_CYCLE = 20
# Some advice of the solvers names a Python argument that this command has no option for. If the advice contains the
# key, the value is printed instead.
_ADVICE = {
    "linalg.solve": "A is singular or not positive definite: use --method minres, or leave --method and --precond out.",
    "A or M is": "The Krylov space ended before a solution was found: A or the preconditioner is singular. "
    "Use --method lsqr.",
    "A and M are not": "The matrix and the preconditioner are not symmetric: use --method gmres or bicgstab.",
    "another x0": "Use --method gmres.",
    "M is not": "The preconditioner is not symmetric: use --method gmres or bicgstab, or another --precond.",
    "conlim": "Scale the columns of A, or regularize: --damp.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``solve``."""
    add_matrix(parser)
    problem = parser.add_argument_group("problem")
    problem.add_argument(
        "--rhs",
        type=Path,
        metavar="FILE",
        help="b: .npy, or any matrix file (default: A times ones; if that is 0, A times cos(0), cos(1), ...)",
    )
    problem.add_argument("--rhs-name", metavar="NAME", help="the variable to read from a .mat file that holds several")
    method = parser.add_argument_group("method")
    chosen = "default: chosen for the matrix; another one follows if it fails"
    method.add_argument("--method", choices=(*SQUARE, *LEAST_SQUARES), help=chosen)
    method.add_argument(
        "--precond",
        choices=("none", *PRECONDITIONERS),
        help="default: chosen too; none if --method or --workers is given",
    )
    sizes = f"rows of a block (unknowns of a node), for {', '.join(_OF_BLOCKS)} "
    sizes += f"(default: {_BLOCK_SIZE} for block_jacobi, else 1)"
    method.add_argument("--block-size", type=int, metavar="N", help=sizes)
    tested_by_scipys = ", ".join(sorted(_RELATIVE_TO_MATRIX))
    meaning = (
        f"tolerance of the residual, relative to |b| ({tested_by_scipys}: SciPy's test, relative to |A| |x|; "
        "default: 1e-8)"
    )
    method.add_argument("--rtol", type=float, default=1e-8, metavar="R", help=meaning)
    method.add_argument(
        "--maxiter", type=int, metavar="N", help="maximum number of iterations of each method (default: the method's)"
    )
    method.add_argument(
        "--damp",
        type=float,
        default=0.0,
        metavar="D",
        help="minimize |b - A x|^2 + D^2 |x|^2, as ridge regression with the parameter D^2 does (default: 0)",
    )
    add_device(method)
    method.add_argument(
        "--workers", type=int, metavar="N", help="solve on N processes, each with a GPU if there are any"
    )
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"write x: {', '.join(OUTPUTS)}")
    add_force(output)
    add_json(output)


def run(options: argparse.Namespace) -> int:
    """Read the problem, choose a method, solve, and write x. Return 1 if no method converged."""
    check_options(options)
    S = read_matrix(options)
    S = S if S.dtype.kind in "fc" else S.astype(np.float64)
    b = read_right_hand_side(options, S)
    for name, values in ((options.file.name, S.data), ("the right-hand side", b)):
        if not np.isfinite(values).all():
            raise UsageError(f"{name} holds NaN or infinity: replace these values")
    if not (options.method or options.precond or options.workers):
        chosen = solve_automatically(options, S, b)
        return finish(options, *chosen, describe_automatic_solve(*chosen, S))
    options.precond = options.precond or "none"
    methods, why = choose_methods(options, S)
    report: dict[str, Any] = {"file": options.file, "shape": S.shape, "entries": S.nnz, "tried": []}
    report["warm_up_seconds"] = 0.0
    with open_matrix(options, S) as A:
        M, report["precond_seconds"] = make_preconditioner(options, A)
        for method in methods:
            result, warm_up_seconds = solve_with(method, A, b, M, options)
            report["warm_up_seconds"] += warm_up_seconds
            report["tried"].append(method)
            if result.info == 0:
                break
        device = describe_workers(A) if options.workers else A.device.name
    report |= {"device": device, "method": method, "why": why, "precond": options.precond, "rtol": options.rtol}
    report |= {"converged": result.info == 0, "reason": result.reason, "advice": result.advice}
    report |= {"iterations": result.iterations, "seconds": result.seconds, "history": result.residuals}
    report |= {"relative_residual": result.relative_residual, "output": options.output}
    return finish(options, result, report, _text(report, result, S))


def finish(options: argparse.Namespace, result: SolveResult, report: dict[str, Any], text: str) -> int:
    """Write x, print the report, and return the exit code."""
    if options.output:
        write_solution(options.output, result.x)
    print_result(report, text, options)
    return 0 if result.info == 0 else 1


def check_options(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other, before a file is read."""
    if options.output and options.output.suffix.lower() not in OUTPUTS:
        raise UsageError(f"-o {options.output}: x is written as {' or '.join(OUTPUTS)}")
    if options.output:
        require_folder("-o", options.output)
        refuse_overwrite(options.output, options)
    if options.rhs and not options.rhs.is_file():
        raise UsageError(f"--rhs: no file at {options.rhs}")
    if options.rhs and not options.rhs.name.lower().endswith((_ARRAY_SUFFIX, *SUFFIXES)):
        raise UsageError(
            f"--rhs {options.rhs.name}: b is read from {_ARRAY_SUFFIX}, which numpy.save writes, or from a matrix "
            f"file: {', '.join(SUFFIXES)}"
        )
    _check_least_squares(options)
    if options.block_size is not None and options.precond not in _OF_BLOCKS:
        raise UsageError(f"--block-size goes with --precond {', '.join(_OF_BLOCKS)}")
    if options.rhs_name is not None and (options.rhs is None or options.rhs.suffix.lower() != ".mat"):
        raise UsageError("--rhs-name goes with --rhs FILE.mat, whose variables have names")
    if not 0 <= options.rtol < 1:
        raise UsageError(f"--rtol: at least 0 and less than 1, got {options.rtol}")
    for name, least in (("maxiter", 1), ("workers", 1), ("block_size", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')}: at least {least}, got {value}")


def _check_least_squares(options: argparse.Namespace) -> None:
    """Refuse options that do not fit a least-squares problem, which damping makes of any problem."""
    is_preconditioned = options.precond not in (None, "none")
    if options.method in LEAST_SQUARES and is_preconditioned:
        raise UsageError(f"{options.method} takes no --precond: scale the columns of the matrix instead")
    if options.damp and options.method in SQUARE:
        raise UsageError(f"--damp goes with --method {' or '.join(LEAST_SQUARES)}, or without --method")
    if options.damp and is_preconditioned:
        raise UsageError("--damp makes a least-squares problem, which is solved without --precond")
    if not 0 <= options.damp < np.inf:
        raise UsageError(f"--damp: a finite number that is not negative, got {options.damp}")


def read_right_hand_side(options: argparse.Namespace, S: sp.csr_array) -> Any:
    """Read b. Without `--rhs`, b is A times a vector, so that a solution exists.

    The vector is one of ones or, if the rows of A add up to zero as those of a Laplacian do, of cosines.
    """
    if options.rhs is None:
        b = S @ np.ones(S.shape[1], S.dtype)
        noise = S.shape[1] * np.finfo(np.result_type(b, np.float32)).eps * abs(S).sum(axis=1)
        return b if (abs(b) > noise).any() else S @ np.cos(np.arange(S.shape[1]))
    if options.rhs.suffix.lower() == _ARRAY_SUFFIX:
        b = _load_array(options.rhs)
    else:
        try:
            stored = read_file(options.rhs, options.rhs_name)
        except FileFormatError as error:
            message = str(error).replace("--name", "--rhs-name").replace(npz.WRITER, f"numpy.save, as {_ARRAY_SUFFIX}")
            raise UsageError(f"--rhs: {message}") from error
        if stored.shape == S.shape and S.shape[1] > 1 and options.rhs_name is None:
            raise UsageError(
                f"--rhs {options.rhs.name}: it has the shape of the matrix, {S.shape}; give the file of b, and in a "
                ".mat file name its variable with --rhs-name"
            )
        b = stored.toarray()
    if b.dtype.kind not in "biufc":
        raise UsageError(
            f"--rhs {options.rhs.name} must hold numbers, its dtype is {b.dtype}: convert it with astype(float)"
        )
    is_vector = b.ndim == 2 and (b.shape[1] == 1 or (b.shape[0] == 1 and S.shape[0] > 1))
    vectors = b.reshape(-1) if is_vector else b
    if vectors.ndim not in (1, 2) or vectors.shape[0] != S.shape[0]:
        raise UsageError(
            f"--rhs {options.rhs.name} has shape {b.shape}: {S.shape[0]} rows are needed, as many as the matrix has"
        )
    return vectors if b.dtype.kind in "fc" else vectors.astype(np.float64)


def _load_array(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            b = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"--rhs {path.name} is not an array: {str(error).rstrip('. ')}; write it with numpy.save"
        ) from error
    if not isinstance(b, np.ndarray):
        raise UsageError(f"--rhs {path.name} is an archive of arrays: write one array with numpy.save")
    return b


def choose_methods(options: argparse.Namespace, S: sp.csr_array) -> tuple[tuple[str, ...], str]:
    """Return the methods to try, and why. Each is tried only if the one before it has not converged."""
    if options.method:
        if options.method in SQUARE and S.shape[0] != S.shape[1]:
            raise UsageError(f"{options.method} needs a square matrix, this one is {describe(S)}: use lsqr or lsmr")
        return (options.method,), "named by --method"
    if S.shape[0] != S.shape[1]:
        if options.precond != "none":
            raise UsageError("--precond goes with square matrices: least squares is solved without a preconditioner")
        return ("lsmr",), "not square: least squares"
    if options.damp:
        return ("lsmr",), "damped: least squares"
    A = GpuSparseMatrix(S, device=options.device)
    with show_elapsed("checking for symmetry"), SquareMatrix.of(A, "solve", finite=False) as square:
        hermitian = square.is_hermitian()
    if not hermitian:
        return ("bicgstab", "gmres"), "square, not symmetric"
    if (S.diagonal().real > 0).all():
        return ("cg", "minres"), "symmetric with a positive diagonal: probably positive definite"
    return ("minres", "gmres"), "symmetric, not positive definite"


@contextmanager
def open_matrix(options: argparse.Namespace, S: sp.csr_array) -> Iterator[Any]:
    """Yield the matrix on a device, or distributed over workers that exist while the block runs."""
    if not options.workers:
        with show_elapsed("choosing a format"):
            A = GpuSparseMatrix(S, device=options.device)
        yield A
        return
    from gsparse.distributed import LocalGpuCluster, distribute

    device = options.device or default_device_name()
    with show_elapsed(f"starting {options.workers} workers"):
        cluster = LocalGpuCluster(options.workers, device=device)
    with cluster, cluster.get_client() as client, distribute(S, client=client, device=device) as A:
        yield A


def describe_workers(A: Any) -> str:
    """Return the number of workers of a distributed matrix with their devices, such as "2 workers (gpu:0, gpu:1)"."""
    return f"{len(A.workers)} workers ({', '.join(sorted(set(A.devices)))})"


def make_preconditioner(options: argparse.Namespace, A: Any) -> tuple[Any, float]:
    """Make the preconditioner that `--precond` names. Return it with the seconds that this took."""
    name = options.precond
    if name == "none":
        return None, 0.0
    begin = time.perf_counter()
    with show_elapsed(f"preconditioner {name}"):
        size = options.block_size or (_BLOCK_SIZE if name == "block_jacobi" else None)
        M = getattr(linalg, name)(A, **({} if size is None else {"block_size": size}))
    return M, time.perf_counter() - begin


def solve_with(method: str, A: Any, b: Any, M: Any, options: argparse.Namespace) -> tuple[SolveResult, float]:
    """Call a solver with its own names for the tolerance and the limit.

    Return its result, and the seconds of the warm-up call, which compiles or loads the kernels.
    """
    found = find_method(method, "solver")
    tolerances = ("atol", "btol") if found.least_squares else ("rtol",)
    solve = partial(found.function, A, b, full_output=True, **dict.fromkeys(tolerances, options.rtol))
    solve = partial(solve, damp=options.damp) if found.least_squares else partial(solve, M=M)
    limits = found.limits(options.maxiter, _CYCLE)
    *_, limit = limits  # of iterations, or of cycles
    begin = time.perf_counter()
    with show_elapsed(f"compiling or loading {method}"):
        solve(**limits | {limit: _WARM_UP_ITERATIONS})
    warm_up_seconds = time.perf_counter() - begin
    result: SolveResult = solve(progress=can_show_progress(), **limits)
    return replace(result, advice=advice_for_command(result, method, options)), warm_up_seconds


def advice_for_command(result: SolveResult, method: str, options: argparse.Namespace) -> str:
    """Return a solver's advice, with options of this command in place of the Python arguments that it names."""
    for phrase, replacement in _ADVICE.items():
        if phrase in result.advice:
            return replacement
    if "maxiter" not in result.advice:
        return result.advice
    more_iterations = "Allow more iterations (--maxiter)"
    if method in LEAST_SQUARES:
        return f"{more_iterations}."
    article = "a" if options.precond == "none" else "another"
    of_triangles = "ic0" if find_method(method, "solver").hermitian else "ilu0"
    return f"{more_iterations}, or give {article} preconditioner: --precond jacobi, {of_triangles}, amg."


def write_solution(path: Path, x: Any) -> None:
    """Write x in NumPy's format, or as a Matrix Market array with a column for each right-hand side."""
    with replacing(path) as file:
        if path.suffix.lower() == _ARRAY_SUFFIX:
            np.save(file, x)
        else:
            scipy.io.mmwrite(file, x[:, None] if x.ndim == 1 else x)


def explain_residual(report: dict[str, Any]) -> list[str]:
    """Explain why a solve that converged has a residual above `--rtol`.

    A least-squares solution, whose residual cannot be smaller, needs no explanation.
    """
    is_least = "least-squares" in report["reason"]
    if not report["converged"] or is_least or largest(report["relative_residual"]) <= report["rtol"]:
        return []
    why = (
        "stops by SciPy's test, relative to |A| |x|: give a smaller --rtol for a smaller residual"
        if report["method"] in _RELATIVE_TO_MATRIX
        else "computes its residual by updates, which rounding errors separate from the true residual"
    )
    return [f"norm(b - A·x) / norm(b) is above --rtol {report['rtol']:g}: {report['method']} {why}"]


def _text(report: dict[str, Any], result: SolveResult, S: sp.csr_array) -> str:
    failed_attempts = [f"{name}: did not converge, next one tried" for name in report["tried"][:-1]]
    lines = [
        f"{report['file'].name}: {describe(S)}, on {report['device']}",
        f"method: {report['why']}",
        *failed_attempts,
        f"{report['method']}, preconditioner {report['precond']}"
        + (
            f" ({report['precond_seconds']:.3g} s, including the time to compile or load its kernels)"
            if report["precond"] != "none"
            else ""
        ),
        f"compiled or loaded kernels in {report['warm_up_seconds']:.3g} s, not included in the solve's time",
        str(result),
        *explain_residual(report),
    ]
    return "\n".join([*lines, *([f"wrote {report['output']}"] if report["output"] else [])])


COMMAND = Command(
    "solve A x = b, or a least-squares problem, from files",
    add_arguments,
    run,
    other_files="--rhs FILE reads the right-hand side",
)
