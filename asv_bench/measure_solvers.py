"""Time solvers beside SciPy's, CuPy's and PyAMG's, in one run: ``python asv_bench/measure_solvers.py``.

Each line shows a figure of gsparse, that of the peer, and the peer's over gsparse's (x). A goal is the x that the
project aims at: "goal 2 met" means an x of 2 or more. All sections run by default: ``cg small gmres traffic amg
accelerated real matrix`` on a GPU, and ``cpu`` on any machine. The time of an iteration comes from the difference
between a long solve and a short one, so set-up does not count. The section `amg` needs PyAMG.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix, get_num_threads
from gsparse.bench.problems import application_matrix, stencil
from gsparse.device.select import get_device
from gsparse.linalg import amg, bicgstab, cg, gmres, jacobi

try:
    import cupy
    import cupyx.scipy.sparse as cusp
    import cupyx.scipy.sparse.linalg as cula
except ImportError:  # Without CuPy only the section `cpu` runs.
    cupy = cusp = cula = None

REPEATS = 5
RESTART = 30

# Vectors that an iteration of CG reads and writes in addition to the matrix.
CG_VECTORS = 10

# Microseconds of an iteration of Ginkgo 1.12 on an H200, recorded when the project began. Ginkgo is not run here.
GINKGO = {"CG": {20: 31, 64: 52, 200: 917}, "GMRES(30)": {20: 223, 64: 237, 200: 2236}}
GINKGO_GOAL = 3.0
GOALS = {
    ("CG", 20, False): 30.0, ("CG", 64, False): 15.0, ("CG", 200, False): 3.5, ("CG", 200, True): 2.3,
    ("GMRES(30)", 20, False): 8.0, ("GMRES(30)", 64, False): 6.0, ("GMRES(30)", 200, False): 1.5,
}  # fmt: skip
# Iterations of the short and of the long solve, which ends before residuals underflow.
LENGTHS = {20: (60, 360), 64: (60, 360), 200: (30, 150)}

# Symmetric matrices from applications on which SciPy's CG converges within MAXITER iterations.
DEFINITE = ("1138_bus", "bcsstk16", "ani4", "rail_5177_S", "pyamg_bar", "pyamg_airfoil", "pyamg_unit_square",
            "G3_circuit")  # fmt: skip
MAXITER = 3000
ITERATIONS_ALLOWED = 2

# The explanation of the columns that `print_row` prints.
LEGEND = (
    "gsparse's figure, the peer's, x: the peer's over gsparse's, goal: the x that the project aims at, met or MISSED"
)

Row = dict[str, Any]


def row(what: str, ours: float, peer: str, theirs: float, unit: str, goal: float | None = None) -> Row:
    """Return a figure of gsparse with its peer's. The `ratio` is the peer's over gsparse's."""
    ratio = theirs / ours
    verdict = "" if goal is None else "met" if ratio >= goal else "MISSED"
    return {"what": what, "ours": ours, "peer": peer, "theirs": theirs, "unit": unit,
            "ratio": ratio, "goal": goal, "verdict": verdict}  # fmt: skip


def print_row(row: Row) -> None:
    """Print a line immediately, so that an interrupted run has printed its results so far."""
    goal = f"goal {row['goal']:g} {row['verdict']}" if row["goal"] is not None else ""
    print(f"{row['what']:46} {row['ours']:10.4g} {row['unit']:5} {row['peer']:30} {row['theirs']:10.4g}  "
          f"x {row['ratio']:<8.3g} {goal}", flush=True)  # fmt: skip


def synchronize() -> None:
    if cupy is not None:
        cupy.cuda.Device().synchronize()


def seconds(call: Callable[[], Any]) -> float:
    """Return the wall time of one call. The device is idle before it, and the time ends when it is idle again."""
    synchronize()
    begin = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - begin


def iteration(solve: Callable[[int], Any], lengths: tuple[int, int]) -> float:
    """Return the microseconds of an iteration of ``solve(maxiter)``, which never converges."""
    short, long = lengths
    solve(short)  # Compiles the kernels.
    differences = [seconds(lambda: solve(long)) - seconds(lambda: solve(short)) for _ in range(REPEATS)]
    return 1e6 * statistics.median(differences) / (long - short)


