"""Time products of matrices of dense blocks, beside cuSPARSE's or SciPy's: ``python asv_bench/measure_blocks.py``.

Matrices with several unknowns a node: 27-point cubes, with their nodes in order (regular) and shuffled (unstructured),
and those of a folder that consist of full blocks, such as armadillo13k_elast_P1 (``--matrices``, by default
``GSPARSE_MATRICES`` or ../shared/matrices). Products with one vector and with 8 and 32 columns, in float64 and float32.
Every result is checked row by row. The peers take turns, and the median of several samples counts; on a GPU, a sample
is a CUDA graph of products.

    bsr             gsparse with ``format="bsr"``
    auto            what gsparse chooses
    auto before     what it chooses without dense blocks
    cuSPARSE ...    CSR, sliced ELLPACK and BSR in both orders of the elements, preprocessed (on a GPU)
    SciPy ...       CSR and BSR (on a CPU)

The set-up is measured in products: that of the format, and the search for blocks in matrices without any. The last
table compares with the goals of the project. ``--json FILE`` stores everything, ``--quick`` takes small matrices.
``--factors CELLS`` times nothing but incomplete factors by rows and by nodes, for elasticity on tetrahedra (79 cells
along an axis make 1.5 million unknowns). On a GPU, ``--tune`` times nothing but ``format="bsr"`` with other numbers of
lanes for a row (`lanes_for_rows`) and of threads in a block.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from measure_smoothers import seconds
from tetrahedra import tetrahedral_elasticity

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.bench.cusparse import BLOCK_ALGORITHMS, COLUMN_ALGORITHMS, CusparseProduct, to_sliced_ell
from gsparse.bench.problems import matrix_folder, shuffled_blocks, stencil
from gsparse.bench.timing import GpuClock, Sampler, call_sampler, medians
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.files import read_file
from gsparse.formats.registry import find_format, register, unregister
from gsparse.linalg import cg, ic0
from gsparse.products.bsr import DenseBlocks, lanes_for_rows
from gsparse.products.structure import SparsityPattern

COLUMNS = (1, 8, 32)
DTYPES = ("float64", "float32")
SAMPLES = 21
# Enough products that the set-up decides nothing.
EXPECTED_PRODUCTS = 10**6
# Goals: speed over the best peer, by dtype or kind of product; microseconds on an H200; set-up in products.
OVER_CUSPARSE = {"float64": 1.3, "float32": 1.6}
OVER_CUSPARSE_COLUMNS, OVER_CUSPARSE_FOLDER, OVER_CPU_PEERS = 1.5, 1.4, 1.3
MICROSECONDS = {
    "27-point 40^3 x 3, shuffled": {"float64": 35.0, "float32": 21.0},
    "armadillo13k_elast_P1": {"float64": 5.0, "float32": 3.8},
}
SET_UP, LOOKING = 60.0, 2.0
# Regular matrices must not be slower than without blocks, up to this part of noise.
NOISE = 0.03

Calls = dict[str, tuple[Callable[[], Any], Callable[[], Any]]]


class Case(NamedTuple):
    """A matrix of dense blocks: its name, its kind ("unstructured", "regular" or "folder") and its blocks."""

    name: str
    kind: str
    blocks: sp.bsr_array


def cube(n: int, size: int) -> sp.bsr_array:
    """Return a 27-point matrix on a cube of n³ nodes, with dense blocks of random values."""
    _, indices, indptr, shape = stencil(n, 27)
    data = np.random.default_rng(0).standard_normal((indices.size, size, size))
    return sp.bsr_array((data, indices, indptr), shape=(shape[0] * size, shape[1] * size))


def shuffled(n: int, size: int) -> sp.bsr_array:
    """Return such a matrix whose nodes are in random order."""
    data, indices, indptr, shape = shuffled_blocks(n, size)
    return sp.csr_array((data, indices, indptr), shape=shape).tobsr((size, size))


def cases(folder: Path | None, quick: bool) -> Iterator[Case]:
    for nodes, size, is_shuffled in ((48, 3, False), (40, 3, True), (30, 6, True), (30, 6, False), (60, 2, False)):
        n = nodes // 4 if quick else nodes
        name = f"27-point {n}^3 x {size}"
        if is_shuffled:
            yield Case(f"{name}, shuffled", "unstructured", shuffled(n, size))
        else:
            yield Case(name, "regular", cube(n, size))
    for path in sorted(folder.glob("*.npz")) if folder else ():
        S = sp.csr_array(read_file(path))
        if S.dtype.kind == "f" and S.nnz:
            S.sort_indices()
            rows, columns = GpuSparseMatrix(S, device="cpu").block_shape
            if min(rows, columns) > 1:
                size = min(rows, columns)
                yield Case(path.stem, "folder", sp.bsr_array(S, blocksize=(size, size)))


def without_blocks(make: Callable[[], GpuSparseMatrix]) -> GpuSparseMatrix:
    """Make a matrix and its plan while the format of blocks is not registered."""
    format = find_format("bsr")
    unregister("bsr")
    try:
        A = make()
        str(A.plan)
        return A
    finally:
        register(format)


def our_calls(device: Device, S: sp.csr_array, X: Any) -> Calls:
    """Return the products of gsparse: a launch into an array that exists, and the result on the host."""
    options: dict[str, Any] = {"device": device, "expected_products": EXPECTED_PRODUCTS}
    matrices = {
        "bsr": GpuSparseMatrix(S, format="bsr", **options),
        "auto": GpuSparseMatrix(S, **options),
        "auto before": without_blocks(partial(GpuSparseMatrix, S, **options)),
    }
    calls: Calls = {}
    for name, A in matrices.items():
        Y = device.empty((S.shape[0], *X.shape[1:]), X.dtype)
        launch = partial(A.matvec if X.ndim == 1 else A.matmat, X, out=Y)
        launch()
        calls[name] = launch, partial(_launched, device, launch, Y)
    return calls


def _launched(device: Device, launch: Callable[[], Any], Y: Any) -> Any:
    launch()
    return device.download(Y)


def cusparse_calls(device: Device, S: sp.csr_array, B: sp.bsr_array, X: Any) -> Calls:
    """Return the products of cuSPARSE that this version supports."""
    xp, calls = device.xp, {}
    csr = tuple(device.upload(part) for part in (S.data, S.indices, S.indptr))
    blocks = tuple(device.upload(part) for part in (B.data, B.indices, B.indptr))
    orders = ("C",) if X.ndim == 1 else ("C", "F")
    algorithms: dict[str, Callable[[], Any]] = {name: lambda: blocks for name in BLOCK_ALGORITHMS}
    algorithms |= {name: lambda: csr for name in (("CSR_ALG1", "CSR_ALG2") if X.ndim == 1 else COLUMN_ALGORITHMS)}
    if X.ndim == 1:
        algorithms["SELL"] = lambda: to_sliced_ell(xp, csr, S.shape[0])
    for name, arrays in algorithms.items():
        for order in orders:
            title = f"cuSPARSE {name}" + (f", X in {order} order" if X.ndim > 1 else "")
            dense = xp.asarray(X, order=order), xp.zeros((S.shape[0], *X.shape[1:]), X.dtype, order=order)
            nnz = S.nnz if name not in BLOCK_ALGORITHMS else B.nnz
            try:
                product = CusparseProduct(arrays(), S.shape, nnz, name, *dense, preprocess="ALG2" not in name)
                product.result()
            except Exception as error:
                print(f"    {title} is left out: {str(error)[:90]}", flush=True)
                continue
            calls[title] = product.launch, product.result
    return calls


def scipy_calls(S: sp.csr_array, B: sp.bsr_array, X: Any) -> Calls:
    matrices = {"SciPy CSR": S, "SciPy BSR": B}
    ours = {f"csr {schedule}": GpuSparseMatrix(S, device="cpu", format="csr", schedule=schedule, compress=False)
            for schedule in ("scalar", "vector")}  # fmt: skip
    return {name: (partial(A.__matmul__, X), partial(A.__matmul__, X)) for name, A in (matrices | ours).items()}


def is_right(S: sp.csr_array, X: Any, got: Any) -> bool:
    """Return whether |computed - exact| <= c eps |A| |x| holds in each row."""
    wide = sp.csr_array((S.data.astype(float), S.indices, S.indptr), shape=S.shape)
    bound = abs(wide) @ abs(X.astype(float))
    lengths = np.diff(S.indptr).reshape(-1, *(1,) * (X.ndim - 1)) + 8
    return bool(np.all(abs(got - wide @ X.astype(float)) <= 3 * lengths * np.finfo(got.dtype).eps * bound))


def measure(device: Device, case: Case, dtype: str, num_columns: int, clock: GpuClock | None) -> dict[str, Any]:
    """Return the microseconds of each peer of one product, and whether its result is right."""
    B = case.blocks.astype(dtype)
    S = sp.csr_array(B.tocsr())
    S.sort_indices()
    shape = S.shape[1] if num_columns == 1 else (S.shape[1], num_columns)
    host_X = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    X = device.upload(host_X)
    others = scipy_calls(S, B, X) if clock is None else cusparse_calls(device, S, B, X)
    calls = our_calls(device, S, X) | others
    right = {name: is_right(S, host_X, result()) for name, (_, result) in calls.items()}
    samplers: dict[str, Sampler] = {}
    for name, (launch, _) in calls.items():
        samplers[name] = call_sampler(launch, int) if clock is None else clock.kernel_sampler(launch)
    times = {name: t for name, t in medians(samplers, SAMPLES).items() if isinstance(t, float)}
    A = GpuSparseMatrix(S, device=device, expected_products=EXPECTED_PRODUCTS)
    reads = A.plan.format if num_columns == 1 else type(A._prepared()[0].columns(X.dtype, X.dtype).stored).__name__
    del samplers, calls
    if clock is not None:
        clock.recycle()
    return {
        "matrix": case.name,
        "kind": case.kind,
        "dtype": dtype,
        "columns": num_columns,
        "rows": S.shape[0],
        "nnz": S.nnz,
        "blocksize": list(B.blocksize),
        "chosen": reads,
        "microseconds": {name: 1e6 * t for name, t in times.items()},
        "wrong": sorted(name for name, fine in right.items() if not fine),
    }


def best_peer(row: dict[str, Any], *kinds: str) -> tuple[str, float]:
    """Return the fastest peer whose name contains one of the words."""
    times = {n: t for n, t in row["microseconds"].items() if any(kind in n for kind in kinds)}
    name = min(times, key=lambda n: times[n], default="none")
    return name, times.get(name, float("nan"))


def print_product(row: dict[str, Any]) -> None:
    times = row["microseconds"]
    peer, theirs = best_peer(row, "cuSPARSE", "SciPy")
    ours = min(times["bsr"], times["auto"])
    print(f"{row['matrix']:30} {row['dtype']} k={row['columns']:<3} " +
          " ".join(f"{name} {times[name]:.1f}" for name in ("bsr", "auto", "auto before")) +
          f" ({row['chosen']}); {peer} {theirs:.1f}: x {theirs / ours:.2f}" +
          (f" WRONG: {row['wrong']}" if row["wrong"] else ""), flush=True)  # fmt: skip


def measure_set_up(device: Device, case: Case) -> dict[str, Any]:
    """Return the set-up of blocks in products, see `set_up_products`."""
    S = sp.csr_array(case.blocks.tocsr())
    A = GpuSparseMatrix(S, device=device, format="bsr")
    return {"matrix": case.name, "what": "set-up of bsr", "products": set_up_products(A)}


def set_up_products(A: GpuSparseMatrix) -> float:
    """Return the set-up of a matrix in products: all that precedes the first one, except the survey of the rows."""
    device = A.device
    x = device.upload(np.ones(A.shape[1], A.dtype))
    y = device.empty(A.shape[0], A.dtype)
    A.matvec(x, out=y)
    product = statistics.median(seconds(device, partial(_repeat, A, x, y)) for _ in range(SAMPLES)) / 20
    set_ups = []
    for _ in range(5):
        A.release()
        vars(A._prepared()[0].structure.part(DenseBlocks)).pop("blocksize", None)
        set_ups.append(seconds(device, partial(A.matvec, x, out=y)))
    return statistics.median(set_ups) / product


def _repeat(A: GpuSparseMatrix, x: Any, y: Any) -> None:
    for _ in range(20):
        A.matvec(x, out=y)


def measure_looking(device: Device, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the times of the survey, and of the search for blocks after it, in matrices without any, in products.

    The survey, which each matrix needs, examines the first rows for blocks as well.
    """
    n, rng = (20, 100) if quick else (80, 100), np.random.default_rng(0)
    data, indices, indptr, shape = stencil(n[0], 27)
    random = sp.random_array((n[0] ** 3, n[0] ** 3), density=20 / n[0] ** 3, format="csr", rng=rng)
    for matrix, S in (("27-point", sp.csr_array((data, indices, indptr), shape=shape)), ("random", random)):
        A = GpuSparseMatrix(S, device=device, expected_products=EXPECTED_PRODUCTS)
        x, y = device.upload(np.ones(S.shape[1])), device.empty(S.shape[0], np.dtype(float))
        A.matvec(x, out=y)
        blocks = A._prepared()[0].structure.part(DenseBlocks)
        product = statistics.median(seconds(device, partial(_repeat, A, x, y)) for _ in range(SAMPLES)) / 20
        for what, once in (
            ("survey", partial(_survey_again, blocks.sparsity)),
            ("looking for blocks", partial(_look_again, blocks)),
        ):
            once()
            time = statistics.median(seconds(device, once) for _ in range(SAMPLES))
            yield {"matrix": f"{matrix}, {S.shape[0]} rows", "what": what, "products": time / product}


