"""Solve a convection-diffusion problem with GMRES: a substance is carried by a wind, and spreads.

    wind·∇u - ν Δu = 1 inside the unit square, u = 0 on its border

The matrix is not symmetric, the less so the smaller ν is, so conjugate gradients do not apply. GMRES stores a basis of
all previous vectors. Restarts bound its memory, and an incomplete factorization reduces the number of iterations. The
example runs on any machine: on the GPU if CuPy finds one, otherwise on the CPU.

    python examples/convection_diffusion.py               # 100² unknowns
    python examples/convection_diffusion.py --n 1000 --viscosity 0.001
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.linalg import gmres, ilu0


def convection_diffusion(n: int, viscosity: float) -> sp.csr_array:
    """Return the matrix on n×n points, with upwind differences for the convection."""
    h = 1 / (n + 1)
    second = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)) / h**2
    first = sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(n, n)) / h
    one = sp.eye_array(n)
    diffusion = sp.kron(second, one) + sp.kron(one, second)
    wind = 1.0 * sp.kron(one, first) + 0.5 * sp.kron(first, one)
    return sp.csr_array(viscosity * diffusion + wind)


def plot(u: Any, file: str) -> None:
    """Draw the concentration u on the square."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 3.7), layout="constrained")
    axes = figure.subplots()
    figure.colorbar(axes.imshow(u, origin="lower", extent=(0, 1, 0, 1)), label="u")
    axes.set(xlabel="x", ylabel="y", title="carried by the wind")
    figure.savefig(file, dpi=130)


def main() -> None:
    """Build the matrix, and solve with and without a preconditioner."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100, help="points along each side of the square")
    parser.add_argument("--viscosity", type=float, default=0.01)
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    S = convection_diffusion(options.n, options.viscosity)
    b = np.ones(S.shape[0])
    A = gsparse.GpuSparseMatrix(S, device=options.device)

    solves = {
        "GMRES(30)": {},
        "GMRES(30), float32 basis": {"basis_dtype": np.float32},  # half the traffic, the same solution
        "GMRES(30) with ILU(0)": {"M": ilu0(A)},
    }
    for name, solver_options in solves.items():
        gmres(A, b, restart=30, maxiter=1, **solver_options, full_output=True)  # the first solve compiles
        result = gmres(A, b, rtol=1e-8, restart=30, full_output=True, **solver_options)
        print(f"{name:25} {result}")
        if result.info != 0:
            raise SystemExit(f"not converged: {result.advice}")
    u = result.x.reshape(options.n, options.n)
    row, column = np.unravel_index(u.argmax(), u.shape)
    x, y = (column + 1) / (options.n + 1), (row + 1) / (options.n + 1)
    print(f"u is largest, {u.max():.3f}, at x = {x:.2f}, y = {y:.2f}: down the wind")

    if options.plot:
        plot(u, options.plot)


if __name__ == "__main__":
    main()
