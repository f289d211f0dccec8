"""Time solvers on a GPU with the matrix as it is, beside SciPy's and CuPy's: ``python asv_bench/measure_solvers.py``.

`scipy.sparse.linalg.cg` keeps its vectors on the host, `cupyx.scipy.sparse.linalg.cg` on the device. Needs CuPy and a
GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import cupyx.scipy.sparse
import cupyx.scipy.sparse.linalg
import numpy as np
import scipy.sparse.linalg

import gsparse
from gsparse.bench.problems import real_matrix, stencil


def timed(label: str, solve: Callable[..., Any], A: Any, b: Any, maxiter: int) -> dict[str, Any]:
    """Solve once and give seconds, iterations and the true residual."""
    iterations = 0

    def count(_: Any) -> None:
        nonlocal iterations
        iterations += 1

    solve(A, b, maxiter=3)  # warm
    cupy.cuda.Device().synchronize()
    begin = time.perf_counter()
    x, info = solve(A, b, maxiter=maxiter, callback=count)
    cupy.cuda.Device().synchronize()
    seconds = time.perf_counter() - begin
    residual = float(abs(b - A @ x).max() / abs(b).max())
    row = {
        "what": label,
        "seconds": seconds,
        "iterations": iterations,
        "ms/iteration": 1e3 * seconds / iterations,
        "info": int(info),
        "max residual": residual,
    }
    print({k: round(v, 4) if isinstance(v, float) and v > 1e-3 else v for k, v in row.items()}, flush=True)
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maxiter", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    data, indices, indptr, _ = stencil(128, 7)
    problems = {
        "G3_circuit": real_matrix("G3_circuit"),
        "7-point 128^3": scipy.sparse.csr_array((data, indices, indptr)),
    }
    for name, S in problems.items():
        b = S @ np.ones(S.shape[0])
        device_b = cupy.asarray(b)
        A = gsparse.GpuSparseMatrix(S)
        theirs = cupyx.scipy.sparse.csr_matrix(scipy.sparse.csr_matrix(S))
        through_cupy = scipy.sparse.linalg.LinearOperator(
            S.shape, lambda v, T=theirs: (T @ cupy.asarray(v)).get(), dtype=S.dtype
        )
        on_host, on_device = scipy.sparse.linalg.cg, cupyx.scipy.sparse.linalg.cg
        for label, solve, operator, right in (
            ("scipy cg, our matrix", on_host, A, b),
            ("scipy cg, CuPy's matrix behind a LinearOperator", on_host, through_cupy, b),
            ("scipy cg, SciPy's matrix", on_host, S, b),
            ("cupyx cg, our matrix", on_device, A, device_b),
            ("cupyx cg, CuPy's matrix", on_device, theirs, device_b),
        ):
            maxiter = options.maxiter if "our" in label else min(options.maxiter, 300 if "SciPy's" in label else 2000)
            rows.append(timed(f"{name}: {label}", solve, operator, right, maxiter))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