def _survey_again(sparsity: SparsityPattern) -> Any:
    return SparsityPattern(sparsity.device, sparsity.csr).survey


def _look_again(blocks: DenseBlocks) -> Any:
    return DenseBlocks(blocks.sparsity).blocksize


def tune(device: Device, folder: Path | None, quick: bool, clock: GpuClock) -> None:
    """Print the microseconds of products with a vector, by lanes of a row, threads in a block and dtype of columns."""
    for case in cases(folder, quick):
        for dtype in DTYPES:
            S = sp.csr_array(case.blocks.astype(dtype).tocsr())
            x, y = device.upload(np.ones(S.shape[1], dtype)), device.empty(S.shape[0], np.dtype(dtype))
            samplers, chosen = {}, 0
            for lanes, threads, compress in itertools.product((1, 2, 4, 8), (128, 256), (True, False)):
                with patch("gsparse.products.bsr.lanes_for_rows", return_value=lanes):
                    A = GpuSparseMatrix(S, device=device, format="bsr", threads_per_block=threads, compress=compress)
                    A.matvec(x, out=y)
                chosen = lanes_for_rows(A._prepared()[0].structure.sparsity.rows)
                name = A.stored.row_lanes, threads, str(A.stored.columns.codes.dtype)
                samplers[name] = clock.kernel_sampler(partial(A.matvec, x, out=y))
            times = {name: 1e6 * t for name, t in medians(samplers, SAMPLES).items() if isinstance(t, float)}
            shown = (f"{' '.join(map(str, name))} {times[name]:.2f}" for name in sorted(times, key=lambda n: times[n]))
            print(
                f"{case.name:30} {dtype} chosen lanes {chosen}: " + ", ".join(shown),
                flush=True,
            )
            samplers.clear()
            clock.recycle()


