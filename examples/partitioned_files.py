"""Solve with a matrix that is nowhere as a whole: each worker reads its own rows, from files or from a function.

Blocks of rows are written as SciPy's `.npz` (stored without compression, of which workers read only what they need) and
as Matrix Market; they make up a matrix one below the other, however many workers there are. `A.checkpoint(folder)` has
the workers write theirs, which another run, on more or fewer workers, takes from there. Runs on any machine with dask
(pip install '.[dask]'): on its GPUs where CuPy finds some, else on the CPU. On several hosts the folder has to be one
that all of them see.

    python examples/partitioned_files.py            # 24³ unknowns
    python examples/partitioned_files.py --n 200 --workers 4
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse
from distributed import Client

from gsparse.distributed import DistributedMatrix, LocalGpuCluster, from_loaders
from gsparse.linalg import cg, ic0


def poisson_rows(n: int, lo: int, hi: int) -> scipy.sparse.coo_array:
    """Give rows lo to hi of the 7-point matrix on n³ points, in all n³ columns, without making the others."""
    rows = np.arange(lo, hi)
    found_rows, found_columns, values = [rows], [rows], [np.full(rows.size, 6.0)]
    for distance, place in zip((n * n, n, 1), np.unravel_index(rows, (n,) * 3), strict=True):
        for has_neighbour, step in ((place > 0, -distance), (place < n - 1, distance)):
            found_rows.append(rows[has_neighbour])
            found_columns.append(rows[has_neighbour] + step)
            values.append(np.full(np.count_nonzero(has_neighbour), -1.0))
    where = np.concatenate(found_rows) - lo, np.concatenate(found_columns)
    return scipy.sparse.coo_array((np.concatenate(values), where), shape=(hi - lo, n**3))


def write_blocks(n: int, folder: Path) -> list[Path]:
    """Write four blocks of rows, as two programs that know nothing of each other might have."""
    files = []
    for number, (lo, hi) in enumerate(pairwise(np.linspace(0, n**3, 5).astype(int).tolist())):
        block = poisson_rows(n, lo, hi)
        files.append(folder / f"rows-{number}.{'npz' if number < 2 else 'mtx'}")
        if files[-1].suffix == ".npz":
            scipy.sparse.save_npz(files[-1], block.tocsr(), compressed=False)
        else:
            scipy.io.mmwrite(files[-1], block)
    return files


def solve(A: DistributedMatrix, b: np.ndarray, what: str) -> np.ndarray:
    """Solve, and say how it went."""
    found = cg(A, b, M=ic0(A), rtol=1e-8, full_output=True)
    print(f"{what}: {found}; {len(A.workers)} workers with {A.nnz_per_worker} entries")
    if found.info != 0:
        raise SystemExit(f"not converged: {found.advice}")
    return found.x


def main() -> None:
    """Solve with rows out of files, out of a checkpoint, and out of a function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=24, help="points along each side of the cube")
    parser.add_argument("--workers", type=int, default=None, help="one for each GPU by default, 2 without any")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    options = parser.parse_args()

    n = options.n
    shape, b = (n**3, n**3), np.full(n**3, 1.0 / (n + 1) ** 2)
    cluster = LocalGpuCluster(options.workers, device=options.device)
    with tempfile.TemporaryDirectory() as folder, cluster, Client(cluster) as client:
        files = write_blocks(n, Path(folder))
        with from_loaders(files, shape, client=client) as A:
            u = solve(A, b, "from " + ", ".join(file.name for file in files))
            kept = A.checkpoint(folder)  # a file a worker

        with from_loaders(kept, shape, client=client, workers=A.workers[:1]) as A:
            v = solve(A, b, "from the checkpoint, on one worker")
        print(f"the solutions differ by {abs(u - v).max():.1e}")

        # Nothing but the rows' numbers: for matrices that a program makes.
        with from_loaders([functools.partial(poisson_rows, n)], shape, client=client, partition="rows") as A:
            v = solve(A, b, "from a function")
        print(f"the solutions differ by {abs(u - v).max():.1e}")


if __name__ == "__main__":  # (dask's processes import this file)
    main()
