"""Train a graph convolution network (Kipf & Welling, 2017) whose products with the graph run in gsparse.

A network of two layers combines the features of each node with those of its neighbours and of their neighbours:

    logits = Â · relu(Â · X · W₁) · W₂,   Â = D^(-1/2) · (graph + I) · D^(-1/2)

All but Â belongs to PyTorch. `gsparse.torch.matmul` multiplies a tensor without a copy, on the CPU or on a GPU, and
PyTorch differentiates it. The graph is random: its nodes belong to a few communities, most edges join nodes of the same
community, the features depend weakly on the community, and only a few nodes have a known community. The features alone,
without the graph, do not suffice to find the others. With learned weights, each edge has a parameter of its own: the
values of the matrix are learned together with W₁ and W₂, and weights that differ much from Â's cost something. The
example needs PyTorch. It runs on the GPU if there is one (which PyTorch must support too), else on the CPU.

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

import gsparse.torch

COMMUNITIES = 5
LABELLED = 20  # nodes of each community whose community is known


def communities(nodes: int, features: int) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """Make a random graph of communities. Return Â, the features and the communities of its nodes."""
    rng = np.random.default_rng(0)
    community = np.arange(nodes) % COMMUNITIES
    source = rng.integers(nodes, size=4 * nodes)
    same_community = community[source] + COMMUNITIES * rng.integers(nodes // COMMUNITIES, size=source.size)
    target = np.where(rng.random(source.size) < 0.7, same_community, rng.integers(nodes, size=source.size))
    edges = sp.coo_array((np.ones(source.size), (source, target)), shape=(nodes, nodes)).tocsr()
    graph = ((edges + edges.T + sp.eye_array(nodes)) > 0).astype(np.float32)
    scale = sp.diags_array(1 / np.sqrt(graph.sum(axis=1)), dtype=np.float32)
    means = 0.25 * rng.standard_normal((COMMUNITIES, features))[community]
    return (scale @ graph @ scale).tocsr(), (means + rng.standard_normal(means.shape)).astype(np.float32), community


def train(
    propagate: Callable[[Tensor, Tensor], Tensor], num_weights: int, X: Tensor, y: Tensor, epochs: int
) -> tuple[float, float]:
    """Train on the labelled nodes. Return the share of the other nodes that is classified right, and the seconds.

    ``propagate(Z, weights)`` combines the features of neighbours, with the logarithms of `num_weights` learned factors.
    """
    torch.manual_seed(0)
    scales = (X.shape[1] ** -0.5, 16**-0.5)
    first, second = (
        torch.nn.Parameter(scale * torch.randn(shape).to(X))
        for scale, shape in zip(scales, ((X.shape[1], 16), (16, COMMUNITIES)), strict=True)
    )
    weights = torch.nn.Parameter(torch.zeros(num_weights).to(X))
    optimizer = torch.optim.Adam([first, second, weights], lr=0.02, weight_decay=5e-3)
    is_labelled = torch.arange(y.numel(), device=y.device) < LABELLED * COMMUNITIES
    begin = time.perf_counter()
    for _ in range(epochs):
        optimizer.zero_grad()
        logits = propagate(torch.relu(propagate(X @ first, weights)) @ second, weights)
        torch.nn.functional.cross_entropy(logits[is_labelled], y[is_labelled]).backward()
        optimizer.step()
    is_correct = logits.argmax(1) == y
    return float(is_correct[~is_labelled].float().mean()), time.perf_counter() - begin


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
    torch_device = A.device.name.replace("gpu", "cuda")
    X, y = (torch.from_numpy(array).to(torch_device) for array in (features, community))
    torch_matrix = torch.sparse_coo_tensor(np.stack(S.tocoo().coords), S.data, S.shape, check_invariants=False)
    torch_matrix = torch_matrix.to(torch_device).coalesce()
    print(
        f"{S.shape[0]} nodes, {S.nnz} entries, {LABELLED * COMMUNITIES} nodes have a known community; on {torch_device}"
    )

    data = torch.from_numpy(S.data).to(torch_device)
    products = {
        "without the graph": (0, lambda Z, _: Z),
        "torch.sparse.mm": (0, lambda Z, _: torch.sparse.mm(torch_matrix, Z)),
        "gsparse": (0, lambda Z, _: gsparse.torch.matmul(A, Z)),
        "learned weights": (S.nnz, lambda Z, weights: gsparse.torch.matmul(A, Z, data * weights.exp())),
    }
    accuracies = {}
    for name, (num_weights, propagate) in products.items():
        train(propagate, num_weights, X, y, 2)  # The first products compile their kernels.
        accuracies[name], seconds = train(propagate, num_weights, X, y, options.epochs)
        print(f"{name:18} found {accuracies[name]:6.1%}, {1e3 * seconds / options.epochs:7.2f} ms per epoch")

    assert accuracies["gsparse"] > accuracies["without the graph"] + 0.2, "the graph should help much"
    assert abs(accuracies["gsparse"] - accuracies["torch.sparse.mm"]) < 0.02, "both multiply by the same matrix"
    assert accuracies["learned weights"] > accuracies["gsparse"] - 0.05, "learned weights should not do much harm"


if __name__ == "__main__":
    main()
