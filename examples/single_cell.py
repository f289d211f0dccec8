"""Normalize, select and project a table of cells and genes: the first steps of a single-cell analysis.

Each row of the matrix is a cell, each column a gene, and each entry says how often the gene was read in the cell. The
program divides each row by its sum, takes logarithms, keeps the genes that vary most, and projects the cells onto the
first principal components. Cells of the same kind then lie together. The counts are drawn at random: each kind of cell
has a hundred genes of its own that are read often.

The same function runs with SciPy and with gsparse. With gsparse it runs inside `gsparse.strict()`, which raises an
error if any operation of the matrix would run on the host. Only vectors are on the host: the sums and means of
rows and columns, and those of SciPy's `svds`.

    python examples/single_cell.py
    python examples/single_cell.py --cells 50000 --genes 20000
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, svds

import gsparse


def counts_of(cells: int, genes: int, kinds: int, seed: int = 0) -> tuple[sp.csr_array, np.ndarray]:
    """Return random counts and the kind of each cell.

    About 5 % of all pairs of a cell and a gene have a count that is not zero.
    """
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, kinds, cells)
    reads = genes // 20
    columns = rng.integers(0, genes, (cells, reads))
    own = rng.random((cells, reads)) < 0.2
    columns[own] = (kind[:, None] * 100 + rng.integers(0, 100, (cells, reads)))[own]
    rows = np.arange(cells).repeat(reads)
    counts = sp.coo_array((np.ones(rows.size), (rows, columns.ravel())), shape=(cells, genes)).tocsr()
    return counts, kind


def components(A: Any, num_genes: int, num_components: int) -> np.ndarray:
    """Return the principal components of the cells, an array of shape (cells, num_components).

    `A` is a matrix of SciPy or of gsparse, with the counts as floating-point numbers.
    """
    A = A.multiply(1e4 / A.sum(axis=1)[:, None]).tocsr().log1p()
    mean = A.mean(axis=0)
    variance = A.multiply(A).mean(axis=0) - mean**2
    genes = np.sort(np.argsort(-variance)[:num_genes])
    A, mean = A[:, genes], mean[genes]
    transposed = A.T.tocsr()
    # The columns of A minus their means would be dense, so the means are subtracted from the products.
    # A vector x or y may also come as an array with one column, which `ravel` makes one-dimensional.
    centred = LinearOperator(
        A.shape,
        matvec=lambda x: A @ x.ravel() - mean @ x.ravel(),
        rmatvec=lambda y: transposed @ y.ravel() - mean * y.sum(),
        dtype=A.dtype,
    )
    left, sizes, _ = svds(centred, k=num_components, rng=np.random.default_rng(0))
    return left * sizes


def plot(projected: Any, kind: Any, file: str) -> None:
    """Draw the cells in the plane of the first two components, each kind in a colour of its own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.scatter(projected[:, 0], projected[:, 1], c=kind, s=4, cmap="tab10")
    axes.set(xlabel="first component", ylabel="second component", title="cells, coloured by their kind")
    figure.savefig(file, dpi=130)


def main() -> None:
    """Project the cells with SciPy and with gsparse, and compare the results and the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=3000, help="10 for each kind at least (default: %(default)s)")
    parser.add_argument("--genes", type=int, default=4000, help="100 for each kind at least (default: %(default)s)")
    parser.add_argument("--kinds", type=int, default=5, help="kinds of cells, two at least (default: %(default)s)")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()
    if options.kinds < 2:
        parser.error(f"--kinds must be at least 2, got {options.kinds}")
    for name, least in (("cells", 10 * options.kinds), ("genes", 100 * options.kinds)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least} for {options.kinds} kinds, got {getattr(options, name)}")

    counts, kind = counts_of(options.cells, options.genes, options.kinds)
    print(f"{counts.shape[0]} cells, {counts.shape[1]} genes, {counts.nnz} counts")
    found = {}
    on_device = gsparse.GpuSparseMatrix(counts, device=options.device)
    for name, matrix in (("SciPy", counts), ("gsparse", on_device)):
        with gsparse.strict() if name == "gsparse" else nullcontext():
            components(matrix, 500, 2)  # The first call compiles kernels.
            begin = time.perf_counter()
            found[name] = components(matrix, 500, options.kinds - 1)
        print(f"{name:8} {time.perf_counter() - begin:.3f} s")
    distances = [np.linalg.norm(cells @ cells.T - found["SciPy"] @ found["SciPy"].T) for cells in found.values()]
    print(f"the projections differ by {distances[1] / np.linalg.norm(found['SciPy']) ** 2:.1e}")

    centres = np.array([found["gsparse"][kind == number].mean(axis=0) for number in range(options.kinds)])
    nearest = np.linalg.norm(found["gsparse"][:, None] - centres, axis=2).argmin(axis=1)
    print(f"{100 * np.mean(nearest == kind):.1f}% of the cells are nearest to the centre of their kind")

    if options.plot:
        plot(found["gsparse"], kind, options.plot)


if __name__ == "__main__":
    main()
