"""Time direct solves beside nvmath-python's and SuperLU's, in one run: ``python asv_bench/measure_factors.py``.

Each line shows a figure of gsparse in milliseconds, that of the peer, and the peer's over gsparse's (x). A goal is the
x that the project aims at, or the largest number of milliseconds. The sections are:

cudss
    cuDSS through gsparse and through the solver object of nvmath-python, on the 2-D Poisson problem: factors of new
    values, and solves with 1 and 100 right-hand sides. Needs an NVIDIA GPU and the extra ``direct``.
threads
    The analysis of cuDSS with one thread of the host and with all of them.
host
    SuperLU's own solves, and ours with SuperLU's factors: on a GPU, 100 right-hand sides are solved level by level.
matrices
    The same for five matrices from applications, in the folder that ``GSPARSE_MATRICES`` names.

``--size 60 --columns 16 --device cpu`` tries the script without a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.bench.problems import application_matrix
from gsparse.device.base import Device
from gsparse.linalg import Factorization, factorized
from gsparse.linalg.direct.cudss import CUDSS
from gsparse.linalg.direct.cudss_solver import CudssSolver, find_threading_layer
from gsparse.linalg.direct.factors import FactorOptions
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

REPEATS = 5
SECTIONS = ("cudss", "threads", "host", "matrices")
# Goals: milliseconds, for the problem of 1000² rows and 100 right-hand sides, and the peer's time over ours, for all
# problems.
MAX_UPDATE, MAX_SOLVE, MIN_RATIO, MIN_THREADS, MIN_HOST = 30.0, 70.0, 1 / 1.05, 1 / 0.4, 5.0
# Matrices that are not singular: elasticity, a flow, a wave, and two finite-element problems.
MATRICES = ("bcsstk16", "cavity14", "pyamg_helmholtz_2D", "ani4", "polyfem_A_2")


def poisson(n: int) -> sp.csr_array:
    """Return the 5-point Laplacian of an n×n grid."""
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return sp.csr_array(sp.kronsum(line, line))


def milliseconds(device: Device, call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Return the median time of a call, from an idle device to an idle device."""
    times = []
    for _ in range(repeats):
        device.synchronize()
        began = time.perf_counter()
        call()
        device.synchronize()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def report(what: str, ours: float, peer: float | None = None, ratio: float | None = None, most: float = np.inf) -> None:
    """Print a figure with its goals: the least ratio, and the most milliseconds."""
    text = f"{what:58s} {ours:10.2f} ms"
    if peer is not None:
        text += f"  peer {peer:10.2f} ms  {peer / ours:6.2f} x"
    if ratio is not None and peer is not None:
        text += f"  goal {ratio:.2f} {'met' if peer / ours >= ratio else 'MISSED'}"
    if np.isfinite(most):
        text += f"  goal {most:.0f} ms {'met' if ours <= most else 'MISSED'}"
    print(text, flush=True)


def check(S: sp.csr_array, x: Any, b: Any, tolerance: float = 1e-8) -> None:
    """Raise an error unless x is a solution: a wrong one can be fast."""
    x, b = (array.get() if hasattr(array, "get") else array for array in (x, b))
    error = np.linalg.norm(b - S @ x) / np.linalg.norm(b)
    if not error < tolerance:
        raise ArithmeticError(f"the relative residual is {error:.1e}")


def columns_of(device: Device, rows: int, count: int, dtype: Any = float) -> Any:
    """Return right-hand sides on the device, each of them contiguous."""
    b = np.random.default_rng(0).standard_normal((count, rows)).astype(dtype)
    return device.upload(b).T


def measure_cudss(A: GpuSparseMatrix, S: sp.csr_array, count: int, goals: bool) -> None:
    device = A.device
    factors: list[Factorization] = []
    cold = milliseconds(device, lambda: factors.append(factorized(A, assume_a="pos", library="cudss")), 1)
    report("cudss: analysis and factors, first call", cold)
    new = A.with_data(A.device_data.copy())
    one, many = columns_of(device, A.shape[0], 1)[:, 0], columns_of(device, A.shape[0], count)
    update = milliseconds(device, lambda: factors[0].update(new))
    solves = {}
    for name, b in (("one", one), ("many", many)):
        check(S, factors[0].solve(b), b)
        solves[name] = milliseconds(device, lambda b=b: factors[0].solve(b))
    print(f"{factors[0]}, with {1e-6 * factors[0].nnz:.1f} M entries")
    peer = peer_times(A, one, many)
    most = (MAX_UPDATE, MAX_SOLVE) if goals else (np.inf, np.inf)
    report("cudss: factors of new values", update, peer["factorize"], MIN_RATIO, most[0])
    report("cudss: 1 right-hand side", solves["one"], peer["one"], MIN_RATIO)
    report(f"cudss: {count} right-hand sides", solves["many"], peer["many"], MIN_RATIO, most[1])


