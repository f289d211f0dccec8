"""The choice of a format, which is pure: statistics in, one choice with its reason out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device import Device
from gsparse.errors import FormatError
from gsparse.kernels import DEFAULT_THREADS_PER_BLOCK
from gsparse.plan import CPU_MODEL, FORMATS, GPU_MODEL, MAX_WIDTH, RowStats, make_plan, threads_per_row
from tests.support import STRUCTURES, from_lengths

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
)


def plan_of(stats: RowStats, **options: Any) -> Any:
    machine = {"device": "gpu:0", "lanes": 32, "model": GPU_MODEL, "value_bytes": 8, "index_bytes": 4}
    return make_plan(stats, **(machine | options))


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize(
    ("mean", "expected"),
    [(0, 2), (0.5, 2), (1, 2), (2, 2), (3.99, 2), (4, 4), (7.99, 4), (8, 8), (16, 16), (31.9, 16), (32, 32)],
)
def test_threads_per_row_is_the_largest_power_of_two_within_the_mean(mean: float, expected: int, lanes: int) -> None:
    assert threads_per_row(mean, lanes) == expected


@pytest.mark.parametrize("lanes", [32, 64])
def test_threads_per_row_never_exceeds_a_warp(lanes: int) -> None:
    assert [threads_per_row(mean, lanes) for mean in (lanes, lanes + 0.5, 2.0 * lanes, 1e9)] == [lanes] * 4


@pytest.mark.parametrize("name", ["csr", "ELLPACK", "coo", "fast", ""])
def test_an_unknown_format_is_refused_with_those_known(name: str) -> None:
    with pytest.raises(FormatError, match=f"unknown format '{name}': use one of auto, csr_scalar.*") as caught:
        plan_of(STENCIL, format=name)
    assert all(known in str(caught.value) for known in FORMATS)


@pytest.mark.parametrize("threads", [0, 1, 64, 100, 1024, "256"])
def test_unknown_threads_per_block_are_refused_with_those_known(threads: Any) -> None:
    with pytest.raises(FormatError, match=r"threads_per_block must be one of \(128, 256, 512\), got"):
        plan_of(STENCIL, threads_per_block=threads)


@pytest.mark.parametrize("name", ["ellpack", "blocked_ellpack"])
def test_ellpack_counts_rows_in_int32(name: str) -> None:
    longest = MAX_WIDTH + 1
    long = replace(STENCIL, num_rows=1, max_length=longest, nnz=longest, blocked_stored=32 * longest)
    with pytest.raises(FormatError, match=f"{name} .*int32.* {MAX_WIDTH + 1} entries"):
        plan_of(long, format=name)
    assert {c.format for c in plan_of(long).candidates}.isdisjoint({"ellpack", "blocked_ellpack"})
    assert plan_of(replace(long, max_length=MAX_WIDTH), format=name).format == name


@pytest.mark.parametrize("model", [GPU_MODEL, CPU_MODEL], ids=["gpu", "cpu"])
@pytest.mark.parametrize("stats", [STENCIL, SKEWED], ids=["stencil", "skewed"])
@pytest.mark.parametrize("products", [1, 10, 10_000])
def test_the_fastest_candidate_is_chosen_and_the_reason_names_the_next(
    stats: RowStats, model: Any, products: int
) -> None:
    plan = plan_of(stats, model=model, expected_products=products)

    def cost(candidate: Any) -> float:
        return products * candidate.seconds + candidate.setup_seconds

    best, runner_up, *_ = sorted(plan.candidates, key=cost)
    assert cost(plan.chosen) == cost(best)
    assert runner_up.format in plan.reason
    assert f"{plan.chosen.nbytes / 1e6:.3f} MB" in plan.reason
    assert {c.format for c in plan.candidates} == set(FORMATS) - {"auto"}


@pytest.mark.parametrize("format", FORMATS[1:])
def test_a_format_that_was_asked_for_is_taken(format: str) -> None:
    plan = plan_of(SKEWED, format=format)
    assert (plan.format, plan.reason) == (format, "asked for")
    assert plan.chosen.format == format


def test_a_stencil_is_padded_and_a_skewed_matrix_is_not() -> None:
    assert plan_of(STENCIL).format in ("ellpack", "blocked_ellpack")
    assert plan_of(SKEWED).format == "csr_vector"
    one_long = replace(STENCIL, max_length=5000, blocked_stored=7 * 10**6 + 32 * 5000)
    assert plan_of(one_long).format != "ellpack"


def test_a_conversion_has_to_pay() -> None:
    assert plan_of(STENCIL, expected_products=1).format.startswith("csr")
    assert plan_of(STENCIL, expected_products=10**6).format.endswith("ellpack")


@pytest.mark.parametrize("lanes", [32, 64])
def test_a_block_has_the_default_threads_unless_others_are_asked_for(lanes: int) -> None:
    assert plan_of(STENCIL, lanes=lanes).launch.threads_per_block == DEFAULT_THREADS_PER_BLOCK
    assert plan_of(STENCIL, lanes=lanes, threads_per_block=512).launch.threads_per_block == 512


def test_padding_counts_in_bytes_and_ratio() -> None:
    found = {c.format: c for c in plan_of(SKEWED).candidates}
    assert found["ellpack"].num_stored == SKEWED.num_rows * SKEWED.max_length
    assert found["blocked_ellpack"].padding_ratio == 10
    assert found["csr_scalar"].padding_ratio == found["csr_vector"].padding_ratio == 1
    assert found["ellpack"].nbytes > found["blocked_ellpack"].nbytes > found["csr_vector"].nbytes
    assert SKEWED.efficiency == 0.1
    assert replace(SKEWED, nnz=0, blocked_stored=0).efficiency == 1


def test_an_empty_matrix_has_a_plan() -> None:
    plan = plan_of(RowStats(0, 0, 0, 0, 0, 0.0, 0.0, 0, 0))
    assert plan.chosen.nbytes <= 4
    assert plan.chosen.padding_ratio == 1
    assert plan.chosen.seconds >= GPU_MODEL.launch


@pytest.mark.parametrize(("value_bytes", "index_bytes"), [(4, 4), (8, 4), (16, 8)])
def test_bytes_grow_with_values_and_indices(value_bytes: int, index_bytes: int) -> None:
    csr = plan_of(STENCIL, format="csr_scalar", value_bytes=value_bytes, index_bytes=index_bytes).chosen
    entries = STENCIL.nnz * (value_bytes + index_bytes)
    assert csr.nbytes == entries + index_bytes * (STENCIL.num_rows + 1) + 2 * 10**6 * value_bytes


def test_the_table_shows_every_candidate_and_marks_the_choice() -> None:
    plan = plan_of(STENCIL)
    head, rows, titles, *table = str(plan).splitlines()
    assert head == f"{plan.format} on gpu:0: {plan.reason}"
    assert "1000000 x 1000000, 6940000 entries; a row 4 to 7, mean 6.94" in rows
    assert "MB a product" in titles
    assert [line.replace("→", "").split()[0] for line in table] == [c.format for c in plan.candidates]
    assert [line.replace("→", "").split()[0] for line in table if "→" in line] == [plan.format]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("format", FORMATS[1:])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_candidates_promise_the_bytes_that_the_formats_hold(
    device: Device, structure: str, format: str, dtype: Any
) -> None:
    S = STRUCTURES[structure](np.random.default_rng(0)).astype(dtype)
    A = GpuSparseMatrix(S, device=device, format=format)
    vectors = sum(A.shape) * A.dtype.itemsize
    promised, stored = A.plan.chosen, A.stored
    estimate = 8 * (A.shape[0] // 32 + 2) if format == "blocked_ellpack" else 0  # slice offsets are estimated
    assert abs(promised.nbytes - vectors - stored.nbytes) <= estimate
    assert promised.num_stored == stored.num_stored
    assert promised.padding_ratio == stored.padding_ratio


def test_row_statistics_are_those_of_the_rows(device: Device) -> None:
    lengths = np.random.default_rng(3).integers(0, 9, 200)
    stats = GpuSparseMatrix(from_lengths(lengths, 50, np.random.default_rng(4)), device=device).plan.stats
    assert (stats.num_rows, stats.num_cols, stats.nnz) == (200, 50, lengths.sum())
    assert (stats.min_length, stats.max_length, stats.num_empty) == (lengths.min(), lengths.max(), (lengths == 0).sum())
    assert stats.mean_length == pytest.approx(lengths.mean())
    assert stats.std_length == pytest.approx(lengths.std())
    slices = [lengths[i : i + device.lanes].max() * device.lanes for i in range(0, 200, device.lanes)]
    assert stats.blocked_stored == sum(slices)


def test_a_matrix_on_a_gpu_is_planned_with_the_constants_of_gpus(device: Device) -> None:
    S = sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(5000, 5000))
    plan = GpuSparseMatrix(S, device=device).plan
    model = GPU_MODEL if device.kind == "gpu" else CPU_MODEL
    assert plan.device == device.name
    assert min(c.seconds for c in plan.candidates) >= model.launch
    assert plan.candidates == plan_of(plan.stats, device=device.name, lanes=device.lanes, model=model).candidates
    assert set(gsparse.FORMATS) == {"auto", *(c.format for c in plan.candidates)}