def measure_factors(device: Device, cells: int) -> Iterator[dict[str, Any]]:
    """Yield times and iterations of CG with incomplete factors of rows and of nodes, for elasticity on tetrahedra."""
    S = tetrahedral_elasticity(cells)[0].tocsr()
    A = GpuSparseMatrix(S, device=device)
    b, x = (device.upload(np.random.default_rng(seed).standard_normal(S.shape[0])) for seed in (0, 1))
    for solve, size in itertools.product(("jacobi", "levels"), (1, 3)):
        make = partial(ic0, A, solve=solve, block_size=size)
        M = make()
        result = cg(A, b, M=M, rtol=1e-8, full_output=True)
        apply = partial(M.matvec, x)
        yield {
            "solve": solve,
            "block_size": size,
            "milliseconds": {
                "set-up": 1e3 * statistics.median(seconds(device, make) for _ in range(3)),
                "application": 1e3 * statistics.median(seconds(device, apply) for _ in range(SAMPLES)),
                "CG": 1e3 * statistics.median(seconds(device, partial(cg, A, b, M=M, rtol=1e-8)) for _ in range(3)),
            },
            "iterations": result.iterations,
            "converged": result.info == 0,
        }


def print_factors(row: dict[str, Any]) -> None:
    times = ", ".join(f"{name} {time:.2f} ms" for name, time in row["milliseconds"].items())
    print(f"ic0, {row['solve']}, block_size={row['block_size']}: {times}, {row['iterations']} iterations" +
          ("" if row["converged"] else ", NOT CONVERGED"), flush=True)  # fmt: skip


