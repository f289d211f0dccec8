"""A single-cell analysis over workers: from counts that no process holds as a whole to principal components and ranks.

Each row of the matrix is a cell, each column a gene, and each entry says how often the gene was read in the cell. The
workers make the counts of their own rows, so the matrix is never in one place. Then the program

1. divides each row by its sum,
2. keeps the genes of largest dispersion (variance divided by mean), takes logarithms, and divides each column by its
   standard deviation,
3. computes principal components: `svds` subtracts the means in each product, because the difference would be dense,
4. connects each cell with the cells whose components are nearest,
5. ranks the cells by PageRank: a high rank belongs to a cell that is typical of its kind.

Steps 1 to 3 and the solve of step 5 run on the workers, inside `gsparse.strict()`, which raises an error if an
operation of the matrix would leave a worker's device. This process gets sums and means of rows and columns, the
components, and the graph, for which it compares all pairs of cells. `--check` computes everything with SciPy too, and
compares each row. The example needs dask: pip install 'gsparse-gpu[dask]'.

    python examples/cells_on_workers.py
    python examples/cells_on_workers.py --cells 100000 --genes 20000 --workers 8
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
import gsparse.linalg
from gsparse.distributed import LocalGpuCluster, distribute, from_loaders


def counts_of(genes: int, kinds: int, lo: int, hi: int) -> sp.csr_array:
    """Return the counts of the cells lo to hi. About 5 % of all pairs of a cell and a gene have a count that is not 0.

    The random numbers of a cell depend on its number only, so the matrix is the same for any number of workers.
    """
    chances = np.random.default_rng(0).lognormal(0, 1, genes) * np.ones((kinds, 1))
    for kind in range(kinds):
        chances[kind, kind::kinds][:50] *= 10  # the genes that are read often in this kind of cell
    bounds = np.cumsum(chances, axis=1)
    reads_of_cells = []
    for cell in range(lo, hi):
        rng = np.random.default_rng([1, cell])
        size = genes // 50 + rng.negative_binomial(4, 4 / (4 + genes / 20))  # the number of reads differs a lot
        reads_of_cells.append(np.searchsorted(bounds[cell % kinds], rng.random(size) * bounds[cell % kinds, -1]))
    indptr = np.cumsum([0, *map(len, reads_of_cells)])
    reads = np.concatenate([*reads_of_cells, np.zeros(0, int)])
    counts = sp.csr_array((np.ones(len(reads)), reads, indptr), shape=(hi - lo, genes))
    counts.sum_duplicates()
    return counts


def moments(A: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance of each column of a matrix."""
    mean = A.mean(axis=0)
    return mean, A.power(2).mean(axis=0) - mean**2


def components_of(counts: Any, num_genes: int, k: int) -> np.ndarray:
    """Return the first k principal components of the cells, an array of shape (cells, k)."""
    normal = counts.multiply(1e4 / counts.sum(axis=1)[:, None])
    normal = normal.tocsr() if sp.issparse(normal) else normal  # SciPy's product is in COO, whose columns are slow
    mean, variance = moments(normal)
    dispersion = np.divide(variance, mean, out=np.zeros_like(mean), where=mean > 0)
    genes = np.sort(np.argsort(-dispersion, kind="stable")[: min(num_genes, np.count_nonzero(dispersion))])
    A = np.log1p(normal[:, genes])
    mean, variance = moments(A)
    scaled, center = A.multiply(variance**-0.5), mean * variance**-0.5
    if sp.issparse(scaled):  # SciPy: the few chosen genes as a dense array
        u, s, _ = scipy.sparse.linalg.svds(scaled.toarray() - center, k, rng=0)
    else:
        u, s, _ = gsparse.linalg.svds(scaled, k, center=center)
    return u * s


