"""Find the groups of a graph by Markov clustering: products, powers and sums of sparse matrices, all on the device.

A random walk along the edges of a graph rarely leaves a dense group of nodes. Markov clustering (van Dongen 2000) keeps
a matrix M with a column for each node, which says where walks that begin there end. It repeats three steps:

    expand   M = M @ M, which doubles the length of the walks
    inflate  take powers of the entries, so that likely ends become more likely, and make each column sum to 1 again
    prune    drop entries that are nearly 0

In the end each column holds the group of its node. The same function runs with SciPy and with gsparse: only the module
differs. With gsparse it runs inside `gsparse.strict()`, which raises an error if any step would run on the host. The
graph is made with groups of equal size, or read from a file or from the folder that GSPARSE_MATRICES names.

    python examples/markov_clustering.py
    python examples/markov_clustering.py --graph ca-CondMat --inflation 2
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.sparse

import gsparse
import gsparse.sparse
from gsparse.bench.problems import find_problem


def planted(groups: int, size: int, seed: int = 0) -> scipy.sparse.csr_array:
    """Return a graph of groups that are dense within (8 edges a node) and sparse between (1 edge a node)."""
    rng = np.random.default_rng(seed)
    n = groups * size
    nodes = np.arange(n).repeat(4)
    within = nodes // size * size + rng.integers(0, size, nodes.size)
    between = rng.integers(0, n, n // 2)
    rows = np.concatenate([nodes, np.arange(n // 2)])
    edges = scipy.sparse.coo_array(
        (np.ones(rows.size), (rows, np.concatenate([within, between]))), shape=(n, n)
    ).tocsr()
    return abs(edges + edges.T).sign()


def with_unit_sums(M: Any) -> Any:
    """Return the matrix with each column divided by its sum."""
    return M.multiply(1 / M.sum(axis=0)).tocsr()


def clusters(sp: Any, graph: Any, inflation: float, threshold: float = 1e-4, rounds: int = 60) -> tuple[Any, int]:
    """Return the group of each node, as the number of one of its nodes, and the number of rounds that it took.

    `sp` is `scipy.sparse` or `gsparse.sparse`, and `graph` a matrix of it.
    """
    walks = with_unit_sums(graph + sp.eye_array(graph.shape[0]))
    count, change = 0, 1.0
    while change > 1e-6 and count < rounds:
        previous, walks = walks, with_unit_sums((walks @ walks).power(inflation))
        walks = with_unit_sums(walks.multiply(walks > threshold).tocsr())
        count, change = count + 1, abs(walks - previous).max()
    return walks.argmax(axis=0), count


def plot(graph: Any, groups: Any, file: str) -> None:
    """Draw the matrix of the graph, with the nodes as they are and with those of a group side by side."""
    from matplotlib.figure import Figure

    from gsparse.plot import sparsity

    figure = Figure(figsize=(8, 4), layout="constrained")
    mixed = np.random.default_rng(0).permutation(graph.shape[0])  # a planted graph has its groups side by side already
    order = mixed[np.argsort(groups[mixed], kind="stable")]
    for axes, nodes, title in zip(figure.subplots(1, 2), (mixed, order), ("any order", "by group"), strict=True):
        sparsity(graph[nodes][:, nodes], axes, colorbar=False)
        axes.set_title(title)
    figure.savefig(file, dpi=130)


def main() -> None:
    """Cluster a graph with SciPy and with gsparse, and compare the groups and the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", help="a graph in the folder that GSPARSE_MATRICES names, or a file")
    parser.add_argument("--groups", type=int, default=100, help="groups of the graph that is made without --graph")
    parser.add_argument("--size", type=int, default=50, help="nodes of a planted group")
    parser.add_argument("--inflation", type=float, default=1.5, help="greater values make smaller groups")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    if options.graph:
        data, indices, indptr, shape = find_problem(options.graph).make(np)
        links = scipy.sparse.csr_array((np.ones(data.size), indices, indptr), shape=shape)
        graph = abs(links + links.T).sign()
    else:
        graph = planted(options.groups, options.size)
    print(f"{graph.shape[0]} nodes, {graph.nnz // 2} edges")

    found = {}
    on_device = gsparse.GpuSparseMatrix(graph, device=options.device)
    for name, sp, matrix in (("SciPy", scipy.sparse, graph), ("gsparse", gsparse.sparse, on_device)):
        with gsparse.strict() if sp is gsparse.sparse else nullcontext():
            clusters(sp, matrix, options.inflation, rounds=1)  # The first call compiles kernels.
            begin = time.perf_counter()
            labels, rounds = clusters(sp, matrix, options.inflation)
        found[name] = np.unique(labels, return_inverse=True)
        seconds = time.perf_counter() - begin
        print(f"{name:8} {found[name][0].size} groups after {rounds} rounds, {seconds:.3f} s")
    same = np.mean(found["SciPy"][1] == found["gsparse"][1])
    print(f"{100 * same:.1f}% of the nodes are in the same group")

    if options.plot:
        plot(graph, found["gsparse"][1], options.plot)


if __name__ == "__main__":
    main()
