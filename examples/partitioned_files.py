"""Solve with a matrix that is never assembled in one place: each worker reads its rows from files or from a function.

The example writes blocks of rows to files, some in SciPy's `.npz` format and some in the Matrix Market format. Stacked
in this order, they form the matrix, for any number of workers. Of an uncompressed `.npz` file, a worker reads only the
rows that it needs. `A.checkpoint(folder)` makes the workers write their rows to files, from which another run, on more
or fewer workers, can load the matrix. The example runs on any machine with dask (pip install '.[dask]'), on its GPUs if
CuPy finds any, else on the CPU. On several hosts, all of them must share the folder.

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
    """Return rows lo to hi of the 7-point matrix on n³ points, with all n³ columns, without computing others."""
    numbers = np.arange(lo, hi)
    rows, columns, values = [numbers], [numbers], [np.full(numbers.size, 6.0)]
    for distance, coordinate in zip((n * n, n, 1), np.unravel_index(numbers, (n,) * 3), strict=True):
        for has_neighbour, step in ((coordinate > 0, -distance), (coordinate < n - 1, distance)):
            rows.append(numbers[has_neighbour])
            columns.append(numbers[has_neighbour] + step)
            values.append(np.full(np.count_nonzero(has_neighbour), -1.0))
    coordinates = np.concatenate(rows) - lo, np.concatenate(columns)
    return scipy.sparse.coo_array((np.concatenate(values), coordinates), shape=(hi - lo, n**3))


def write_blocks(n: int, folder: Path) -> list[Path]:
    """Write four blocks of rows, two of them in each format, as two independent programs might have written them."""
    files = []
    for number, (lo, hi) in enumerate(pairwise(np.linspace(0, n**3, 5).astype(int).tolist())):
        block = poisson_rows(n, lo, hi)
        files.append(folder / f"rows-{number}.{'npz' if number < 2 else 'mtx'}")
        if files[-1].suffix == ".npz":
            scipy.sparse.save_npz(files[-1], block.tocsr(), compressed=False)
        else:
            scipy.io.mmwrite(files[-1], block)
    return files


def solve(A: DistributedMatrix, b: np.ndarray, source: str) -> np.ndarray:
    """Solve, print a summary, and return the solution."""
    result = cg(A, b, M=ic0(A), rtol=1e-8, full_output=True)
    print(f"{source}: {result}; {len(A.workers)} workers with {A.nnz_per_worker} entries")
    if result.info != 0:
        raise SystemExit(f"not converged: {result.advice}")
    return result.x


def main() -> None:
    """Solve with rows from files, from a checkpoint, and from a function."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=24, help="points along each side of the cube")
    parser.add_argument("--workers", type=int, default=None, help="default: one for each GPU, or 2 without a GPU")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    options = parser.parse_args()

    n = options.n
    shape, b = (n**3, n**3), np.full(n**3, 1.0 / (n + 1) ** 2)
    cluster = LocalGpuCluster(options.workers, device=options.device)
    with tempfile.TemporaryDirectory() as folder, cluster, Client(cluster) as client:
        files = write_blocks(n, Path(folder))
        with from_loaders(files, shape, client=client) as A:
            u = solve(A, b, "from " + ", ".join(file.name for file in files))
            checkpoint = A.checkpoint(folder)  # one file for each worker

        with from_loaders(checkpoint, shape, client=client, workers=A.workers[:1]) as A:
            v = solve(A, b, "from the checkpoint, on one worker")
        print(f"the solutions differ by {abs(u - v).max():.1e}")

        # A function computes the rows from their numbers.
        with from_loaders([functools.partial(poisson_rows, n)], shape, client=client, partition="rows") as A:
            v = solve(A, b, "from a function")
        print(f"the solutions differ by {abs(u - v).max():.1e}")


if __name__ == "__main__":  # the processes of the cluster import this file
    main()
