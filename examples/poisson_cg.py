"""Solve a Poisson problem: SciPy's conjugate gradients with the matrix replaced by one line, then gsparse's own.

SciPy's solver keeps its vectors on the host for every matrix; the solver of `gsparse.linalg` keeps them on the device.
The example runs on any machine: on the GPU if CuPy finds one, otherwise on the CPU.

    python examples/poisson_cg.py            # 64³ unknowns
    python examples/poisson_cg.py --n 128
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse.linalg

import gsparse
from gsparse.linalg import cg


def plot(u: Any, file: str) -> None:
    """Draw u on the plane through the centre of the cube."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 3.7), layout="constrained")
    axes = figure.subplots()
    figure.colorbar(axes.imshow(u, extent=(0, 1, 0, 1)), label="u")
    axes.set_title("the plane through the centre")
    figure.savefig(file, dpi=130)


def main() -> None:
    """Build, solve, and print what was chosen and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=64, help="points along each side of the cube")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    # -Δu = 1 inside the unit cube, u = 0 on its faces: seven entries per row.
    S = -scipy.sparse.linalg.LaplacianNd((options.n,) * 3, boundary_conditions="dirichlet", dtype=np.float64).tosparse()
    S = S.tocsr()
    b = np.full(S.shape[0], 1.0 / (options.n + 1) ** 2)

    A = gsparse.GpuSparseMatrix(S, device=options.device)  # the line that is replaced
    A @ b  # the first product compiles or loads the kernel
    print(A.plan)

    begin = time.perf_counter()
    for solve in (cg, scipy.sparse.linalg.cg):
        solve(A, b, rtol=1e-8)  # the first solve compiles or loads its kernels too
    seconds = time.perf_counter() - begin
    print(
        f"the first solves took {seconds:.1f} s, kernels compiled or loaded; the times below are those of the second\n"
    )

    solvers = {
        "SciPy's cg, SciPy's matrix": partial(scipy.sparse.linalg.cg, S),
        "SciPy's cg, GpuSparseMatrix": partial(scipy.sparse.linalg.cg, A),
        "gsparse.linalg.cg(A, b)": partial(cg, A),
    }
    for name, solve in solvers.items():
        begin = time.perf_counter()
        u, info = solve(b, rtol=1e-8)
        seconds = time.perf_counter() - begin
        residual = np.linalg.norm(b - S @ u) / np.linalg.norm(b)
        print(
            f"{name:27} {S.shape[0]} unknowns, {seconds:.3f} s, residual {residual:.1e}, "
            f"u at the centre {u.reshape((options.n,) * 3)[(options.n // 2,) * 3]:.6f}"
        )
        if info != 0:
            raise SystemExit(f"{name} did not converge: info = {info}")

    if options.plot:
        plot(u.reshape((options.n,) * 3)[options.n // 2], options.plot)


if __name__ == "__main__":
    main()
