"""Time smoothers and preconditioners, and count their iterations: ``python asv_bench/measure_smoothers.py``.

Four tables. ``--part sweeps`` (or another name) prints one of them, ``--quick`` takes small problems.

sweeps       For each matrix and ordering: seconds to find the groups of rows, number of groups, and the time of a
             forward sweep beside that of a product with the same matrix and of a Chebyshev step.
hierarchies  For each hierarchy of PyAMG (needs PyAMG): iterations of PyAMG with its own smoothers, and iterations and
             seconds with ours, by ordering, and with a Chebyshev polynomial or l1-Jacobi.
updates      For a matrix of 64,000 rows and each preconditioner: milliseconds of the first set-up in this process, of
             another one, and of an update for other values. Then the phases of the set-up of incomplete factors. Run
             it twice: the first run compiles. Goals on an H200: 20 ms for ic0 and ilu0, and 5 ms for an update.
solve        What `gsparse.linalg.solve` chooses for the matrices of the table `sweeps`, and the seconds of the second
             call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.bench.problems import stencil
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.errors import FactorizationError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg import (
    amg,
    block_jacobi,
    chebyshev_polynomial,
    fgmres,
    gauss_seidel,
    ic0,
    ilu0,
    isai,
    jacobi,
    solve,
)
from gsparse.linalg.multigrid.smoothers import chebyshev
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.gauss_seidel import make_gauss_seidel
from gsparse.linalg.preconditioners.ilu import RowStructure
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

ORDERINGS = ("natural", "wavefront", "multicolor")
RTOL = 1e-8
SAMPLES = 11


def diffusion(n: int, points: int) -> sp.csr_array:
    """Return a stencil with variable coefficients on a cube of n³ points."""
    data, indices, indptr, shape = stencil(n, points)
    S = sp.csr_array((data, indices, indptr), shape=shape)
    scale = np.random.default_rng(0).uniform(1, 2, shape[0])
    S.data *= scale[S.indices] * np.repeat(scale, np.diff(S.indptr))
    return S


def convection(n: int, dimensions: int) -> sp.csr_array:
    """Return upwind convection along the diagonal of a square or cube of n points a side, with little diffusion."""
    line, eye = sp.diags_array([-1.01, 1.02, -0.01], offsets=[-1, 0, 1], shape=(n, n)), sp.eye_array(n)
    S = line
    for _ in range(dimensions - 1):
        S = sp.kron(S, eye) + sp.kron(sp.eye_array(S.shape[0]), line)
    return sp.csr_array(S)


def problems(quick: bool) -> dict[str, sp.csr_array]:
    n2, n3 = (60, 16) if quick else (512, 100)
    return {
        f"7-point {n3}^3 variable": diffusion(n3, 7),
        f"27-point {n3 // 2}^3 variable": diffusion(n3 // 2, 27),
        f"convection {n2}^2": convection(n2, 2),
        f"convection {n3}^3": convection(n3, 3),
    }


def seconds(device: Device, call: Callable[[], Any]) -> float:
    """Return the wall time of one call, which ends when the device is idle."""
    device.synchronize()
    begin = time.perf_counter()
    call()
    device.synchronize()
    return time.perf_counter() - begin


def measure_sweeps(device: Device, quick: bool) -> Iterator[str]:
    heads = ("set-up s", "groups", "sweep us", "product us", "Chebyshev us")
    yield f"{'matrix':26} {'ordering':11}" + "".join(f"{head:>13}" for head in heads)
    for name, S in problems(quick).items():
        with SquareMatrix.of(GpuSparseMatrix(S, device=device), "measure") as matrix:
            passes = VectorPasses(device, matrix.dtype, 1)
            x, b, r = (passes.vector(matrix.size) for _ in range(3))
            b[...] = 1
            multiply = matrix.operator.bind(device, matrix.dtype)
            product = device.seconds_of(lambda: multiply(b, x))  # noqa: B023  (called at once)
            steps = chebyshev(matrix, 1).bind(passes, matrix.operator, False)
            one_step = steps.calls(x, b, r, guess=True, residual=False)
            polynomial = device.seconds_of(lambda: [call() for call in one_step])  # noqa: B023  (called at once)
            for ordering in ORDERINGS:
                matrix.shared.clear()
                begin = time.perf_counter()
                smoother = make_gauss_seidel(matrix, (False,), ordering=ordering)
                bound = smoother.bind(passes, matrix.operator, False)
                calls = bound.calls(x, b, r, guess=True, residual=False)
                device.synchronize()
                set_up = time.perf_counter() - begin
                sweep = device.seconds_of(lambda: [call() for call in calls])  # noqa: B023  (called at once)
                levels = smoother.matrix.levels
                groups = 0 if levels is None else levels.num_levels
                cells = (f"{set_up:.3f}", groups, *(f"{1e6 * t:.1f}" for t in (sweep, product, polynomial)))
                yield f"{name:26} {ordering:11}" + "".join(f"{cell:>13}" for cell in cells)


def hierarchies(quick: bool) -> Iterator[tuple[str, Any]]:
    """Make PyAMG's hierarchies of problems for which the order of the rows matters, and of one where it does not."""
    pyamg = import_module("pyamg")
    n = 48 if quick else 128

    def aggregation(S: Any, symmetry: str) -> Any:
        np.random.seed(0)
        return pyamg.smoothed_aggregation_solver(sp.csr_matrix(S), symmetry=symmetry, max_coarse=100)

    flow = pyamg.gallery.load_example("recirc_flow")["A"]
    waves = pyamg.gallery.load_example("helmholtz_2D")["A"]
    streamlines = pyamg.gallery.advection_2d((n, n), theta=np.pi / 4)[0]
    yield "recirculating flow", aggregation(flow, "nonsymmetric")
    yield f"advection {n}^2", aggregation(streamlines, "nonsymmetric")
    yield f"advection {n}^2, AIR", pyamg.air_solver(sp.csr_matrix(streamlines), max_coarse=100)
    yield f"convection {n}^2", aggregation(convection(n, 2), "nonsymmetric")
    yield "Helmholtz", aggregation(waves, "symmetric")
    yield f"7-point {n // 3}^3", aggregation(diffusion(n // 3, 7), "hermitian")


def iterations_and_time(ml: Any, S: sp.csr_array, b: Any, smoother: Any, device: Device) -> str:
    """Solve twice, because the first solve compiles, and return the figures of the second one."""
    try:
        M, A = amg(ml, smoother=smoother, device=device), GpuSparseMatrix(S, device=device)
    except FactorizationError:
        return "impossible"
    for _ in range(2):
        result = fgmres(A, b, M=M, rtol=RTOL, restart=100, maxiter=4, full_output=True)
    return f"{result.iterations:8} {1e3 * result.seconds:9.1f} ms{' ' if result.info == 0 else '*'}"


def measure_hierarchies(device: Device, quick: bool) -> Iterator[str]:
    pyamg = import_module("pyamg")
    choices: dict[str, Any] = {
        "auto": "auto",
        **{ordering: ("gauss_seidel", {"ordering": ordering}) for ordering in ORDERINGS},
        "chebyshev": "chebyshev",
        "l1_jacobi": "l1_jacobi",
    }
    yield f"{'hierarchy':24} {'PyAMG':>6}  " + "".join(f"{name:>22}" for name in choices)
    for name, ml in hierarchies(quick):
        S = sp.csr_array(ml.levels[0].A)
        b = np.random.default_rng(0).standard_normal(S.shape[0])
        residuals: list[float] = []
        pyamg.krylov.fgmres(S, b, M=ml.aspreconditioner(), tol=RTOL, restart=100, maxiter=4, residuals=residuals)
        cells = [iterations_and_time(ml, S, b, smoother, device) for smoother in choices.values()]
        yield f"{name:24} {len(residuals) - 1:6}  " + "".join(f"{cell:>22}" for cell in cells)
    yield "* not converged"


def measure_updates(device: Device, quick: bool) -> Iterator[str]:
    S = diffusion(16 if quick else 40, 7)
    A = GpuSparseMatrix(S, device=device)
    B = A.with_data(A.device_data * 2)
    makers: dict[str, Callable[[Any], Any]] = {
        "ic0": ic0,
        "ilu0": ilu0,
        "ic0, 2 rows": partial(ic0, block_size=2),
        "isai": isai,
        "jacobi": jacobi,
        "block_jacobi, 4 rows": partial(block_jacobi, block_size=4),
        "gauss_seidel": gauss_seidel,
        "chebyshev_polynomial": chebyshev_polynomial,
        "amg": amg,
    }
    yield f"{f'{S.shape[0]} rows, ms':24}" + "".join(f"{head:>13}" for head in ("first set-up", "set-up", "update"))
    for name, make in makers.items():
        first = seconds(device, partial(make, A))
        set_up = statistics.median(seconds(device, partial(make, A)) for _ in range(SAMPLES))
        M = make(A)
        M.update(B)
        update = statistics.median(seconds(device, partial(M.update, C)) for C in SAMPLES // 2 * (A, B))
        yield f"{name:24}" + "".join(f"{1e3 * t:13.2f}" for t in (first, set_up, update))
    yield ""
    with SquareMatrix.of(A, "measure") as matrix:
        structure = RowStructure.of(matrix)
        filled = structure.fill(matrix, matrix.diagonal)
        factorize = partial(
            kernels_of(device).triangular.factorize_ilu0, device, filled, structure.diagonal, structure.levels
        )
        phases: dict[str, Callable[[], Any]] = {
            "comparison with the adjoint": matrix.is_roughly_hermitian,
            "search for values that are not finite": partial(matrix.check_finite, "measure"),
            "structure of the factors": partial(RowStructure.of, matrix),
            "of which levels": partial(kernels_of(device).triangular.triangular_levels, device, structure.lower, False),
            "values on the structure": partial(structure.fill, matrix, matrix.diagonal),
            "factorization": factorize,
        }
        for name, phase in phases.items():
            phase()
            yield f"{name:40}{1e3 * statistics.median(seconds(device, phase) for _ in range(SAMPLES)):9.3f} ms"
    if structure.levels is not None:
        yield f"{'number of levels':40}{structure.levels.num_levels:9d}"


def measure_solve(device: Device, quick: bool) -> Iterator[str]:
    for name, S in problems(quick).items():
        A, b = GpuSparseMatrix(S, device=device), np.ones(S.shape[0])
        solve(A, b)
        result = solve(A, b)
        yield f"{name:26} {result.seconds:8.3f} s, residual {result.relative_residual:.1e}"
        yield from (f"    {attempt}" for attempt in result.attempts)


PARTS = {
    "sweeps": measure_sweeps,
    "hierarchies": measure_hierarchies,
    "updates": measure_updates,
    "solve": measure_solve,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="one of the tables (default: all)")
    parser.add_argument("--quick", action="store_true", help="small problems")
    parser.add_argument("--device", help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()
    device = get_device(options.device)
    print(f"on {device.name}, {device.identity()}")
    with device.active():
        for part in options.part or PARTS:
            print()
            for line in PARTS[part](device, options.quick):
                print(line, flush=True)


if __name__ == "__main__":
    main()
