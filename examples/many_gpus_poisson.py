"""Solve a 3-D Poisson problem on all GPUs of this machine, with conjugate gradients that run on a dask cluster.

Each worker owns a block of rows and the part of every vector that belongs to them. In an iteration, each worker sends
its neighbours the entries that they need, directly from one to the other, and all workers add up two or three numbers.
Nothing of that passes through dask or through this process. Without a GPU, the workers are two processes on the CPU.
The example needs dask and tqdm: pip install 'gsparse-gpu[examples]'.

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
    """Return the 7-point matrix of -Δ inside the unit cube with u = 0 on its faces, times h²."""
    laplacian = scipy.sparse.linalg.LaplacianNd((n,) * 3, boundary_conditions="dirichlet", dtype=np.float64)
    return scipy.sparse.csr_array(-laplacian.tosparse())


def solve(A: DistributedMatrix, b: np.ndarray) -> np.ndarray:
    """Solve with and without preconditioners, and return the last solution."""
    # Each worker makes IC(0) of its diagonal block: the entries whose row and column it owns. AMG spans all workers.
    for name, M in (("CG", None), ("CG with IC(0)", ic0(A)), ("CG with AMG", amg(A))):
        cg(A, b, M=M, maxiter=1, full_output=True)  # the first solve compiles
        begin = time.perf_counter()
        result = cg(A, b, M=M, rtol=1e-8, full_output=True, progress=True)
        seconds = time.perf_counter() - begin
        residual = np.linalg.norm(b - A @ result.x) / np.linalg.norm(b)
        print(f"{name:13} {result}, {seconds:.2f} s for the whole call, true residual {residual:.1e}")
        if result.info != 0:
            raise SystemExit(f"not converged: {result.advice}")
    return result.x


def main() -> None:
    """Start a cluster, distribute the matrix over it, and solve with NumPy and with dask arrays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=32, help="points along each side of the cube")
    parser.add_argument("--workers", type=int, default=None, help="default: one for each GPU, or 2 without a GPU")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    parser.add_argument("--plot", metavar="FILE", help="save a picture of the blocks as .png or .svg; needs matplotlib")
    options = parser.parse_args()
    packages = ["tqdm", *(["matplotlib"] if options.plot else [])]
    if missing := [name for name in packages if find_spec(name) is None]:  # check this before the long computation
        raise SystemExit(f"needs {', '.join(missing)}: pip install 'gsparse-gpu[examples]'")

    S = poisson(options.n)
    h = 1.0 / (options.n + 1)
    b = np.full(S.shape[0], h**2)  # -Δu = 1
    centre = np.ravel_multi_index((options.n // 2,) * 3, (options.n,) * 3)

    cluster = LocalGpuCluster(options.workers, device=options.device)
    with cluster, Client(cluster) as client, distribute(S, client=client) as A:
        print(A)  # a table of the blocks: rows, entries, ghosts, device and worker
        u = solve(A, b)  # NumPy arrays, as on one GPU
        print(f"u at the centre: {u[centre]:.6f}")

        # For a dask array, the solution is a dask array. Its chunks stay on the workers that own the rows.
        v, info = cg(A, da.full(S.shape[0], h**2, chunks=S.shape[0] // 7), M=ic0(A), rtol=1e-8)
        difference = abs(v - da.from_array(u, chunks=v.chunks)).max().compute()
        print(f"with dask arrays: info {info}, {v.numblocks[0]} chunks, the solutions differ by {difference:.1e}")

        if options.plot:
            from matplotlib.figure import Figure

            from gsparse.plot import distribution

            figure = Figure(layout="constrained")
            distribution(A, figure.subplots())
            figure.savefig(options.plot, dpi=130)


if __name__ == "__main__":  # the processes of the cluster import this file
    main()
