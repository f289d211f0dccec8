"""Solve a 3-D Poisson problem with conjugate gradients and algebraic multigrid, all of it on the device.

PyAMG sets the multigrid hierarchy up on the host, once; `gsparse.linalg.amg` moves it to the device, where a whole
cycle of it becomes part of the solver's CUDA graph. The number of iterations then hardly depends on the size of the
problem. Runs on any machine: on the GPU where CuPy finds one, else on the CPU. Needs PyAMG: pip install
'gsparse[examples]'.

    python examples/poisson_amg.py            # 32³ unknowns
    python examples/poisson_amg.py --n 128
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.sparse.linalg

import gsparse
from gsparse.linalg import amg, cg

try:
    import pyamg
except ModuleNotFoundError:
    raise SystemExit("needs PyAMG: pip install 'gsparse[examples]'") from None


def main() -> None:
    """Build, set up, and solve with and without multigrid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=32, help="points along each side of the cube")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()

    # -Δu = 1 inside the unit cube, u = 0 on its faces: seven entries a row.
    S = -scipy.sparse.linalg.LaplacianNd((options.n,) * 3, boundary_conditions="dirichlet", dtype=np.float64).tosparse()
    S = scipy.sparse.csr_array(S)
    b = np.full(S.shape[0], 1.0 / (options.n + 1) ** 2)
    A = gsparse.GpuSparseMatrix(S, device=options.device)

    # Each level of the hierarchy is coarser than the one before. A polynomial of Chebyshev smooths as well as
    # Gauss-Seidel, PyAMG's default, and needs nothing but products.
    begin = time.perf_counter()
    hierarchy = pyamg.smoothed_aggregation_solver(scipy.sparse.csr_matrix(S), max_coarse=300)
    M = amg(hierarchy, device=A.device)
    print(f"{M}, set up in {time.perf_counter() - begin:.2f} s")

    for name, preconditioner in (("CG", None), ("CG with AMG", M)):
        cg(A, b, M=preconditioner, maxiter=1)  # the first solve compiles
        found = cg(A, b, M=preconditioner, rtol=1e-8, full_output=True)
        residual = np.linalg.norm(b - S @ found.x) / np.linalg.norm(b)
        print(f"{name:11} {found}, true residual {residual:.1e}")
        if found.info != 0:
            raise SystemExit(f"not converged: {found.advice}")
    print(f"u at the centre: {found.x.reshape((options.n,) * 3)[(options.n // 2,) * 3]:.6f}")


if __name__ == "__main__":
    main()
