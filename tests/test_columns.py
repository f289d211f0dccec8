"""Products with several dense columns on a GPU: every division of the work, every layout, and the choice."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from asv_bench.measure_columns import products
from gsparse import GpuSparseMatrix
from gsparse.bench.check import ExactProduct
from gsparse.bench.columns import with_columns
from gsparse.bench.peers import load
from gsparse.bench.problems import Problem, stencil
from gsparse.device.base import Device
from gsparse.formats import RowPattern
from gsparse.formats.launch import Panel, PanelLaunch
from gsparse.formats.row_stats import RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu.launch import loads_choices
from gsparse.kernels.gpu.spmm import panel_of
from gsparse.plan.columns import plan_columns
from tests.support import (
    DTYPES,
    INDEX_DTYPES,
    STRUCTURES,
    assert_product,
    from_lengths,
    host,
    on_device,
    random_values,
    with_types,
)

LAYOUTS = {
    "row_major": lambda xp, shape, dtype: xp.empty(shape, dtype),
    "column_major": lambda xp, shape, dtype: xp.empty(shape, dtype, order="F"),
    "strided": lambda xp, shape, dtype: xp.empty((2 * shape[0], 3 * shape[1]), dtype)[::2, ::-3],
    "unaligned": lambda xp, shape, dtype: xp.empty((shape[0], shape[1] + 1), dtype)[:, 1:],
}


@pytest.fixture
def gpu(gpu_device: Device) -> Device:
    """Return a GPU: the CPU divides columns among threads in one way only."""
    return gpu_device


def launches(lanes: int) -> list[PanelLaunch]:
    """Return launches of every kind; the layout of X then sets `columns_per_load`, and limits `loads`."""
    shapes = ((1, 1), (1, lanes), (2, 1), (4, 2), (8, 1), (8, lanes // 8), (lanes, 1))
    return [
        PanelLaunch(1, loads, columns, entries, limit, by_length=limit == 64)
        for columns, entries in shapes
        for loads, limit in zip((1, 2, 4), (16, 64, 1024), strict=True)
    ]


class WorkerProducts:
    """Products of one matrix with any launch."""

    def __init__(self, device: Device, S: Any) -> None:
        self.device, self.prepared = device, GpuSparseMatrix(S, device=device)._prepared()[0]

    def __call__(
        self, launch: PanelLaunch, X: Any, Y: Any, layouts: tuple[str, str] = ("row_major",) * 2, **scalars: Any
    ) -> Any:
        """Return alpha·A·X + beta·Y as a new host array; X and Y have these layouts on the device."""

        def choose(panel: Panel) -> PanelLaunch:
            return replace(
                launch, columns_per_load=panel.pack, loads=min(launch.loads, loads_choices(X.itemsize, panel.pack)[-1])
            )

        survey = self.prepared.structure.sparsity.survey
        multiply = kernels_of(self.device).spmm.csr_spmm(self.device, self.prepared.csr, X.dtype, choose, survey)
        device_x, device_y = (self._laid_out(values, layout) for values, layout in zip((X, Y), layouts, strict=True))
        alpha, beta = (X.dtype.type(scalars.get(*default)) for default in (("alpha", 1), ("beta", 0)))
        multiply(device_x, device_y, alpha, beta, scalars.get("conjugate", False))
        return host(device_y)

    def _laid_out(self, values: Any, layout: str) -> Any:
        array = LAYOUTS[layout](self.device.xp, values.shape, values.dtype)
        array[...] = on_device(self.device, values)
        return array


@pytest.mark.parametrize("layout", ["row_major", "column_major"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_launch_is_right_for_difficult_structures(
    gpu: Device, structure: str, layout: str, rng: np.random.Generator
) -> None:
    S = STRUCTURES[structure](rng)
    multiply = WorkerProducts(gpu, S)
    X, Y = random_values(rng, (S.shape[1], 6), float), np.full((S.shape[0], 6), np.nan)
    for launch in launches(gpu.lanes):
        assert_product(multiply(launch, X, Y, (layout, layout)), S, X)


@pytest.mark.parametrize("k", [1, 2, 3, 8, 31, 132, 260])
def test_any_number_of_columns_is_right(gpu: Device, k: int, rng: np.random.Generator) -> None:
    for dtype in (np.float32, np.float64):
        S = with_types(STRUCTURES["one dense row"](rng), dtype, np.int32, rng)
        multiply = WorkerProducts(gpu, S)
        X, Y = random_values(rng, (S.shape[1], k), dtype), np.full((S.shape[0], k), np.nan, dtype)
        for layout in ("row_major", "column_major"):
            panel = Panel(k, by_columns=layout == "column_major")
            plan = plan_columns(multiply.prepared.stats, panel, lanes=gpu.lanes, value_bytes=X.itemsize)
            assert_product(multiply(plan.launch, X, Y, (layout, layout)), S, X)


@pytest.mark.parametrize("index", INDEX_DTYPES, ids=str)
@pytest.mark.parametrize("stored", DTYPES, ids=str)
@pytest.mark.parametrize("launch", [PanelLaunch(1, 2, 2, 2), PanelLaunch(1, 1, 4, 1, 16)], ids=str)
def test_every_type_scales_adds_and_conjugates(
    gpu: Device, launch: PanelLaunch, stored: Any, index: Any, rng: np.random.Generator
) -> None:
    S = with_types(STRUCTURES["ragged, 1001 rows"](rng), stored, index, rng)
    multiply = WorkerProducts(gpu, S)
    for dtype in (d for d in DTYPES if np.can_cast(stored, d) and d.kind == stored.kind):
        X, Y = (random_values(rng, (n, 4), dtype) for n in S.shape[::-1])
        for layout in LAYOUTS:
            got = multiply(launch, X, Y, (layout, layout), alpha=-2, beta=0.5, conjugate=True)
            assert_product(got, S.conj(), X, alpha=-2, beta=0.5, y=Y)


@pytest.mark.parametrize("x_layout", LAYOUTS)
@pytest.mark.parametrize("y_layout", LAYOUTS)
def test_x_and_y_may_have_different_memory_layouts(
    gpu: Device, x_layout: str, y_layout: str, rng: np.random.Generator
) -> None:
    for dtype, k in ((np.float32, 12), (np.float32, 6), (np.float64, 5), (np.complex128, 3)):
        S = with_types(STRUCTURES["empty rows"](rng), dtype, np.int32, rng)
        X, Y = (random_values(rng, (n, k), dtype) for n in S.shape[::-1])
        for launch in (PanelLaunch(1, 1, 2, 4), PanelLaunch(1, 4, 2, 1, 16)):
            got = WorkerProducts(gpu, S)(launch, X, Y, (x_layout, y_layout), beta=1)
            assert_product(got, S, X, beta=1, y=Y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_and_inf_reach_only_the_rows_and_columns_that_read_them(
    gpu: Device, dtype: Any, rng: np.random.Generator
) -> None:
    S = with_types(from_lengths(rng.integers(0, 9, 203), 50, rng), dtype, np.int32, rng)
    X = random_values(rng, (50, 8), dtype)
    X[[0, 7, 11], [3, 0, 7]] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = S @ X
        multiply = WorkerProducts(gpu, S)
        for launch in launches(gpu.lanes):
            got = multiply(launch, X, np.full((203, 8), np.nan, dtype))
            np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
            assert_product(got, S, X, where=np.isfinite(expected))


def test_products_have_the_same_bits_every_time(gpu: Device, rng: np.random.Generator) -> None:
    S = STRUCTURES["one dense row"](rng)
    X = random_values(rng, (S.shape[1], 12), float)
    for launch in launches(gpu.lanes):
        first, second = (WorkerProducts(gpu, S)(launch, X, np.full((S.shape[0], 12), np.nan)) for _ in range(2))
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("launch", [PanelLaunch(1, 1, 2), PanelLaunch(1, 1, 2, 1, 32)], ids=str)
def test_more_columns_than_a_launch_can_take_are_multiplied_in_slabs(
    gpu: Device, launch: PanelLaunch, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gsparse.kernels.gpu.spmm.MAX_GRID_Y", 3)
    monkeypatch.setattr("gsparse.kernels.gpu.spmm.MAX_PARTIAL_BYTES", 100)
    S = STRUCTURES["long rows"](rng)
    X, Y = random_values(rng, (S.shape[1], 70), float), np.full((S.shape[0], 70), np.nan)
    for layout in ("row_major", "column_major"):
        assert_product(WorkerProducts(gpu, S)(launch, X, Y, (layout, layout)), S, X)


def test_integers_wrap_as_in_numpy(gpu: Device, rng: np.random.Generator) -> None:
    S = with_types(STRUCTURES["ragged, 1001 rows"](rng), np.int64, np.int32, rng)
    X = rng.integers(-(2**62), 2**62, (S.shape[1], 6))
    for launch in launches(gpu.lanes)[::3]:
        np.testing.assert_array_equal(WorkerProducts(gpu, S)(launch, X, np.full((S.shape[0], 6), -7)), S @ X)


def repeating(num_patterns: int, dtype: Any, rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix of `num_patterns` distinct short rows, counted by their offsets and values."""
    lengths = rng.integers(1, 7, num_patterns)
    lengths[0] = 0
    offsets = [np.sort(rng.choice(20, length, replace=False)) for length in lengths]
    values = [random_values(rng, length, dtype) for length in lengths]
    follows = rng.permutation(np.repeat(np.arange(num_patterns), 8))
    indptr = np.concatenate([[0], np.cumsum(lengths[follows])])
    indices = np.concatenate([row + offsets[code] for row, code in enumerate(follows)])
    data = np.concatenate([values[code] for code in follows])
    return sp.csr_array((data, indices, indptr), shape=(follows.size, follows.size + 20))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_patterns", [7, 300])
