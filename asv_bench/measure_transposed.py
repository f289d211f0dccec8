"""Time ``A.T @ X`` of tall matrices on the CPU beside SciPy: ``python asv_bench/measure_transposed.py --threads 1,2``.

The matrices have about 20 entries in a row: "text" has columns by Zipf's law, as words have, and "uniform" random ones.
Each figure is the median of several products in milliseconds, and SciPy's time over ours. SciPy uses one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.kernels.cpu.compiling import HandOut

ENTRIES = 20


def tall(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> sp.csr_array:
    """Return a random matrix of one of the two kinds."""
    weights = 1 / np.arange(1, shape[1] + 1) if kind == "text" else np.ones(shape[1])
    places = np.cumsum(weights / weights.sum())
    columns = np.searchsorted(places, rng.random(shape[0] * ENTRIES)).clip(0, shape[1] - 1)
    rows = np.repeat(np.arange(shape[0]), ENTRIES)
    return sp.coo_array((rng.random(rows.size), (rows.astype(np.int32), columns.astype(np.int32))), shape=shape).tocsr()


def median_ms(call: Callable[[], Any], repeats: int) -> float:
    """Return the median time of a call in milliseconds."""
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    parser.add_argument("--columns", default="4,8,30,64", help="numbers of columns of X (default: %(default)s)")
    parser.add_argument("--shape", default="200000,30000", help="of the matrices (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    HandOut.num_first = 0  # The code for several threads is otherwise compiled after a hundred products.
    rng = np.random.default_rng(0)
    num_rows, num_columns = map(int, options.shape.split(","))
    for kind in ("text", "uniform"):
        S = tall(kind, (num_rows, num_columns), rng)
        A = gsparse.GpuSparseMatrix(S, device="cpu")
        for k in map(int, options.columns.split(",")):
            X = rng.standard_normal((num_rows, k))
            scipys = median_ms(lambda X=X, S=S: S.T @ X, options.repeats)
            line = f"{kind:8} {k:3} columns: SciPy {scipys:7.1f} ms"
            for threads in map(int, options.threads.split(",")):
                gsparse.set_num_threads(threads)
                ours = median_ms(lambda X=X, A=A: A.T @ X, options.repeats)
                line += f"; {threads} threads {ours:7.1f} ({scipys / ours:.2f})"
            print(line, flush=True)


if __name__ == "__main__":
    main()
