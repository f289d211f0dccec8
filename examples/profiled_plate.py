"""Profile a slow program, change what the profile shows, and compare the times.

The program follows the temperature u of a plate in implicit Euler steps, of which each solves

    (M + Δt·K)·u_new = M·u

where the heat capacity M changes a little in each step. The slow version makes the matrix with SciPy in each step,
looks at `A.data` on the host, and solves without a preconditioner. The fast version makes the matrix and a
preconditioner once, and replaces the values on the device. Both are profiled with `gsparse.profile()`.

    python examples/profiled_plate.py
    python examples/profiled_plate.py --n 1000
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.linalg import amg, cg

DT = 5000.0
RTOL = 1e-8


def stiffness(n: int) -> Any:
    """Return K for n² points, a matrix of SciPy."""
    second = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return sp.csr_array(sp.kronsum(second, second, format="csr"))


def capacity(step: int) -> float:
    """Return the heat capacity in a step."""
    return 1.0 + 0.01 * step


def slow(K: Any, u: Any, steps: int, device: str) -> Any:
    """Return the temperature after some steps; the matrix is another one each time."""
    identity = sp.eye_array(u.size, format="csr")
    for step in range(steps):
        A = GpuSparseMatrix(capacity(step) * identity + DT * K, device=device)
        values = A.data
        if not np.isfinite(values).all():
            raise SystemExit("the matrix contains NaN")
        u = solved(A, capacity(step) * u)
    return u


def fast(K: Any, u: Any, steps: int, device: str) -> Any:
    """Return the same temperature with one matrix, whose values change, and one preconditioner."""
    S = sp.csr_array(sp.eye_array(u.size) + DT * K)
    A = GpuSparseMatrix(S, device=device)
    A.name, M = "M + dt K", amg(A)
    rows, columns = S.nonzero()
    is_diagonal = A.device.upload((rows == columns).astype(float))
    u = A.device.upload(u)
    for step in range(steps):
        B = A.with_data(A.device_data + (capacity(step) - 1) * is_diagonal)
        if not A.device.xp.isfinite(B.device_data).all():
            raise SystemExit("the matrix contains NaN")
        u = solved(B, capacity(step) * u, M)
    return A.device.download(u)


def solved(A: Any, b: Any, M: Any = None) -> Any:
    """Return the solution of A·x = b."""
    x, info = cg(A, b, rtol=RTOL, M=M)
    if info:
        raise SystemExit(f"conjugate gradients did not converge: info = {info}")
    return x


def main() -> None:
    """Profile both versions, and print the tables and the difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=300, help="points along each side")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="auto", help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()

    K, u = stiffness(options.n), np.random.default_rng(0).random(options.n**2)
    results, profiles = [], []
    for name, program in (("slow", slow), ("fast", fast)):
        program(K, u, options.steps, options.device)  # The first call compiles kernels.
        with gsparse.profile() as p:
            results.append(program(K, u, options.steps, options.device))
        profiles.append(p)
        print(f"{name}: {p.seconds:.3f} s\n{p.table('line')}\n")
    difference = abs(results[0] - results[1]).max() / abs(results[0]).max()
    times = profiles[0].seconds / profiles[1].seconds
    print(f"the fast version is {times:.1f} times as fast, and the temperatures differ by {difference:.1e}")


if __name__ == "__main__":
    main()
