"""Predicted times of a product: how often each term of `KernelModel` counts, one term at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.costs import TABLE_BYTES, KernelModel, num_sharing, vector_length
from gsparse.formats.registry import PLAIN, REGISTRY, Storage, find_format
from gsparse.formats.row_stats import RowStats, share_above
from gsparse.kernels.gpu import layout
from gsparse.plan.choice import Candidate, make_plan
from gsparse.plan.cost_model import MachineModel
from gsparse.products import FORMATS

KERNELS = FORMATS[1:]
EVERY_FORMAT = pytest.mark.parametrize("format", KERNELS)
LONG_LENGTH, RESIDENT, STREAMED = 64, 10**6, 3 * 10**6
# Ten million rows of one to nine entries; some rows are empty.
SHORT = RowStats(
    num_rows=10_000_000,
    num_cols=12_000_000,
    nnz=36_000_000,
    min_length=0,
    max_length=9,
    mean_length=3.6,
    std_length=2.0,
    num_empty=1_000_000,
    blocked_stored=44_000_000,
    split_stored=44_000_000,
)
# Rows of eight threads each.
MEDIUM = replace(SHORT, nnz=550_000_000, mean_length=55.0, std_length=0.0, max_length=55, num_empty=0)
# Slices that pad a lot, even without their long rows.
RAGGED = replace(SHORT, max_length=5000, blocked_stored=900_000_000, split_stored=80_000_000, num_long=40)
RAGGED = replace(RAGGED, long_entries=100_000)


def predicted(
    format: str,
    stats: RowStats,
    storage: Storage | Sequence[Storage] | None = None,
    *,
    threads: int = 1,
    **terms: float,
) -> Candidate:
    """Predict the time of a product if only these terms take time. Out of several storages, the best one counts."""
    costs = {"test": KernelModel(**({"fixed": 0.0, "byte": 0.0} | terms))}
    model = MachineModel("test", LONG_LENGTH, (RESIDENT, STREAMED), 0.0, 0.0, 0.0)
    storage = storage or Storage("int32", "float64", stats.nnz, 12 * stats.nnz)
    encoded = (storage,) if isinstance(storage, Storage) else storage
    options: dict[str, Any] = {"device": "gpu:0", "lanes": 32, "model": model, "value_bytes": 8, "format": format}
    options["threads"] = threads
    with patch.dict(REGISTRY, {format: replace(find_format(format), costs=costs)}):
        return make_plan(stats, {format: encoded}, **options).chosen


def count(term: str, format: str, stats: RowStats, storage: Storage | None = None) -> float:
    """Return how often a term counts in one product."""
    return predicted(format, stats, storage, **{term: 1.0}).seconds


@EVERY_FORMAT
def test_a_product_starts_once_and_moves_its_bytes_its_positions_and_its_rows(format: str) -> None:
    storage = Storage("int32", "float64", 44_000_000, 530_000_000)
    assert count("fixed", format, SHORT, storage) == 1
    assert count("byte", format, SHORT, storage) == 530_000_000 + 8 * 22_000_000
    assert count("position", format, SHORT, storage) == 44_000_000
    assert count("row", format, SHORT, storage) == 10_000_000


@EVERY_FORMAT
def test_terms_add_up_and_set_up_time_is_counted_in_products(format: str) -> None:
    prediction = predicted(format, SHORT, fixed=3.0, row=2.0, setup=20.0)
    assert prediction.seconds == 3 + 2 * 10_000_000
    assert prediction.setup_seconds == 20 * prediction.seconds


@EVERY_FORMAT
@pytest.mark.parametrize("term", ["fixed", "byte", "stream", "position", "row"])
def test_the_threads_of_a_cpu_share_all_but_the_start_and_memory_up_to_a_limit(format: str, term: str) -> None:
    storage = Storage("int32", "float64", 44_000_000, 530_000_000)
    alone, *shared = (
        predicted(format, SHORT, storage, threads=threads, **{term: 1.0}).seconds for threads in (1, 2, 4, 10, 16, 64)
    )
    assert alone > 0
    factors = {"fixed": (1, 1, 1, 1, 1), "stream": (1, 2, 5, 5, 5)}.get(term, (2, 4, 10, 16, 64))
    assert shared == pytest.approx([alone / factor for factor in factors], rel=1e-15)


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("nbytes", "streamed"),
    [(1, 0), (RESIDENT, 0), (RESIDENT + 2, 1), (2_000_000, 1_000_000), (STREAMED, STREAMED), (10**9, 10**9)],
)
def test_only_bytes_beyond_the_cache_are_streamed(format: str, nbytes: int, streamed: int) -> None:
    nothing = replace(SHORT, num_rows=1, num_cols=0, nnz=0, num_empty=1, max_length=0)
    storage = Storage("int32", "float64", 0, nbytes - 8)
    assert count("stream", format, nothing, storage) == pytest.approx(streamed, 1e-5)


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("has_bases", "has_codes", "term", "looked_up"),
    [
        (True, False, "coded", False),
        (False, True, "coded", True),
        (False, True, "narrow", False),
        (True, False, "narrow", True),
        (True, True, "narrow", True),
    ],
)
def test_positions_cost_more_if_values_or_columns_must_be_looked_up(
    format: str, has_bases: bool, has_codes: bool, term: str, looked_up: bool
) -> None:
    storage = Storage("uint8 of 5", "uint8 of 5", 44_000_000, 10**8, has_bases=has_bases, has_codes=has_codes)
    assert count(term, format, SHORT, storage) == looked_up * 44_000_000


@EVERY_FORMAT
def test_values_are_looked_up_only_where_reading_fewer_bytes_saves_more(format: str) -> None:
    plain = Storage("int32", "float64", SHORT.nnz, 12 * SHORT.nnz, encoding=PLAIN)
    coded = Storage("int32", "uint8 of 200", SHORT.nnz, 5 * SHORT.nnz, has_codes=True, table_bytes=1600)
    for cost, best in ((6.9, coded), (7.1, plain)):  # A code takes seven bytes less than a value.
        assert predicted(format, SHORT, (coded, plain), byte=1.0, coded=cost).storage is best


@EVERY_FORMAT
@pytest.mark.parametrize(("table_bytes", "part"), [(0, 0.0), (TABLE_BYTES // 4, 0.25), (2 * TABLE_BYTES, 1.0)])
def test_a_large_table_costs_more_up_to_a_limit(format: str, table_bytes: int, part: float) -> None:
    storage = Storage("int32", "uint16 of 999", 44_000_000, 10**8, has_codes=True, table_bytes=table_bytes)
    assert count("table", format, SHORT, storage) == part * 44_000_000
    assert count("table", format, SHORT, Storage("int32", "float64", 44_000_000, 10**8)) == 0


@EVERY_FORMAT
def test_runs_of_equal_patterns_and_their_entries_are_counted_once(format: str) -> None:
    storage = Storage("27 rows", "27 rows", 44_000_000, 10**8, (300, 2000))
    assert (count("run", format, SHORT, storage), count("run_entry", format, SHORT, storage)) == (300, 2000)
    assert (count("run", format, SHORT), count("run_entry", format, SHORT)) == (0, 0)


@EVERY_FORMAT
def test_only_sorted_slices_look_up_their_rows(format: str) -> None:
    assert RAGGED.wants_sorting
    assert not SHORT.wants_sorting
    assert count("sorted", format, RAGGED) == (10_000_000 if format in ("blocked_ellpack", "bsr") else 0)
    assert count("sorted", format, SHORT) == 0


@EVERY_FORMAT
def test_uncoalesced_reads_depend_on_row_length_up_to_the_longest_row_of_one_thread(format: str) -> None:
    assert count("stride", format, SHORT) == pytest.approx(SHORT.nnz * 3.6)
    assert count("stride", format, replace(SHORT, mean_length=300.0)) == SHORT.nnz * layout.SCALAR_LENGTH


# -------------------------------------------------------------------------------------------------- the longest path


def steps(format: str, max_length: int, stats: RowStats = MEDIUM) -> float:
    """Count the rounds of loads of the busiest thread, relative to those of a row with one thread."""
    alone = count("step", "ellpack", replace(stats, max_length=max_length)) / max_length
    return count("step", format, replace(stats, max_length=max_length)) / alone


def test_a_thread_loads_several_entries_at_once() -> None:
    assert 0 < count("step", "ellpack", MEDIUM) < MEDIUM.max_length
    for format in ("ellpack", "row_pattern", "blocked_ellpack"):
        assert [steps(format, length) for length in (1, 100, 5000)] == pytest.approx([1, 100, 5000])


def test_a_thread_of_csr_scalar_has_no_longer_rows_than_the_limit_of_long_rows() -> None:
    limit = layout.SCALAR_LENGTH
    assert [steps("csr_scalar", n) for n in (1, limit, limit + 1, 9 * limit)] == pytest.approx([1, limit, limit, limit])


def test_the_threads_of_a_cpu_divide_every_term_of_instructions() -> None:
    others = {"fixed": 1, "setup": 1, "stream": 8 / 2}
    for term in KernelModel.__dataclass_fields__:
        assert num_sharing(term, 8) == others.get(term, 8), term


def test_threads_of_csr_vector_share_a_row() -> None:
    threads = predicted("csr_vector", MEDIUM).launch.threads_per_row
    assert threads == 8
    limit = vector_length(threads)
    each = limit / threads
    lengths = [steps("csr_vector", n) for n in (8, 12, limit, limit + 1, 9 * limit)]
    assert lengths == pytest.approx([1, 1.5, each, each, each])
    # With two threads for each row, the same rows are long rows as with one thread.
    assert predicted("csr_vector", SHORT).launch.threads_per_row == 2
    assert steps("csr_vector", 10**6, SHORT) == pytest.approx(2 * layout.SCALAR_LENGTH / 2)


def test_slices_have_no_row_longer_than_the_limit_of_long_rows() -> None:
    apart = Storage("int32", "float64", RAGGED.blocked_stored - 1, 10**9)
    together = replace(apart, num_stored=RAGGED.blocked_stored)
    rounds = count("step", "ellpack", RAGGED) / RAGGED.max_length
    assert count("step", "blocked_ellpack", RAGGED, apart) == pytest.approx(LONG_LENGTH * rounds)
    assert count("step", "blocked_ellpack", RAGGED, together) == pytest.approx(RAGGED.max_length * rounds)


# ---------------------------------------------------------------------------------------------------- rows kept apart


def test_slices_cut_their_long_rows_into_chunks() -> None:
    apart = Storage("int32", "float64", RAGGED.split_stored, 10**9)
    chunks = RAGGED.num_long + RAGGED.long_entries / layout.CHUNK_SIZE
    assert count("chunk", "blocked_ellpack", RAGGED, apart) == pytest.approx(chunks)
    assert count("chunk", "blocked_ellpack", RAGGED, replace(apart, num_stored=RAGGED.blocked_stored)) == 0
    for length in (LONG_LENGTH - 1, LONG_LENGTH):
        assert count("chunk", "blocked_ellpack", replace(RAGGED, max_length=length), apart) == 0


def test_block_rows_cut_their_long_rows_into_chunks() -> None:
    limit = LONG_LENGTH * MAX_BLOCK
    chunks = RAGGED.num_long + RAGGED.long_entries / layout.CHUNK_SIZE
    assert count("chunk", "bsr", replace(RAGGED, max_length=limit + 1)) == pytest.approx(chunks)
    for length in (limit - 1, limit):
        assert count("chunk", "bsr", replace(RAGGED, max_length=length)) == 0


@pytest.mark.parametrize(
    ("format", "limit"),
    [
        ("csr_scalar", layout.SCALAR_LENGTH),
        ("csr_vector", vector_length(8)),  # rows of this length have eight threads
    ],
)
def test_long_rows_of_gpu_kernels_are_cut_into_chunks(format: str, limit: int) -> None:
    some = replace(MEDIUM, nnz=9_000_000 * limit, mean_length=0.9 * limit, std_length=0.2 * limit, max_length=limit + 1)
    rows, entries = share_above(some, limit)
    assert 0.1 < rows < entries < 0.5
    assert count("chunk", format, some) == pytest.approx(rows * 10_000_000 + entries * some.nnz / layout.CHUNK_SIZE)
    assert count("chunk", format, replace(some, max_length=limit)) == 0
    assert count("chunk", format, replace(some, nnz=0)) == 0


def test_all_rows_are_cut_into_chunks_if_all_are_long() -> None:
    limit = layout.SCALAR_LENGTH
    long = replace(MEDIUM, nnz=9_000_000 * 2 * limit, num_empty=1_000_000, max_length=2 * limit)
    long = replace(long, mean_length=1.8 * limit, std_length=0.6 * limit)
    assert count("chunk", "csr_scalar", long) == pytest.approx(9_000_000 + long.nnz / layout.CHUNK_SIZE)


@pytest.mark.parametrize("format", ["ellpack", "row_pattern"])
def test_other_formats_cut_no_row_into_chunks(format: str) -> None:
    assert count("chunk", format, RAGGED) == 0


@pytest.mark.parametrize("num_empty", [0, 5_000_000])
def test_shares_of_longer_rows_are_those_of_log_normal_lengths(num_empty: int) -> None:
    place = np.linspace(-8, 8, 100_001)  # in standard deviations of the logarithms
    lengths, rows_there = 12 * np.exp(0.8 * place), np.exp(-(place**2) / 2)  # for rows with entries
    rows_there /= rows_there.sum()
    mean, square, filled = rows_there @ lengths, rows_there @ lengths**2, 1 - num_empty / SHORT.num_rows
    stats = replace(
        SHORT,
        nnz=round(mean * filled * SHORT.num_rows),
        max_length=900,
        mean_length=filled * mean,
        std_length=np.sqrt(filled * square - (filled * mean) ** 2),
        num_empty=num_empty,
    )
    for length in (1.0, 11.9, 40.0, 150.0):
        longer = lengths > length
        rows, entries = rows_there @ longer, (rows_there * lengths) @ longer / mean
        assert share_above(stats, length) == pytest.approx((rows, entries), rel=1e-3)


def test_rows_of_equal_length_are_either_all_longer_than_the_limit_or_none_is() -> None:
    assert share_above(MEDIUM, 54) == pytest.approx((1, 1))
    for length in (55, 56):
        assert share_above(MEDIUM, length) == share_above(replace(MEDIUM, std_length=20.0), length) == (0, 0)


def test_a_column_relative_to_a_base_costs_once_for_all_values_that_share_it() -> None:
    storage = Storage("uint16 3x3", "float64", 90, 10**3, has_bases=True, values_per_column=9)
    assert count("narrow", "bsr", SHORT, storage) == 10
    assert count("narrow", "bsr", SHORT, replace(storage, values_per_column=4)) == 22.5