def peer_times(A: GpuSparseMatrix, one: Any, many: Any) -> dict[str, float]:
    """Return the times of nvmath-python's solver object, which is made anew for each number of columns."""
    from nvmath.sparse.advanced import DirectSolver, DirectSolverMatrixType, DirectSolverOptions

    options = DirectSolverOptions(
        sparse_system_type=DirectSolverMatrixType.SPD, multithreading_lib=find_threading_layer()
    )
    matrix, times = A.to_cupy(), {}
    for name, b in (("one", one), ("many", many)):
        with DirectSolver(matrix, b, options=options) as solver:
            times[f"plan {name}"] = milliseconds(A.device, solver.plan, 1)
            solver.factorize()
            times["factorize"] = milliseconds(A.device, solver.factorize)
            solver.solve()
            times[name] = milliseconds(A.device, solver.solve)
    return times


def measure_threads(A: GpuSparseMatrix) -> None:
    times = {}
    for num_threads in (1, None):
        with SquareMatrix.of(A, "measure_factors") as matrix:
            options = FactorOptions(num_threads=num_threads)
            solver = CudssSolver(A.device, matrix.csr, "positive definite", options)
            times[solver.num_threads] = milliseconds(A.device, solver.analyse, 1)
    if len(times) == 1:
        print("threads: no threading layer of cuDSS was found, or the process may use one processor only")
        return
    (_, alone), (number, shared) = sorted(times.items())
    report(f"threads: analysis with {number} threads, peer: one thread", shared, alone, MIN_THREADS)


def measure_host(name: str, S: sp.csr_array, device: Device, count: int) -> None:
    """Time solves with SuperLU's factors: by SciPy, and by ours where the right-hand sides are on the device."""
    A = GpuSparseMatrix(S, device=device)
    factors: list[Factorization] = []
    seconds = milliseconds(device, lambda: factors.append(factorized(A, library="superlu")), 1)
    report(f"{name}: factors, {1e-6 * factors[0].nnz:.2f} M entries", seconds)
    b = columns_of(device, S.shape[0], count, factors[0].dtype)
    host = np.asfortranarray(device.download(b))
    solutions: list[Any] = []
    first = milliseconds(device, lambda: solutions.append(factors[0].solve(b)), 1)
    check(S, solutions[0], b)
    report(f"{name}: the first solve, which copies the factors", first)
    superlu = factors[0]._factors.superlu  # type: ignore[union-attr]  # its own solves, with the same factors
    for columns in (1, count):
        ours = milliseconds(device, lambda columns=columns: factors[0].solve(b[:, :columns]))
        peer = milliseconds(device, lambda columns=columns: superlu.solve(host[:, :columns]), 2)
        report(f"{name}: {columns} right-hand sides", ours, peer, MIN_HOST if columns > 1 else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=SECTIONS, help=f"any of {' '.join(SECTIONS)}; all by default")
    parser.add_argument("--size", type=int, default=1000, help="points along a side of the grid (default: %(default)s)")
    parser.add_argument("--columns", type=int, default=100, help="right-hand sides (default: %(default)s)")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    S = poisson(options.size)
    A = GpuSparseMatrix(S, device=options.device)
    obstacle = CUDSS.obstacle(A.device, "positive definite")
    print(f"2-D Poisson {options.size}², {options.columns} right-hand sides, on {A.device.name}")
    for section in options.sections:
        if section not in SECTIONS:
            parser.error(f"there is no section {section!r}: use {' '.join(SECTIONS)}")
        if section in ("cudss", "threads") and obstacle:
            print(f"{section}: not measured, {obstacle}")
        elif section == "cudss":
            measure_cudss(A, S, options.columns, goals=(options.size, options.columns) == (1000, 100))
        elif section == "threads":
            measure_threads(A)
        elif section == "host":
            measure_host(f"2-D {options.size}²", S, A.device, options.columns)
        else:
            for name in MATRICES:
                matrix = application_matrix(name)
                dtype = np.result_type(matrix.dtype, float)
                measure_host(name, matrix.astype(dtype), A.device, options.columns)


if __name__ == "__main__":
    main()
