"""Time multigrid that is set up on the device, and count its iterations: ``python asv_bench/measure_multigrid.py``.

Sections, all of which run by default if the machine can run them:

    poisson     7-point 200³ from a matrix on the GPU: set-up, solve to 1e-8, plain CG, update, memory, each phase
    jumps       the same with coefficients that jump by 10⁶, beside plain CG
    elasticity  1.5 million unknowns, six rigid body modes
    tetrahedra  the same on an unstructured mesh, with and without dense blocks
    host        7-point 200³ from SciPy's matrix on the host to the solution on the host
    cpu         7-point 100³ on the CPU backend, beside PyAMG
    robustness  rows, levels, complexity and iterations of many problems, beside PyAMG's (on the device that is named)

Each line shows a figure, the goal of the project, and whether it is met. A time is the median of several calls, each of
which ends when the device is idle. A peer runs beside ours with ``--peer NAME PROGRAM CONFIG...``: for each
configuration, ``PROGRAM poisson7:200 1e-8 CONFIG`` must print a JSON object with `setup_s`, `solve_s` and `converged`,
as `hypre_program.py` does. Without AMGX, the best time of AMGX 2.5 that was measured on an H100 is taken (FIGURES.md).

``robustness --record FILE`` writes the table to a file, and ``--picture FILE`` draws it. ``--page`` draws the picture
of the documentation's page from the recorded file in ``docs/_static``, without measuring anything.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as la
from elliptic_problems import (
    EllipticProblem,
    checkerboard,
    diffusion,
    elasticity,
    elliptic_problems,
    poisson,
)
from tetrahedra import tetrahedral_elasticity

from gsparse import GpuSparseMatrix
from gsparse.bench.problems import stencil
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.errors import CoarseningWarning, DeviceError
from gsparse.formats.registry import find_format, register, unregister
from gsparse.linalg import amg, cg, gmres, rigid_body_modes
from gsparse.sparse import arithmetic

STATIC = Path(__file__).resolve().parent.parent / "docs" / "_static"
REPEATS = 5
RTOL = 1e-8
# The goals of the project. On an H200: milliseconds of 7-point 200³ from a matrix on the device; AMGX's time over ours;
# update over set-up; plain CG over set-up and solve, with jumping coefficients; seconds of elasticity, and of 7-point
# 200³ from the host to the host; set-up and solve of elasticity on tetrahedra with dense blocks over those without, and
# seconds of the assembly of its matrix; memory at the peak over that of the matrix. On a CPU: PyAMG's time over ours.
GOALS = {
    "set-up": 25,
    "solve": 30,
    "together": 55,
    "AMGX": 4,
    "update": 0.5,
    "complexity": 1.6,
    "memory": 4,
    "jumps": 3,
    "elasticity": 1.0,
    "tetrahedra": 0.8,
    "assembly": 30,
    "host": 0.25,
    "PyAMG": 3,
}
# Set-up and solve of AMGX 2.5 in ms, 7-point 200³: the best of eleven configurations on an H100.
AMGX = 45 + 219
# Sizes of the problems of the robustness table. A problem of size n has about n² rows.
SIZES = (32, 100, 320)
# Rows above which PyAMG is not run: it would take minutes.
MAX_PYAMG_ROWS = 300_000

# The columns of the robustness table.
COLUMNS = ("rows", "levels", "complexity", "iterations", "iterations, strength of PyAMG", "iterations of PyAMG")


def milliseconds(device: Device, call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Return the median time of a call that ends when the device is idle. The first call compiles."""
    call()
    times = []
    for _ in range(repeats):
        gc.collect()
        device.synchronize()
        begin = time.perf_counter()
        call()
        device.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def show(what: str, figure: float, unit: str, goal: float | None = None, *, least: bool = False) -> None:
    """Print a figure beside its goal, which is the largest value that meets it, or the smallest with `least`."""
    verdict = ""
    if goal is not None:
        is_met = figure >= goal if least else figure <= goal
        verdict = f"goal {'≥' if least else '≤'} {goal:g} {'met' if is_met else 'MISSED'}"
    print(f"{what:58} {figure:10.4g} {unit:6} {verdict}", flush=True)


