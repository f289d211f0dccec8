"""Time products of power-law graphs on a GPU: ``python asv_bench/measure_graphs.py [NAME ...]``.

NAME is a problem of ``gsparse bench`` or a matrix in the folder that GSPARSE_MATRICES names, or ``R-MAT S`` for a graph
of 2**S vertices with 16 edges each; by default ``R-MAT 18`` to ``R-MAT 23``. Each graph is taken with random values and
with all values 1, in float64 and float32. The times are medians of launches in CUDA graphs, in microseconds:

    cuSPARSE        the fastest of its algorithms for CSR, preprocessed, with SpMVOp if the library has it
    auto            gsparse as it chooses by itself, and the format that it chose
    row_lanes, csr_vector
                    gsparse with this format
    transpose       gsparse's ``A.T`` as it chooses
    ratio           the time of cuSPARSE, over that of auto; `goal` says whether it is large enough
    of A.T          the same for ``A.T``, where cuSPARSE has the transpose stored as CSR
    set-up          of row_lanes, in products

Every product is compared with cuSPARSE's, relative to the sum of magnitudes of each row. ``--output FILE`` writes JSON.
Goals: 1.15 times as fast as cuSPARSE in float64 and 1.35 times in float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from measure_blocks import set_up_products

from gsparse import GpuSparseMatrix
from gsparse.bench.cusparse import CusparseProduct
from gsparse.bench.gpu_peers import CusparsePlan, plan_algorithms
from gsparse.bench.problems import Arrays, find_problem, rmat
from gsparse.bench.timing import GpuClock, medians

GOALS = {"float64": 1.15, "float32": 1.35}
FORMATS = ("row_lanes", "csr_vector")
ALGORITHMS = ("CSR_ALG1", "CSR_ALG2")
EDGES, SAMPLES = 16, 15
DEFAULT = tuple(f"R-MAT {scale}" for scale in range(18, 24))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(DEFAULT), metavar="NAME")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    cupy = import_module("cupy")
    clock = GpuClock(cupy)
    heads = ("cuSPARSE", "auto", *FORMATS, "transpose", "ratio", "goal", "of A.T", "set-up", "error")
    print(f"{'graph':14}{'values':8}{'dtype':8}" + "".join(f"{head:>12}" for head in heads) + "  chosen")
    rows = []
    for name in options.names:
        for values in ("random", "unit"):
            for dtype in GOALS:
                rows.append(measure(clock, graph(name, values, dtype, cupy)) | {"graph": name, "values": values})
                show(rows[-1])
                clock.recycle()
    met = sum(row["ratio"] >= GOALS[row["dtype"]] for row in rows)
    print(f"{met} of {len(rows)} goals met; geometric mean {statistics.geometric_mean(r['ratio'] for r in rows):.2f}")
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1))


def graph(name: str, values: str, dtype: str, cupy: Any) -> Arrays:
    """Return the arrays of a graph on the GPU, with values of a kind."""
    scale = name.removeprefix("R-MAT ")
    made = rmat(int(scale), EDGES, xp=cupy) if scale.isdigit() else find_problem(name).make(cupy)
    data = cupy.random.default_rng(0).random(made.indices.size)
    if values == "unit":
        data[:] = 1
    return Arrays(data.astype(dtype), *made[1:])


def measure(clock: GpuClock, arrays: Arrays) -> dict[str, Any]:
    """Return the times of one graph in microseconds, ratios over cuSPARSE, and the error."""
    cupy, dtype = clock.cupy, arrays.data.dtype
    x = cupy.random.default_rng(1).random(arrays.shape[1]).astype(dtype)
    matrices = {name: matrix(arrays, name) for name in ("auto", *FORMATS)}
    best, expected = best_of_cusparse(clock, arrays, x)
    launches = {name: partial(A.matvec, x, out=cupy.empty_like(expected)) for name, A in matrices.items()}
    absolute = best_of_cusparse(clock, Arrays(abs(arrays.data), *arrays[1:]), abs(x), time=False)[1]
    errors = [abs(launch() - expected) / cupy.maximum(absolute, cupy.finfo(dtype).tiny) for launch in launches.values()]
    # The transpose, which cuSPARSE gets as CSR of its own.
    A = matrices["auto"]
    transposed = import_module("cupyx.scipy.sparse").csr_matrix(arrays[:3], shape=arrays.shape).T.tocsr()
    z = cupy.random.default_rng(2).random(arrays.shape[0]).astype(dtype)
    best_transposed, _ = best_of_cusparse(
        clock, Arrays(transposed.data, transposed.indices, transposed.indptr, transposed.shape), z
    )
    launches["transpose"] = partial(A.T.matvec, z, out=cupy.empty(arrays.shape[1], dtype))
    times = microseconds(clock, launches)
    return times | {
        "dtype": dtype.name,
        "cuSPARSE": best,
        "cuSPARSE transpose": best_transposed,
        "ratio": best / times["auto"],
        "of A.T": best_transposed / times["transpose"],
        "error": max(float(error.max()) for error in errors) / float(cupy.finfo(dtype).eps),
        "chosen": A.plan.format,
        "set-up": set_up_products(matrices["row_lanes"]),
    }


def matrix(arrays: Arrays, format: str) -> GpuSparseMatrix:
    return GpuSparseMatrix(arrays[:3], shape=arrays.shape, format=format, device="gpu")


def best_of_cusparse(clock: GpuClock, arrays: Arrays, x: Any, time: bool = True) -> tuple[float, Any]:
    """Return the time of the fastest algorithm, and the product by the first one."""
    y = clock.cupy.empty(arrays.shape[0], x.dtype)
    products = {
        algorithm: CusparseProduct(arrays[:3], arrays.shape, arrays.indices.size, algorithm, x, y)
        for algorithm in (ALGORITHMS if time else ALGORITHMS[:1])
    }
    products[ALGORITHMS[0]].launch()
    result = y.copy()
    if not time:
        return 0.0, result
    plans = {name: CusparsePlan(arrays[:3], arrays.shape, arrays.data.size, name, x, y) for name in plan_algorithms()}
    launches = {name: product.launch for name, product in (products | plans).items()}
    return min(microseconds(clock, launches).values()), result


def microseconds(clock: GpuClock, launches: dict[str, Callable[[], Any]]) -> dict[str, float]:
    found = medians({name: clock.kernel_sampler(launch) for name, launch in launches.items()}, SAMPLES)
    failed = [error for error in found.values() if isinstance(error, Exception)]
    if failed:
        raise failed[0]
    return {name: 1e6 * float(seconds) for name, seconds in found.items()}  # type: ignore[arg-type]


def show(row: dict[str, Any]) -> None:
    goal = "met" if row["ratio"] >= GOALS[row["dtype"]] else "MISSED"
    figures = [row["cuSPARSE"], row["auto"], *(row[name] for name in FORMATS), row["transpose"]]
    print(
        f"{row['graph']:14}{row['values']:8}{row['dtype']:8}"
        + "".join(f"{figure:12.1f}" for figure in figures)
        + f"{row['ratio']:12.2f}{goal:>12}{row['of A.T']:12.2f}{row['set-up']:12.0f}{row['error']:12.1f}"
        + f"  {row['chosen']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
