"""Follow the cooling of a cube over workers: implicit Euler steps whose matrices and vectors never leave the workers.

The temperature u of a cube with cold faces obeys C·u' = -K·u. K is the 7-point matrix of a conductivity that differs
from place to place, and the diagonal matrix C is the heat capacity. The workers make their own rows of both. Each step
solves

    (C + Δt·K)·u_new = C·u

by conjugate gradients with multigrid. After every few steps, the time step Δt is doubled: the workers add the two
matrices again, and `M.update(A)` computes multigrid for the new values, with the levels of the old ones. The vectors
are dask arrays, whose chunks stay with the workers that own the rows. Everything runs inside `gsparse.strict()`, which
raises an error if an operation of the matrix would leave a worker's device. `--check` solves with SciPy too, and
compares each row. The example needs dask: pip install 'gsparse-gpu[dask]'.

    python examples/heat_on_workers.py            # 32³ unknowns
    python examples/heat_on_workers.py --n 300 --workers 8
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg
from distributed import Client

import gsparse
from gsparse.distributed import DistributedMatrix, LocalGpuCluster, from_loaders
from gsparse.linalg import amg, cg


def conductivity(x: Any, y: Any, z: Any) -> Any:
    """Return the conductivity at points of the unit cube: a plate in the middle conducts a hundred times better."""
    return np.where(abs(z - 0.5) < 0.15, 100.0, 1.0) * (1 + 0.5 * np.sin(6 * x) * np.cos(4 * y))


def points_of(n: int, lo: int, hi: int) -> Any:
    """Return the coordinates of the points lo to hi of n³ in the unit cube, an array of shape (3, hi - lo)."""
    return (np.array(np.unravel_index(np.arange(lo, hi), (n,) * 3)) + 1.0) / (n + 1)


def capacity_rows(n: int, lo: int, hi: int) -> sp.coo_array:
    """Return the rows lo to hi of C, with all n³ columns."""
    x, _, _ = points_of(n, lo, hi)
    return sp.coo_array((1 + x, (np.arange(hi - lo), np.arange(lo, hi))), shape=(hi - lo, n**3))


def conduction_rows(n: int, lo: int, hi: int) -> sp.coo_array:
    """Return the rows lo to hi of K, with all n³ columns."""
    numbers, points = np.arange(lo, hi), points_of(n, lo, hi)
    rows, columns, values = [], [], []
    for axis, distance in enumerate((n * n, n, 1)):
        for sign in (-1, 1):
            shift = np.zeros((3, 1))
            shift[axis] = sign / (n + 1)
            flow = conductivity(*(points + shift / 2)) * (n + 1) ** 2  # between two points, or a point and a face
            beyond = (points + shift)[axis]
            is_inside = (beyond > 0.5 / (n + 1)) & (beyond < 1 - 0.5 / (n + 1))
            rows += [numbers, numbers[is_inside]]
            columns += [numbers, numbers[is_inside] + sign * distance]
            values += [flow, -flow[is_inside]]
    entries = np.concatenate(values), (np.concatenate(rows) - lo, np.concatenate(columns))
    return sp.coo_array(entries, shape=(hi - lo, n**3))


def time_steps(options: argparse.Namespace) -> list[float]:
    """Return the length of each step, which is doubled after every `options.every` steps."""
    return [options.dt * 2.0 ** (step // options.every) for step in range(options.steps)]


def cool(C: DistributedMatrix, K: DistributedMatrix, options: argparse.Namespace) -> Any:
    """Return the temperature after the steps, as a dask array on the workers."""
    u, last_dt, A, M = C.vector(np.ones(C.shape[0])), None, None, None
    for step, dt in enumerate(time_steps(options), 1):
        begin = time.perf_counter()
        if dt != last_dt:
            last_dt, A_before, A = dt, A, C + dt * K
            M = amg(A) if M is None else M.update(A)
            if A_before is not None:
                A_before.close()
        result = cg(A, C @ u, x0=u, M=M, rtol=1e-10, full_output=True)
        if result.info != 0:
            raise SystemExit(f"not converged: {result.advice}")
        u = result.x
        print(f"step {step}, Δt = {dt:.1e}: {result.iterations} iterations, {time.perf_counter() - begin:.3f} s")
    return u


def cool_with_scipy(n: int, steps: list[float]) -> np.ndarray:
    """Return the temperature after the steps, by direct solves in this process."""
    C, K = (rows(n, 0, n**3).tocsc() for rows in (capacity_rows, conduction_rows))
    u = np.ones(n**3)
    for dt in steps:
        u = scipy.sparse.linalg.spsolve(C + dt * K, C @ u)
    return u


def main() -> None:
    """Cool the cube over workers, and with SciPy if the user asks for a comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=32, help="points along each side of the cube (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--every", type=int, default=3, help="steps of the same length (default: %(default)s)")
    parser.add_argument("--dt", type=float, default=1e-3, help="length of the first step (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=None, help="default: one for each GPU, or 2 without a GPU")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    parser.add_argument("--check", action="store_true", help="compare with SciPy's direct solves")
    options = parser.parse_args()
    n = options.n

    cluster = LocalGpuCluster(options.workers, device=options.device)
    with cluster, Client(cluster) as client, gsparse.strict():
        load = partial(from_loaders, shape=(n**3, n**3), client=client, partition="rows")
        with load([partial(capacity_rows, n)]) as C, load([partial(conduction_rows, n)]) as K:
            print(K)
            u = cool(C, K, options)
            print(f"{u.max().compute():.6f} at the hottest point, {u.numblocks[0]} chunks on the workers")
            temperatures = u.compute()

    if options.check:
        exact = cool_with_scipy(n, time_steps(options))
        print(f"largest relative error of a row: {abs(temperatures / exact - 1).max():.1e}")


if __name__ == "__main__":  # the processes of the cluster import this file
    main()
