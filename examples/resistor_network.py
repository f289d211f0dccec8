"""Analyze a power grid: voltage drops under many loads, and the effective resistance of every wire.

The grid is a network of resistors, such as the supply lines of a chip. Kirchhoff's laws give a linear system whose
matrix is the Laplacian L = Bᵀ·G·B, with the conductances G of the wires and the incidence matrix B: wire w leads from
the node where row w of B is 1 to the node where it is -1.

1. Loads draw currents, and pads connect some nodes to the supply. The pads add their conductances to the diagonal, so
   the matrix is positive definite. All loads are columns of one right-hand side, and multigrid is set up once for all.
2. Without pads nothing is grounded: L is singular, because its rows add up to zero. A system with it has a solution if
   the currents add up to zero, and conjugate gradients finds it. A current from one end of a wire to the other adds up
   to zero, and the voltage that it takes is the effective resistance R of the wire within the whole network. The sum
   of conductance times R over all wires is the number of nodes minus one (Foster 1949), which checks the result. To
   compute all R at once, B is projected on a few random vectors (Spielman and Srivastava 2011).

    python examples/resistor_network.py           # 100 x 100 nodes
    python examples/resistor_network.py --n 1000 --plot grid.png
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.linalg import amg, cg

PAD_CONDUCTANCE = 50.0  # siemens


def incidence(n: int, rng: np.random.Generator) -> sp.csr_array:
    """Return B of a square grid of n x n nodes in which one wire of twenty is broken, but no node is cut off."""
    nodes = np.arange(n * n).reshape(n, n)
    along = np.stack([nodes[:, :-1].ravel(), nodes[:, 1:].ravel()])
    across = np.stack([nodes[:-1].ravel(), nodes[1:].ravel()])
    # The wires along the rows and along the left side form a tree, and remain.
    can_break = np.r_[np.zeros(along.shape[1], bool), across[0] % n > 0]
    ends = np.hstack([along, across])[:, ~(can_break & (rng.random(can_break.size) < 0.1))]
    wires = np.arange(ends.shape[1])
    ones = np.ones(wires.size)
    return sp.csr_array((np.r_[ones, -ones], (np.r_[wires, wires], ends.ravel())), shape=(wires.size, n * n))


def voltage_drops(L: sp.csr_array, n: int, num_loads: int, rng: np.random.Generator, device: str | None) -> Any:
    """Return the voltage drop at each node under each load, in an array of shape (nodes, loads)."""
    pads = np.zeros((n, n))
    pads[n // 8 :: n // 4, n // 8 :: n // 4] = PAD_CONDUCTANCE
    A = GpuSparseMatrix(sp.csr_array(L + sp.diags_array(pads.ravel())), device=device)
    loads = 1e-3 * rng.random((n * n, num_loads)) * (rng.random((n * n, num_loads)) < 0.1)  # amperes

    begin = time.perf_counter()
    M = amg(A)
    result = cg(A, loads, M=M, rtol=1e-10, full_output=True)
    seconds = time.perf_counter() - begin
    assert result.info == 0, result
    print(f"{num_loads} loads: {result.iterations} iterations, {seconds:.2f} s with the set-up of multigrid")
    return result.x


def effective_resistances(B: sp.csr_array, G: Any, L: sp.csr_array, rng: Any, device: str | None) -> Any:
    """Return the effective resistance of each wire, with a standard deviation of a seventh."""
    num_vectors = 96
    signs = rng.choice([-1.0, 1.0], (B.shape[0], num_vectors))
    currents = B.T @ (np.sqrt(G)[:, None] * signs)  # each column adds up to zero
    A = GpuSparseMatrix(L, device=device)
    result = cg(A, currents, M=amg(A), rtol=1e-6, full_output=True)
    assert result.info == 0, result
    print(f"{num_vectors} random vectors with the singular L: {result.iterations} iterations")
    return ((B @ result.x) ** 2).mean(axis=1)


def plot(drops: Any, shares: Any, B: sp.csr_array, n: int, file: str) -> None:
    """Draw the worst voltage drop of each node, and how much of a current between its ends each wire carries."""
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    image = left.imshow(1e3 * drops.max(axis=1).reshape(n, n), cmap="inferno", origin="lower")
    figure.colorbar(image, ax=left, label="worst voltage drop in mV")
    ends = np.stack([B.argmax(axis=1), B.argmin(axis=1)], axis=1).reshape(-1, 2)
    lines = LineCollection(np.stack([ends % n, ends // n], axis=2), array=shares, cmap="viridis", linewidths=3)
    right.add_collection(lines)
    right.set(xlim=(-1, 30), ylim=(-1, 30), aspect="equal", title="one corner")
    figure.colorbar(lines, ax=right, label="share of a current between its ends")
    figure.savefig(file, dpi=130)


def main() -> None:
    """Build the network, and print the worst drop, the most important wire, and Foster's sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100, help="nodes along each side")
    parser.add_argument("--loads", type=int, default=16, help="number of load patterns")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()
    n, rng = options.n, np.random.default_rng(20261127)

    B = incidence(n, rng)
    G = rng.lognormal(0.0, 0.5, B.shape[0])  # siemens
    L = sp.csr_array(B.T @ sp.diags_array(G) @ B)
    print(f"{L.shape[0]} nodes, {B.shape[0]} wires")

    drops = voltage_drops(L, n, options.loads, rng, options.device)
    node, load = np.unravel_index(drops.argmax(), drops.shape)
    print(f"worst drop: {1e3 * drops[node, load]:.2f} mV at node ({node // n}, {node % n}) under load {load}")

    shares = G * effective_resistances(B, G, L, rng, options.device)
    print(f"sum of conductance × effective resistance: {shares.sum():.0f}, by Foster's theorem {L.shape[0] - 1}")
    np.testing.assert_allclose(shares.sum(), L.shape[0] - 1, rtol=0.05)

    if options.plot:
        plot(drops, np.minimum(shares, 1), B, n, options.plot)


if __name__ == "__main__":
    main()
