"""Stored matrices: they use the narrowest encoding that fits, decode exactly, and take the predicted bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import FormatError
from gsparse.kernels.backends import kernels_of
from gsparse.products.row_pattern import MAX_PATTERNS
from gsparse.products.storage import MAX_VALUES
from tests.encodings import HURTING, assert_decodes, hurting, patterned
from tests.support import STRUCTURES, assert_product, from_lengths, host, on_device, random_values

PATTERN = "row_pattern"
KERNELS = gsparse.FORMATS[1:]
ENTRIES = tuple(format for format in KERNELS if format != PATTERN)
CSR = tuple(format for format in KERNELS if format.startswith("csr"))


def distinct_rows(S: Any) -> int:
    """Count rows by their offsets from the diagonal."""
    offsets = S.indices.astype(np.int64) - np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    return len({offsets[a:b].tobytes() for a, b in zip(S.indptr[:-1], S.indptr[1:], strict=True)})


# ------------------------------------------------------------------------------------------------ exact decoding


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.few(6)
def test_a_stored_matrix_decodes_to_the_matrix(
    device: Device, structure: str, format: str, compress: bool, rng: np.random.Generator
) -> None:
    S = STRUCTURES[structure](rng)
    A = GpuSparseMatrix(S, device=device, format=format, compress=compress)
    assert_decodes(A.stored, S, device.lanes)


@pytest.mark.parametrize("format", ENTRIES)
@pytest.mark.parametrize("structure", HURTING)
def test_sorted_and_split_rows_decode_to_the_matrix(
    device: Device, structure: str, format: str, rng: np.random.Generator
) -> None:
    S = hurting(device, structure, rng)
    A = GpuSparseMatrix(S, device=device, format=format)
    assert_decodes(A.stored, S, device.lanes)


def test_slices_sort_rows_and_split_long_rows_only_when_needed(device: Device, rng: np.random.Generator) -> None:
    for name, is_sorted, is_split in (
        ("even", False, False),
        ("sorted", True, False),
        ("split", False, True),
        ("sorted and split", True, True),
    ):
        S = from_lengths(np.full(64, 5), 80, rng) if name == "even" else hurting(device, name, rng)
        slices = GpuSparseMatrix(S, device=device, format="blocked_ellpack").stored.slices
        assert (slices.sorting_scope > 1) is is_sorted
        assert (slices.long_rows is not None) is is_split
        assert (slices.rows is not None) is (is_sorted or is_split)
        if is_sorted:  # the longest rows of each scope come first, and places without a row come last
            rows, scope = host(slices.rows), slices.sorting_scope
            lengths = np.where(rows < 0, -1, np.append(np.diff(S.indptr), 0)[rows])
            assert all((np.diff(lengths[first : first + scope]) <= 0).all() for first in range(0, rows.size, scope))
        if is_split:
            assert slices.long_length == kernels_of(device).layout.LONG_LENGTH
            lengths = np.diff(S.indptr)
            np.testing.assert_array_equal(
                host(slices.long_rows.rows), np.flatnonzero(lengths > kernels_of(device).layout.LONG_LENGTH)
            )


# Values that differ in their bits only, or that a conversion to half the precision would change.
NAN = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64).view(float)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, 5e-324, -5e-324, 1e-310, 1e-40, 2.0**-149, 1e300, 1.0, *NAN])


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.parametrize("few", [True, False])
@pytest.mark.few(2)
def test_values_are_stored_to_the_last_bit(
    device: Device, few: bool, format: str, dtype: Any, rng: np.random.Generator
) -> None:
    S = from_lengths(np.full(400, 12), 90, rng)
    real, imaginary = (SPECIAL[rng.integers(0, SPECIAL.size, S.nnz)] for _ in range(2))
    data = np.empty(S.nnz, dtype)
    data.view(float)[:] = real if data.dtype.kind == "f" else np.stack([real, imaginary], axis=1).ravel()
    if not few:
        data.view(float)[::3] = random_values(rng, data.view(float)[::3].size, float)
    S = sp.csr_array((data, S.indices, S.indptr), shape=S.shape)
    A = GpuSparseMatrix(S, device=device, format=format)
    assert_decodes(A.stored, S, device.lanes)
    x = np.abs(random_values(rng, S.shape[1], float)) + 1
    with np.errstate(all="ignore"):
        expected = S @ x
    got = A @ x
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(expected))


# --------------------------------------------------------------------------------------------- the narrowest columns


@pytest.mark.parametrize(
    ("span", "dtype"), [(0, "uint8"), (254, "uint8"), (255, "uint16"), (65_534, "uint16"), (65_535, None)]
)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("format", [name for name in ENTRIES if name not in ("bsr", "row_lanes")])
@pytest.mark.few(4)
def test_column_codes_are_as_narrow_as_the_span_of_a_run_allows(
    device: Device, format: str, index: Any, span: int, dtype: Any, rng: np.random.Generator
) -> None:
    # Two runs that are far apart, with one entry per row. `span` is that of the second run.
    first, num_rows = 200_000, 2 * device.lanes
    columns = np.zeros(num_rows, index)
    columns[device.lanes :] = first + rng.integers(0, span + 1, device.lanes)
    columns[-3], columns[-1] = first, first + span
    S = sp.csr_array((num_rows, first + span + 1))
    S.data, S.indices, S.indptr = random_values(rng, num_rows, float), columns, np.arange(num_rows + 1, dtype=index)
    A = GpuSparseMatrix(S, device=device, format=format)
    stored = A.stored.columns
    codes = kernels_of(device).encode.CSR_CODES if format in CSR else (np.dtype(np.uint8), np.dtype(np.uint16))
    dtype = next((code for code in codes if dtype is not None and code >= np.dtype(dtype)), None)
    assert stored.codes.dtype == (dtype or index)
    assert (stored.bases is None) is (dtype is None)
    if dtype is not None:
        np.testing.assert_array_equal(host(stored.bases), [0, first])
    assert_decodes(A.stored, S, device.lanes)
    x = random_values(rng, S.shape[1], float)
    assert_product(A @ x, S, x)


# ---------------------------------------------------------------------------------------------- the narrowest values


def with_distinct(count: int, rng: np.random.Generator) -> sp.csr_array:
    """Make a matrix of `count` distinct values, one of which most entries have."""
    S = from_lengths(np.full(5000, 8), 300, rng)
    table = random_values(rng, count, float)
    assert np.unique(table).size == count
    values = np.full(S.nnz, table[0])
    values[rng.choice(S.nnz, count - 1, replace=False)] = table[1:]
    return sp.csr_array((values, S.indices, S.indptr), shape=S.shape)


@pytest.mark.parametrize(
    ("count", "codes"),
    [(1, None), (2, "uint8"), (256, "uint8"), (257, "uint16"), (MAX_VALUES, "uint16"), (MAX_VALUES + 1, "float64")],
)
@pytest.mark.parametrize("format", ["csr_scalar", "blocked_ellpack"])
@pytest.mark.few(2)
def test_value_codes_are_as_narrow_as_the_number_of_values_allows(
    device: Device, format: str, count: int, codes: Any, rng: np.random.Generator
) -> None:
    S = with_distinct(count, rng)
    A = GpuSparseMatrix(S, device=device, format=format)
    values = A.stored.values
    assert (None if values.codes is None else values.codes.dtype) == codes
    assert (values.table is None) is (codes == "float64")
    if values.table is not None:
        np.testing.assert_array_equal(np.sort(host(values.table)), np.unique(S.data))
    assert_decodes(A.stored, S, device.lanes)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("spoiled_by", [None, 1 / 3, 5e-324, 1e-310, 1e300, "last"])
@pytest.mark.few(4)
def test_values_are_stored_in_half_precision_only_if_none_changes(
    device: Device, spoiled_by: Any, dtype: Any, rng: np.random.Generator
) -> None:
    half = np.dtype({"float64": "float32", "complex128": "complex64"}[np.dtype(dtype).name])
    S = from_lengths(np.full(1500, 7), 300, rng)
    data = random_values(rng, S.nnz, half).astype(dtype)
    if spoiled_by is not None:
        place = -1 if spoiled_by == "last" else rng.integers(S.nnz)
        data[place] = 0.1 if spoiled_by == "last" else spoiled_by
    S = sp.csr_array((data, S.indices, S.indptr), shape=S.shape)
    A = GpuSparseMatrix(S, device=device, format="csr_vector")
    assert A.stored.values.codes.dtype == (half if spoiled_by is None else dtype)
    assert_decodes(A.stored, S, device.lanes)
    x = random_values(rng, S.shape[1], float)
    assert_product(A @ x, S, x)


@pytest.mark.parametrize("format", ENTRIES)
def test_without_compression_entries_are_stored_unchanged(
    device: Device, format: str, rng: np.random.Generator
) -> None:
    S = from_lengths(np.full(500, 7), 90, rng)
    S.data[:] = 2.5
    stored = GpuSparseMatrix(S, device=device, format=format, compress=False).stored
    assert (stored.values.table, stored.values.codes.dtype) == (None, S.dtype)
    if format != "row_lanes":
        assert (stored.columns.bases, stored.columns.codes.dtype) == (None, S.indices.dtype)


# ------------------------------------------------------------------------------------------------------ row patterns


@pytest.mark.parametrize(("count", "codes"), [(2, "uint8"), (256, "uint8"), (257, "uint16"), (1500, "uint16")])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.few(2)
def test_row_patterns_store_each_distinct_row_once(
    device: Device, shared: bool, count: int, codes: str, rng: np.random.Generator
) -> None:
    S = patterned(rng, 10_000, count)
    if not shared:
        S.data = random_values(rng, S.nnz, float)
    A = GpuSparseMatrix(S, device=device, format=PATTERN)
    assert A.stored.num_patterns == distinct_rows(S) == count
    assert A.stored.codes.dtype == codes
    assert (A.stored.pattern_values is not None) is shared
    assert_decodes(A.stored, S, device.lanes)
    x = random_values(rng, S.shape[1], float)
    assert_product(A @ x, S, x)


def in_turns(num_rows: int, rows: int) -> sp.csr_array:
    """Return a matrix with three entries per row, whose offsets alternate between groups of `rows` rows."""
    row = np.arange(num_rows)
    offsets = np.where((row // rows % 2)[:, None], [-5, 0, 5], [-2, 0, 2])
    columns = np.clip(row[:, None] + offsets, 0, num_rows - 1)
    return sp.csr_array((np.ones(columns.size), columns.ravel(), np.arange(0, columns.size + 1, 3)))


@pytest.mark.parametrize("values", ["shared", "of their own"])
@pytest.mark.whole
def test_alternating_rows_are_stored_by_pattern_only_if_runs_are_long(
    device: Device, values: str, rng: np.random.Generator
) -> None:
    for rows, is_chosen in ((1, False), (64, True)):
        S = in_turns(64_000, rows)
        if values == "of their own":
            S.data = random_values(rng, S.nnz, float)
        plan = GpuSparseMatrix(S, device=device, expected_products=10**6).plan
        storage = {c.format: c.storage for c in plan.candidates}[PATTERN]
        if device.kind == "cpu":
            # At both ends, clipped columns change the offsets of a few rows.
            assert storage.runs == pytest.approx((64_000 / rows, 3 * 64_000 / rows), abs=40)
            assert (plan.format == PATTERN) is is_chosen
        else:
            assert storage.runs == (0, 0)


def test_only_row_patterns_refuse_a_matrix_of_too_many_distinct_rows(device: Device, rng: np.random.Generator) -> None:
    S = from_lengths(np.full(MAX_PATTERNS + 500, 4), 3000, rng)
    assert distinct_rows(S) > MAX_PATTERNS
    x = random_values(rng, S.shape[1], float)
    with pytest.raises(FormatError, match=r"row_pattern.*distinct rows"):
        GpuSparseMatrix(S, device=device, format=PATTERN) @ x
    for format in ("auto", *ENTRIES):
        assert_product(GpuSparseMatrix(S, device=device, format=format) @ x, S, x)


@pytest.mark.parametrize("hashes", [1, 3])
@pytest.mark.few(1)
def test_rows_with_colliding_hashes_are_distinguished(
    device: Device, hashes: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_keys = kernels_of(device).encode.row_keys

    def keys(*args: Any) -> Any:
        return true_keys(*args) % np.uint64(hashes)

    monkeypatch.setattr(kernels_of(device).encode, "row_keys", keys)
    S = sp.vstack([patterned(rng, 20_000, 9), patterned(rng, 20_000, 9)]).tocsr()[:, :20_000]
    x = random_values(rng, S.shape[1], float)
    with pytest.raises(FormatError):
        GpuSparseMatrix(S, device=device, format=PATTERN) @ x
    assert S.nnz > 2**16
    assert_product(GpuSparseMatrix(S, device=device) @ x, S, x)


def test_rows_whose_values_collide_in_their_hashes_store_their_own_values(
    device: Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_keys = kernels_of(device).encode.row_keys
    monkeypatch.setattr(
        kernels_of(device).encode, "row_keys", lambda device, csr, values: true_keys(device, csr, False)
    )
    S = patterned(rng, 2000, 6)
    S.data = random_values(rng, S.nnz, float)
    A = GpuSparseMatrix(S, device=device, format=PATTERN)
    assert A.stored.pattern_values is None
    assert_decodes(A.stored, S, device.lanes)


def test_complex_values_with_colliding_hashes_are_distinguished(device: Device, rng: np.random.Generator) -> None:
    S = from_lengths(np.full(400, 6), 90, rng)
    data = np.where(rng.random(S.nnz) < 0.5, 1.5 + 2.5j, 3.25 - 1j)
    # Construct another number with the key of the first: `gsparse.products.storage` mixes two words into one key.
    factor, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    words = [int(w) for w in data[data.real == 1.5][:1].view(np.uint64)]

    def mixed(word: int) -> int:
        return (word + (word >> 29)) & mask

    second = int(np.array([7.0]).view(np.uint64)[0])
    key = (words[0] * factor & mask) ^ mixed(words[1])
    other = np.array([((key ^ mixed(second)) * pow(factor, -1, 2**64)) & mask, second], np.uint64).view(complex)
    data[::5] = other
    S = sp.csr_array((data, S.indices, S.indptr), shape=S.shape)
    for format in ("csr_vector", "blocked_ellpack"):
        assert_decodes(GpuSparseMatrix(S, device=device, format=format).stored, S, device.lanes)


# ------------------------------------------------------------------------------------------------------------ survey


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("structure", [*HURTING, "all rows empty", "no rows", "no columns"])
def test_a_survey_agrees_with_numpy(device: Device, structure: str, index: Any, rng: np.random.Generator) -> None:
    S = STRUCTURES[structure](rng) if structure in STRUCTURES else hurting(device, structure, rng)
    indptr, indices = (on_device(device, part.astype(index)) for part in (S.indptr, S.indices))
    survey, lengths = (
        kernels_of(device).layout.survey(device, indptr, indices, True),
        np.diff(S.indptr).astype(np.int64),
    )
    short = np.where(lengths > kernels_of(device).layout.LONG_LENGTH, 0, lengths)
    padded = [np.append(part, np.zeros(-part.size % device.lanes, int)) for part in (lengths, short)]
    stored = [device.lanes * part.reshape(-1, device.lanes).max(axis=1, initial=0).sum() for part in padded]
    rows = np.repeat(np.arange(lengths.size), lengths)
    assert (survey.min_length, survey.max_length) == ((lengths.min(), lengths.max()) if lengths.size else (0, 0))
    assert (survey.num_empty, survey.sum_squares) == ((lengths == 0).sum(), (lengths**2).sum())
    assert [survey.blocked_stored, survey.split_stored] == stored
    assert (survey.num_long, survey.long_entries) == ((lengths != short).sum(), (lengths - short).sum())
    assert (survey.first, survey.last, survey.num_falls) == (0, S.nnz, 0)
    assert survey.num_unsorted == ((np.diff(rows) == 0) & (np.diff(S.indices) <= 0)).sum()
    assert (survey.min_column, survey.max_column) == ((S.indices.min(), S.indices.max()) if S.nnz else (0, 0))
    if kernels_of(device).encode.CSR_CODES:
        runs = [S.indices[k : k + device.lanes] for k in range(0, S.nnz, device.lanes)]
        assert survey.run_span == max((int(np.ptp(run)) for run in runs), default=0)


@pytest.mark.whole
def test_a_transpose_with_too_many_distinct_rows_uses_another_format(device: Device, rng: np.random.Generator) -> None:
    # The rows are few, but the transpose has more distinct rows than the format can store.
    S = from_lengths(np.full(300, 60), MAX_PATTERNS + 900, rng)
    A = GpuSparseMatrix(S, device=device, format=PATTERN)
    assert distinct_rows(S.T.tocsr()) > MAX_PATTERNS
    x, y = (random_values(rng, size, float) for size in S.shape)
    assert_product(A @ y, S, y)
    assert_product(A.T @ x, S.T.tocsr(), x)


# ------------------------------------------------------------------------------------------------------------ memory

WEIGHED: dict[str, Any] = {
    "stencil": lambda rng: sp.kron(
        sp.eye_array(100),
        sp.diags_array([1.0, 2.0, 1.0], offsets=[-9, 0, 9], shape=(200, 200)),  # 20 000 rows with constant values
        format="csr",
    ),
    "random values": lambda rng: patterned(rng, 8000, 50),
    "random": lambda rng: from_lengths(np.full(4000, 9), 3000, rng),
    "skewed": lambda rng: from_lengths(np.minimum(rng.zipf(1.8, 3000), 200), 5000, rng),
}


@pytest.mark.parametrize("name", WEIGHED)
@pytest.mark.parametrize("format", KERNELS)
@pytest.mark.few(4)
def test_a_format_takes_the_bytes_that_its_candidate_predicts(
    device: Device, format: str, name: str, rng: np.random.Generator
) -> None:
    S = sp.csr_array(WEIGHED[name](rng))
    if name == "random values":
        S.data = random_values(rng, S.nnz, float)
    try:
        A = GpuSparseMatrix(S, device=device, format=format)
        promised = A.plan.chosen
    except FormatError:
        assert format == PATTERN and distinct_rows(S) > 2000
        return
    assert A.stored.nbytes == pytest.approx(promised.storage.nbytes, rel=0.05, abs=1000)
    if format != PATTERN:
        assert A.stored.num_stored == promised.num_stored
        assert A.stored.padding_ratio == promised.padding_ratio