def poisson(n: int, *, variable: bool = False) -> sp.csr_array:
    """Return the 7-point matrix. Variable coefficients scale rows and columns equally, so it stays symmetric."""
    data, indices, indptr, shape = stencil(n, 7)
    S = sp.csr_array((data, indices, indptr), shape=shape)
    if variable:
        scale = np.random.default_rng(0).uniform(1, 2, shape[0])
        S.data *= scale[S.indices] * np.repeat(scale, np.diff(S.indptr))
    return S


def peers_of(S: sp.csr_array) -> tuple[GpuSparseMatrix, Any, Any]:
    b = cupy.random.default_rng(0).standard_normal(S.shape[0])
    return GpuSparseMatrix(S), cusp.csr_matrix(sp.csr_matrix(S)), b


def measure_cg() -> Iterator[Row]:
    for n, variable in ((20, False), (64, False), (200, False), (200, True)):
        A, theirs, b = peers_of(poisson(n, variable=variable))
        times = [
            iteration(lambda k, T=T, solve=solve, b=b: solve(T, b, rtol=0.0, maxiter=k), LENGTHS[n])
            for T, solve in ((A, partial(cg, full_output=True)), (theirs, cula.cg))
        ]
        name = f"CG, 7-point {n}^3{', variable' if variable else ''}"
        yield row(name, times[0], "cupyx cg", times[1], "µs", GOALS["CG", n, variable])
        if not variable:
            yield row(name, times[0], "Ginkgo (recorded)", GINKGO["CG"][n], "µs", GINKGO_GOAL)


# (points of the stencil, points along an axis) of systems whose iterations may run as one kernel.
SMALL = ((7, 10), (7, 20), (7, 32), (7, 48), (7, 64), (27, 20), (27, 32))
# Goals for an iteration of CG in float64, in microseconds.
SMALL_GOALS = {(7, 20): 5.5, (7, 64): 11.0}


def measure_small() -> Iterator[Row]:
    """Compare iterations as one kernel with the same iterations in CUDA graphs."""
    for (points, n), dtype in product(SMALL, (np.float64, np.float32)):
        data, indices, indptr, shape = stencil(n, points)
        A = GpuSparseMatrix(sp.csr_array((data, indices, indptr), shape=shape).astype(dtype))
        b = cupy.random.default_rng(0).standard_normal(shape[0]).astype(dtype)
        for solve, M in ((cg, None), (cg, jacobi(A)), (bicgstab, None)):
            times = []
            for together in (True, False):
                with mock.patch.object(A.device, "runs_blocks_together", together):
                    times.append(iteration_alone(partial(solve, A, b, M=M)))
            preconditioned = "" if M is None else " with jacobi"
            name = f"{solve.__name__}{preconditioned}, {points}-point {n}^3, {np.dtype(dtype).name}"
            yield row(name, times[0], "as a CUDA graph", times[1], "µs", 1.0)
            if solve is cg and M is None and dtype is np.float64 and (points, n) in SMALL_GOALS:
                yield row(name, times[0], "goal in µs", SMALL_GOALS[points, n], "µs", 1.0)


def iteration_alone(solve: Callable[..., Any]) -> float:
    """Return the microseconds of an iteration: the wall time of solves in relation to the iterations that they make."""
    tolerances = 1e-1, 1e-5
    results = [solve(rtol=rtol, full_output=True) for rtol in tolerances]
    rounds = [[seconds(lambda rtol=rtol: solve(rtol=rtol, full_output=True)) for rtol in tolerances] for _ in range(15)]
    return (
        1e6
        * statistics.median(long - short for short, long in rounds)
        / (results[1].iterations - results[0].iterations)
    )


