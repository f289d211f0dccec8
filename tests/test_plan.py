"""The choice of a format, which is pure: statistics and storages in, one choice with its reason out."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.errors import FormatError
from gsparse.formats.costs import KernelModel
from gsparse.formats.launch import DEFAULT_THREADS_PER_BLOCK, THREADS_PER_BLOCK
from gsparse.formats.registry import Storage, find_format, names_of, register, unregister
from gsparse.formats.row_stats import MAX_PADDING, RowStats
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import EXPECTED_PRODUCTS, Candidate, choose_fastest, make_plan, sorted_by_time, threads_per_row
from gsparse.plan.cost_model import CPU_MODEL, GPU_MODEL
from gsparse.products import FORMATS
from tests.support import STRUCTURES, from_lengths

KERNELS = FORMATS[1:]
# Formats that are candidates for every matrix.
EVERYWHERE = tuple(name for name in KERNELS if name not in ("row_lanes", "row_pattern", "bsr"))
STENCIL = RowStats(
    num_rows=10**6,
    num_cols=10**6,
    nnz=6_940_000,
    min_length=4,
    max_length=7,
    mean_length=6.94,
    std_length=0.24,
    num_empty=0,
    blocked_stored=7 * 10**6,
    split_stored=7 * 10**6,
)
# Of a web graph: most rows short, few of a hundred thousand entries.
SKEWED = replace(
    STENCIL,
    nnz=20 * 10**6,
    min_length=0,
    max_length=200_000,
    mean_length=20.0,
    std_length=900.0,
    num_empty=300_000,
    blocked_stored=200 * 10**6,
    split_stored=40 * 10**6,
    num_long=2000,
    long_entries=9 * 10**6,
)
# More than 2**31 entries, and products that take seconds.
HUGE = replace(STENCIL, num_rows=10**9, num_cols=10**9, nnz=6_940_000_001, blocked_stored=7 * 10**9)
MATRICES = pytest.mark.parametrize("stats", [STENCIL, SKEWED, HUGE], ids=["stencil", "skewed", "huge"])
MODELS = pytest.mark.parametrize("model", [GPU_MODEL, CPU_MODEL], ids=["gpu", "cpu"])


def storages_of(
    stats: RowStats, *, pattern: bool = False, blocks: bool = False, lanes: bool = False
) -> dict[str, tuple[Storage, ...]]:
    """Return the storage of an uncompressed matrix in each format, as `gsparse.products.storage` would describe it."""
    places = {"ellpack": stats.num_rows * stats.max_length, "blocked_ellpack": stats.blocked_stored}
    storages = {}
    for name in EVERYWHERE:
        positions = places.get(name, stats.nnz)
        storages[name] = (Storage("int32", "float64", positions, 12 * positions + 4 * (stats.num_rows + 1)),)
    if lanes:
        storages["row_lanes"] = (Storage("uint16", "float64", stats.nnz, 10 * stats.nnz),)
    if pattern:
        storages["row_pattern"] = (Storage("27 rows", "27 rows", stats.nnz, stats.num_rows + 5000),)
    if blocks:
        storages["bsr"] = (Storage("int32 2x2", "float64", stats.nnz, 9 * stats.nnz + 4 * stats.num_rows),)
    return storages


def fits(name: str, stats: RowStats) -> bool:
    return find_format(name).fits(stats)


def plan_of(stats: RowStats, storages: Any = None, **options: Any) -> Any:
    machine = {"device": "gpu:0", "lanes": 32, "model": GPU_MODEL, "value_bytes": 8}
    return make_plan(stats, storages_of(stats) if storages is None else storages, **(machine | options))


# ------------------------------------------------------------------------------------------------------ row statistics


def test_the_typical_row_is_not_empty_and_is_longer_if_lengths_vary() -> None:
    even = replace(STENCIL, num_rows=100, num_empty=40, nnz=600, std_length=0.0)
    assert even.typical_length == 10
    assert replace(even, std_length=4.0).typical_length == 14
    assert replace(even, std_length=900.0).typical_length == 20  # (no more than twice the mean)
    assert replace(even, nnz=0, num_empty=100).typical_length == 0
    assert replace(even, nnz=5, num_empty=98).typical_length == 2.5
    assert replace(even, nnz=5, num_empty=99).typical_length == 5


def test_rows_are_sorted_only_if_slices_without_long_rows_still_pad_much() -> None:
    most = int(MAX_PADDING * STENCIL.nnz)
    padded = replace(STENCIL, blocked_stored=most + 1, split_stored=most - 99, long_entries=100)
    assert padded.wants_sorting
    for less in (0, 1):
        assert not replace(padded, blocked_stored=most - less).wants_sorting
        assert not replace(padded, long_entries=99 - less).wants_sorting
    assert not STENCIL.wants_sorting
    assert MAX_PADDING > 1  # (nothing stores less than its entries)


def test_the_share_of_busy_lanes_is_entries_over_positions() -> None:
    assert SKEWED.efficiency == 0.1
    assert replace(SKEWED, nnz=0, blocked_stored=0).efficiency == 1


# -------------------------------------------------------------------------------------------------- threads per row


@pytest.mark.parametrize("lanes", [32, 64])
def test_threads_per_row_is_a_power_of_two_between_two_and_a_warp(lanes: int) -> None:
    for mean in (0.0, 0.5, 3.0, 6.0, 11.9, 12.0, 100.0, 1e9):
        for rows in (0, 1, 1000, 10**6, 10**9):
            threads = threads_per_row(mean, lanes, rows)
            assert 2 <= threads <= lanes
            assert threads & (threads - 1) == 0


def test_threads_per_row_grow_with_row_length_and_for_few_rows() -> None:
    means = (1.0, 11.0, 12.0, 24.0, 48.0, 96.0, 192.0)
    assert [threads_per_row(mean, 32, 10**7) for mean in means] == [2, 2, 2, 4, 8, 16, 32]
    assert threads_per_row(64.0, 64, 100) == 64 > threads_per_row(64.0, 64, 10**7)
    assert threads_per_row(5.0, 64, 1) == 4  # no more than a row has entries


def test_threads_per_row_double_when_rows_are_twice_as_long() -> None:
    shortest = {threads: next(n for n in range(1, 999) if threads_per_row(n, 64) == threads) for threads in (4, 8, 16)}
    assert shortest[16] == 2 * shortest[8] == 4 * shortest[4]


def test_few_rows_get_enough_threads_to_fill_a_device() -> None:
    assert len({rows * threads_per_row(64.0, 64, rows) for rows in (2**11, 2**12, 2**13)}) == 1


# --------------------------------------------------------------------------------------------------------- the choice


@MODELS
@MATRICES
@pytest.mark.parametrize("products", [1, 10, 10_000])
@pytest.mark.parametrize("pattern", [True, False])
def test_the_fastest_candidate_is_chosen_and_the_reason_names_the_next(
    stats: RowStats, model: Any, products: int, pattern: bool
) -> None:
    plan = plan_of(stats, storages_of(stats, pattern=pattern), model=model, expected_products=products)

    def cost(candidate: Any) -> float:
        return products * candidate.seconds + candidate.setup_seconds

    best, runner_up, *_ = sorted(plan.candidates, key=cost)
    assert plan.chosen is best
    assert [c.format for c in sorted_by_time(plan.candidates, products)][:2] == [best.format, runner_up.format]
    for words in (
        f"{best.nbytes / 1e6:.3f} MB and {best.seconds * 1e6:.1f} µs predicted",
        f"{runner_up.format} {runner_up.seconds * 1e6:.1f} µs",
        f"by the time of {products} products",
    ):
        assert words in plan.reason
    assert [c.format for c in plan.candidates] == list(storages_of(stats, pattern=pattern))


@MATRICES
def test_the_same_input_gives_the_same_plan_and_nothing_is_kept(stats: RowStats) -> None:
    storages = storages_of(stats, pattern=True)
    before = dict(storages)
    first, second = plan_of(stats, storages), plan_of(stats, storages)
    assert first == second
    assert storages == before
    for frozen in (stats, first, first.chosen, first.chosen.storage):
        with pytest.raises(FrozenInstanceError):
            setattr(frozen, fields(frozen)[0].name, None)
    assert str(first) == str(second)


@pytest.mark.parametrize("format", KERNELS)
def test_a_requested_format_is_used(format: str) -> None:
    plan = plan_of(SKEWED, storages_of(SKEWED, pattern=True, blocks=True, lanes=True), format=format)
    assert (plan.format, plan.reason) == (format, "named by the caller")
    assert plan.chosen.format == format
    assert [line.split()[1] for line in str(plan).splitlines() if "→" in line] == [format]


def test_formats_of_csr_read_its_arrays_as_they_are() -> None:
    assert list(names_of(reads_csr=True)) == [name for name in KERNELS if name.startswith("csr")]


def test_a_format_that_does_not_fit_is_refused_with_the_reason() -> None:
    with pytest.raises(FormatError, match=r"row_pattern does not fit.*distinct rows"):
        plan_of(STENCIL, format="row_pattern")
    narrow = storages_of(STENCIL)
    del narrow["ellpack"]
    with pytest.raises(FormatError, match=r"ellpack does not fit.*int32"):
        plan_of(STENCIL, narrow, format="ellpack")


@pytest.mark.parametrize(
    ("options", "words"),
    [({"format": "coo"}, "unknown format 'coo'.*csr_scalar, csr_vector, ellpack"), ({"threads_per_block": 100}, "128")],
)
def test_unknown_options_are_refused_with_the_known_ones(options: Any, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        plan_of(STENCIL, **options)


def test_formats_fit_up_to_the_int32_limits_of_rows_and_entries() -> None:
    many_rows, long_row = replace(STENCIL, num_rows=2**31), replace(STENCIL, max_length=2**31)
    for stats in (STENCIL, replace(STENCIL, num_rows=2**31 - 1), replace(STENCIL, max_length=2**31 - 1)):
        assert all(fits(name, stats) for name in KERNELS)
    assert {name for name in KERNELS if fits(name, many_rows)} == {
        "csr_scalar",
        "csr_vector",
        "ellpack",
        "blocked_ellpack",
    }
    assert fits("row_lanes", long_row) and not fits("row_lanes", replace(STENCIL, num_cols=2**31))
    assert {name for name in KERNELS if not fits(name, long_row)} == {"ellpack"}
    assert not fits("blocked_ellpack", replace(many_rows, max_length=2**31))
    assert fits("blocked_ellpack", replace(long_row, num_rows=2**31 - 1))


def test_stencils_are_padded_or_stored_by_pattern_and_skewed_matrices_are_not_padded() -> None:
    assert plan_of(STENCIL).format in ("ellpack", "blocked_ellpack")
    assert plan_of(STENCIL, storages_of(STENCIL, pattern=True)).format == "row_pattern"
    assert plan_of(SKEWED).format.startswith("csr")
    assert plan_of(SKEWED, storages_of(SKEWED, lanes=True)).format == "row_lanes"
    one_long = replace(STENCIL, max_length=5000, blocked_stored=7 * 10**6 + 32 * 5000)
    assert plan_of(one_long).format != "ellpack"


def test_a_conversion_is_chosen_only_if_it_pays() -> None:
    storages = storages_of(STENCIL, pattern=True)
    assert plan_of(STENCIL, storages, expected_products=1).format in ("csr_scalar", "csr_vector")
    assert plan_of(STENCIL, storages, expected_products=10**6).format == "row_pattern"


def candidate(format: str, seconds: float, setup_seconds: float) -> Candidate:
    return replace(plan_of(STENCIL).candidates[0], format=format, seconds=seconds, setup_seconds=setup_seconds)


def test_set_up_time_is_divided_by_the_expected_products() -> None:
    plain, converted = candidate("csr_scalar", 3.0, 0.0), candidate("ellpack", 2.0, 10.0)
    assert sorted_by_time([plain, converted], 9) == [plain, converted]
    assert sorted_by_time([plain, converted], 11) == [converted, plain]
    assert f"by the time of {EXPECTED_PRODUCTS} products" in plan_of(STENCIL).reason


def test_the_first_of_two_equally_fast_candidates_is_chosen() -> None:
    plain, converted = candidate("csr_scalar", 3.0, 0.0), candidate("ellpack", 2.0, 10.0)
    assert sorted_by_time([plain, converted], 10) == [plain, converted]
    assert sorted_by_time([converted, plain], 10) == [converted, plain]
    for first, second in (("ellpack", "csr_vector"), ("csr_vector", "ellpack")):
        assert choose_fastest(plan_of(STENCIL), {first: 2e-6, second: 2e-6}, "measured").format == first


@MODELS
@MATRICES
@pytest.mark.parametrize("format", EVERYWHERE)
def test_fewer_bytes_in_the_same_encoding_are_never_predicted_slower(stats: RowStats, model: Any, format: str) -> None:
    plain = storages_of(stats)
    less = plain | {format: (replace(plain[format][0], nbytes=plain[format][0].nbytes // 2),)}
    one, other = (
        next(c for c in plan_of(stats, storages, model=model).candidates if c.format == format)
        for storages in (plain, less)
    )
    assert other.nbytes < one.nbytes
    assert other.seconds <= one.seconds


def test_a_matrix_is_stored_in_the_encoding_that_its_plan_shows(device: Device, rng: np.random.Generator) -> None:
    values = rng.standard_normal(200)
    S = sp.random_array((3000, 3000), density=0.003, format="csr", rng=rng)
    S.data = rng.choice(values, S.nnz)
    for compress in (True, "columns", "values", False):
        A = GpuSparseMatrix(S, device=device, expected_products=10**5, compress=compress)
        storage, stored = A.plan.chosen.storage, A.stored
        assert ("row_pattern" in {c.format for c in A.plan.candidates}) <= (compress in (True, "columns"))
        if A.plan.format != "row_pattern":
            assert (str(stored.columns.codes.dtype), stored.values.describe()) == (storage.columns, storage.values)
        assert compress in (True, "columns") or not storage.has_bases
        assert compress in (True, "values") or not storage.has_codes


@pytest.mark.parametrize("lanes", [32, 64])
def test_a_block_has_the_default_threads_unless_others_are_asked_for(lanes: int) -> None:
    assert plan_of(STENCIL, lanes=lanes).launch.threads_per_block == DEFAULT_THREADS_PER_BLOCK
    for threads in THREADS_PER_BLOCK:
        plan = plan_of(STENCIL, lanes=lanes, threads_per_block=threads)
        assert {c.launch.threads_per_block for c in plan.candidates} == {threads}
        assert plan.launch is plan.chosen.launch


def test_threads_per_row_depend_on_the_typical_row() -> None:
    long = replace(STENCIL, nnz=40 * 10**6, num_empty=600_000, max_length=300, mean_length=40.0, std_length=60.0)
    for stats in (long, replace(long, num_empty=0), replace(long, num_rows=2**13, num_empty=0), STENCIL):
        launch = plan_of(stats).launch
        assert launch.threads_per_row == threads_per_row(stats.typical_length, 32, stats.num_rows)


@pytest.mark.parametrize("value_bytes", [4, 8, 16])
def test_bytes_are_those_of_the_storage_and_of_both_vectors(value_bytes: int) -> None:
    stats = replace(SKEWED, num_cols=700, nnz=21 * 10**6)
    for candidate in plan_of(stats, value_bytes=value_bytes).candidates:
        assert candidate.nbytes == candidate.storage.nbytes + (10**6 + 700) * value_bytes
        assert candidate.num_stored == candidate.storage.num_stored
        assert candidate.padding_ratio == candidate.num_stored / stats.nnz


@MODELS
def test_an_empty_matrix_has_a_plan(model: Any) -> None:
    nothing = RowStats(0, 0, 0, 0, 0, 0.0, 0.0, 0, 0)
    plan = plan_of(nothing, model=model)
    assert plan.chosen.nbytes <= 4
    assert all(c.padding_ratio == 1 and 0 < c.seconds < 1e-3 for c in plan.candidates)
    assert (nothing.typical_length, nothing.efficiency, nothing.wants_sorting) == (0, 1, False)
    assert (nothing.split_stored, nothing.num_long, nothing.long_entries) == (0, 0, 0)


def test_the_time_on_a_cpu_is_that_of_one_thread_unless_more_are_named() -> None:
    cpu = {"device": "cpu", "lanes": 1, "model": CPU_MODEL}
    assert plan_of(STENCIL, **cpu) == plan_of(STENCIL, **cpu, threads=1) != plan_of(STENCIL, **cpu, threads=2)


def test_lanes_and_bytes_must_be_passed_by_keyword() -> None:
    with pytest.raises(TypeError, match="positional"):
        make_plan(STENCIL, storages_of(STENCIL), "gpu:0", 32, GPU_MODEL, 8)  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------- measured times


def test_measured_times_take_precedence_over_predictions() -> None:
    plan = plan_of(STENCIL)
    times = {"csr_scalar": 3.0, "csr_vector": 1.0, "ellpack": 2.0}
    decided = choose_fastest(plan, times, "measured")
    assert decided.format == decided.chosen.format == "csr_vector"
    assert decided.reason == "1000000.0 µs measured, ellpack 2000000.0, csr_scalar 3000000.0"
    assert {c.format: c.measured for c in decided.candidates if c.measured is not None} == times
    assert (decided.stats, decided.device) == (plan.stats, plan.device)
    assert [replace(c, measured=None) for c in decided.candidates] == list(plan.candidates)
    assert choose_fastest(plan, {"ellpack": 5e-6}, "measured before").reason == "5.0 µs measured before"


# ---------------------------------------------------------------------------------------------------------- the table


@MODELS
@MATRICES
def test_the_table_shows_every_candidate_and_marks_the_choice(stats: RowStats, model: Any) -> None:
    plan = plan_of(stats, storages_of(stats, pattern=True), model=model)
    head, rows, titles, *table = str(plan).splitlines()
    assert head == f"{plan.format} on gpu:0: {plan.reason}"
    assert rows.startswith(f"{stats.num_rows} x {stats.num_cols}, {stats.nnz} entries; per row {stats.min_length} to ")
    assert f"mean {stats.mean_length:.2f}, std {stats.std_length:.2f}, {stats.num_empty} empty" in rows
    assert rows.endswith(f"lane efficiency {stats.efficiency:.2f}")
    assert "lane" not in str(replace(plan, device="cpu"))
    assert "lane" in str(replace(plan, device="AMD Instinct MI300X"))
    assert titles.split("  ")[1].strip() == "format"
    assert all(title in titles for title in ("columns", "values", "MB per product", "padding", "predicted µs"))
    assert [line.replace("→", "").split()[0] for line in table] == [c.format for c in plan.candidates]
    assert [line.replace("→", "").split()[0] for line in table if "→" in line] == [plan.format]
    for line, candidate in zip(table, plan.candidates, strict=True):
        numbers = f"{candidate.nbytes / 1e6:.3f} {candidate.padding_ratio:.2f} {candidate.seconds * 1e6:.1f}"
        assert line.split()[-3:] == numbers.split()
        assert candidate.storage.columns in line and candidate.storage.values in line
    assert len({len(line) for line in (titles, *table)}) == 1
    assert "measured" not in titles, "nothing was"
    assert [line for line in str(plan).splitlines() if line != line.rstrip()] == []


def test_the_table_shows_measured_times() -> None:
    plan = choose_fastest(plan_of(STENCIL), {"ellpack": 1.25e-6, "csr_vector": 7.0}, "measured")
    assert [line for line in str(plan).splitlines() if line != line.rstrip()] == []
    assert str(plan).splitlines()[2].endswith("measured µs")
    measured = {line.replace("→", "").split()[0]: line.split()[-1] for line in str(plan).splitlines()[3:]}
    assert (measured["ellpack"], measured["csr_vector"]) == ("1.2", "7000000.0")
    assert measured["csr_scalar"] == f"{next(c for c in plan.candidates if c.format == 'csr_scalar').seconds * 1e6:.1f}"


# ---------------------------------------------------------------------------------------- of matrices from applications


def test_row_statistics_are_those_of_the_rows(device: Device) -> None:
    lengths = np.random.default_rng(3).integers(0, 9, 4500)
    lengths[[5, 4000]] = kernels_of(device).layout.LONG_LENGTH + 1, 3 * kernels_of(device).layout.LONG_LENGTH
    stats = GpuSparseMatrix(from_lengths(lengths, 50, np.random.default_rng(4)), device=device).plan.stats
    assert (stats.num_rows, stats.num_cols, stats.nnz) == (4500, 50, lengths.sum())
    assert (stats.min_length, stats.max_length, stats.num_empty) == (lengths.min(), lengths.max(), (lengths == 0).sum())
    assert stats.mean_length == pytest.approx(lengths.mean())
    assert stats.std_length == pytest.approx(lengths.std())
    assert (stats.num_long, stats.long_entries) == (2, 4 * kernels_of(device).layout.LONG_LENGTH + 1)
    short = np.where(lengths > kernels_of(device).layout.LONG_LENGTH, 0, lengths)
    for stored, of in ((stats.blocked_stored, lengths), (stats.split_stored, short)):
        slices = [of[i : i + device.lanes].max() * device.lanes for i in range(0, 4500, device.lanes)]
        assert stored == sum(slices)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_has_a_plan_of_candidates_that_fit(device: Device, structure: str) -> None:
    S = STRUCTURES[structure](np.random.default_rng(0))
    plan = GpuSparseMatrix(S, device=device).plan
    assert {c.format for c in plan.candidates} >= set(EVERYWHERE)
    assert plan.chosen in plan.candidates
    assert str(plan).count("→") == 1


def test_a_matrix_on_a_gpu_is_planned_with_the_constants_of_gpus(device: Device) -> None:
    S = sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(30_000, 30_000))
    products = 10_000
    plan = GpuSparseMatrix(S, device=device, expected_products=products).plan
    model = GPU_MODEL if device.kind == "gpu" else CPU_MODEL
    assert plan.device == device.name
    storages = {c.format: (c.storage,) for c in plan.candidates}
    options = {"device": device.name, "lanes": device.lanes, "value_bytes": 8, "expected_products": products}
    options["threads"] = device.num_threads
    assert plan == make_plan(plan.stats, storages, model=model, **options)
    left_out = {"bsr"} if device.kind == "gpu" else {"bsr", "row_lanes"}
    assert set(gsparse.FORMATS) == {"auto", *left_out, *storages}
    assert not left_out.intersection(storages)


def test_small_matrices_and_those_for_few_products_are_not_examined(device: Device) -> None:
    S = sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(30_000, 30_000))
    for A in (GpuSparseMatrix(S, device=device, expected_products=1), GpuSparseMatrix(S.tocsr()[:100], device=device)):
        assert {(c.storage.columns, c.storage.values) for c in A.plan.candidates} == {("int32", "float64")}
        assert A.stored.values.table is None


def test_terms_that_a_format_does_not_count_cost_nothing() -> None:
    costs = {"gpu": KernelModel(fixed=1.0, byte=0.0, step=1.0, chunk=1.0, sorted=1.0)}
    register(replace(find_format("ellpack"), name="uncounted", layout="uncounted", costs=costs, terms=lambda *_: {}))
    try:
        plan = plan_of(STENCIL, {"uncounted": (Storage("int32", "float64", 7, 84),)}, format="uncounted")
    finally:
        unregister("uncounted")
    assert plan.chosen.seconds == 1.0


def test_a_matrix_keeps_its_plan_when_the_number_of_threads_changes_until_it_is_released(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    device = get_device("cpu")
    A = GpuSparseMatrix(sp.random_array((300, 300), density=0.1, rng=rng), device=device)
    monkeypatch.setattr(type(device), "num_threads", 1)
    plan, before = A.plan, A @ np.ones(300)
    monkeypatch.setattr(type(device), "num_threads", 8)
    assert A.plan is plan
    np.testing.assert_array_equal(A @ np.ones(300), before)
    A.release()
    assert A.plan.chosen.seconds < plan.chosen.seconds