def neighbours_of(points: np.ndarray, count: int) -> sp.csr_array:
    """Return the graph that connects each point with its nearest points, as a symmetric matrix of ones."""
    nearest, squares, step = [], (points**2).sum(axis=1), 1 + 10**7 // len(points)
    for lo in range(0, len(points), step):
        block = points[lo : lo + step]
        distances = squares - 2 * block @ points.T
        distances[np.arange(len(block)), lo + np.arange(len(block))] = np.inf  # a point is not its own neighbour
        nearest.append(np.argpartition(distances, count, axis=1)[:, :count])
    columns = np.concatenate(nearest).ravel()
    graph = sp.csr_array((np.ones(columns.size), columns, np.arange(0, columns.size + 1, count)))
    return graph.maximum(graph.T)


def main() -> None:
    """Analyse the cells over workers, and with SciPy if the user asks for a comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=4000, help="default: %(default)s")
    parser.add_argument("--genes", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--chosen", type=int, default=500, help="genes of largest dispersion (default: %(default)s)")
    parser.add_argument("--kinds", type=int, default=5, help="kinds of cells (default: %(default)s)")
    parser.add_argument("--neighbours", type=int, default=15, help="of each cell (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=None, help="default: one for each GPU, or 2 without a GPU")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    parser.add_argument("--check", action="store_true", help="compare with SciPy, which needs the whole matrix here")
    options = parser.parse_args()
    for name, least in (("kinds", 2), ("cells", 10 * options.kinds), ("genes", 100 * options.kinds)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    for name, below in (("neighbours", options.cells), ("chosen", options.genes)):
        if not options.kinds <= getattr(options, name) < below:
            parser.error(f"--{name} must be from {options.kinds} to {below - 1}, got {getattr(options, name)}")
    shape, kinds, k = (options.cells, options.genes), options.kinds, options.kinds - 1

    cluster = LocalGpuCluster(options.workers, device=options.device)
    with cluster, Client(cluster) as client, gsparse.strict():
        begin = time.perf_counter()
        with from_loaders([partial(counts_of, options.genes, kinds)], shape, client=client, partition="rows") as counts:
            print(f"{counts}\n{100 * counts.nnz / np.prod(shape):.1f}% of the counts are not 0")
            made = time.perf_counter()
            points = components_of(counts, options.chosen, k)
            projected = time.perf_counter()
        graph = neighbours_of(points, options.neighbours)
        connected = time.perf_counter()

        # The probability x of being at a cell: follow a random edge, or jump to any cell (see pagerank.py).
        damping, degrees = 0.85, graph.sum(axis=1)
        system = sp.csr_array(sp.eye_array(options.cells) - damping * graph / degrees)
        jump = np.full(options.cells, (1 - damping) / options.cells)
        with distribute(system, client=client) as matrix:
            ranks, info = gsparse.linalg.gmres(matrix, jump, rtol=1e-10)
        if info:
            raise SystemExit("GMRES did not converge")
        ended = time.perf_counter()
        print(
            f"counts {made - begin:.2f} s, components {projected - made:.2f} s, neighbours {connected - projected:.2f} "
            f"s, ranks {ended - connected:.2f} s"
        )

        kind = np.arange(options.cells) % kinds
        rows, columns = graph.nonzero()
        print(f"{100 * np.mean(kind[rows] == kind[columns]):.1f}% of the edges join cells of one kind")
        for number in range(kinds):
            cells = np.flatnonzero(kind == number)
            print(f"kind {number}: cell {cells[ranks[cells].argmax()]} is the most typical one")

        if options.check:
            expected = components_of(counts_of(options.genes, kinds, 0, options.cells), options.chosen, k)
            # Singular vectors are unique up to their signs.
            points *= np.sign((points * expected).sum(axis=0))
            errors = np.linalg.norm(points - expected, axis=1) / np.linalg.norm(expected, axis=1)
            exact, _ = scipy.sparse.linalg.gmres(system, jump, rtol=1e-14, restart=30, maxiter=10)
            print(f"largest errors of a row: components {errors.max():.1e}, ranks {abs(ranks / exact - 1).max():.1e}")


if __name__ == "__main__":  # the processes of the cluster import this file
    main()
