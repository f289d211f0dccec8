"""Time products with a matrix and with its transpose: ``python asv_bench/measure_transposed.py``.

The sections are:

tall
    ``A.T @ X`` of tall matrices on the CPU beside SciPy, which uses one thread. The matrices have about 20 entries in a
    row: "text" has columns by Zipf's law, as words have, and "uniform" random ones. Each figure is the median of
    several products in milliseconds, and SciPy's time over ours. ``--threads 1,2`` names the numbers of our threads.
programs
    Constraint matrices of linear and quadratic programs, whose solvers multiply by A and by its transpose in turn. On
    a GPU, the peer is the best algorithm of cuSPARSE for each direction, in CUDA graphs; on a CPU, it is SciPy, and MKL
    where that is installed. A peer stores both A and its transpose by rows. The matrices are in the folder that
    ``GSPARSE_MATRICES`` names. The bytes are those of all arrays that are kept for both directions; those of a peer do
    not include its workspaces.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.bench import cpu_peers, gpu_peers
from gsparse.bench.cusparse import CusparseError
from gsparse.bench.peers import LoadedMatrix, Prepared, SkippedError, load
from gsparse.bench.problems import Arrays, Problem, application_matrix
from gsparse.bench.records import geometric_mean
from gsparse.bench.timing import GpuClock, Sampler, call_sampler, medians
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.kernels.cpu.compiling import HandOut

SECTIONS = ("tall", "programs")
ENTRIES = 20
# The first four are linear programs (Netlib and MIPLIB), the last two are quadratic ones (Maros and Meszaros).
PROGRAMS = ("fast0507", "lp_maros_r7", "lp_stocfor3", "lp_fit2p", "CONT-300_A", "BOYD2_A")
DIRECTIONS = ("A @ x", "A.T @ y", "in turn")


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


def measure_tall(options: argparse.Namespace) -> None:
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


# ------------------------------------------------------------------------------------------------------------ programs


def load_matrix(name: str, matrix: sp.csr_array, device: Device) -> LoadedMatrix:
    """Return a matrix on the device, and a vector that it is multiplied by."""
    parts = (matrix.data, matrix.indices, matrix.indptr)
    problem = Problem(name, lambda xp: Arrays(*map(xp.asarray, parts), matrix.shape))
    return load(problem, device, matrix.dtype)


def prepared_peers(loaded: LoadedMatrix) -> dict[str, Prepared]:
    """Return the products of cuSPARSE on a GPU, and those of every library on a CPU, by name."""
    libraries = gpu_peers if loaded.device.kind == "gpu" else cpu_peers
    products = {}
    for peer in libraries.library_peers(loaded):
        if loaded.device.kind == "gpu" and peer.kind != "vendor":
            continue
        try:
            products[peer.what] = peer.prepare()
        except (SkippedError, CusparseError) as error:
            print(f"  {peer.what} is left out: {error}")
    return products


def our_products(S: sp.csr_array, pair: list[LoadedMatrix]) -> tuple[list[Callable[[], Any]], int]:
    """Return our products with A and with its transpose, and the bytes of all arrays that are kept for them."""
    device = pair[0].device
    outputs = [device.empty(loaded.shape[0], loaded.dtype) for loaded in pair]

    def build() -> list[Callable[[], Any]]:
        A = gsparse.GpuSparseMatrix(S, device=device)
        products = [
            partial(matrix.matvec, loaded.x, out=y) for matrix, loaded, y in zip((A, A.T), pair, outputs, strict=True)
        ]
        for product in products:
            product()
        return products

    build()  # compiles the kernels
    return with_held_bytes(device, build)


def with_held_bytes(device: Device, build: Callable[[], Any]) -> tuple[Any, int]:
    """Return what `build` returns, and the bytes that it has allocated and still holds."""
    gc.collect()
    if device.kind == "gpu":
        pool = device.xp.get_default_memory_pool()
        before = pool.used_bytes()
        built = build()
        device.synchronize()
        gc.collect()
        return built, int(pool.used_bytes() - before)
    tracemalloc.start()
    built = build()
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return built, held


def microseconds(calls: dict[str, Callable[[], Any]], device: Device, repeats: int) -> dict[str, float]:
    """Return the median time of each call in microseconds: in CUDA graphs on a GPU. The calls take turns."""
    clock = GpuClock(device.xp) if device.kind == "gpu" else None
    samplers: dict[str, Sampler] = {
        key: call_sampler(call, device.synchronize) if clock is None else clock.kernel_sampler(call)
        for key, call in calls.items()
    }
    times = medians(samplers, repeats)
    for key, outcome in times.items():
        if isinstance(outcome, Exception):
            raise RuntimeError(f"{key} cannot be timed") from outcome
    return {key: 1e6 * float(outcome) for key, outcome in times.items()}  # type: ignore[arg-type]


def in_turn(products: list[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a call of one product after the other."""
    return lambda: [product() for product in products]


