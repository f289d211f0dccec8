"""Time sparse algebra beside CuPy's and SciPy's, in one run: ``python asv_bench/measure_algebra.py``.

Each line shows the milliseconds of gsparse, those of the peer, and the peer's over gsparse's (x). A goal is the x that
the project aims at. The peer of a GPU is CuPy (cuSPARSE), with all matrices and results on the device. The peer of the
CPU is SciPy. Calls are made one after the other until the device is idle again. The median of several turns counts.

    operations   each operation on a 7-point matrix, of 10⁶ rows and of 10³ rows
    results      each operation followed by one product of its result, and by ten, on the same two matrices
    edits        single entries, writes to a copy, and a dense block of the same matrices
    products     A @ A on stencils, and the products of smoothed aggregation
    blocks       products of matrices of dense blocks computed by blocks, beside gsparse's own products by entries
    matrices     A @ A on the square matrices from applications in the folder GSPARSE_MATRICES
    graphs       A @ A on R-MAT graphs, some of whose rows are very long (GPU)
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from tetrahedra import tetrahedral_elasticity

import gsparse.sparse
from gsparse import GpuSparseMatrix
from gsparse.bench.problems import rmat, stencil
from gsparse.bench.report import geometric_mean
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.formats import Csr
from gsparse.linalg import amg, rigid_body_modes
from gsparse.sparse.arithmetic import CsrProduct
from gsparse.sparse.block_products import block_pattern

# Turns, of which the median counts, and the seconds that the calls of a turn take at least.
TURNS, SECONDS = 5, 0.02
# Matrices from applications for which A @ A needs more products of two entries are left out: the result would fill the
# memory.
MAX_PRODUCTS = 2_000_000_000
# x that the project aims at: for the geometric mean, and for the slowest operation.
GOALS = {"gpu": (2.0, 1.0), "cpu": (1.5, 1.0)}
# The same for an operation and products of its result, where the matrix is small, or the device is a CPU.
RESULT_GOALS = {("gpu", 10): (1.2, 0.7), ("cpu", 100): (1.0, 1.0), ("cpu", 10): (0.8, 0.8)}

Row = dict[str, Any]


def poisson(n: int, points: int = 7) -> sp.csr_array:
    data, indices, indptr, shape = stencil(n, points)
    return sp.csr_array((data, indices, indptr), shape=shape)


def aggregates(n: int, width: int = 3) -> sp.csr_array:
    """Return the matrix T with a one in each row, in the column of the row's aggregate of width³ points."""
    lines = np.arange(n) // width
    count = int(lines[-1]) + 1
    columns = ((lines[:, None, None] * count + lines[:, None]) * count + lines).reshape(-1).astype(np.int32)
    rows = np.arange(n**3 + 1, dtype=np.int32)
    return sp.csr_array((np.ones(n**3), columns, rows), shape=(n**3, count**3))


def peer_module(device: Device) -> Any:
    """Return the sparse matrices of the peer: CuPy's for a GPU, or SciPy's."""
    if device.kind != "gpu":
        return sp
    import cupyx.scipy.sparse as cusp

    return cusp


def peer_of(device: Device, S: sp.csr_array) -> Any:
    """Return the matrix of the peer, on the device."""
    return peer_module(device).csr_matrix(S)


def milliseconds(device: Device, *calls: Callable[[], Any]) -> list[float]:
    """Return the median time of each call, made again and again as in a program. The calls take turns.

    The time of a call that fails is infinite: cuSPARSE has too few resources for some products, and CuPy does not have
    all operations.
    """

    def seconds_of(call: Callable[[], Any], count: int) -> float:
        device.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        device.synchronize()
        return (time.perf_counter() - begin) / count

    def number_of(call: Callable[[], Any]) -> int:
        try:
            call()  # compiles
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            print(f"failed: {error}", flush=True)
            return 0
        return max(1, int(SECONDS / seconds_of(call, 2)))

    counts = [number_of(call) for call in calls]
    times = [
        [seconds_of(call, count) if count else math.inf for call, count in zip(calls, counts, strict=True)]
        for _ in range(TURNS)
    ]
    return [1e3 * statistics.median(of_call) for of_call in zip(*times, strict=True)]


def compare(
    device: Device, what: str, ours: Callable[[], Any], theirs: Callable[[], Any], peer_name: str = "peer"
) -> Row:
    """Time an operation on matrices of gsparse and on those of the peer."""
    own, peer = milliseconds(device, ours, theirs)
    print(f"{what:50} {own:10.3f} ms   {peer_name} {peer:10.3f} ms   x {peer / own:<8.3g}", flush=True)
    return {"what": what, "ours": own, "theirs": peer, "ratio": peer / own}


