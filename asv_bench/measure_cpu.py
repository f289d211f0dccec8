"""Time products on the CPU against SciPy, and MKL through PyTorch where installed: ``python asv_bench/measure_cpu.py``.

Figures are medians in ms, with the speed against SciPy's in the same run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from problems import matrix_folder, real_matrix, rmat, stencil

import gsparse

REAL = ("G3_circuit", "cnr-2000", "USA-road-FLA", "armadillo13k_elast_P1")
MODEL: dict[str, Callable[[], sp.csr_array]] = {
    "7-point 100^3": lambda: sp.csr_array(stencil(100, 7)),
    "27-point 64^3": lambda: sp.csr_array(stencil(64, 27)),
    "R-MAT 18": lambda: sp.csr_array(rmat(18, 16), shape=(2**18, 2**18)),
}


def medians_ms(calls: dict[str, Callable[[], Any]], repeats: int = 21) -> dict[str, float]:
    """Give the median wall time of each call, in ms; the calls take turns, so that a slow minute meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 2):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(found[2:]) for name, found in times.items()}


def read_bandwidth(threads: int) -> float:
    """Give bytes a second that so many threads read of a large array."""
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(np.ones(40_000_000), threads)
    with ThreadPoolExecutor(threads) as pool:
        return 8 * 40_000_000 / (medians_ms({"read": lambda: list(pool.map(np.sum, parts))}, 9)["read"] / 1e3)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", default=",".join(str(2**k) for k in range(cores.bit_length()) if 2**k <= cores))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = [int(t) for t in options.threads.split(",")]
    bandwidth = {t: read_bandwidth(t) for t in counts}
    print("reading:", ", ".join(f"{t} threads {b / 1e9:.0f} GB/s" for t, b in bandwidth.items()))
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    problems = dict(MODEL)
    if matrix_folder().is_dir():
        problems |= {name: lambda name=name: real_matrix(name).astype(float) for name in REAL}
    rows = []
    for name, make in problems.items():
        S = make()
        x, A = np.random.default_rng(1).random(S.shape[1]), gsparse.GpuSparseMatrix(S, device="cpu")
        row: dict[str, Any] = {"matrix": name, "format": A.plan.format}
        for threads in counts:
            gsparse.set_num_threads(threads)
            calls = {"scipy": lambda S=S, x=x: S @ x, "gsparse": lambda A=A, x=x: A @ x}
            if torch is not None:
                torch.set_num_threads(threads)
                theirs = torch.sparse_csr_tensor(S.indptr, S.indices, S.data, S.shape)
                calls["MKL"] = partial(torch.mv, theirs, torch.from_numpy(x))
            row[f"{threads} threads"] = medians_ms(calls)
        rows.append(row)
        print(f"{name} ({row['format']})")
        for threads in counts:
            times = row[f"{threads} threads"]
            ratios = (f"{k} {v:7.2f} ({times['scipy'] / v:5.2f}x)" for k, v in times.items())
            print(f"  {threads:3} threads:", "  ".join(ratios), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"read bandwidth": bandwidth, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
