"""``solve``: A·x = b, or least squares, from files, here or on several workers."""

from __future__ import annotations

import argparse
import time
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
from gsparse.cli.common import (
    Command,
    UsageError,
    add_device,
    add_force,
    add_json,
    add_matrix,
    check_free,
    describe,
    read_matrix,
    show,
    shows_bars,
    underway,
)
from gsparse.errors import FileFormatError
from gsparse.files import SUFFIXES, npz, read_file
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.registry import names_of
from gsparse.linalg.result import SolveResult
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.writing import replacing

__all__ = ["COMMAND"]

# Methods that need no more than a matrix and a right-hand side (Chebyshev's iteration wants bounds of the spectrum).
SQUARE = tuple(name for name in names_of("solver", least_squares=False) if name != "chebyshev")
LEAST_SQUARES = names_of("solver", least_squares=True)
# Those that stop by SciPy's own test, which is relative to |A| |x|; the others' is relative to |b|.
_BY_SIZE = names_of("solver", relative_to_matrix=True)
PRECONDITIONERS = names_of("preconditioner")
# Rows of a block of block_jacobi: unknowns of a point in most discretizations.
_BLOCK = 4
# Iterations after which a solver has what it needs: seconds, where its kernels are not compiled yet.
_READY = 1
# What numpy.save writes, b's usual file; and what x is written as.
_ARRAY = ".npy"
OUTPUTS = (_ARRAY, ".mtx")
# Instead of advice with this word, an argument that is no option here.
_ADVICE = {
    "(x0)": "Use --method gmres.",
    "M is not": "The preconditioner is not symmetric: use --method gmres or bicgstab, or another --precond.",
    "conlim": "Scale the columns of A; gsparse.linalg regularizes too: lsmr(A, b, damp=...).",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``solve``."""
    add_matrix(parser)
    what = parser.add_argument_group("the problem")
    what.add_argument("--rhs", type=Path, metavar="FILE", help=".npy, or as the matrix (default: A times ones)")
    what.add_argument("--rhs-name", metavar="NAME", help="the variable, of a .mat file that holds several")
    how = parser.add_argument_group("how")
    how.add_argument("--method", choices=(*SQUARE, *LEAST_SQUARES), help="chosen by the matrix where left out")
    how.add_argument("--precond", choices=("none", *PRECONDITIONERS), default="none", help="default: none")
    how.add_argument("--block-size", type=int, metavar="N", help=f"of block_jacobi (default: {_BLOCK})")
    of = f"of the residual, relative to |b| ({', '.join(_BY_SIZE)}: SciPy's test, relative to |A| |x|; default: 1e-8)"
    how.add_argument("--rtol", type=float, default=1e-8, metavar="R", help=of)
    how.add_argument("--maxiter", type=int, metavar="N", help="iterations at most (default: the method's)")
    add_device(how)
    how.add_argument("--workers", type=int, metavar="N", help="on as many processes, a GPU each where there are any")
    out = parser.add_argument_group("what comes of it")
    out.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"write x: {', '.join(OUTPUTS)}")
    add_force(out)
    add_json(out)


def run(options: argparse.Namespace) -> int:
    """Read, choose, solve, write; 1 where it did not converge."""
    check(options)
    S = read_matrix(options)
    S = S if S.dtype.kind in "fc" else S.astype(np.float64)
    b = right_hand_side(options, S)
    attempts, why = methods(options, S)
    found: dict[str, Any] = {"file": options.file, "shape": S.shape, "entries": S.nnz, "tried": []}
    found["setup_seconds"] = 0.0
    with operand(options, S) as A:
        M, found["precond_seconds"] = preconditioner(options, A)
        for method in attempts:
            result, ready = solved(method, A, b, M, options)
            found["setup_seconds"] += ready
            found["tried"].append(method)
            if result.info == 0:
                break
        device = f"{options.workers} workers" if options.workers else A.device.name
    norm = float(np.linalg.norm(b))
    residual = float(np.linalg.norm(S @ result.x - b)) / (norm or 1.0)
    found |= {"device": device, "method": method, "why": why, "precond": options.precond, "rtol": options.rtol}
    found |= {"converged": result.info == 0, "reason": result.reason, "advice": result.advice}
    found |= {"iterations": result.iterations, "seconds": result.seconds, "relative_residual": residual}
    found |= {"history": result.residuals, "output": options.output}
    if options.output:
        write_solution(options.output, result.x)
    show(found, _text(found, result, S), options)
    return 0 if result.info == 0 else 1


def check(options: argparse.Namespace) -> None:
    """Refuse what does not go together, before anything is read."""
    if options.output and options.output.suffix.lower() not in OUTPUTS:
        raise UsageError(f"-o {options.output}: x is written as {' or '.join(OUTPUTS)}")
    if options.output and not options.output.absolute().parent.is_dir():
        raise UsageError(f"-o {options.output}: there is no folder {options.output.absolute().parent}")
    if options.output:
        check_free(options.output, options)
    if options.rhs and not options.rhs.is_file():
        raise UsageError(f"--rhs: no file at {options.rhs}")
    if options.rhs and not options.rhs.name.lower().endswith((_ARRAY, *SUFFIXES)):
        raise UsageError(
            f"--rhs {options.rhs.name}: b is read from {_ARRAY}, which numpy.save writes, or as a matrix is from "
            f"{', '.join(SUFFIXES)}"
        )
    if options.method in LEAST_SQUARES and options.precond != "none":
        raise UsageError(f"{options.method} takes no --precond: scale the columns of the matrix instead")
    if options.block_size is not None and options.precond != "block_jacobi":
        raise UsageError("--block-size goes with --precond block_jacobi")
    if options.rhs_name is not None and (options.rhs is None or options.rhs.suffix.lower() != ".mat"):
        raise UsageError("--rhs-name goes with --rhs FILE.mat, whose variables have names")
    if not 0 <= options.rtol < 1:
        raise UsageError(f"--rtol: from 0 to 1, got {options.rtol}")
    for name, least in (("maxiter", 1), ("workers", 1), ("block_size", 1)):
        given = getattr(options, name)
        if given is not None and given < least:
            raise UsageError(f"--{name.replace('_', '-')}: at least {least}, got {given}")


def right_hand_side(options: argparse.Namespace, S: sp.csr_array) -> Any:
    """Read b, or make one whose solution is known to exist: A times ones."""
    if options.rhs is None:
        return S @ np.ones(S.shape[1], S.dtype)
    if options.rhs.suffix.lower() == _ARRAY:
        try:
            b = np.load(options.rhs, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise UsageError(
                f"--rhs {options.rhs.name} is no array: {str(error).rstrip('. ')}; write it with numpy.save"
            ) from error
    else:
        try:
            b = read_file(options.rhs, options.rhs_name).toarray()
        except FileFormatError as error:
            said = str(error).replace("--name", "--rhs-name").replace(npz.WRITER, f"numpy.save, as {_ARRAY}")
            raise UsageError(f"--rhs: {said}") from error
    if b.ndim == 2 and 1 in b.shape:
        b = b.reshape(-1)
    if b.ndim not in (1, 2) or b.shape[0] != S.shape[0]:
        raise UsageError(
            f"--rhs {options.rhs.name} has shape {b.shape}: {S.shape[0]} rows are needed, as the matrix has"
        )
    return b if b.dtype.kind in "fc" else b.astype(np.float64)


def methods(options: argparse.Namespace, S: sp.csr_array) -> tuple[tuple[str, ...], str]:
    """Give the methods to try, each where the one before has not converged, and why."""
    if options.method:
        if options.method in SQUARE and S.shape[0] != S.shape[1]:
            raise UsageError(f"{options.method} needs a square matrix, this one is {describe(S)}: use lsqr or lsmr")
        return (options.method,), "asked for"
    if S.shape[0] != S.shape[1]:
        if options.precond != "none":
            raise UsageError("--precond goes with square matrices: least squares is solved without")
        return ("lsmr",), "not square: least squares"
    A = GpuSparseMatrix(S, device=options.device)
    with underway("looking for a symmetry"), SquareMatrix.of(A, "solve", finite=False) as square:
        hermitian = square.is_hermitian()
    if not hermitian:
        return ("bicgstab", "gmres"), "square, not symmetric"
    if (S.diagonal().real > 0).all():
        return ("cg", "minres"), "symmetric with a positive diagonal: probably positive definite"
    return ("minres", "gmres"), "symmetric, not positive definite"


@contextmanager
def operand(options: argparse.Namespace, S: sp.csr_array) -> Iterator[Any]:
    """Give the matrix on a device, or on workers that are there within the block."""
    if not options.workers:
        with underway("choosing a format"):
            A = GpuSparseMatrix(S, device=options.device)
        yield A
        return
    from gsparse.distributed import LocalGpuCluster, distribute

    device = options.device or "auto"
    with underway(f"starting {options.workers} workers"):
        cluster = LocalGpuCluster(options.workers, device=device)
    with cluster, cluster.get_client() as client, distribute(S, client=client, device=device) as A:
        yield A


def preconditioner(options: argparse.Namespace, A: Any) -> tuple[Any, float]:
    """Make what `--precond` names; give it and the seconds it took."""
    name = options.precond
    if name == "none":
        return None, 0.0
    begin = time.perf_counter()
    with underway(f"preconditioner {name}"):
        M = getattr(linalg, name)(A, *([options.block_size or _BLOCK] if name == "block_jacobi" else []))
    return M, time.perf_counter() - begin


def solved(method: str, A: Any, b: Any, M: Any, options: argparse.Namespace) -> tuple[SolveResult, float]:
    """Call a solver by its own names for tolerance and limit; give what it found, and the seconds of getting ready."""
    names = ("atol", "btol") if method in LEAST_SQUARES else ("rtol",)
    solve = partial(getattr(linalg, method), A, b, **dict.fromkeys(names, options.rtol))
    if method not in LEAST_SQUARES:
        solve = partial(solve, M=M)
    limit = "iter_lim" if method == "lsqr" else "maxiter"
    begin = time.perf_counter()
    with underway(f"compiling or loading {method}"):
        solve(**{limit: _READY})
    ready = time.perf_counter() - begin
    found: SolveResult = solve(full_output=True, progress=shows_bars(), **{limit: options.maxiter})
    return replace(found, advice=advised(found, method, options)), ready


def advised(result: SolveResult, method: str, options: argparse.Namespace) -> str:
    """Give a solver's advice, where it names arguments of Python, by the options of this command."""
    for word, instead in _ADVICE.items():
        if word in result.advice:
            return instead
    if "maxiter" not in result.advice:
        return result.advice
    more = "Allow more iterations (--maxiter)"
    if method in LEAST_SQUARES:
        return f"{more}."
    which = "a" if options.precond == "none" else "another"
    return f"{more}, or give {which} preconditioner: --precond jacobi, ilu0, amg."


def write_solution(path: Path, x: Any) -> None:
    """Write x: NumPy's format, or a Matrix Market array of a column for each right-hand side."""
    with replacing(path) as file:
        if path.suffix.lower() == _ARRAY:
            np.save(file, x)
        else:
            scipy.io.mmwrite(file, x.reshape(x.shape[0], -1))


def above_rtol(found: dict[str, Any]) -> list[str]:
    """Say why a solve that converged leaves more than `--rtol`; of least squares its reason does."""
    if found["reason"] != "converged" or found["relative_residual"] <= found["rtol"]:
        return []
    why = (
        "stops by SciPy's test, relative to |A| |x|: give a smaller --rtol for less"
        if found["method"] in _BY_SIZE
        else "updates its residual, from which rounding has parted this one"
    )
    return [f"which is above --rtol {found['rtol']:g}: {found['method']} {why}"]


def _text(found: dict[str, Any], result: SolveResult, S: sp.csr_array) -> str:
    tried = [f"{name}: did not converge, next one tried" for name in found["tried"][:-1]]
    lines = [
        f"{found['file'].name}: {describe(S)}, on {found['device']}",
        f"method: {found['why']}",
        *tried,
        f"{found['method']}, preconditioner {found['precond']}"
        + (
            f" ({found['precond_seconds']:.3g} s, with its kernels compiled or loaded)"
            if found["precond"] != "none"
            else ""
        ),
        f"made ready in {found['setup_seconds']:.3g} s (kernels compiled or loaded), which the solve's own leave out",
        str(result),
        f"norm(b - A x) / norm(b) = {found['relative_residual']:.3e}",
        *above_rtol(found),
    ]
    return "\n".join([*lines, *([f"wrote {found['output']}"] if found["output"] else [])])


COMMAND = Command("solve A x = b, or least squares, from files", add_arguments, run)
