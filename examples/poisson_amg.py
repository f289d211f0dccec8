"""Solve a 3-D Poisson problem on the device, with conjugate gradients and algebraic multigrid.

`gsparse.linalg.amg` sets the multigrid hierarchy up on the device, where a whole cycle becomes part of the CUDA graph
of the solver. With multigrid, the number of iterations hardly depends on the size of the problem. The example runs on
any machine: on the GPU if CuPy finds one, otherwise on the CPU.

    python examples/poisson_amg.py            # 32³ unknowns
    python examples/poisson_amg.py --n 128
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import scipy.sparse.linalg

import gsparse
from gsparse.linalg import amg, cg


def plot(results: dict[str, Any], file: str) -> None:
    """Draw the residuals of the solves."""
    from matplotlib.figure import Figure

    from gsparse.plot import convergence

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    convergence(results, figure.subplots())
    figure.savefig(file, dpi=130)


def main() -> None:
    """Build, set up, and solve with and without multigrid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=32, help="points along each side of the cube")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    # -Δu = 1 inside the unit cube, u = 0 on its faces: seven entries per row.
    S = -scipy.sparse.linalg.LaplacianNd((options.n,) * 3, boundary_conditions="dirichlet", dtype=np.float64).tosparse()
    S = scipy.sparse.csr_array(S)
    b = np.full(S.shape[0], 1.0 / (options.n + 1) ** 2)
    A = gsparse.GpuSparseMatrix(S, device=options.device)

    # Each level of the hierarchy is coarser than the previous one.
    M = amg(A)  # the first set-up compiles
    begin = time.perf_counter()
    M = amg(A)
    print(f"{M}\nset up in {time.perf_counter() - begin:.3f} s\n")

    results = {}
    for name, preconditioner in (("CG", None), ("CG with AMG", M)):
        cg(A, b, M=preconditioner, maxiter=1, full_output=True)  # the first solve compiles
        result = cg(A, b, M=preconditioner, rtol=1e-8, full_output=True)
        results[name] = result
        residual = np.linalg.norm(b - S @ result.x) / np.linalg.norm(b)
        print(f"{name:11} {result}, true residual {residual:.1e}")
        if result.info != 0:
            raise SystemExit(f"not converged: {result.advice}")
    print(f"u at the centre: {result.x.reshape((options.n,) * 3)[(options.n // 2,) * 3]:.6f}")

    if options.plot:
        plot(results, options.plot)


if __name__ == "__main__":
    main()
