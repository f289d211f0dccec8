"""``warmup``: compile the kernels of first products, solves and multigrid set-ups ahead, by running small problems."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse import linalg
from gsparse.bench.problems import stencil, uniform
from gsparse.bench.timing import threads_from_the_first_call
from gsparse.cli.common import Command, add_device, add_json, print_result
from gsparse.device.base import Device
from gsparse.device.cache import gpu_code_folder, make_private_code_folder
from gsparse.device.compilation import COMPILE_NOTICE
from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.device.select import get_device
from gsparse.errors import FormatError
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.products import FORMATS

# Grid points per side; rows and entries per row of the matrices. With smaller matrices, one thread would do all the
# work, and the code that distributes work among threads would not be compiled.
_SIDE, _ROWS, _PER_ROW = 44, 80_000, 9
# Number of dense columns, chosen so that all kernels run: they take 8, 4, 2 or 1 columns at a time.
_COLUMNS = 15
_ITERATIONS = 3
_DTYPES = tuple(dtype.name for dtype in COMPUTE_DTYPES if dtype.kind in "fc")


@dataclass(frozen=True)
class WarmupStep:
    """The result of one step. Its attributes are keys of the JSON that ``warmup --json`` prints.

    Attributes
    ----------
    what : str
        The name of the step.
    dtype : str
    kernels : int
        Number of kernels that were compiled. Kernels that several threads compile at the same time count as one, and on
        a GPU, kernels that were loaded from a file count too. 0 if nothing was left to compile.
    seconds : float
        The time of the step. Most of it is compilation, if any.
    """

    what: str
    dtype: str
    kernels: int
    seconds: float


def _multiply_vectors(A: GpuSparseMatrix) -> None:
    for format_name in FORMATS:
        with suppress(FormatError):  # The format does not fit this matrix.
            GpuSparseMatrix(A, format=format_name) @ _ones(A)
    A.T @ _ones(A)


def _multiply_matrices(A: GpuSparseMatrix) -> None:
    A @ A
    A + A.T


def _run_solver(name: str, A: GpuSparseMatrix) -> None:
    getattr(linalg, name)(A, _ones(A), maxiter=_ITERATIONS, full_output=True)


def _run_multigrid(A: GpuSparseMatrix) -> None:
    linalg.cg(A, _ones(A), M=linalg.amg(A), maxiter=_ITERATIONS, full_output=True)


# The steps, which are run with each matrix, by the names that the user sees.
STEPS: dict[str, Callable[[GpuSparseMatrix], object]] = {
    "A @ x in every storage format": _multiply_vectors,
    "A @ X with dense columns": lambda A: A @ _ones(A, _COLUMNS),
    "A @ B and A + B of sparse matrices": _multiply_matrices,
    **{name: partial(_run_solver, name) for name in ("cg", "gmres", "bicgstab")},
    "amg, and cg with it": _run_multigrid,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``warmup``."""
    parser.add_argument(
        "--dtype", action="append", choices=_DTYPES, help="may be given several times (default: float64)"
    )
    add_device(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run every step for every dtype, and print the number of compiled kernels."""
    device = get_device(options.device)
    steps = []
    with threads_from_the_first_call() if device.is_host else nullcontext():
        for dtype in dict.fromkeys(options.dtype or ["float64"]):
            matrices = [GpuSparseMatrix(S, dtype=dtype, device=device) for S in _matrices()]
            for what in STEPS:
                steps.append(_run_step(what, dtype, matrices))
                if not options.json:
                    print(_line(steps[-1], device), flush=True)
    try:
        folder = str(make_private_code_folder() if device.kind == "cpu" else gpu_code_folder())
        where = f"the kernels are kept in {folder}"
    except OSError as error:
        folder, where = None, f"the cache folder cannot be used: {error}"
    result = {"device": device.name, "steps": [asdict(step) for step in steps], "folder": folder}
    total = WarmupStep("in all", "", sum(step.kernels for step in steps), sum(step.seconds for step in steps))
    print_result(result, f"{_line(total, device)}\non {device.name}; {where}", options)
    return 0


def _run_step(what: str, dtype: str, matrices: list[GpuSparseMatrix]) -> WarmupStep:
    begin, compiled_before = time.perf_counter(), COMPILE_NOTICE.compilations
    for A in matrices:
        STEPS[what](A)
    return WarmupStep(what, dtype, COMPILE_NOTICE.compilations - compiled_before, time.perf_counter() - begin)


def _line(step: WarmupStep, device: Device) -> str:
    done = "compiled" if device.kind == "cpu" else "compiled or loaded"
    count = f"{step.kernels} kernels {done}" if step.kernels else "nothing left to compile"
    return f"{step.what:<36}{step.dtype:<12}{count:<31}{step.seconds:>7.1f} s"


def _matrices() -> list[sp.csr_array]:
    """Return a grid's matrix, a matrix of the same structure without symmetry, and a matrix with random columns."""
    dominant = uniform(_ROWS, _PER_ROW).to_scipy() + sp.diags_array(np.full(_ROWS, 2.0 * _PER_ROW))
    grids = [stencil(_SIDE, 7, variable=variable).to_scipy() for variable in (False, True)]
    return [*grids, sp.csr_array(dominant)]


def _ones(A: GpuSparseMatrix, *columns: int) -> Any:
    return np.ones((A.shape[1], *columns), A.dtype)


COMMAND = Command("compile kernels ahead of their first use", add_arguments, run)