def test_rows_that_share_all_entries_are_read_once(
    gpu: Device, num_patterns: int, dtype: Any, rng: np.random.Generator
) -> None:
    S = repeating(num_patterns, dtype, rng)
    A = GpuSparseMatrix(S, device=gpu, format="row_pattern", expected_products=10**9)
    stored = A._prepared()[0].columns_stored(A.dtype, A.dtype)
    assert isinstance(stored, RowPattern)
    assert stored.codes.itemsize == (1 if num_patterns < 256 else 2)
    assert f"{stored.num_patterns} row patterns for 8 columns" in str(A.plan_for(8))
    for k, layout in product((2, 5, 8, 33), ("row_major", "column_major")):
        X = LAYOUTS[layout](np, (S.shape[1], k), dtype)
        X[...] = random_values(rng, X.shape, dtype)
        assert_product(A @ X, S, X)
        assert_product(A.conj() @ X, S.conj(), X)


@pytest.mark.parametrize(("compress", "dtype"), [(True, "float32"), ("values", "float32"), ("columns", "float64")])
def test_values_are_stored_in_single_precision_only_where_values_may_be_compressed(
    gpu: Device, compress: Any, dtype: str, rng: np.random.Generator
) -> None:
    S = STRUCTURES["ragged, 1001 rows"](rng)
    S.data = S.data.astype(np.float32).astype(np.float64)
    A = GpuSparseMatrix(S, device=gpu, expected_products=10**9, compress=compress, format="csr")
    assert A._prepared()[0].columns_stored(A.dtype, A.dtype).data.dtype == dtype
    X = random_values(rng, (S.shape[1], 8), float)
    assert_product(A @ X, S, X)


