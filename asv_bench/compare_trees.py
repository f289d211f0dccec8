"""Compare the speed of two copies of gsparse on one machine: ``python asv_bench/compare_trees.py OLD NEW``.

OLD and NEW are folders, each with a ``gsparse`` package. The same measurements run in separate processes, alternately
with one copy and the other, and the medians over all turns are compared. A ratio above 1 means that NEW is slower.
Products are timed by the device, and everything else by the wall clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TURNS = 5
CALLS = 2000


def stencil(n: int, dimension: int = 3):
    """Return the 7-point (3-D) or 5-point (2-D) Laplacian on n points in each direction."""
    import scipy.sparse as sp

    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    matrix = line
    for _ in range(dimension - 1):
        matrix = sp.kronsum(matrix, line)
    return sp.csr_array(matrix)


def seconds_per_call(call, calls: int = CALLS) -> float:
    """Return the median wall-clock time of one call, out of seven rounds of calls."""
    for _ in range(20):
        call()
    rounds = []
    for _ in range(7):
        begin = time.perf_counter()
        for _ in range(calls // 7):
            call()
        rounds.append((time.perf_counter() - begin) / (calls // 7))
    return statistics.median(rounds)


def measure(device_name: str) -> dict[str, float]:
    """Run all measurements with the copy of gsparse that is on the path. Return their seconds by name."""
    import numpy as np

    import gsparse

    device = gsparse.GpuSparseMatrix((3, 3), device=device_name).device
    xp, rng = device.xp, np.random.default_rng(0)
    timings: dict[str, float] = {}
    size = {"gpu": 100, "cpu": 40}[device.kind]

    small = gsparse.GpuSparseMatrix(stencil(30, 2), device=device)
    x = xp.asarray(rng.standard_normal(small.shape[1]))
    y = xp.empty_like(x)
    X = xp.asarray(rng.standard_normal((small.shape[1], 4)))
    timings["call A @ x"] = seconds_per_call(lambda: small @ x)
    timings["call A.matvec(x, out=y)"] = seconds_per_call(lambda: small.matvec(x, out=y))
    timings["call A @ X, 4 columns"] = seconds_per_call(lambda: small @ X)
    host = rng.standard_normal(small.shape[1])
    timings["call A @ x, host vector"] = seconds_per_call(lambda: small @ host, CALLS // 4)

    S = stencil(size)
    values = S.copy()
    values.data = rng.standard_normal(S.nnz)
    for name, matrix in (("7-point", S), ("7-point, random values", values)):
        A = gsparse.GpuSparseMatrix(matrix, device=device)
        v = xp.asarray(rng.standard_normal(A.shape[1]))
        w = xp.empty_like(v)
        A.matvec(v, out=w)
        with device.active():
            timings[f"product {name}"] = device.seconds_of(lambda A=A, v=v, w=w: A.matvec(v, out=w))
    for format in ("csr_vector", "blocked_ellpack"):
        A = gsparse.GpuSparseMatrix(values, device=device, format=format)
        A.matvec(v, out=w)
        with device.active():
            timings[f"product {format}"] = device.seconds_of(lambda A=A: A.matvec(v, out=w))

    for columns in (8, 32):
        V = xp.asarray(rng.standard_normal((values.shape[1], columns)))
        W = xp.empty_like(V)
        for name, matrix in (("7-point", S), ("7-point, random values", values)):
            A = gsparse.GpuSparseMatrix(matrix, device=device)
            A.matmat(V, out=W)
            with device.active():
                timings[f"{columns} columns, {name}"] = device.seconds_of(lambda A=A, V=V, W=W: A.matmat(V, out=W))

    C, D = (gsparse.GpuSparseMatrix(M, device=device).astype(complex) for M in (S, values.T.tocsr()))

    def add() -> None:
        C + D
        device.synchronize()

    timings["A + B, complex128"] = seconds_per_call(add, 70)

    def set_up() -> None:
        gsparse.GpuSparseMatrix(values, device=device) @ v
        device.synchronize()

    timings["set-up and first product"] = seconds_per_call(set_up, 70)

    timings.update(solve_seconds(device, S))
    return timings


def solve_seconds(device: Any, S: Any) -> dict[str, float]:
    """Return the median seconds of solves with the matrix S, by name."""
    import numpy as np

    import gsparse
    import gsparse.linalg

    timings: dict[str, float] = {}
    A = gsparse.GpuSparseMatrix(S, device=device)
    b = device.upload(np.random.default_rng(1).standard_normal(A.shape[0]))
    solves = {
        "cg": lambda: gsparse.linalg.cg(A, b, rtol=1e-8, full_output=True),
        "cg, not converged": lambda: gsparse.linalg.cg(A, b, rtol=0, maxiter=200, full_output=True),
        "gmres": lambda: gsparse.linalg.gmres(A, b, rtol=0, restart=30, maxiter=90, full_output=True),
        "bicgstab": lambda: gsparse.linalg.bicgstab(A, b, rtol=0, maxiter=100, full_output=True),
        "cg, jacobi": lambda: gsparse.linalg.cg(A, b, rtol=1e-8, M=gsparse.linalg.jacobi(A), full_output=True),
    }
    for name, solve in solves.items():
        solve()
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            solve()
            device.synchronize()
            times.append(time.perf_counter() - begin)
        timings[f"solve {name}"] = statistics.median(times)
    return timings


def main() -> None:
    """Measure both copies in turns and print the ratios of their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="*", type=Path, metavar="FOLDER", help="OLD and NEW")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all times")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.device)))
        return
    if len(options.trees) != 2:
        parser.error("two folders are needed, OLD and NEW")
    times: list[dict[str, list[float]]] = [{}, {}]
    for turn in range(options.turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(options.trees[which].resolve()), *sys.path]),
            }
            command = [sys.executable, __file__, "--measure", "--device", options.device]
            out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            for name, seconds in json.loads(out.splitlines()[-1]).items():
                times[which].setdefault(name, []).append(seconds)
    print(f"{'microseconds':32}{'old':>12}{'new':>12}{'new / old':>11}{'spread of old':>15}")
    for name, old in times[0].items():
        before, after = statistics.median(old), statistics.median(times[1][name])
        spread = (max(old) - min(old)) / before
        print(f"{name:32}{1e6 * before:12.2f}{1e6 * after:12.2f}{after / before:11.3f}{spread:15.3f}")
    if options.json:
        options.json.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
