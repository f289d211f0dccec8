"""Solve a Poisson problem with SciPy's conjugate gradients, its matrix replaced by one line.

Runs on any machine: on the GPU where CuPy finds one, else on the CPU.

    python examples/poisson_cg.py            # 64³ unknowns
    python examples/poisson_cg.py --n 128
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.sparse.linalg

import gsparse


def main() -> None:
    """Build, solve, and print what was chosen and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=64, help="points along each side of the cube")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()

    # -Δu = 1 inside the unit cube, u = 0 on its faces: seven entries a row.
    S = -scipy.sparse.linalg.LaplacianNd((options.n,) * 3, boundary_conditions="dirichlet", dtype=np.float64).tosparse()
    S = S.tocsr()
    b = np.full(S.shape[0], 1.0 / (options.n + 1) ** 2)

    A = gsparse.GpuSparseMatrix(S, device=options.device)  # the one line
    A @ b  # the first product compiles or loads the kernel
    print(A.plan)

    for name, matrix in (("SciPy's matrix", S), ("GpuSparseMatrix", A)):
        iterations: list[None] = []
        begin = time.perf_counter()
        u, info = scipy.sparse.linalg.cg(matrix, b, rtol=1e-8, callback=lambda _, done=iterations: done.append(None))
        seconds = time.perf_counter() - begin
        residual = np.linalg.norm(b - S @ u) / np.linalg.norm(b)
        print(
            f"{name:16} {S.shape[0]} unknowns, {len(iterations)} iterations, {seconds:.3f} s, "
            f"residual {residual:.1e}, u at the centre {u.reshape((options.n,) * 3)[(options.n // 2,) * 3]:.6f}"
        )
        if info != 0:
            raise SystemExit(f"not converged: info = {info}")


if __name__ == "__main__":
    main()