class PeakMemory:
    """Counts the bytes that are allocated from CuPy's pool within the block, and the most at one time."""

    def __enter__(self) -> PeakMemory:
        cupy = import_module("cupy")
        peak = self

        class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
            name = "peak"

            def malloc_postprocess(self, **options: Any) -> None:
                peak.now += options["mem_size"]
                peak.most = max(peak.most, peak.now)

            def free_postprocess(self, **options: Any) -> None:
                peak.now -= options["mem_size"]

        gc.collect()
        self.now = self.most = 0
        self._hook = Hook()
        self._hook.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.__exit__(*error)


def show_phases(M: Any) -> str:
    """Return the milliseconds of each phase of the latest set-up or update."""
    return ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in M.seconds.items())


def grid_on_device(device: Device, n: int) -> GpuSparseMatrix:
    """Return the 7-point matrix of n³ points, made on the device."""
    with device.active():
        data, indices, indptr, shape = stencil(n, 7, xp=device.xp)
        return GpuSparseMatrix((data, indices, indptr), shape=shape, device=device)


def peer_milliseconds(name: str, program: str, configurations: list[str], n: int) -> float:
    """Run a peer's program with each configuration, and return the best time of set-up and solve."""
    best = math.inf
    for configuration in configurations:
        interpreter = [sys.executable] if program.endswith(".py") else []
        command = [*interpreter, program, f"poisson7:{n}", str(RTOL), configuration]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
        times = found["setup_s"], found["solve_s"]
        print(f"{name}, {Path(configuration).stem or 'defaults'}: set-up {1e3 * times[0]:.1f} ms, solve "
              f"{1e3 * times[1]:.1f} ms" + ("" if found["converged"] else ", NOT CONVERGED"), flush=True)  # fmt: skip
        best = min(best, 1e3 * sum(times)) if found["converged"] else best
    return best


def measure_poisson(device: Device, n: int, peers: list[list[str]]) -> None:
    A = grid_on_device(device, n)
    b = device.upload(np.random.default_rng(0).standard_normal(A.shape[0]))
    M = amg(A)
    setup = milliseconds(device, lambda: amg(A))
    solve = milliseconds(device, lambda: cg(A, b, M=M, rtol=RTOL))
    both = milliseconds(device, lambda: cg(A, b, M=amg(A), rtol=RTOL))
    plain = milliseconds(device, lambda: cg(A, b, rtol=RTOL))
    changed = A.with_data(A.device_data * 2.0)
    update = milliseconds(device, lambda: M.update(changed))
    name, is_large = f"7-point {n}³", n == 200 and device.kind == "gpu"
    show(f"{name}, set-up", setup, "ms", GOALS["set-up"] if is_large else None)
    show(f"{name}, solve to 1e-8, {cg(A, b, M=M, rtol=RTOL, full_output=True).iterations} iterations", solve, "ms",
         GOALS["solve"] if is_large else None)  # fmt: skip
    show(f"{name}, set-up and solve in one go", both, "ms", GOALS["together"] if is_large else None)
    if is_large:
        theirs = {"AMGX": AMGX} | {peer: peer_milliseconds(peer, program, more, n) for peer, program, *more in peers}
        for peer, best in theirs.items():
            show(f"{name}, {peer}'s best over ours", best / both, "times", GOALS.get(peer), least=True)
    show(f"{name}, plain CG", plain, "ms")
    show(f"{name}, plain CG over set-up and solve", plain / both, "times", 1, least=True)
    show(f"{name}, update over set-up", update / setup, "times", GOALS["update"])
    print(f"{name}, phases of an update, ms: " + show_phases(M))
    show(f"{name}, operator complexity", M.operator_complexity, "", GOALS["complexity"])
    if device.kind == "gpu":
        csr = A._prepared()[0].csr
        with PeakMemory() as peak:
            kept = amg(A)
        show(f"{name}, memory at the peak of the set-up over the matrix", 1 + peak.most / csr.nbytes, "times",
             GOALS["memory"])  # fmt: skip
        show(f"{name}, memory that M keeps over the matrix", peak.now / csr.nbytes, "times")
        with PeakMemory() as peak:
            kept.update(changed)
        show(f"{name}, memory that the first update adds to that", peak.now / csr.nbytes, "times")
        show(f"{name}, memory that it needs in between", peak.most / csr.nbytes, "times")
        del kept
    print(amg(A), flush=True)


