"""Follow the cooling of a plate with implicit Euler steps: a new matrix M + Δt·K in each step, all on the device.

The temperature u of a square plate obeys M·u' = -K·u, where K is the five-point Laplacian and the diagonal matrix M is
the heat capacity, which differs from place to place. Each step solves

    (M + Δt·K)·u_new = M·u

with conjugate gradients, and the step Δt grows while the plate cools down, so the matrix is another one each time. The
same function runs with SciPy and with gsparse: only the modules differ. With gsparse it runs inside
`gsparse.strict()`, which raises an error if any step would run on the host.

    python examples/cooling_plate.py
    python examples/cooling_plate.py --n 1000
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

import gsparse
import gsparse.linalg
import gsparse.sparse


def plate(sp: Any, n: int, **options: Any) -> tuple[Any, Any]:
    """Return M and K for n² points. `sp` is `scipy.sparse` or `gsparse.sparse`; `options` are those of the latter."""
    second = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n), **options) * (n + 1.0) ** 2
    x, y = np.meshgrid(np.linspace(0, 1, n), np.linspace(0, 1, n))
    capacity = np.where((x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.1, 5.0, 1.0)  # a disk that stores more heat
    return sp.diags_array(capacity.ravel(), **options).tocsr(), sp.kronsum(second, second, format="csr", **options)


def cool(linalg: Any, M: Any, K: Any, u: Any, steps: int) -> Any:
    """Return the temperature after implicit Euler steps, each longer than the one before by a fifth."""
    dt = 1e-4
    for _ in range(steps):
        u, info = linalg.cg(M + dt * K, M @ u, x0=u, rtol=1e-8, atol=0.0)
        if info:
            raise SystemExit(f"conjugate gradients did not converge in a step of length {dt:.2g}: take fewer steps")
        dt *= 1.2
    return u


def plot(u: Any, file: str) -> None:
    """Draw the temperature of the plate after the last step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 3.7), layout="constrained")
    axes = figure.subplots()
    figure.colorbar(axes.imshow(u, cmap="inferno"), label="temperature")
    axes.set_title("after the last step")
    figure.savefig(file, dpi=130)


def main() -> None:
    """Cool the plate with SciPy and with gsparse, and compare the temperatures and the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="points along each side")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="auto", help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    temperatures = []
    for name, sp, linalg, where in (
        ("SciPy", scipy.sparse, scipy.sparse.linalg, {}),
        ("gsparse", gsparse.sparse, gsparse.linalg, {"device": options.device}),
    ):
        with gsparse.strict() if sp is gsparse.sparse else nullcontext():
            M, K = plate(sp, options.n, **where)
            u = np.ones(options.n**2)
            if sp is gsparse.sparse and M.device.kind == "gpu":
                u = M.device.upload(u)  # The vectors of the solves never leave the GPU.
            cool(linalg, M, K, u, 1)  # The first call compiles kernels.
            begin = time.perf_counter()
            u = cool(linalg, M, K, u, options.steps)
            u = u.get() if hasattr(u, "get") else u
            seconds = time.perf_counter() - begin
        temperatures.append(u)
        print(
            f"{name:8} {options.steps} steps with {u.size} points, {seconds:.3f} s, {u.max():.4f} at the hottest point"
        )
    print(f"the temperatures differ by {abs(temperatures[0] - temperatures[1]).max():.1e}")

    if options.plot:
        plot(temperatures[1].reshape(options.n, options.n), options.plot)


if __name__ == "__main__":
    main()
