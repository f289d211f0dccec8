"""Solve a 3-D Poisson problem on all GPUs of this machine, with conjugate gradients that run on a dask cluster.

Each worker owns a block of rows and the part of every vector that belongs to it. In an iteration it sends its
neighbours the entries that they need, straight from one to the other, and all add up two numbers; nothing passes
through dask or through this process. Without a GPU the workers are two processes on the CPU. Needs dask, tqdm and
PyAMG: pip install 'gsparse[examples]'.

    python examples/many_gpus_poisson.py            # 32³ unknowns
    python examples/many_gpus_poisson.py --n 400
    python examples/many_gpus_poisson.py --workers 4 --device cpu --plot blocks.png
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec

import dask.array as da
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from distributed import Client

from gsparse.distributed import DistributedMatrix, LocalGpuCluster, distribute
from gsparse.linalg import amg, cg, ic0


def poisson(n: int) -> scipy.sparse.csr_array:
    """Give -Δ inside the unit cube, u = 0 on its faces, times h²: seven entries a row."""
    laplacian = scipy.sparse.linalg.LaplacianNd((n,) * 3, boundary_conditions="dirichlet", dtype=np.float64)
    return scipy.sparse.csr_array(-laplacian.tosparse())


def solve(A: DistributedMatrix, b: np.ndarray) -> np.ndarray:
    """Solve with and without preconditioners, and give the last solution."""
    # Each worker makes its own preconditioner, of the block of entries whose rows and columns are both its own.
    for name, M in (("CG", None), ("CG with IC(0)", ic0(A)), ("CG with AMG", amg(A))):
        cg(A, b, M=M, maxiter=1)  # the first solve compiles
        begin = time.perf_counter()
        found = cg(A, b, M=M, rtol=1e-8, full_output=True, progress=True)
        seconds = time.perf_counter() - begin
        residual = np.linalg.norm(b - A @ found.x) / np.linalg.norm(b)
        print(f"{name:13} {found}, {seconds:.2f} s with all that is around it, true residual {residual:.1e}")
        if found.info != 0:
            raise SystemExit(f"not converged: {found.advice}")
    return found.x


def main() -> None:
    """Start a cluster, spread the matrix over it, and solve for NumPy's and for dask's arrays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=32, help="points along each side of the cube")
    parser.add_argument("--workers", type=int, default=None, help="one for each GPU by default, 2 without any")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    parser.add_argument("--plot", metavar="FILE", help="a picture of the blocks, .png or .svg; needs matplotlib")
    options = parser.parse_args()
    needed = ["tqdm", "pyamg", *(["matplotlib"] if options.plot else [])]
    if missing := [name for name in needed if find_spec(name) is None]:  # (rather than after a minute's work)
        raise SystemExit(f"needs {', '.join(missing)}: pip install 'gsparse[examples]'")

    S = poisson(options.n)
    h = 1.0 / (options.n + 1)
    b = np.full(S.shape[0], h**2)  # -Δu = 1
    centre = np.ravel_multi_index((options.n // 2,) * 3, (options.n,) * 3)

    cluster = LocalGpuCluster(options.workers, device=options.device)
    with cluster, Client(cluster) as client, distribute(S, client=client) as A:
        print(A)  # the blocks, what they hold, and where
        u = solve(A, b)  # NumPy in, NumPy out: as on one GPU
        print(f"u at the centre: {u[centre]:.6f}")

        # Dask in, dask out: chunk by chunk where the rows are, and never in this process as a whole.
        v, info = cg(A, da.full(S.shape[0], h**2, chunks=S.shape[0] // 7), M=ic0(A), rtol=1e-8)
        worst = abs(v - da.from_array(u, chunks=v.chunks)).max().compute()
        print(f"with dask arrays: info {info}, {v.numblocks[0]} chunks, the solutions differ by {worst:.1e}")

        if options.plot:
            from matplotlib.figure import Figure

            from gsparse.plot import distribution

            figure = Figure(layout="constrained")
            distribution(A, figure.subplots())
            figure.savefig(options.plot, dpi=130)


if __name__ == "__main__":  # (dask's processes import this file)
    main()