@pytest.mark.parametrize(("columns", "dtype"), [(1, "float64"), (6, "float32"), (64, "float32"), (33, "float64")])
def test_every_launch_that_the_benchmark_tries_is_right(gpu: Device, columns: int, dtype: str) -> None:
    loaded = with_columns(load(Problem("stencil", lambda xp: stencil(5, 27, xp=xp)), gpu, dtype), columns)
    exact = ExactProduct(loaded)
    tried = list(products(loaded))
    assert len(tried) > 8
    for layout, launch, multiply in tried:
        assert exact.compare(multiply())[1], (layout, launch)


# ------------------------------------------------------------------- the choice

EVEN = RowStats(10**6, 10**6, 7 * 10**6, 5, 7, 7.0, 0.2, 0, 7 * 10**6)
LONG = replace(EVEN, num_rows=4000, nnz=1_600_000, max_length=420, mean_length=400.0, blocked_stored=1_650_000)
# Of a web graph: most rows short, few of a hundred thousand entries.
SKEWED = replace(EVEN, max_length=200_000, std_length=900.0, num_empty=300_000, blocked_stored=80 * 10**6)
FEW = replace(EVEN, num_rows=36, nnz=612_000, max_length=17_000, mean_length=17_000.0, blocked_stored=612_000)
OUTLIER = replace(EVEN, max_length=100_000, blocked_stored=7_400_000)
EVERY_PANEL = [
    Panel(k, pack, by_columns)
    for k in (1, 2, 3, 4, 7, 8, 16, 33, 64, 100, 128, 1000, 10_000)
    for pack, by_columns in ((1, False), (2, False), (4, False), (1, True))
    if k % pack == 0
]


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("stats", [EVEN, LONG, FEW, SKEWED, OUTLIER, replace(EVEN, nnz=0)])
def test_every_choice_can_be_launched(stats: RowStats, lanes: int) -> None:
    for panel, value_bytes in product(EVERY_PANEL, (4, 8, 16)):
        if panel.pack * value_bytes > 16:
            continue  # no layout of X allows such a load
        launch = plan_columns(stats, panel, lanes=lanes, value_bytes=value_bytes).launch
        for power in (launch.column_lanes, launch.entry_lanes):
            assert power & (power - 1) == 0 < power
        assert launch.column_lanes * launch.entry_lanes <= lanes
        assert launch.loads in loads_choices(value_bytes, panel.pack)
        assert launch.long_length in (32, 64, 1024)


