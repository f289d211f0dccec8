"""List the kernels of an operation on a GPU, the longest in all first: ``python asv_bench/profile_kernels.py setup``.

    setup       amg(A): the set-up of multigrid
    update      M.update(A): new values on the same structure
    product     A @ A
    transpose   A.T.tocsr()

The matrix is the 7-point Laplacian of a cube with ``--points`` points a side (200 by default), or each of the files of
``--matrix``, as `scipy.sparse.save_npz` writes them. With ``--tetrahedra CELLS``, it is the elasticity of CELLS³ cubes
that are divided into tetrahedra, with nodes in random order and six rigid body modes. PyTorch's profiler records the
kernels, those of CuPy as well. A line has the milliseconds of all launches of a kernel, their number and the
microseconds of one. The last lines compare the sum with the time of the operation: the rest is spent on launching
kernels and reading results.

With ``--waits``, it also lists where the host waits for the GPU, with the number of times: each line names the
functions that lead there, the innermost first. With ``--memory``, it lists what lies in the memory of the GPU at the
peak of an operation, in multiples of the matrix, by the functions that allocated it.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.sparse as sp
from elliptic_problems import poisson
from tetrahedra import tetrahedral_elasticity

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device, HostCounts
from gsparse.device.select import get_device
from gsparse.linalg import amg, rigid_body_modes

ROWS = 30
# The functions in which the host waits for the device, and the number of functions of a line that lead to one.
WAITING = {
    Device: ("synchronize", "download", "download_vector", "read_async"),
    HostCounts: ("read", "read_value", "read_flag"),
}
CALLERS = 5


def problems(points: int, cells: int | None, files: list[Path]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Make the name of each problem, its matrix, and the options with which multigrid is set up for it."""
    if cells is not None:
        S, coordinates = tetrahedral_elasticity(cells)
        options = {"B": rigid_body_modes(coordinates), "block_size": 3}
        yield f"tetrahedra, {cells}³ cubes", S.tocsr(), options
        return
    for path in files:
        yield path.stem, sp.csr_array(sp.load_npz(path)), {}
    if not files:
        yield f"7-point {points}³", poisson(points, 7), {}


def operations(A: Any, options: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """Return a function for each operation that can be profiled."""
    hierarchy: list[Any] = []

    def update() -> Any:
        if not hierarchy:
            hierarchy.append(amg(A, **options))
        return hierarchy[0].update(A)

    return {"setup": lambda: amg(A, **options), "update": update, "product": lambda: A @ A, "transpose": A.T.tocsr}


def profile(operation: Callable[[], Any], synchronize: Callable[[], None]) -> None:
    """Print the kernels of one call, after two calls that compile what it needs."""
    profiler: Any = import_module("torch.profiler")
    for _ in range(2):
        operation()
    synchronize()
    begin = time.perf_counter()
    operation()
    synchronize()
    seconds = time.perf_counter() - begin
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as recorded:
        operation()
        synchronize()
    rows = [(event.key, event.count, event.self_device_time_total) for event in recorded.key_averages()]
    rows.sort(key=lambda row: -row[2])
    for name, count, total in rows[:ROWS]:
        print(f"{1e-3 * total:8.2f} ms  {count:5d} x {total / max(count, 1):8.1f} us  {name[:100]}")
    print(f"{1e-3 * sum(row[2] for row in rows):8.2f} ms  {sum(row[1] for row in rows):5d} kernels and copies in all")
    print(f"{1e3 * seconds:8.2f} ms  the operation without the profiler")


@contextmanager
def recorded_waits(device: Device) -> Iterator[Counter[str]]:
    """Count how often the host waits for the device in the block, by the functions that lead there."""
    counts, depth = Counter[str](), [0]

    def recording(wait: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*args: Any, **options: Any) -> Any:
            if not depth[0]:  # one of these functions may call another one
                counts[innermost_functions()] += 1
            depth[0] += 1
            try:
                return wait(*args, **options)
            finally:
                depth[0] -= 1

        return waits

    with ExitStack() as stack:
        for base, names in WAITING.items():
            owner = type(device) if base is Device else base
            for name in names:
                stack.enter_context(patch.object(owner, name, recording(getattr(owner, name))))
        yield counts


@contextmanager
def recorded_memory() -> Iterator[Counter[str]]:
    """Find what is allocated in the block, and not freed, when there is the most of it: bytes by the functions."""
    cupy = import_module("cupy")
    blocks, most, now, peak = dict[int, tuple[str, int]](), [0], [0], Counter[str]()

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]
        name = "recorded memory"

        def malloc_postprocess(self, **options: Any) -> None:
            blocks[options["pmem_id"]] = innermost_functions(), options["mem_size"]
            now[0] += options["mem_size"]
            if now[0] > most[0]:
                most[0] = now[0]
                peak.clear()
                for name, size in blocks.values():
                    peak[name] += size

        def free_postprocess(self, **options: Any) -> None:
            if blocks.pop(options["pmem_id"], None):
                now[0] -= options["mem_size"]

    with Hook():
        yield peak


def innermost_functions() -> str:
    """Return the functions of gsparse that are being called, the innermost first, without those of its devices."""
    frames = [f for f in traceback.extract_stack() if "gsparse" in Path(f.filename).parts]
    names = [f"{Path(f.filename).stem}.{f.name}" for f in frames if Path(f.filename).parent.name != "device"]
    return " < ".join(names[: -CALLERS - 1 : -1])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", nargs="*", default=["setup"], metavar="OPERATION")
    parser.add_argument("--points", type=int, default=200, help="points in each direction (default: %(default)s)")
    parser.add_argument(
        "--tetrahedra", type=int, metavar="CELLS", help="cubes in each direction, 79 for 1.5 million rows"
    )
    parser.add_argument("--matrix", type=Path, nargs="*", default=[], help="files of matrices")
    parser.add_argument("--waits", action="store_true", help="list where the host waits for the GPU")
    parser.add_argument("--memory", action="store_true", help="list what lies in memory at the peak")
    options = parser.parse_args()
    device = get_device("gpu")
    for problem, S, of_amg in problems(options.points, options.tetrahedra, options.matrix):
        A = GpuSparseMatrix(S if S.dtype.kind in "fc" else S.astype(np.float64), device=device)
        if "B" in of_amg:
            of_amg["B"] = device.upload(of_amg["B"])
        known = operations(A, of_amg)
        for name in options.operations:
            if name not in known:
                parser.error(f"no operation {name}; there are {', '.join(known)}")
            print(f"--- {name}, {problem}")
            profile(known[name], device.synchronize)
            if options.waits:
                with recorded_waits(device) as waits:
                    known[name]()
                for callers, count in waits.most_common():
                    print(f"{count:5d}  {callers}")
                print(f"{waits.total():5d}  waits in all")
            if options.memory:
                with recorded_memory() as peak:
                    known[name]()
                matrix = A._prepared()[0].csr.nbytes
                for callers, size in peak.most_common(ROWS):
                    print(f"{size / matrix:8.3f}  {callers}")
                print(f"{peak.total() / matrix:8.3f}  times the matrix in all")


if __name__ == "__main__":
    main()