def check(name: str, result: Any, exact: Any) -> None:
    """Raise an error if a product is wrong: a wrong one can be fast."""
    error = np.linalg.norm(np.asarray(result, float) - exact) / np.linalg.norm(exact)
    if not error < 1e-5:
        raise ArithmeticError(f"{name}: the product has the relative error {error:.1e}")


def measure_program(name: str, device: Device, dtype: str, repeats: int) -> dict[str, float]:
    """Print the figures of one matrix, and return the peer's over ours."""
    S = application_matrix(name).astype(dtype)
    pair = [load_matrix(name, matrix, device) for matrix in (S, sp.csr_array(S.T))]
    print(f"{name}: {S.shape[0]} x {S.shape[1]}, {S.nnz} entries, {dtype}")
    ours, our_bytes = our_products(S, pair)
    peers, peer_bytes = [], 0
    for matrix, loaded, product in zip((S, S.T), pair, ours, strict=True):
        exact = matrix @ device.download(loaded.x)
        check("gsparse", device.download(product()), exact)
        products = prepared_peers(loaded)
        calls = {what: prepared.launch or prepared.call for what, prepared in products.items()}
        times = microseconds(calls, device, repeats)
        best = min(times, key=times.__getitem__)
        check(best, (products[best].result or products[best].call)(), exact)
        peers.append((best, calls[best]))
        peer_bytes += products[best].nbytes - loaded.vector_bytes
    ratios = {"bytes": peer_bytes / our_bytes}
    rows = [*zip(DIRECTIONS, ours, peers, strict=False)]
    rows.append((DIRECTIONS[2], in_turn(ours), ("the two", in_turn([call for _, call in peers]))))
    for direction, our_call, (what, peer_call) in rows:
        times = microseconds({"gsparse": our_call, "peer": peer_call}, device, repeats)
        ratios[direction] = times["peer"] / times["gsparse"]
        print(f"  {direction:8} {times['gsparse']:11.2f} us; {what} {times['peer']:.2f} us ({ratios[direction]:.2f})")
    print(f"  {'bytes':8} {our_bytes:11,}   ; {peer_bytes:,} ({ratios['bytes']:.2f})", flush=True)
    return ratios


def measure_programs(options: argparse.Namespace) -> None:
    device = get_device(options.device)
    print(f"on {getattr(device, 'description', device.name)}")
    with device.active():
        ratios = [measure_program(name, device, options.dtype, options.repeats) for name in options.matrices.split(",")]
    for direction in (*DIRECTIONS, "bytes"):
        mean = geometric_mean(ratio[direction] for ratio in ratios)
        print(f"geometric mean of {len(ratios)} matrices, {direction}: the peer's over ours {mean:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=SECTIONS, help=f"any of {' '.join(SECTIONS)}; all by default")
    parser.add_argument("--repeats", type=int, default=7)
    of_tall = parser.add_argument_group("tall")
    of_tall.add_argument("--threads", default="1,2", help="numbers of threads (default: %(default)s)")
    of_tall.add_argument("--columns", default="4,8,30,64", help="numbers of columns of X (default: %(default)s)")
    of_tall.add_argument("--shape", default="200000,30000", help="of the matrices (default: %(default)s)")
    of_programs = parser.add_argument_group("programs")
    of_programs.add_argument("--device", default="auto")
    of_programs.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    of_programs.add_argument("--matrices", default=",".join(PROGRAMS), help="names (default: %(default)s)")
    options = parser.parse_args()
    unknown = [section for section in options.sections if section not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}: use {' '.join(SECTIONS)}")
    HandOut.num_first = 0  # The code for several threads is otherwise compiled after a hundred products.
    for section in options.sections:
        (measure_tall if section == "tall" else measure_programs)(options)


if __name__ == "__main__":
    main()
