"""Solve a convection-diffusion problem with GMRES: something is carried by a wind, and spreads.

    wind·∇u - ν Δu = 1 inside the unit square, u = 0 on its border

The smaller ν is, the less symmetric the matrix, and conjugate gradients no longer apply. GMRES keeps a basis of the
vectors it has seen; restarting bounds its memory, and an incomplete factorization bounds how long it has to be. Runs on
any machine: on the GPU where CuPy finds one, else on the CPU.

    python examples/convection_diffusion.py               # 100² unknowns
    python examples/convection_diffusion.py --n 1000 --viscosity 0.001
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.linalg import gmres, ilu0


def convection_diffusion(n: int, viscosity: float) -> sp.csr_array:
    """Give the matrix on n×n points, with the wind's derivative taken against it (upwind)."""
    h = 1 / (n + 1)
    second = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)) / h**2
    first = sp.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(n, n)) / h
    one = sp.eye_array(n)
    diffusion = sp.kron(second, one) + sp.kron(one, second)
    wind = 1.0 * sp.kron(one, first) + 0.5 * sp.kron(first, one)
    return sp.csr_array(viscosity * diffusion + wind)


def main() -> None:
    """Build, and solve with and without a preconditioner."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100, help="points along each side of the square")
    parser.add_argument("--viscosity", type=float, default=0.01)
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()

    S = convection_diffusion(options.n, options.viscosity)
    b = np.ones(S.shape[0])
    A = gsparse.GpuSparseMatrix(S, device=options.device)

    solves = {
        "GMRES(30)": {},
        "GMRES(30), float32 basis": {"basis_dtype": np.float32},  # half the traffic, the same solution
        "GMRES(30) with ILU(0)": {"M": ilu0(A)},
    }
    for name, chosen in solves.items():
        gmres(A, b, restart=30, maxiter=1, **chosen)  # the first solve compiles
        found = gmres(A, b, rtol=1e-8, restart=30, full_output=True, **chosen)
        residual = np.linalg.norm(b - S @ found.x) / np.linalg.norm(b)
        print(f"{name:25} {found}, true residual {residual:.1e}")
        if found.info != 0:
            raise SystemExit(f"not converged: {found.advice}")
    u = found.x.reshape(options.n, options.n)
    row, column = np.unravel_index(u.argmax(), u.shape)
    print(f"u is largest, {u.max():.3f}, at x = {column / options.n:.2f}, y = {row / options.n:.2f}: down the wind")


if __name__ == "__main__":
    main()