def goals(
    products: list[dict[str, Any]], set_ups: list[dict[str, Any]], kind: str
) -> Iterator[tuple[str, float, float]]:
    """Yield what is measured, its value, and the least value that is the goal (a negative goal is a largest value)."""
    folder = []
    for row in products:
        times, name = row["microseconds"], f"{row['matrix']} {row['dtype']} k={row['columns']}"
        if kind == "cpu":
            for peer, words in (("our CSR", ("csr ",)), ("SciPy's BSR", ("SciPy BSR",))):
                if row["columns"] > 1 or row["kind"] != "regular":
                    yield f"{name} over {peer}", best_peer(row, *words)[1] / times["bsr"], OVER_CPU_PEERS
            if row["columns"] > 1:
                yield f"{name}, bsr over auto", times["bsr"] / times["auto"], 1 - NOISE
            continue
        ours, theirs = min(times["auto"], times["bsr"]), best_peer(row, "cuSPARSE")[1]
        if row["columns"] > 1:
            yield f"{name} over cuSPARSE", theirs / ours, OVER_CUSPARSE_COLUMNS
            yield f"{name}, bsr over auto", times["bsr"] / times["auto"], 1 - NOISE
        elif row["kind"] == "regular":
            yield f"{name} over before", times["auto before"] / times["auto"], 1 - NOISE
        else:
            yield f"{name} over cuSPARSE", theirs / times["auto"], OVER_CUSPARSE[row["dtype"]]
            folder += [theirs / times["auto"]] if row["kind"] == "folder" else []
            if row["matrix"] in MICROSECONDS:
                yield f"{name} us", times["auto"], -MICROSECONDS[row["matrix"]][row["dtype"]]
    if folder:
        yield "geometric mean of the folder over cuSPARSE", statistics.geometric_mean(folder), OVER_CUSPARSE_FOLDER
    for row in set_ups:
        if row["what"] != "survey":
            goal = SET_UP if "set-up" in row["what"] else LOOKING
            yield f"{row['what']}, {row['matrix']}, products", row["products"], -goal