def measure_jumps(device: Device, n: int) -> None:
    A = GpuSparseMatrix(diffusion(checkerboard(n, 3, n // 10)), device=device)
    b = device.upload(np.random.default_rng(0).standard_normal(A.shape[0]))
    both = milliseconds(device, lambda: cg(A, b, M=amg(A), rtol=RTOL), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = milliseconds(device, lambda: cg(A, b, rtol=RTOL, maxiter=20_000), 1)
    M = amg(A)
    iterations = cg(A, b, M=M, rtol=RTOL, full_output=True).iterations
    show(f"jumps of 10⁶, 7-point {n}³, set-up and solve, {iterations} iterations", both, "ms")
    show(f"jumps of 10⁶, 7-point {n}³, plain CG over that", plain / both, "times", GOALS["jumps"], least=True)
    print(M, flush=True)


def measure_elasticity(device: Device, side: int) -> None:
    S, coordinates = elasticity((side, side, side))
    A, B = GpuSparseMatrix(S, device=device), device.upload(rigid_body_modes(coordinates))
    b = device.upload(np.random.default_rng(0).standard_normal(A.shape[0]))
    both = milliseconds(device, lambda: cg(A, b, M=amg(A, B=B, block_size=3), rtol=RTOL), 3)
    M = amg(A, B=B, block_size=3)
    result = cg(A, b, M=M, rtol=RTOL, full_output=True)
    goal = GOALS["elasticity"] if device.kind == "gpu" and side == 79 else None
    show(
        f"elasticity, {A.shape[0]:,} unknowns, set-up and solve, {result.iterations} iterations", both / 1e3, "s", goal
    )
    print(M, flush=True)


def measure_tetrahedra(device: Device, cells: int) -> None:
    """Time elasticity on an unstructured mesh with dense blocks and without: as a format, and in sparse products."""
    begin = time.perf_counter()
    S, coordinates = tetrahedral_elasticity(cells)
    assembly = time.perf_counter() - begin
    csr = S.tocsr()
    arrays = tuple(device.upload(part) for part in (csr.data, csr.indices, csr.indptr))
    B = device.upload(rigid_body_modes(coordinates))
    b = device.upload(np.random.default_rng(0).standard_normal(S.shape[0]))

    def solve(**options: Any) -> Any:
        A = GpuSparseMatrix(arrays, shape=S.shape, device=device)
        return cg(A, b, M=amg(A, B=B, block_size=3, **options), rtol=RTOL, full_output=True)

    def phases() -> str:
        A = GpuSparseMatrix(arrays, shape=S.shape, device=device)
        M = amg(A, B=B, block_size=3)
        setup = milliseconds(device, lambda: amg(A, B=B, block_size=3), 3)
        result = milliseconds(device, lambda: cg(A, b, M=M, rtol=RTOL), 3)
        formats = [level.operator.matrix.plan.format for level in M.levels]
        return f"set-up {setup:.1f} ms, solve {result:.1f} ms, formats of the levels {', '.join(formats)}\n{M}"

    def update() -> str:
        A = GpuSparseMatrix(arrays, shape=S.shape, device=device)
        M = amg(A, B=B, block_size=3)
        return f"update {milliseconds(device, lambda: M.update(A), 3):.1f} ms: {show_phases(M)}"

    with_blocks, iterations = milliseconds(device, solve, 3), solve().iterations
    described = f"{phases()}\n{update()}"
    smoother = ("block_jacobi", {"block_size": 3})
    jacobi, jacobi_iterations = (
        milliseconds(device, partial(solve, smoother=smoother), 3),
        solve(smoother=smoother).iterations,
    )
    blocks = find_format("bsr")
    unregister("bsr")
    try:
        without_format = milliseconds(device, solve, 3)
        with patch.object(arithmetic, "_WORTH_A_LOOK", math.inf):  # products by entries
            without_blocks, described_without = milliseconds(device, solve, 3), f"{phases()}\n{update()}"
    finally:
        register(blocks)
    name, is_large = f"tetrahedra, {S.shape[0]:,} unknowns", device.kind == "gpu" and cells == 79
    show(f"{name}, assembly on the host", assembly, "s", GOALS["assembly"] if cells == 79 else None)
    show(f"{name}, set-up and solve, {iterations} iterations", with_blocks, "ms")
    show(f"{name}, block Jacobi, {jacobi_iterations} iterations", jacobi, "ms")
    show(f"{name}, blocks in sparse products, but not as a format", without_format, "ms")
    show(f"{name}, without dense blocks", without_blocks, "ms")
    show(f"{name}, with blocks over without", with_blocks / without_blocks, "times",
         GOALS["tetrahedra"] if is_large else None)  # fmt: skip
    print(f"with blocks: {described}\nwithout: {described_without}", flush=True)


def measure_host(device: Device, n: int) -> None:
    S = poisson(n, 7)
    b = np.random.default_rng(0).standard_normal(S.shape[0])

    def solve() -> Any:
        A = GpuSparseMatrix(S, device=device)
        return cg(A, b, M=amg(A), rtol=RTOL)

    goal = GOALS["host"] if device.kind == "gpu" and n == 200 else None
    show(f"7-point {n}³, from the host to the host", milliseconds(device, solve) / 1e3, "s", goal)


def measure_cpu(n: int) -> None:
    device, S = get_device("cpu"), poisson(n, 7)
    A, b = GpuSparseMatrix(S, device=device), np.random.default_rng(0).standard_normal(n**3)
    setup = milliseconds(device, lambda: amg(A), 3)
    both = milliseconds(device, lambda: cg(A, b, M=amg(A), rtol=RTOL), 3)
    print(amg(A), flush=True)
    pyamg = import_module("pyamg")
    begin = time.perf_counter()
    ml = pyamg.smoothed_aggregation_solver(sp.csr_matrix(S), max_coarse=150)
    theirs = 1e3 * (time.perf_counter() - begin)
    begin = time.perf_counter()
    ml.solve(b, tol=RTOL, accel="cg")
    their_solve = 1e3 * (time.perf_counter() - begin)
    show(f"CPU, 7-point {n}³, set-up", setup, "ms")
    show(f"CPU, 7-point {n}³, PyAMG's set-up over ours", theirs / setup, "times", GOALS["PyAMG"], least=True)
    show(f"CPU, 7-point {n}³, set-up and solve", both, "ms")
    show(f"CPU, 7-point {n}³, PyAMG's set-up and solve over ours", (theirs + their_solve) / both, "times",
         GOALS["PyAMG"], least=True)  # fmt: skip


# ------------------------------------------------------------------------------------------------------ robustness


def iterations_of_pyamg(problem: EllipticProblem, S: Any, options: dict[str, Any], b: Any) -> int | None:
    """Return the iterations with PyAMG's smoothed aggregation, or None if they do not converge."""
    pyamg, size = import_module("pyamg"), options.get("block_size", 1)
    symmetry = options.get("symmetry", "hermitian" if problem.solver == "cg" else "nonsymmetric")
    matrix = sp.csr_matrix(S) if size == 1 else sp.csr_matrix(S).tobsr((size, size))
    np.random.seed(0)
    ml = pyamg.smoothed_aggregation_solver(matrix, B=options.get("B"), symmetry=symmetry, max_coarse=150)
    counts: list[Any] = []
    if problem.solver == "cg":
        _, info = la.cg(S, b, M=ml.aspreconditioner(), rtol=RTOL, maxiter=500, callback=counts.append)
    else:
        keywords = {"restart": 60, "maxiter": 5, "callback": counts.append, "callback_type": "pr_norm"}
        _, info = la.gmres(S, b, M=ml.aspreconditioner(), rtol=RTOL, **keywords)
    return len(counts) if info == 0 else None


def examine(device: Device, problem: EllipticProblem) -> dict[str, Any]:
    """Return a row of the robustness table."""
    S, options = problem.make()
    b = np.random.default_rng(0).standard_normal(S.shape[0]).astype(S.dtype)
    b = b - b.mean() if problem.singular else b
    A = GpuSparseMatrix(S, device=device)
    row: dict[str, Any] = {"problem": problem.name, "rows": S.shape[0]}
    for name, more in (("", {}), (", strength of PyAMG", {"strength": "symmetric"})):
        M = amg(A, **options, **more)
        extra = {"maxiter": 500} if problem.solver == "cg" else {"restart": 60, "maxiter": 5}
        result = (cg if problem.solver == "cg" else gmres)(A, b, M=M, rtol=RTOL, full_output=True, **extra)
        row[f"iterations{name}"] = result.iterations if result.info == 0 else None
        row[f"complexity{name}"], row[f"levels{name}"] = round(M.operator_complexity, 3), len(M.sizes)
    row["iterations of PyAMG"] = iterations_of_pyamg(problem, S, options, b) if S.shape[0] <= MAX_PYAMG_ROWS else "-"
    return row


def measure_robustness(device: Device, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    heads = ("rows", "levels", "complexity", "iterations", "same options", "PyAMG's")
    print(f"{'problem':40}" + "".join(f"{head:>14}" for head in heads))
    for size in sizes:
        for problem in elliptic_problems(size):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CoarseningWarning)
                row = examine(device, problem)
            names = (
                "rows",
                "levels",
                "complexity",
                "iterations",
                "iterations, strength of PyAMG",
                "iterations of PyAMG",
            )
            cells = ["none" if row[name] is None else str(row[name]) for name in names]
            print(f"{problem.name:40}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
            yield row


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the iterations of the largest size of each problem as bars, beside PyAMG's."""
    mpl, figures = import_module("matplotlib"), import_module("matplotlib.figure")
    latest = {row["problem"]: row for row in rows if row["iterations of PyAMG"] != "-"}
    # The numbers of the grid differ between sizes.
    largest = max(row["rows"] for row in latest.values())
    kept = [row for row in latest.values() if row["rows"] > largest / 20][::-1]
    places = np.arange(len(kept))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gsparse", "font.family": "sans-serif"}):
        figure = figures.Figure(figsize=(7.5, 0.27 * len(kept) + 1), layout="constrained")
        axes = figure.subplots()
        for shift, name, color in ((0.2, "iterations", "#1f5fa8"), (-0.2, "iterations of PyAMG", "#b0b0b0")):
            label = "gsparse" if name == "iterations" else "PyAMG"
            values = [row[name] or np.nan for row in kept]
            bars = axes.barh(places + shift, values, 0.4, color=color, label=label)
            axes.bar_label(bars, [f"{v:.0f}" if np.isfinite(v) else "none" for v in values], fontsize=6, padding=2)
        axes.set_yticks(places, [row["problem"] for row in kept], fontsize=8)
        axes.set_xscale("log")
        axes.set_xlabel("iterations to 1e-8, default options of both; fewer is better")
        axes.legend(loc="lower right")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ("poisson", "jumps", "elasticity", "tetrahedra", "host", "cpu", "robustness")
    parser.add_argument("sections", nargs="*", default=list(sections), metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--device", default="auto")
    peer = "the name of a peer, the program that runs it, and its configurations"
    parser.add_argument("--peer", nargs="+", action="append", default=[], help=peer)
    parser.add_argument("--n", type=int, help="points along an axis; by default 200 on a GPU, 100 on a CPU")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="of the robustness table")
    parser.add_argument("--record", type=Path, help="write the robustness table to this file")
    parser.add_argument("--picture", type=Path, help="draw the robustness table")
    parser.add_argument("--page", action="store_true", help="draw the recorded table of the documentation")
    options = parser.parse_args()
    if options.page:
        recorded = json.loads((STATIC / "multigrid_robustness.json").read_text())
        draw(recorded["rows"], STATIC / "multigrid_robustness.svg")
        return
    try:
        device = get_device(options.device)
    except DeviceError as error:
        parser.error(str(error))
    is_gpu = device.kind == "gpu"
    n = options.n or (200 if is_gpu else 100)
    print(f"on {device.name} {getattr(device, 'description', '')}", flush=True)
    calls: dict[str, Callable[[], Any]] = {
        "poisson": lambda: measure_poisson(device, n, options.peer),
        "jumps": lambda: measure_jumps(device, n if is_gpu else n // 2),
        "elasticity": lambda: measure_elasticity(device, 79 if is_gpu else 20),
        "tetrahedra": lambda: measure_tetrahedra(device, 79 if is_gpu else 20),
        "host": lambda: measure_host(device, n),
        "cpu": lambda: measure_cpu(options.n or 100),
    }
    for name in options.sections:
        print(f"\n{name}", flush=True)
        with device.active():
            if name != "robustness":
                calls[name]()
                continue
            rows = list(measure_robustness(device, tuple(options.sizes)))
            if options.record:
                options.record.write_text(json.dumps({"device": device.kind, "rows": rows}, indent=1) + "\n")
            if options.picture:
                draw(rows, options.picture)


if __name__ == "__main__":
    main()
