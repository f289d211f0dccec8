"""Products with k dense columns: gsparse's choice for row-major and column-major X, and every other launch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import gsparse
from gsparse.bench.peers import SEED, LoadedMatrix, Peer, Prepared, set_threads
from gsparse.device.dtypes import Array
from gsparse.formats import Bsr, Csr, RowPattern
from gsparse.formats.launch import Panel, PanelLaunch
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu.expressions import loads_choices
from gsparse.kernels.gpu.panels import panel_of
from gsparse.kernels.set_up import Survey

__all__ = ["LAYOUTS", "column_peers", "launches", "with_columns"]

# The memory layouts of X and Y.
LAYOUTS = ("row-major", "column-major")

# The row lengths, tried one by one, from which on a launch cuts rows into chunks.
LIMITS = (1024, 256, 64, 32)


def with_columns(loaded: LoadedMatrix, columns: int) -> LoadedMatrix:
    """Return the loaded matrix with a row-major X of this many columns in place of x."""
    rng = loaded.device.xp.random.default_rng(SEED)
    X = (rng.random((loaded.shape[1], columns)) - 0.5).astype(loaded.dtype)
    return replace(loaded, name=f"{loaded.name} × {columns}", x=X)


def column_peers(loaded: LoadedMatrix, with_launches: Collection[str] = ()) -> Iterator[Peer]:
    """Yield gsparse's choice for a row-major X and for a column-major one, and on request every possible launch.

    Parameters
    ----------
    loaded : LoadedMatrix
        A matrix with an X of several columns.
    with_launches : collection of str
        The layouts, out of `LAYOUTS`, for which every launch is yielded too. Only GPUs have launches.
    """
    A = gsparse.GpuSparseMatrix(loaded.arrays[:3], shape=loaded.shape, device=loaded.device)
    xp, shape = loaded.device.xp, (loaded.shape[0], loaded.columns)
    panels: tuple[tuple[str, str, Array, Array], ...] = (
        ("", "plan", loaded.x, xp.empty(shape, loaded.dtype)),
        ("by columns", "layout", xp.asfortranarray(loaded.x), xp.empty(shape, loaded.dtype, order="F")),
    )
    for name, (layout, kind, X, Y) in zip(LAYOUTS, panels, strict=True):
        prepare = partial(_prepare_choice, loaded, A, X, Y)
        yield Peer(f"plan {layout}".strip(), kind, prepare, {"columns": loaded.columns}, set_threads)
        if name not in with_launches or loaded.device.kind != "gpu":
            continue
        panel, prepared = panel_of(X), A._prepared()[0]
        stored, survey = prepared.columns_stored(loaded.dtype, loaded.dtype), prepared.structure.survey
        for launch in launches(panel, loaded.device.lanes, loaded.dtype.itemsize):
            label = {"columns": loaded.columns, "format": "csr_spmm"}
            prepare = partial(_prepare_launch, loaded, stored, survey, X, Y, launch)
            yield Peer(name_of(launch, layout), "layout" if layout else "format", prepare, label)


def launches(panel: Panel, lanes: int, value_bytes: int) -> Iterator[PanelLaunch]:
    """Yield the launches that may be the best for a panel: those that cover all of its columns, or half, at once.

    `lanes` is the number of lanes of a warp, and `value_bytes` that of the bytes of a value.
    """
    packs = -(-panel.num_columns // panel.pack)
    widest = min(1 << (packs - 1).bit_length(), 2 * lanes)
    for loads, column_lanes in product(loads_choices(value_bytes, panel.pack), (1, 2, 4, 8, 16, 32)):
        if loads * column_lanes not in (widest, widest // 2):
            continue
        for entry_lanes in (n for n in (1, 2, 4, 8, 16) if n * column_lanes <= lanes):
            yield from (PanelLaunch(panel.pack, loads, column_lanes, entry_lanes, limit) for limit in LIMITS)


def name_of(launch: PanelLaunch, layout: str) -> str:
    """Return a launch's name in the table: column lanes x loads per lane x entry lanes / length of a long row.

    Examples
    --------
    >>> name_of(PanelLaunch(4, 2, 8, 1, 256), "by columns")
    '8x2x1/256, by columns'
    """
    name = f"{launch.column_lanes}x{launch.loads}x{launch.entry_lanes}/{launch.long_length}"
    return f"{name}, {layout}" if layout else name


def _prepare_choice(loaded: LoadedMatrix, A: Any, X: Array, Y: Array) -> Prepared:
    def launch() -> Any:
        return A.matmat(X, out=Y)

    launch()
    prepared, dtype, label = A._prepared()[0], loaded.dtype, {}
    if loaded.device.kind == "gpu" and loaded.columns > 1:
        label = {"format": name_of(prepared.columns_plan(panel_of(X), dtype, dtype).launch, "")}
    product = prepared.product(dtype, dtype) if loaded.columns == 1 else prepared.columns(dtype, dtype)
    return Prepared(lambda: A @ X, product.nbytes + loaded.vector_bytes, launch, result=launch, label=label)


def _prepare_launch(
    loaded: LoadedMatrix, stored: Csr | RowPattern | Bsr, survey: Survey, X: Array, Y: Array, launch: PanelLaunch
) -> Prepared:
    device, dtype = loaded.device, loaded.dtype
    multiply = kernels_of(device).csr_spmm(device, stored, dtype, lambda panel: launch, survey)
    one, zero = dtype.type(1), dtype.type(0)

    def run() -> Any:
        multiply(X, Y, one, zero, False)
        return Y

    run()
    return Prepared(run, int(stored.nbytes) + loaded.vector_bytes, run, result=run)