def multiply(device: Device, what: str, ours: tuple[Any, Any], theirs: tuple[Any, Any]) -> Row:
    """Time the product of two matrices."""
    return compare(device, what, lambda: operator.matmul(*ours), lambda: operator.matmul(*theirs))


def csr_of(A: GpuSparseMatrix) -> Csr:
    """Return the CSR arrays of a matrix."""
    return A._prepared(transpose=False)[0].csr


def reuse(device: Device, what: str, A: GpuSparseMatrix) -> Row:
    """Time the product of matrices whose structure was multiplied before, beside the whole product."""
    csr = csr_of(A)
    again = CsrProduct(device, csr, csr)
    return compare(device, what, lambda: again.update(csr, csr), lambda: A @ A)


def conclude(name: str, rows: list[Row], goals: tuple[float, float]) -> None:
    ratios = [row["ratio"] for row in rows if math.isfinite(row["ratio"])]
    mean, least = geometric_mean(ratios), min(ratios)
    verdicts = ["met" if value >= goal else "MISSED" for value, goal in zip((mean, least), goals, strict=True)]
    print(f"{name}: geometric mean {mean:.3g} (goal {goals[0]:g} {verdicts[0]}), "
          f"least {least:.3g} (goal {goals[1]:g} {verdicts[1]})", flush=True)  # fmt: skip


class Operands:
    """What the operations of one library work on: A, B, vectors of factors, coordinates, and the library.

    Dense results of gsparse are written to arrays `out` of the device, as those of the peer stay on it.
    """

    def __init__(self, device: Device, A: Any, B: Any, coordinates: tuple[Any, ...], is_ours: bool) -> None:
        xp, self.A, self.B = device.xp, A, B
        (n, m), rng = A.shape, np.random.default_rng(0)
        self.rows = device.upload(rng.permutation(n))
        self.row, self.column = (device.upload(rng.standard_normal(shape)) for shape in ((1, m), (n, 1)))
        self.coordinates, self.shape, self.is_ours = coordinates, A.shape, is_ours
        stays_there = is_ours and device.kind == "gpu"
        self.out = {"out": xp.empty(n)} if stays_there else {}
        self.scalar_out = {"out": xp.empty(())} if stays_there else {}
        self.device, self.sparse = device, gsparse.sparse if is_ours else peer_module(device)

    def transposed(self) -> Any:
        if self.is_ours:
            # A matrix that has been examined, but not transposed: B itself would use the transpose of the turn before.
            return self.B.with_data(self.B.device_data).T.tocsr()
        return self.B.T.tocsr()

    def with_data(self, A: Any) -> Any:
        """Return a matrix with the structure of A and new values, which are A's."""
        if self.is_ours:
            return A.with_data(A.device_data)
        return type(A)((A.data, A.indices, A.indptr), shape=A.shape)

    def assembled(self) -> Any:
        if not self.is_ours:
            return self.sparse.coo_matrix(self.coordinates, shape=self.shape).tocsr()
        return self.sparse.csr_array(self.coordinates, shape=self.shape, device=self.device)


