"""Time solves of small systems on the CPU beside SciPy's: ``python asv_bench/measure_small_solves.py``.

`gsparse.linalg` and `scipy.sparse.linalg` solve the 5-point Laplacian on squares of points to 1e-8 in turns, with their
own matrices. Each line shows the iterations and the median microseconds of a solve, and gsparse's over SciPy's (x).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as la

from gsparse import GpuSparseMatrix, linalg

SIDES, METHODS = (10, 20, 30, 50), ("cg", "bicgstab", "gmres")
SOLVES, RTOL = 101, 1e-8
# x that the project aims at.
GOAL = 1.2


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(side: int, method: str) -> dict[str, Any]:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    S = sp.csr_array(sp.kronsum(line, line))
    A, b = GpuSparseMatrix(S, device="cpu"), np.random.default_rng(0).standard_normal(side**2)
    calls = [lambda: getattr(linalg, method)(A, b, rtol=RTOL), lambda: getattr(la, method)(S, b, rtol=RTOL)]
    times = [[seconds(call) for call in calls] for _ in range(SOLVES)][1:]
    own, scipys = (1e6 * statistics.median(column) for column in zip(*times, strict=True))
    iterations = getattr(linalg, method)(A, b, rtol=RTOL, full_output=True).iterations
    return {"rows": side**2, "method": method, "iterations": iterations, "gsparse": own, "scipy": scipys}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    records = [measure(side, method) for method in METHODS for side in SIDES]
    for record in records:
        ratio = record["gsparse"] / record["scipy"]
        sizes = f"{record['method']:8} {record['rows']:5} rows, {record['iterations']:4} iterations"
        times = f"{record['gsparse']:7.0f} us, SciPy {record['scipy']:7.0f} us, x {ratio:.2f}"
        print(f"{sizes}: {times} goal {GOAL} {'met' if ratio <= GOAL else 'MISSED'}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
