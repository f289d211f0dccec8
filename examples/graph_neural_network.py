"""Train a graph convolution network (Kipf & Welling, 2017) whose products with the graph run in gsparse.

A network of two layers looks at each node's own features and at those of its neighbours and theirs:

    logits = Â · relu(Â · X · W₁) · W₂,   Â = D^(-1/2) · (graph + I) · D^(-1/2)

All but Â is PyTorch's. `Â @ tensor` takes a tensor where it lies, on the CPU or on a GPU, without a copy, and gives a
tensor; its gradient is the transposed product, which is what `Propagate` tells PyTorch. The graph is drawn at random:
nodes of a few communities, who mostly know their own; features hint at the community, and few nodes say theirs. Without
the graph, the features alone do not go far. Needs PyTorch. On the GPU where there is one (a PyTorch that sees it is
needed then), else on the CPU.

    python examples/graph_neural_network.py
    python examples/graph_neural_network.py --nodes 100000 --features 128
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

import gsparse

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError:
    raise SystemExit("needs PyTorch: pip install torch") from None

COMMUNITIES = 5
SAID = 20  # nodes of each community that say which theirs is


class Propagate(torch.autograd.Function):
    """A @ X, differentiable in X."""

    @staticmethod
    def forward(ctx, A: gsparse.GpuSparseMatrix, X: Tensor) -> Tensor:
        ctx.A = A
        return A @ X

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.A.T @ gradient  # (A.H where values are complex)


def communities(nodes: int, features: int) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """Draw a graph of communities: Â, features and communities of its nodes."""
    rng = np.random.default_rng(0)
    community = np.arange(nodes) % COMMUNITIES
    one = rng.integers(nodes, size=4 * nodes)
    friend = community[one] + COMMUNITIES * rng.integers(nodes // COMMUNITIES, size=one.size)
    other = np.where(rng.random(one.size) < 0.7, friend, rng.integers(nodes, size=one.size))
    edges = sp.coo_array((np.ones(one.size), (one, other)), shape=(nodes, nodes)).tocsr()
    graph = ((edges + edges.T + sp.eye_array(nodes)) > 0).astype(np.float32)
    scale = sp.diags_array(1 / np.sqrt(graph.sum(axis=1)), dtype=np.float32)
    hints = 0.25 * rng.standard_normal((COMMUNITIES, features))[community]
    return (scale @ graph @ scale).tocsr(), (hints + rng.standard_normal(hints.shape)).astype(np.float32), community


def train(propagate: Callable[[Tensor], Tensor], X: Tensor, y: Tensor, epochs: int) -> tuple[float, float]:
    """Train on the nodes that say their community; give the share of the others that is found, and the seconds."""
    torch.manual_seed(0)
    scales = (X.shape[1] ** -0.5, 16**-0.5)
    first, second = (
        torch.nn.Parameter(scale * torch.randn(shape).to(X))
        for scale, shape in zip(scales, ((X.shape[1], 16), (16, COMMUNITIES)), strict=True)
    )
    optimizer = torch.optim.Adam([first, second], lr=0.02, weight_decay=5e-3)
    said = torch.arange(y.numel(), device=y.device) < SAID * COMMUNITIES
    begin = time.perf_counter()
    for _ in range(epochs):
        optimizer.zero_grad()
        logits = propagate(torch.relu(propagate(X @ first)) @ second)
        torch.nn.functional.cross_entropy(logits[said], y[said]).backward()
        optimizer.step()
    found = logits.argmax(1) == y
    return float(found[~said].float().mean()), time.perf_counter() - begin


def main() -> None:
    """Train without the graph, with PyTorch's own products and with gsparse's, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()

    S, features, community = communities(options.nodes, options.features)
    A = gsparse.GpuSparseMatrix(S, device=options.device)
    place = A.device.name.replace("gpu", "cuda")
    X, y = (torch.from_numpy(array).to(place) for array in (features, community))
    theirs = torch.sparse_coo_tensor(np.stack(S.tocoo().coords), S.data, S.shape, check_invariants=False)
    theirs = theirs.to(place).coalesce()
    print(f"{S.shape[0]} nodes, {S.nnz} entries, {SAID * COMMUNITIES} nodes say their community; on {place}")

    ways = {
        "without the graph": lambda Z: Z,
        "torch.sparse.mm": lambda Z: torch.sparse.mm(theirs, Z),
        "gsparse": lambda Z: Propagate.apply(A, Z),
    }
    accuracies = {}
    for name, propagate in ways.items():
        train(propagate, X, y, 2)  # the first products compile
        accuracies[name], seconds = train(propagate, X, y, options.epochs)
        print(f"{name:18} found {accuracies[name]:6.1%}, {1e3 * seconds / options.epochs:7.2f} ms an epoch")

    assert accuracies["gsparse"] > accuracies["without the graph"] + 0.2, "the graph should tell far more"
    assert abs(accuracies["gsparse"] - accuracies["torch.sparse.mm"]) < 0.02, "both multiply by the same matrix"


if __name__ == "__main__":
    main()
