"""Time every launch of a product with dense columns on a GPU: ``python asv_bench/measure_columns.py NAME ...``.

NAME is a problem of ``gsparse bench``. For each number of columns and each layout of X, a line shows the median time of
the plan's launch and of the fastest one. The constants of gsparse/plan/columns.py were chosen by such figures. A launch
is named by column lanes x loads of a lane x entry lanes / length of a long row.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from gsparse import GpuSparseMatrix
from gsparse.bench.columns import with_columns
from gsparse.bench.peers import LoadedMatrix, load
from gsparse.bench.problems import find_problem
from gsparse.bench.timing import GpuClock, medians
from gsparse.device.select import get_device
from gsparse.formats.launch import Panel, PanelLaunch
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu.launch import loads_choices
from gsparse.kernels.gpu.spmm import panel_of

# The row lengths, tried one by one, from which on a launch cuts rows into chunks.
LIMITS = (1024, 256, 64, 32)
REPEATS = 15


def launches(panel: Panel, lanes: int, value_bytes: int) -> Iterator[PanelLaunch]:
    """Yield the launches that may be the best for a panel: those that cover all of its columns, or half, at once."""
    packs = -(-panel.num_columns // panel.pack)
    widest = min(1 << (packs - 1).bit_length(), 2 * lanes)
    for loads, column_lanes in product(loads_choices(value_bytes, panel.pack), (1, 2, 4, 8, 16, 32)):
        if loads * column_lanes not in (widest, widest // 2):
            continue
        for entry_lanes in (n for n in (1, 2, 4, 8, 16) if n * column_lanes <= lanes):
            yield from (PanelLaunch(panel.pack, loads, column_lanes, entry_lanes, limit) for limit in LIMITS)


def products(loaded: LoadedMatrix) -> Iterator[tuple[str, PanelLaunch | None, Callable[[], Any]]]:
    """Yield the layout of X, the launch (None for the plan's) and the product, which returns Y."""
    device, dtype = loaded.device, loaded.dtype
    A = GpuSparseMatrix(loaded.arrays[:3], shape=loaded.shape, device=device)
    prepared = A._prepared()[0]
    stored = prepared.columns_stored(dtype, dtype)
    for layout, order in (("row-major", "C"), ("column-major", "F")):
        X = device.xp.asarray(loaded.x, order=order)
        Y = device.xp.empty((loaded.shape[0], loaded.columns), dtype, order=order)
        yield layout, None, partial(A.matmat, X, out=Y)
        for launch in launches(panel_of(X), device.lanes, dtype.itemsize):
            kernel = kernels_of(device).spmm.csr_spmm(
                device, stored, dtype, lambda panel, launch=launch: launch, prepared.structure.sparsity.survey
            )
            yield layout, launch, partial(run, kernel, X, Y)


def run(kernel: Callable[..., Any], X: Any, Y: Any) -> Any:
    kernel(X, Y, Y.dtype.type(1), Y.dtype.type(0), False)
    return Y


def name_of(launch: PanelLaunch) -> str:
    return f"{launch.column_lanes}x{launch.loads}x{launch.entry_lanes}/{launch.long_length}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--columns", type=int, nargs="+", default=[2, 8, 32, 128])
    parser.add_argument("--dtype", default="float64")
    options = parser.parse_args()
    device = get_device("gpu")
    clock = GpuClock(device.xp)
    for name, count in product(options.names, options.columns):
        cases = list(products(with_columns(load(find_problem(name), device, options.dtype), count)))
        times = medians({i: clock.kernel_sampler(call) for i, (_, _, call) in enumerate(cases)}, REPEATS)
        for layout in ("row-major", "column-major"):
            own = next(i for i, case in enumerate(cases) if case[:2] == (layout, None))
            best = min((i for i, case in enumerate(cases) if case[0] == layout and case[1]), key=times.__getitem__)
            plan, fastest = 1e6 * times[own], 1e6 * times[best]
            print(
                f"{name} x {count}, {layout}: plan {plan:.1f} us, {name_of(cases[best][1])} {fastest:.1f} us, "
                f"{plan / fastest:.2f} times as long",
                flush=True,
            )
        del cases
        clock.recycle()


if __name__ == "__main__":
    main()
