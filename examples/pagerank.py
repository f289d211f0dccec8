"""Rank the pages of a web: PageRank as a linear system, solved on the device.

A visitor follows random links, and jumps to a random page from time to time. The probability x[i] of finding the
visitor at page i satisfies

    x = α·Pᵀ·x + (1 - α)/n,   P[i, j] = 1/links of i  if page i links to page j

This is a sparse linear system, (I - α·Pᵀ)·x = (1 - α)/n. GMRES needs fewer products for it than the power method, which
multiplies repeatedly. The web is cnr-2000 (325 557 pages crawled in 2000) if it is in the folder that GSPARSE_MATRICES
names, else a random graph with similar row lengths. The example runs on the GPU if CuPy finds one, else on the CPU.

    python examples/pagerank.py
    python examples/pagerank.py --graph cs-stanford --damping 0.95
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.bench.problems import find_problem
from gsparse.linalg import gmres


def links_of(name: str) -> tuple[str, sp.csr_array]:
    """Return a graph as a matrix of ones: the one with this name, or a random one if there is none."""
    try:
        data, indices, indptr, shape = find_problem(name).make(np)
    except FileNotFoundError:
        name = "R-MAT 15"
        data, indices, indptr, shape = find_problem(name).make(np)
    return name, sp.csr_array((np.ones(data.size), indices, indptr), shape=shape)


def power_method(A: gsparse.GpuSparseMatrix, x: np.ndarray, damping: float, rtol: float) -> tuple[np.ndarray, int]:
    """Multiply until x changes by less than `rtol`. Return x and the number of products."""
    jump, steps, change = (1 - damping) / x.size, 0, 1.0
    while change > rtol:
        next_x = damping * (A @ x) + jump
        x, change, steps = next_x, abs(next_x - x).sum(), steps + 1
    return x, steps


def plot(ranks: Any, counts: Any, file: str) -> None:
    """Draw the rank of each page over the number of links to it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.loglog(np.maximum(counts, 0.5), ranks, ".", markersize=2)
    axes.set(xlabel="links to the page", ylabel="rank", title="links from important pages count more")
    figure.savefig(file, dpi=130)


def main() -> None:
    """Compute the ranks with both methods, and print the first pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--graph", default="cnr-2000", help="a graph in the folder that GSPARSE_MATRICES names, or a file"
    )
    parser.add_argument("--damping", type=float, default=0.85, help="α: the probability of following a link")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    name, links = links_of(options.graph)
    count = links.sum(axis=1)
    P = sp.diags_array(np.divide(1, count, where=count > 0, out=np.zeros_like(count))) @ links
    n = P.shape[0]
    print(f"{name}: {n} pages, {P.nnz} links, {np.count_nonzero(count == 0)} pages without links")

    # The walk ends at a page without links. Dividing x by its sum has the same effect as a jump from there to any page.
    A = gsparse.GpuSparseMatrix(sp.eye_array(n) - options.damping * P.T, device=options.device)
    jump = np.full(n, (1 - options.damping) / n)
    gmres(A, jump, restart=30, maxiter=1, full_output=True)  # The first solve compiles its kernels.
    result = gmres(A, jump, rtol=1e-10, restart=30, maxiter=100, full_output=True)
    print(f"GMRES(30): {result}")
    if result.info != 0:
        raise SystemExit("GMRES did not converge: the problem is harder the closer α is to 1: try a smaller --damping")

    transposed = gsparse.GpuSparseMatrix(P.T, device=options.device)
    x, steps = power_method(transposed, np.full(n, 1 / n), options.damping, 1e-10)
    print(f"power method: {steps} products; the ranks differ by {abs(x - result.x).sum():.1e}")

    ranks = result.x / result.x.sum()
    for place, page in enumerate(np.argsort(-ranks)[:5], 1):
        print(f"{place}. page {page}: {ranks[page]:.5f}, {links[:, [page]].nnz} links to it")

    if options.plot:
        plot(ranks, np.bincount(links.indices, minlength=n), options.plot)


if __name__ == "__main__":
    main()