def test_entries_of_a_table_are_not_shared_and_are_read_for_narrower_tiles() -> None:
    plain, table = ({"lanes": 32, "value_bytes": 8, "num_patterns": n} for n in (0, 27))
    points = replace(EVEN, nnz=27 * 10**6, max_length=27, mean_length=27.0)
    assert plan_columns(points, Panel(4, 2), **plain).launch.entry_lanes > 1
    assert plan_columns(points, Panel(4, 2), **table).launch.entry_lanes == 1
    assert plan_columns(points, Panel(128, 2), **plain).launch.tile == 128
    assert plan_columns(points, Panel(128, 2), **table).launch.tile == 64
    # With too few rows to fill the device, lanes share rows nevertheless.
    assert plan_columns(replace(points, num_rows=1000, nnz=27_000), Panel(4, 2), **table).launch.entry_lanes > 1


def test_rows_much_longer_than_others_are_cut_into_chunks() -> None:
    for panel in EVERY_PANEL:
        limits = {
            name: plan_columns(stats, panel, lanes=32, value_bytes=8).launch.long_length
            for name, stats in (("even", EVEN), ("skewed", SKEWED), ("outlier", OUTLIER), ("few", FEW))
            if panel.pack < 4
        }
        assert not limits or limits.pop("even") == 1024
        assert all(limit <= 64 for limit in limits.values())
    assert "row lengths vary" in str(plan_columns(OUTLIER, Panel(8, 2), lanes=32, value_bytes=8))


@pytest.mark.parametrize(
    ("stats", "panel", "shape"),
    [
        (EVEN, Panel(1), (1, 1, 1)),
        (EVEN, Panel(2, 2), (1, 1, 1)),
        (EVEN, Panel(8, 2), (2, 2, 1)),
        (EVEN, Panel(32, 2), (8, 2, 1)),
        (EVEN, Panel(256, 2), (32, 2, 1)),
        (EVEN, Panel(3), (2, 2, 1)),
        (EVEN, Panel(12), (8, 2, 1)),
        (EVEN, Panel(33), (4, 2, 1)),
        (EVEN, Panel(64, 1, True), (2, 4, 1)),
        (LONG, Panel(2, 2), (1, 1, 16)),
        (LONG, Panel(16, 2), (8, 1, 4)),
        (LONG, Panel(256, 2), (8, 2, 4)),
    ],
)
def test_lanes_take_columns_first_and_then_entries_of_long_rows(
    stats: RowStats, panel: Panel, shape: tuple[int, int, int]
) -> None:
    launch = plan_columns(stats, panel, lanes=32, value_bytes=8).launch
    assert (launch.column_lanes, launch.loads, launch.entry_lanes) == shape


def test_panel_of_derives_the_layout_from_strides_and_alignment() -> None:
    X = np.zeros((6, 12), np.float32)
    assert panel_of(X) == Panel(12, 4)
    assert panel_of(X[:, 2:8]) == Panel(6, 2)
    assert panel_of(X[:, 1:9]) == Panel(8, 1)
    assert panel_of(X[:, ::2]) == Panel(6, 1)
    assert panel_of(np.asfortranarray(X)) == Panel(12, 1, True)
    assert panel_of(X.astype(np.complex128)) == Panel(12, 1)
    assert panel_of(X[:, :1]) == Panel(1, 1)


@pytest.mark.parametrize("structure", ["ragged, 1001 rows", "no rows", "no columns", "long rows"])
def test_one_column_is_multiplied_as_a_vector(device: Device, structure: str, rng: np.random.Generator) -> None:
    S = STRUCTURES[structure](rng)
    A, x = GpuSparseMatrix(S, device=device), on_device(device, random_values(rng, S.shape[1], float))
    expected = host(A @ x)
    wide = device.xp.zeros((x.size, 3))
    wide[:, 1] = x
    for X in (x.reshape(-1, 1), x.reshape(1, -1).T, wide[:, 1:2], wide[::-1, 1:2][::-1]):
        for _ in range(2):
            before = A.stats.products
            for Y in (A @ X, A.matmat(X), A.dot(X)):
                assert type(Y) is type(x)
                assert_product(host(Y), S, host(X))
            assert A.stats.products == before + 3
        np.testing.assert_array_equal(host(A @ X)[:, 0], expected)
