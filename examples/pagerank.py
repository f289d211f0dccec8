"""Rank the pages of a web: PageRank as a linear system, solved on the device.

Who follows links at random, and now and then jumps to any page, is found at page i with probability x[i]:

    x = α·Pᵀ·x + (1 - α)/n,   P[i, j] = 1/links of i  where page i links to page j

which is a sparse linear system, (1 - α·Pᵀ)·x = (1 - α)/n. GMRES needs fewer products for it than the usual repeated
multiplication. The web is cnr-2000 (325 557 pages crawled in 2000) where the real matrices are, else a
random one of the same kind. Runs on any machine: on the GPU where CuPy finds one, else on the CPU.

    python examples/pagerank.py
    python examples/pagerank.py --graph cs-stanford --damping 0.95
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.bench.problems import find_problem
from gsparse.linalg import gmres


def links_of(name: str) -> tuple[str, sp.csr_array]:
    """Give a graph by name, else a random one, as a matrix of ones."""
    try:
        data, indices, indptr, shape = find_problem(name).make(np)
    except FileNotFoundError:
        name = "R-MAT 15"
        data, indices, indptr, shape = find_problem(name).make(np)
    return name, sp.csr_array((np.ones(data.size), indices, indptr), shape=shape)


def repeated(A: gsparse.GpuSparseMatrix, x: np.ndarray, damping: float, rtol: float) -> tuple[np.ndarray, int]:
    """Multiply until nothing changes: the power method."""
    jump, steps, change = (1 - damping) / x.size, 0, 1.0
    while change > rtol:
        following = damping * (A @ x) + jump
        x, change, steps = following, abs(following - x).sum(), steps + 1
    return x, steps


def main() -> None:
    """Rank in both ways, and print the first pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="cnr-2000", help="a graph of the folder of real matrices, or a file")
    parser.add_argument("--damping", type=float, default=0.85, help="α: how often a link is followed")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()

    name, links = links_of(options.graph)
    count = links.sum(axis=1)
    P = sp.diags_array(np.divide(1, count, where=count > 0, out=np.zeros_like(count))) @ links
    n = P.shape[0]
    print(f"{name}: {n} pages, {P.nnz} links, {np.count_nonzero(count == 0)} pages without any")

    # A page without links ends the walk; dividing by the sum afterwards is as if it went on anywhere.
    A = gsparse.GpuSparseMatrix(sp.eye_array(n) - options.damping * P.T, device=options.device)
    jump = np.full(n, (1 - options.damping) / n)
    gmres(A, jump, restart=30, maxiter=1)  # the first solve compiles
    found = gmres(A, jump, rtol=1e-10, restart=30, maxiter=100, full_output=True)
    print(f"GMRES(30): {found}")
    if found.info != 0:
        raise SystemExit("not converged: the closer α is to 1, the harder")

    transposed = gsparse.GpuSparseMatrix(P.T, device=options.device)
    x, steps = repeated(transposed, np.full(n, 1 / n), options.damping, 1e-10)
    print(f"repeated multiplication: {steps} products; the ranks differ by {abs(x - found.x).sum():.1e}")

    ranks = found.x / found.x.sum()
    for place, page in enumerate(np.argsort(-ranks)[:5], 1):
        print(f"{place}. page {page}: {ranks[page]:.5f}, {links[:, [page]].nnz} links to it")


if __name__ == "__main__":
    main()