def quarter(A: Any) -> Any:
    """Return the second quarter of the rows."""
    return A[A.shape[0] // 4 : A.shape[0] // 2]


OPERATIONS: dict[str, Callable[[Operands], Any]] = {
    "A @ B": lambda o: o.A @ o.B,
    "A + B": lambda o: o.A + o.B,
    "A.multiply(B)": lambda o: o.A.multiply(o.B),
    "A.maximum(B)": lambda o: o.A.maximum(o.B),
    "A > B": lambda o: o.A > o.B,
    "B.T.tocsr()": Operands.transposed,
    "A[n/4:n/2]": lambda o: quarter(o.A),
    "A[rows]": lambda o: o.A[o.rows],
    "A[rows][:, rows]": lambda o: o.A[o.rows][:, o.rows],
    "triu(A)": lambda o: o.sparse.triu(o.A),
    "from coordinates, each twice": Operands.assembled,
    "A.diagonal()": lambda o: o.A.diagonal(**o.out),
    "A.sum()": lambda o: o.A.sum(**o.scalar_out),
    "A.sum(axis=0)": lambda o: o.A.sum(axis=0, **o.out),
    "A.sum(axis=1)": lambda o: o.A.sum(axis=1, **o.out),
    "A.max(axis=1)": lambda o: o.A.max(axis=1, **o.out),
    "A.multiply(row)": lambda o: o.A.multiply(o.row),
    "A.multiply(column)": lambda o: o.A.multiply(o.column),
    "A > 0.5": lambda o: o.A > 0.5,
    "A * 2.0": lambda o: o.A * 2.0,
}


def operands_of(device: Device, n: int) -> tuple[Operands, Operands]:
    """Return the operands of gsparse and of the peer: a 7-point matrix of n³ rows, and a matrix with random values."""
    S, rng = poisson(n), np.random.default_rng(0)
    R = sp.csr_array((rng.standard_normal(S.nnz), (S.indices + 1) % S.shape[1], S.indptr), shape=S.shape)
    R.sort_indices()
    C = sp.coo_array(S)
    entries = (np.concatenate([part, part]) for part in (C.data, C.row.astype(np.int32), C.col.astype(np.int32)))
    data, row, column = (device.upload(part) for part in entries)
    coordinates = (data, (row, column))
    ours = Operands(device, *(GpuSparseMatrix(M, device=device) for M in (S, R)), coordinates, is_ours=True)
    theirs = Operands(device, *(peer_of(device, M) for M in (S, R)), coordinates, is_ours=False)
    return ours, theirs


def operations(device: Device) -> Iterator[Row]:
    for n in (100, 10):
        ours, theirs = operands_of(device, n)
        for what, operation in OPERATIONS.items():
            calls = (partial(operation, operands) for operands in (ours, theirs))
            yield compare(device, f"{what}, {n**3} rows", *calls)


# Operations whose result is multiplied.
RESULTS: dict[str, Callable[[Operands], Any]] = {
    "A * 2.0": lambda o: o.A * 2.0,
    "-A": lambda o: -o.A,
    "abs(A)": lambda o: abs(o.A),
    "A.power(2)": lambda o: o.A.power(2),
    "A.astype(float32)": lambda o: o.A.astype(np.float32),
    "A.multiply(column)": lambda o: o.A.multiply(o.column).tocsr(),
    "A.multiply(row)": lambda o: o.A.multiply(o.row).tocsr(),
    "new values": lambda o: o.with_data(o.A),
    "A[n/4:n/2]": lambda o: quarter(o.A),
    "A[rows]": lambda o: o.A[o.rows],
    "A[rows][:, rows]": lambda o: o.A[o.rows][:, o.rows],
    "A + A": lambda o: o.A + o.A,
    "A + B": lambda o: o.A + o.B,
    "A.multiply(B)": lambda o: o.A.multiply(o.B).tocsr(),
    "A.maximum(B)": lambda o: o.A.maximum(o.B),
    "triu(A)": lambda o: o.sparse.triu(o.A, format="csr"),
    "A.T.tocsr()": Operands.transposed,
    "A.tocsc()": lambda o: o.A.tocsc(),
    "A @ B": lambda o: o.A @ o.B,
}


def multiplied(operation: Callable[[Operands], Any], operands: Operands, x: dict[str, Any], num_products: int) -> None:
    """Make a result, and multiply it by a vector of its dtype."""
    result = operation(operands)
    vector = x[result.dtype.name]
    for _ in range(num_products):
        result @ vector


def results(device: Device) -> Iterator[Row]:
    for n in (100, 10):
        ours, theirs = operands_of(device, n)
        vectors = {name: device.upload(np.ones(n**3, name)) for name in ("float32", "float64")}
        for num_products in (1, 10):
            rows = []
            for what, operation in RESULTS.items():
                calls = (partial(multiplied, operation, each, vectors, num_products) for each in (ours, theirs))
                rows.append(compare(device, f"{what} and {num_products} products, {n**3} rows", *calls))
                yield rows[-1]
            goals = RESULT_GOALS.get((device.kind, n), GOALS[device.kind])
            conclude(f"{num_products} products of each result, {n**3} rows", rows, goals)


def changed(A: Any, write: Callable[[Any], Any]) -> Any:
    """Write to a copy of a matrix."""
    copy = A.copy()
    write(copy)
    return copy


class Edited(Operands):
    """What the operations of one library read and write: A, a matrix with unsorted rows, a dense block."""

    def __init__(self, device: Device, S: sp.csr_array, is_ours: bool) -> None:
        make = partial(GpuSparseMatrix, device=device) if is_ours else partial(peer_of, device)
        A, block = make(S), S[:1000, :1000]
        super().__init__(device, A, None, (), is_ours)
        backwards = np.argsort(np.repeat(np.arange(S.shape[0]), np.diff(S.indptr)) - S.indices / S.shape[1])
        U = sp.csr_array((S.data[backwards], S.indices[backwards], S.indptr), shape=S.shape)
        self.unsorted, self.block, self.dense = make(U), make(block), device.upload(np.ones(block.shape))
        self.diagonal, self.rows = device.upload(np.ones(S.shape[0])), device.xp.array(self.rows)
        self.block_out = {"out": device.xp.empty(block.shape)} if is_ours else {}


EDITS: dict[str, Callable[[Edited], Any]] = {
    "A[5, 5]": lambda o: o.A[5, 5],
    "A[rows, rows]": lambda o: o.A[o.rows, o.rows],
    "A[7]": lambda o: o.A[7],
    "A[5, 5] = 3": lambda o: changed(o.A, lambda A: A.__setitem__((5, 5), 3.0)),
    "A[rows, rows] = 1": lambda o: changed(o.A, lambda A: A.__setitem__((o.rows, o.rows), 1.0)),
    "A[:100, :100] = 1": lambda o: changed(o.A, lambda A: A.__setitem__((slice(0, 100), slice(0, 100)), 1.0)),
    "A.setdiag(vector)": lambda o: changed(o.A, lambda A: A.setdiag(o.diagonal)),
    "A.setdiag(1, 3)": lambda o: changed(o.A, lambda A: A.setdiag(1.0, 3)),
    "A *= 2": lambda o: changed(o.A, lambda A: A.__imul__(2.0)),
    "A.eliminate_zeros()": lambda o: changed(o.A, lambda A: A.eliminate_zeros()),
    "A.sum_duplicates(), unsorted": lambda o: changed(o.unsorted, lambda A: A.sum_duplicates()),
    "block.toarray()": lambda o: o.block.toarray(**o.block_out),
    "block + dense": lambda o: o.block + o.dense,
    "block == 0": lambda o: o.block == 0,
}


def edits(device: Device) -> Iterator[Row]:
    warnings.simplefilter("ignore", sp.SparseEfficiencyWarning)
    for n in (100, 10):
        S = poisson(n)
        ours, theirs = (Edited(device, S, is_ours) for is_ours in (True, False))
        for what, operation in EDITS.items():
            yield compare(
                device, f"{what}, {n**3} rows", *(partial(operation, operands) for operands in (ours, theirs))
            )


def products(device: Device) -> Iterator[Row]:
    for n in (100, 200) if device.kind == "gpu" else (64,):
        S, T = poisson(n), aggregates(n)
        A, P = GpuSparseMatrix(S, device=device), peer_of(device, S)
        yield multiply(device, f"A @ A, 7-point {n}³", (A, A), (P, P))
        tentative, peer_tentative = GpuSparseMatrix(T, device=device), peer_of(device, T)
        yield multiply(device, f"A @ T, aggregates of {n}³", (A, tentative), (P, peer_tentative))
        smoothed, peer_smoothed = (t - (m @ t) * (0.66 / 6) for m, t in ((A, tentative), (P, peer_tentative)))
        yield multiply(device, f"A @ P, smoothed, {n}³", (A, smoothed), (P, peer_smoothed))
        coarse, peer_coarse = A @ smoothed, P @ peer_smoothed
        R, peer_R = GpuSparseMatrix(smoothed.T.tocsr(), device=device), peer_smoothed.T.tocsr()
        yield multiply(device, f"Pᵀ @ (A @ P), {n}³", (R, coarse), (peer_R, peer_coarse))
        yield reuse(device, f"A @ A with other values over all of it, {n}³", A)
    if device.kind == "gpu":
        S = poisson(100, 27)
        A, P = GpuSparseMatrix(S, device=device), peer_of(device, S)
        yield multiply(device, "A @ A, 27-point 100³", (A, A), (P, P))
        yield reuse(device, "A @ A with other values over all of it, 27-point", A)


def blocks(device: Device) -> Iterator[Row]:
    """Time products of matrices of dense blocks by blocks, beside those by entries."""
    S, coordinates = tetrahedral_elasticity(79 if device.kind == "gpu" else 16)
    A = GpuSparseMatrix(S.tocsr(), device=device)
    level = amg(A, B=rigid_body_modes(coordinates), block_size=3).levels[0]
    P, R = (csr_of(transfer.matrix) for transfer in (level.prolongation, level.restriction))
    stiffness = csr_of(A)
    product = CsrProduct(device, stiffness, P).result
    cases = {
        "A @ A, tetrahedra, blocks of 3 x 3": (stiffness, stiffness, (3, 3, 3)),
        "A @ P, tetrahedra, 3 x 3 and 3 x 6": (stiffness, P, (3, 3, 6)),
        "Pᵀ @ (A @ P), tetrahedra, 6 x 3 and 3 x 6": (R, product, (6, 3, 6)),
        "A @ P, tetrahedra, single rows of A and blocks of 1 x 6": (stiffness, P, (1, 1, 6)),
        "Pᵀ @ (A @ P), tetrahedra, 6 x 1 and 1 x 6": (R, product, (6, 1, 6)),
    }
    for size in (2, 4, 8):
        kronecker = sp.kron(poisson(100 // size, 27), np.ones((size, size)), format="csr")
        T = csr_of(GpuSparseMatrix(kronecker, device=device))
        cases[f"A @ A, 27-point {100 // size}³, blocks of {size} x {size}"] = (T, T, (size, size, size))
    # Of the blocks of the product, hardly two are in the same place.
    nodes = 20_000 if device.kind == "gpu" else 2_000
    places = sp.random_array((nodes, nodes), density=30 / nodes, rng=np.random.default_rng(0))
    U = csr_of(GpuSparseMatrix(sp.kron(places, np.ones((3, 3)), format="csr"), device=device))
    cases["A @ A, 30 blocks of 3 x 3 at random in a row"] = (U, U, (3, 3, 3))
    for what, (a, b, sizes) in cases.items():
        by_blocks, by_entries = product_by_blocks(device, a, b, sizes), CsrProduct(device, a, b)
        if by_blocks.pattern is None:
            print(f"{what:50} is not computed by blocks", flush=True)
            continue
        yield compare(device, what, partial(product_by_blocks, device, a, b, sizes),
                      partial(CsrProduct, device, a, b), peer_name="entries")  # fmt: skip
        yield compare(device, f"{what}, other values", partial(by_blocks.update, a, b),
                      partial(by_entries.update, a, b), peer_name="entries")  # fmt: skip


def product_by_blocks(device: Device, a: Csr, b: Csr, sizes: tuple[int, int, int]) -> CsrProduct:
    """Find the blocks of two matrices, of ``sizes[:2]`` and of ``sizes[1:]``, and multiply them."""
    patterns = block_pattern(device, a, sizes[:2]), block_pattern(device, b, sizes[1:])
    return CsrProduct(device, a, b, patterns)


def matrices(device: Device) -> Iterator[Row]:
    folder = Path(os.environ.get("GSPARSE_MATRICES", "../shared/matrices"))
    for path in sorted(folder.glob("*.npz")):
        S = sp.csr_array(sp.load_npz(path))
        if S.shape[0] != S.shape[1]:
            continue
        S = S if S.dtype.kind in "fc" else S.astype(np.float64)
        if np.diff(S.indptr)[S.indices].sum(dtype=np.int64) > MAX_PRODUCTS:
            print(f"{path.stem}: left out, more than {MAX_PRODUCTS} products", flush=True)
            continue
        S.sum_duplicates()
        A, P = GpuSparseMatrix(S, device=device), peer_of(device, S)
        yield multiply(device, f"A @ A, {path.stem}", (A, A), (P, P))


def graphs(device: Device) -> Iterator[Row]:
    for scale in (12, 14, 16, 18) if device.kind == "gpu" else ():
        data, indices, indptr, shape = rmat(scale, 8)
        S = sp.csr_array((data, indices, indptr), shape=shape)
        A, P = GpuSparseMatrix(S, device=device), peer_of(device, S)
        yield multiply(device, f"A @ A, R-MAT {scale}", (A, A), (P, P))


SECTIONS = {
    "operations": operations, "results": results, "edits": edits, "products": products, "blocks": blocks,
    "matrices": matrices, "graphs": graphs,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="write all rows to this file, too")
    options = parser.parse_args()
    device, rows = get_device(options.device), {}
    for name in options.sections:
        with device.active():
            rows[name] = list(SECTIONS[name](device))
        if name != "results" and any(math.isfinite(row["ratio"]) for row in rows[name]):
            conclude(name, rows[name], GOALS[device.kind])
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
