"""Find the lowest tones of a drum: the smallest eigenvalues of a Laplacian, with LOBPCG.

The drum is L-shaped, so no formula gives its tones. Only the third one is known, because it is also a tone of a square
of half the size: 2π². It shows how accurate the others are. LOBPCG works on a block of vectors at once, so each product
has several columns. A preconditioner saves most of the iterations. SciPy's LOBPCG accepts a GpuSparseMatrix like any
other matrix. In gsparse's, which has the same signature, the block never leaves the device. The example runs on the GPU
if CuPy finds one, else on the CPU.

    python examples/eigenvalues.py            # 63 points along each side
    python examples/eigenvalues.py --n 511 --tones 10
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

import gsparse
from gsparse.linalg import ic0, lobpcg


def drum(n: int) -> sp.csr_array:
    """Return -Δ on an L of three unit squares with u = 0 on its border.

    It is the five-point stencil on a square of four unit squares, without the points of the fourth.
    """
    h = 2 / (n + 1)
    second = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)) / h**2
    square = sp.csr_array(sp.kron(second, sp.eye_array(n)) + sp.kron(sp.eye_array(n), second))
    points = np.flatnonzero(is_inside(n).ravel())
    return sp.csr_array(square[points][:, points])


def is_inside(n: int) -> Any:
    """Return which points of the square belong to the L, as an array of shape (n, n)."""
    h = 2 / (n + 1)
    x, y = np.meshgrid(*(np.linspace(-1 + h, 1 - h, n),) * 2)
    return ~((x > -h / 2) & (y > -h / 2))


def plot(modes: Any, n: int, file: str) -> None:
    """Draw how the drum vibrates at each tone, from its eigenvectors."""
    from matplotlib.figure import Figure

    inside = is_inside(n)
    figure = Figure(figsize=(2.2 * modes.shape[1], 2.4), layout="constrained")
    for number, axes in enumerate(figure.subplots(1, modes.shape[1], squeeze=False)[0]):
        height = np.full(inside.shape, np.nan)
        height[inside] = modes[:, number]
        most = abs(modes[:, number]).max()
        axes.imshow(height, cmap="coolwarm", vmin=-most, vmax=most, origin="lower")
        axes.set_title(f"tone {number + 1}")
        axes.set_axis_off()
    figure.savefig(file, dpi=130)


def main() -> None:
    """Build the drum, and find its tones without and with a preconditioner."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=63, help="points along each long side")
    parser.add_argument("--tones", type=int, default=4)
    parser.add_argument("--device", default=None, help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    S = drum(options.n)
    A = gsparse.GpuSparseMatrix(S, device=options.device)
    M = ic0(A)
    X = np.random.default_rng(0).standard_normal(
        (A.shape[0], options.tones + 2)
    )  # Two additional vectors speed up convergence.
    A @ X, M @ X  # The first products compile their kernels.
    tones = {}
    for name, solve, matrix, preconditioner in (
        ("SciPy's LOBPCG, its matrix", scipy.sparse.linalg.lobpcg, S, M),
        ("SciPy's LOBPCG, ours", scipy.sparse.linalg.lobpcg, A, M),
        ("LOBPCG", lobpcg, A, None),
        ("LOBPCG with IC(0)", lobpcg, A, M),
    ):
        begin = time.perf_counter()
        values, modes, norms = solve(
            matrix, X, M=preconditioner, largest=False, tol=1e-4, maxiter=1000, retResidualNormsHistory=True
        )
        print(f"{name:26} {A.shape[0]} points, {len(norms) - 2} iterations, {time.perf_counter() - begin:.2f} s")
        tones[name] = values[: options.tones]
    for computed in tones.values():
        np.testing.assert_allclose(computed, values[: options.tones], rtol=1e-6)
    print("tones:", *(f"{value:.4f}" for value in values[: options.tones]))
    print(f"the third has an error of {abs(values[2] - 2 * np.pi**2):.1e}, which more points would reduce")

    if options.plot:
        plot(modes[:, : options.tones], options.n, options.plot)


if __name__ == "__main__":
    main()
