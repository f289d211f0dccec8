"""Time the kernels on a GPU beside CuPy's product and the run's copy bandwidth: ``python asv_bench/measure_spmv.py``.

A product is captured in a CUDA graph with ten of its kind, so that the figure is the kernel's and not the call's; the
median of several replays is printed, in µs, with the set-up in products. Needs CuPy and a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import cupyx.scipy.sparse
import numpy as np
from plain_kernels import plain_times
from problems import MODEL_PROBLEMS, real_matrix
from timing import seconds_of

import gsparse

PRODUCTS_PER_GRAPH = 10
COPY_BYTES = 4 << 30


def copy_bandwidth() -> float:
    """Give bytes read and written a second by a large copy of the driver's."""
    source = cupy.ones(COPY_BYTES // 16, np.float64)
    target = cupy.empty_like(source)
    return 2 * source.nbytes / eager_seconds(lambda: target.data.copy_from_device_async(source.data, source.nbytes))


def eager_seconds(call: Callable[[], Any], repeats: int = 20) -> float:
    """Give the median wall time of a call that ends with the device idle."""
    times = []
    for _ in range(repeats + 2):
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        call()
        cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def measure(
    name: str, arrays: tuple[Any, ...], shape: tuple[int, int], threads: list[int | None], dtype: Any
) -> dict[str, Any]:
    """Time every format of one matrix."""
    arrays = (arrays[0].astype(dtype), *arrays[1:])
    x = cupy.random.default_rng(1).random(shape[1]).astype(dtype)
    theirs = cupyx.scipy.sparse.csr_matrix(arrays, shape=shape)
    row: dict[str, Any] = {"matrix": name, "rows": shape[0], "nnz": int(arrays[0].size)}
    row["cupy"] = eager_seconds(lambda: theirs @ x) * 1e6
    row |= plain_times(arrays, x) if dtype == np.float64 and arrays[2].dtype == np.int32 else {}
    exact = theirs @ x
    bound = abs(theirs) @ abs(x)
    for format in gsparse.FORMATS[1:]:
        for threads_per_block in threads:
            label = format if len(threads) == 1 else f"{format}/{threads_per_block}"
            A = gsparse.GpuSparseMatrix(arrays, shape=shape, format=format, threads_per_block=threads_per_block)
            padding = next(c.padding_ratio for c in A.plan.candidates if c.format == format)
            if padding > 20:
                row[label] = None
                continue
            begin = time.perf_counter()
            stored = A.stored
            setup = time.perf_counter() - begin
            y = cupy.full(shape[0], np.nan, dtype)
            A.matvec(x, out=y)
            error = float((abs(y - exact) / cupy.maximum(bound, np.finfo(dtype).tiny)).max()) / float(
                np.finfo(dtype).eps
            )
            seconds = seconds_of(lambda A=A, y=y: A.matvec(x, out=y), PRODUCTS_PER_GRAPH)
            row[label] = seconds * 1e6
            row[f"{label} detail"] = {
                "setup_products": setup / seconds,
                "GB/s": (stored.nbytes + x.nbytes + y.nbytes) / seconds / 1e9,
                "padding": padding,
                "error_eps": error,
            }
    auto = gsparse.GpuSparseMatrix(arrays, shape=shape)
    row["chosen"] = auto.plan.format
    row["A@x call"] = eager_seconds(lambda: auto @ x) * 1e6
    return row


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="model problems or real matrices; all model problems by default")
    parser.add_argument("--threads-per-block", default="", help="such as 128,256,512; the default's if left out")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    threads = [int(t) for t in options.threads_per_block.split(",") if t] or [None]
    bandwidth = copy_bandwidth()
    print(f"copy {bandwidth / 1e9:.0f} GB/s on {gsparse.device.get_device('gpu').description}")
    rows = []
    for name in options.names or [*MODEL_PROBLEMS, "G3_circuit", "cnr-2000"]:
        if name in MODEL_PROBLEMS:
            arrays = MODEL_PROBLEMS[name](cupy)
            shape = (arrays[2].size - 1,) * 2
        else:
            S = real_matrix(name)
            arrays, shape = tuple(map(cupy.asarray, (S.data, S.indices, S.indptr))), S.shape
        rows.append(measure(name, arrays, shape, threads, np.dtype(options.dtype)))
        print(
            {k: round(v, 1) if isinstance(v, float) else v for k, v in rows[-1].items() if not k.endswith("detail")},
            flush=True,
        )
        for k, v in rows[-1].items():
            if k.endswith("detail"):
                print("   ", k, {a: round(b, 2) for a, b in v.items()}, flush=True)
        cupy.get_default_memory_pool().free_all_blocks()
    if options.json:
        options.json.write_text(json.dumps({"copy": bandwidth, "dtype": options.dtype, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