def print_goals(lines: list[tuple[str, float, float]]) -> None:
    print("\ngoals")
    for what, value, goal in lines:
        met = value >= goal if goal > 0 else value <= -goal
        sign = ">=" if goal > 0 else "<="
        print(f"  {what:66} {value:8.2f} {sign} {abs(goal):<5g} {'met' if met else 'MISSED'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--matrices", type=Path, default=matrix_folder())
    parser.add_argument("--quick", action="store_true", help="take small matrices")
    parser.add_argument("--threads", type=int, help="number of threads of a CPU")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--factors", type=int, metavar="CELLS", help="time incomplete factors of elasticity")
    parser.add_argument("--tune", action="store_true", help="time lanes of a row and threads in a block (GPU)")
    args = parser.parse_args()
    if args.threads:
        gsparse.set_num_threads(args.threads)
    device = get_device(args.device)
    clock = None if device.kind == "cpu" else GpuClock(device.xp)
    print(f"{device.name}, microseconds")
    if args.factors:
        for row in measure_factors(device, args.factors):
            print_factors(row)
        return
    folder = args.matrices if args.matrices.is_dir() else None
    if args.tune:
        if clock is None:
            parser.error("--tune needs a GPU")
        tune(device, folder, args.quick, clock)
        return
    products, set_ups = [], []
    for case in cases(folder, args.quick):
        for dtype in DTYPES:
            for num_columns in COLUMNS:
                products.append(measure(device, case, dtype, num_columns, clock))
                print_product(products[-1])
        set_ups.append(measure_set_up(device, case))
    set_ups += measure_looking(device, args.quick)
    lines = list(goals(products, set_ups, device.kind))
    print_goals(lines)
    if args.json:
        results = {"device": device.name, "products": products, "set_ups": set_ups, "goals": lines}
        args.json.write_text(json.dumps(results, indent=1))
    if wrong := [row["matrix"] for row in products if row["wrong"]]:
        raise SystemExit(f"wrong results: {wrong}")


if __name__ == "__main__":
    main()