def measure_gmres() -> Iterator[Row]:
    for n in (20, 64, 200):
        A, theirs, b = peers_of(poisson(n))
        cycles = tuple(max(1, length // RESTART) for length in LENGTHS[n])

        def ours(k: int, dtype: Any = None, A: Any = A, b: Any = b) -> Any:
            return gmres(A, b, rtol=0.0, restart=RESTART, maxiter=k, basis_dtype=dtype, full_output=True)

        def cupyx(k: int, T: Any = theirs, b: Any = b) -> Any:
            return cula.gmres(T, b, rtol=0.0, restart=RESTART, maxiter=k * RESTART)

        peer, plain = iteration(cupyx, cycles) / RESTART, iteration(ours, cycles) / RESTART
        with_float32 = iteration(lambda k, ours=ours: ours(k, np.float32), cycles) / RESTART
        yield row(f"GMRES(30), 7-point {n}^3", plain, "cupyx gmres", peer, "µs", GOALS["GMRES(30)", n, False])
        yield row(f"GMRES(30), 7-point {n}^3", plain, "Ginkgo (recorded)", GINKGO["GMRES(30)"][n], "µs", GINKGO_GOAL)
        goal = 2.0 if n == 200 else None
        yield row(f"GMRES(30), 7-point {n}^3, basis in float32", with_float32, "cupyx gmres", peer, "µs", goal)
        residuals = [
            float(cupy.linalg.norm(b - A @ gmres(A, b, rtol=1e-6, restart=RESTART, maxiter=200, basis_dtype=dtype)[0]))
            for dtype in (np.float32, None)
        ]
        yield row("   its final residual at rtol 1e-6", residuals[0], "basis in float64", residuals[1], "", 0.9)


def measure_traffic() -> Iterator[Row]:
    """Compare fused CG with the time that its memory traffic takes at the bandwidth of a copy."""
    bandwidth = get_device("gpu").copy_bandwidth
    for variable in (False, True):
        A, _, b = peers_of(poisson(200, variable=variable))
        time_per_iteration = iteration(
            lambda k, A=A, b=b: cg(A, b, rtol=0.0, maxiter=k, full_output=True), LENGTHS[200]
        )
        num_bytes = CG_VECTORS * b.nbytes + A.stored.nbytes
        name = f"CG, 7-point 200^3{', variable' if variable else ''}: {num_bytes / 1e6:.0f} MB"
        yield row(
            name,
            time_per_iteration,
            f"its traffic at {bandwidth / 1e9:.0f} GB/s",
            1e6 * num_bytes / bandwidth,
            "µs",
            1 / 1.15,
        )


def measure_amg(n: int = 200) -> Iterator[Row]:
    """Solve Poisson to 1e-8 with CG + AMG, with PyAMG on the host, and with plain CG. Set-up has a line of its own."""
    pyamg = import_module("pyamg")
    S = poisson(n)
    b = np.ones(S.shape[0])
    begin = time.perf_counter()
    hierarchy = pyamg.smoothed_aggregation_solver(sp.csr_matrix(S), max_coarse=300)
    setup = time.perf_counter() - begin
    begin = time.perf_counter()
    hierarchy.solve(b, tol=1e-8, accel="cg")
    host_solve = time.perf_counter() - begin
    A, theirs, _ = peers_of(S)
    device_b = cupy.asarray(b)
    transfer = seconds(lambda: amg(hierarchy))
    for label, dtype in (("", None), (", cycle in float32", np.float32)):
        M = amg(hierarchy, dtype=dtype)
        cg(A, device_b, M=M, maxiter=1, full_output=True)
        solve = seconds(lambda M=M: cg(A, device_b, M=M, rtol=1e-8))
        yield row(
            f"CG + AMG, Poisson {n}^3 to 1e-8{label}", 1e3 * solve, "PyAMG's solve, host", 1e3 * host_solve, "ms", 50.0
        )
        plain = seconds(lambda: cula.cg(theirs, device_b, rtol=1e-8))
        yield row(f"CG + AMG, Poisson {n}^3 to 1e-8{label}", 1e3 * solve, "cupyx cg", 1e3 * plain, "ms", 1.0)
    yield row("   set-up: transfer the hierarchy", 1e3 * transfer, "PyAMG's set-up, host", 1e3 * setup, "ms")
    for label, options in (("plain CG", {}), ("plain CG, inner_dtype=float32", {"inner_dtype": np.float32})):
        cg(A, device_b, maxiter=1, full_output=True, **options)
        solve = seconds(lambda options=options: cg(A, device_b, rtol=1e-8, **options))
        yield row(f"{label}, Poisson {n}^3 to 1e-8", 1e3 * solve, "cupyx cg", 1e3 * plain, "ms")


def measure_accelerated() -> Iterator[Row]:
    S = poisson(128)
    b = S @ np.random.default_rng(0).standard_normal(S.shape[0])
    A = GpuSparseMatrix(S)
    for rtol, options in ((1e-5, {}), (1e-5, {"rtol": 1e-6}), (1e-8, {})):

        def solve(rtol: float = rtol, options: dict[str, Any] = options) -> Any:
            return la.cg(A.accelerated(**options), b, rtol=rtol)

        solve()  # Compiles the kernels.
        ours = statistics.median(seconds(solve) for _ in range(3))
        theirs = seconds(lambda rtol=rtol: la.cg(S, b, rtol=rtol))
        arguments = ", ".join(f"{name}={value:g}" for name, value in options.items())
        name = f"scipy cg to {rtol:g}, A.accelerated({arguments})"
        yield row(name, 1e3 * ours, "SciPy's own matrix", 1e3 * theirs, "ms", 100.0)


def measure_real() -> Iterator[Row]:
    """Count the iterations of plain CG on symmetric matrices from applications. The ratio is one of iterations."""
    for name in DEFINITE:
        S = sp.csr_array(application_matrix(name), dtype=float)
        b, count = S @ np.ones(S.shape[0]), [0]  # Some matrices are singular, and this b has a solution.
        _, info = la.cg(S, b, maxiter=MAXITER, callback=lambda _, count=count: count.__setitem__(0, count[0] + 1))
        result = cg(GpuSparseMatrix(S), b, maxiter=MAXITER, full_output=True)
        difference = abs(result.iterations - count[0])
        entry = row(f"iterations of CG on {name}", result.iterations, "SciPy", count[0], "")
        verdict = "met" if difference <= ITERATIONS_ALLOWED and (info == 0) == (result.info == 0) else "MISSED"
        yield entry | {"goal": 1.0, "verdict": f"±{ITERATIONS_ALLOWED}: {verdict}"}


def measure_matrix() -> Iterator[Row]:
    """Time SciPy's and CuPy's solvers with an unchanged GpuSparseMatrix."""
    for name, S in (("G3_circuit", sp.csr_array(application_matrix("G3_circuit"))), ("7-point 128^3", poisson(128))):
        A, theirs, _ = peers_of(S)
        b = S @ np.ones(S.shape[0])
        device_b = cupy.asarray(b)
        through_cupy = la.LinearOperator(S.shape, lambda v, T=theirs: cupy.asnumpy(T @ cupy.asarray(v)), dtype=S.dtype)
        times = {
            label: iteration(lambda k, T=T, solve=solve, b=right: solve(T, b, rtol=0.0, maxiter=k), (10, 60))
            for label, solve, T, right in (
                ("ours", la.cg, A, b),
                ("behind a LinearOperator", la.cg, through_cupy, b),
                ("SciPy", la.cg, S, b),
                ("ours, device", cula.cg, A, device_b),
                ("CuPy, device", cula.cg, theirs, device_b),
            )
        }
        yield row(f"scipy cg, {name}", times["ours"], "SciPy's matrix", times["SciPy"], "µs")
        yield row(f"scipy cg, {name}", times["ours"], "CuPy's, LinearOperator", times["behind a LinearOperator"], "µs")
        yield row(f"cupyx cg, {name}", times["ours, device"], "CuPy's matrix", times["CuPy, device"], "µs")


def measure_cpu() -> Iterator[Row]:
    S = poisson(100)
    b, lengths = np.random.default_rng(0).standard_normal(S.shape[0]), (5, 25)
    for label, options in (("", {}), (", uncompressed CSR", {"format": "csr_scalar", "compress": False})):
        A = GpuSparseMatrix(S, device="cpu", **options)
        ours = iteration(lambda k, A=A: cg(A, b, rtol=0.0, maxiter=k, full_output=True), lengths)
        theirs = iteration(lambda k: la.cg(S, b, rtol=0.0, maxiter=k), lengths)
        name = f"CG on the CPU, 7-point 100^3, {get_num_threads()} threads{label}"
        yield row(name, ours, "SciPy", theirs, "µs", 2.0)


SECTIONS = {
    "cpu": measure_cpu,
    "cg": measure_cg,
    "small": measure_small,
    "gmres": measure_gmres,
    "traffic": measure_traffic,
    "amg": measure_amg,
    "accelerated": measure_accelerated,
    "real": measure_real,
    "matrix": measure_matrix,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=" ".join(SECTIONS))
    parser.add_argument("--amg-n", type=int, default=200, help="points along each side of the AMG problem")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    if unknown := [section for section in options.sections if section not in SECTIONS]:
        parser.error(f"unknown section {' '.join(unknown)}; there are {' '.join(SECTIONS)}")
    print(LEGEND, flush=True)
    rows = []
    for name in options.sections or (SECTIONS if cupy is not None else ["cpu"]):
        try:
            arguments = (options.amg_n,) if name == "amg" else ()
            for measured in SECTIONS[name](*arguments):
                rows.append({"section": name, **measured})
                print_row(measured)
        except (ImportError, FileNotFoundError) as error:
            print(f"{name}: skipped, {error}", flush=True)
        if cupy is not None:
            cupy.get_default_memory_pool().free_all_blocks()
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
