"""Find the conductivity of a plate from temperatures that were measured at a few points, by gradients through solves.

The temperature u of a square plate whose edges are kept at 0 obeys -∇·(k ∇u) = f. The conductivity k is unknown. Heat
is supplied at several places f, one after the other, and the temperature is measured at some points, with an error.
Finite differences turn the equation into a sparse system whose values depend linearly on k at the grid points:

    A(values)·u = f,   values = E·k

`gsparse.torch.solve` solves the systems of all sources at once, with conjugate gradients. PyTorch gets the gradient of
the misfit in `values` by one more solve, and L-BFGS minimizes the misfit, plus a penalty for a rough k. One
preconditioner serves all solves: `M.update` computes its values again. The example needs PyTorch. It runs on the GPU if
there is one (which PyTorch must support too), else on the CPU.

    python examples/conductivity.py
    python examples/conductivity.py --n 200 --steps 40
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.sparse as sp

import gsparse
import gsparse.linalg

try:
    import torch
    from torch import Tensor
except ModuleNotFoundError:
    raise SystemExit("needs PyTorch: pip install torch") from None

import gsparse.torch

SOURCES = 9
ROUGHNESS = 3e-6  # weight of the penalty


def assemble(n: int) -> tuple[sp.csr_array, sp.csr_array]:
    """Return a matrix with the structure of A for n² points, and E, which maps k at the points to the values of A.

    The conductivity between two neighbours is the mean of both; beside the edge it is that of the point itself.
    """
    points = np.arange(n * n).reshape(n, n)
    pairs = [(points[:, :-1], points[:, 1:]), (points[:-1], points[1:])]
    first, second = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    rows, columns = np.concatenate([first, second]), np.concatenate([second, first])
    neighbours = np.bincount(rows, minlength=n * n)
    A = sp.csr_array(sp.coo_array((-np.ones(rows.size), (rows, columns))) + 4 * sp.eye_array(n * n))
    A.sort_indices()
    row, column = A.tocoo().coords
    entry = np.arange(A.nnz)
    is_diagonal = row == column
    # An entry beside the diagonal is -(k_row + k_column) / 2. The diagonal is the sum of all conductivities around it.
    mean = sp.coo_array((np.full(rows.size, 0.5), (rows, columns)), shape=A.shape) + sp.diags_array(4 - neighbours / 2)
    mean = mean.tocsr()
    mean.sort_indices()  # It has the structure of A.
    on_diagonal = entry[is_diagonal][row]  # the diagonal entry of each entry's row
    off = entry[~is_diagonal]
    E = sp.coo_array((mean.data, (on_diagonal, column)), shape=(A.nnz, n * n))
    E += sp.coo_array((np.full(off.size, -0.5), (off, row[off])), shape=E.shape)
    E += sp.coo_array((np.full(off.size, -0.5), (off, column[off])), shape=E.shape)
    return A, sp.csr_array(E)


def true_conductivity(n: int) -> np.ndarray:
    """Return a conductivity of 1 with two smooth bumps, one of 3 and one of 0.4."""
    x, y = np.meshgrid(*2 * [np.linspace(0, 1, n)], indexing="ij")
    bumps = ((3.0, 0.3, 0.35), (0.4, 0.7, 0.65))
    return np.exp(sum(np.log(k) * np.exp(-((x - a) ** 2 + (y - b) ** 2) / 0.03) for k, a, b in bumps)).ravel()


def plot(true: Tensor, found: Tensor, file: str) -> None:
    """Draw the conductivity with which the measurements were made, and the one that was found from them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    for axes, values, title in zip(figure.subplots(1, 2), (true, found), ("true", "found"), strict=True):
        picture = axes.imshow(values.numpy(), vmin=float(true.min()), vmax=float(true.max()))
        axes.set_title(f"{title} conductivity")
    figure.colorbar(picture, ax=figure.axes)
    figure.savefig(file, dpi=130)


def main() -> None:
    """Make measurements with the true conductivity, and find it from these alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=60, help="points along each side")
    parser.add_argument("--steps", type=int, default=60, help="steps of L-BFGS")
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    n, rng = options.n, np.random.default_rng(0)
    structure, to_values = assemble(n)
    A, E = (gsparse.GpuSparseMatrix(S, device=options.device) for S in (structure, to_values))
    where = A.device.name.replace("gpu", "cuda")
    true = torch.from_numpy(true_conductivity(n)).to(where)
    sources = np.zeros((n * n, SOURCES))
    places = np.linspace(n / 6, 5 * n / 6, 3).astype(int)
    sources[(places[:, None] * n + places).ravel(), np.arange(SOURCES)] = 1
    f = torch.from_numpy(sources).to(where)
    measured = torch.from_numpy(np.sort(rng.choice(n * n, n * n // 4, replace=False))).to(where)
    M = gsparse.linalg.ic0(A)

    def temperatures(k: Tensor) -> Tensor:
        values = gsparse.torch.matmul(E, k)
        M.update(A.with_data(values.detach()))
        u = gsparse.torch.solve(A, f, values, solver=gsparse.linalg.cg, M=M, rtol=1e-8)
        return u[measured]

    exact = temperatures(true)
    data = exact + 0.002 * exact.abs().max() * torch.from_numpy(rng.standard_normal(exact.shape)).to(where)
    scale = data.square().mean()
    logarithm = torch.zeros(n * n, dtype=torch.float64, device=where, requires_grad=True)
    optimizer = torch.optim.LBFGS([logarithm], max_iter=options.steps, line_search_fn="strong_wolfe")

    def misfit() -> Tensor:
        optimizer.zero_grad()
        grid = logarithm.reshape(n, n)
        rough = grid.diff(dim=0).square().sum() + grid.diff(dim=1).square().sum()
        loss = (temperatures(logarithm.exp()) - data).square().mean() / scale + ROUGHNESS * rough
        loss.backward()
        return loss

    first, begin = misfit().item(), time.perf_counter()
    optimizer.step(misfit)
    seconds = time.perf_counter() - begin
    last, calls = misfit().item(), next(iter(optimizer.state.values()))["func_evals"]
    error = float((logarithm.detach().exp() / true - 1).abs().mean())
    print(f"{n * n} unknown conductivities, {data.numel()} measurements; on {where}")
    print(
        f"misfit {first:.2e} → {last:.2e} in {seconds:.2f} s, {1e3 * seconds / calls:.1f} ms for a value and gradient"
    )
    print(f"mean error of the conductivity {float((1 / true - 1).abs().mean()):.1%} → {error:.1%}")

    if options.plot:
        plot(true.reshape(n, n).cpu(), logarithm.detach().exp().reshape(n, n).cpu(), options.plot)


if __name__ == "__main__":
    main()
