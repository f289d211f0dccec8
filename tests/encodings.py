"""Store a matrix in any format and encoding, multiply by it, and decode it without `gsparse.products.storage`."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.formats import (
    BlockedEllpack,
    Bsr,
    Columns,
    Csr,
    CsrEntries,
    Ellpack,
    RowLanes,
    RowPattern,
    StoredMatrix,
    Values,
    padding_code,
)
from gsparse.formats.launch import Launch
from gsparse.kernels.backends import kernels_of
from gsparse.products.blocked_ellpack import SlicedRows
from gsparse.products.bsr import DenseBlocks
from gsparse.products.csr import CsrRows
from gsparse.products.ellpack import PaddedRows
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import SparsityPattern, Structure
from tests.support import exact_product, from_lengths, host, on_device, random_values

PATTERN = "row_pattern"
# Encodings of values: unchanged, in half the precision, as indices of a table, and as one value if all are equal.
VALUES = ("plain", "narrow", "dictionary of uint8", "dictionary of uint16", "equal")
_DISTINCT = {"dictionary of uint8": 200, "dictionary of uint16": 1500, "equal": 1}
_NARROW = {"float64": "float32", "complex128": "complex64"}
# In these structures, a column minus FIRST_COLUMN is less than 255, so that codes of every size can store it.
FIRST_COLUMN, NUM_COLS = 70_000, 70_300


def _window(lengths: Any, rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix with rows of these lengths. Columns are unsorted and repeated, in a window that moves by row."""
    S = from_lengths(lengths, 80, rng)
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    indices = (FIRST_COLUMN + 5 * rows % 160 + S.indices).astype(np.int32)
    return sp.csr_array((S.data, indices, S.indptr), shape=(S.shape[0], NUM_COLS))


def _with(lengths: Any, **replacements: int) -> Any:
    """Return the lengths with some replaced: `r7=3` sets the length of row 7."""
    lengths = np.array(lengths)
    for row, length in replacements.items():
        lengths[int(row[1:])] = length
    return lengths


# Row lengths that exercise each way of distributing the work, and the limits of each. They are computed from the
# constants of a device's kernels.
HURTING: dict[str, Any] = {
    "ragged": lambda k, rng: rng.integers(0, 12, 1001),
    "empty rows": lambda k, rng: np.where(rng.random(97) < 0.8, 0, 3),
    "one row": lambda k, rng: [1023],
    "sorted": lambda k, rng: np.where(rng.random(2 * k.SORTING_SCOPE + 33) < 0.9, 1, 25),
    "split": lambda k, rng: _with(np.full(65, 3), r7=k.LONG_LENGTH + 1, r40=3 * k.CHUNK_SIZE),
    "sorted and split": lambda k, rng: _with(
        np.where(rng.random(161) < 0.8, 1, 25),
        r3=k.LONG_LENGTH + 1,
        r99=min(600, 2 * k.CHUNK_SIZE - 1),
        r160=2 * k.LONG_LENGTH,
    ),
    "chunks": lambda k, rng: [k.CHUNK_SIZE + i for i in (-1, 0, 1)] + [0, 3 * k.CHUNK_SIZE + 5, 1, 7 * k.CHUNK_SIZE],
}


def hurting(device: Device, name: str, rng: np.random.Generator) -> sp.csr_array:
    """Return a structure of `HURTING`, with the limits of a device's kernels."""
    return _window(HURTING[name](kernels_of(device).layout, rng), rng)


def values_of_kind(kind: str, rng: np.random.Generator, size: int, dtype: Any) -> Any:
    """Draw values that one of the encodings in `VALUES` can hold."""
    dtype = np.dtype(dtype)
    if kind == "narrow":
        return random_values(rng, size, _NARROW[dtype.name]).astype(dtype)
    if kind == "plain":
        return random_values(rng, size, dtype)
    table = random_values(rng, _DISTINCT[kind], dtype)
    return table[rng.integers(0, table.size, size)]


def write_down(kind: str, data: Any, compute: Any) -> tuple[Any, Any]:
    """Return the codes and the table of values, the latter in the compute dtype."""
    if kind == "plain" or not data.size:
        return data, None
    if kind == "narrow":
        return data.astype(_NARROW[data.dtype.name]), None
    table, codes = np.unique(data, return_inverse=True)
    if kind == "equal":
        return None, table.astype(compute)
    return codes.astype(kind.rpartition(" ")[2]), table.astype(compute)


def store(
    device: Device, S: Any, format: str, *, columns: Any = None, values: str = "plain", compute: Any = None
) -> StoredMatrix:
    """Store a matrix in a format, with columns of a dtype (None: unchanged) and values in an encoding of `VALUES`.

    `gsparse.products.storage` decides the position of each entry; the arguments decide how columns and values are
    encoded. `row_pattern` stores no columns. With values "shared", it stores the values with the patterns.
    """
    compute = np.dtype(compute or S.dtype)
    parts = (on_device(device, part) for part in (S.indptr, S.indices, S.data))
    csr = Csr(S.shape, *parts)
    structure = Structure(SparsityPattern(device, csr))
    entries = MatrixPreparation(structure, csr, compute)
    if values != "shared":
        codes, table = write_down(values, S.data, compute)
        encoded = Values(*(None if a is None else on_device(device, a) for a in (codes, table)))
        entries._made |= {"values": encoded, "patterns": None}
    if format == "bsr":
        part = structure.part(DenseBlocks)
        block_rows, plain = part.block_rows, part.plain_columns()
        encode = kernels_of(device).encode.encode_columns
        encoded = Columns(plain) if columns is None else encode(device, plain, np.dtype(columns))
        part.block_rows = replace(block_rows, columns=encoded)
    elif format not in (PATTERN, "row_lanes"):
        part: Any = structure.part({"ellpack": PaddedRows, "blocked_ellpack": SlicedRows}.get(format, CsrRows))
        plain = csr.indices if isinstance(part, CsrRows) else part.plain_columns()
        encode = kernels_of(device).encode.encode_columns
        encoded = Columns(plain) if columns is None else encode(device, plain, np.dtype(columns))
        part.columns = encoded
    return entries.stored(format)


def multiply(
    device: Device,
    stored: StoredMatrix,
    format: str,
    x: Any,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    y: Any = None,
    conjugate: bool = False,
    launch: Launch | None = None,
) -> Any:
    """Run a kernel on a stored matrix, and return its output as a host array.

    The output initially holds `y`, or a value that must not remain: NaN, or -2**62 for integers.
    """
    compute = x.dtype
    poison = np.nan if compute.kind in "fc" else -(2**62)
    out = on_device(device, np.full(stored.num_rows, poison, compute) if y is None else y)
    kernel = kernels_of(device).spmv.PRODUCTS[format](device, stored, compute, launch or Launch(256, 4))
    kernel(on_device(device, x), out, compute.type(alpha), compute.type(beta), conjugate)
    return host(out)


def assert_scaled_product(got: Any, S: Any, x: Any, alpha: Any, beta: Any, y: Any) -> None:
    """Check alpha·S·x + beta·y by the bound of `assert_product`, with extra rounding errors for the two factors."""
    if got.dtype.kind == "i":
        expected = alpha * exact_product(S, x)[0].astype(np.int64) + (beta * y if beta else 0)
        np.testing.assert_array_equal(got, expected)
        return
    exact, bound = exact_product(S, x)
    exact, bound = alpha * exact, abs(alpha) * bound
    if beta:
        exact, bound = exact + beta * y.astype(exact.dtype), bound + abs(beta * y)
    info, lengths = np.finfo(got.dtype), np.diff(S.indptr) + 8
    error, allowed = abs(got - exact), 2 * lengths * (info.eps * bound + info.smallest_subnormal)
    assert np.all(error <= allowed), f"rows {np.flatnonzero(~(error <= allowed))[:9]}: {got[~(error <= allowed)][:9]}"


def patterned(rng: np.random.Generator, num_rows: int, num_patterns: int, reach: int = 20) -> sp.csr_array:
    """Make a square matrix of few distinct rows, with unsorted and repeated offsets of both signs.

    One of the `num_patterns` patterns is that of empty rows. Rows of one pattern have the same values.
    """
    distinct: dict[tuple[int, ...], Any] = {}
    while len(distinct) < num_patterns - 1:
        drawn = rng.integers(-reach, reach + 1, rng.integers(1, 8))
        distinct[tuple(drawn)] = drawn
    offsets = [*distinct.values(), np.zeros(0, int)]
    inner = rng.integers(0, num_patterns, num_rows - 2 * reach)
    inner[:num_patterns] = np.arange(num_patterns)
    rng.shuffle(inner)
    chosen = np.pad(inner, reach, constant_values=num_patterns - 1)
    values = [random_values(rng, o.size, float) for o in offsets]
    columns = [row + offsets[p] for row, p in enumerate(chosen)]
    indptr = np.concatenate([[0], np.cumsum([c.size for c in columns])]).astype(np.int32)
    S = sp.csr_array((num_rows, num_rows))
    S.indptr, S.indices = indptr, np.concatenate(columns).astype(np.int32)
    S.data = np.concatenate([values[p] for p in chosen])
    return S


def covering(factors: dict[str, tuple[Any, ...]], fits: Any = lambda **case: True) -> list[dict[str, Any]]:
    """Return few cases that cover every allowed pair of levels of two factors; the choice is deterministic."""
    cases = [dict(zip(factors, levels, strict=True)) for levels in product(*factors.values())]
    cases = [case for case in cases if fits(**case)]
    pairs_of = [set(combinations(case.items(), 2)) for case in cases]
    order, chosen, missing = np.random.default_rng(0).permutation(len(cases)), [], set().union(*pairs_of)
    while missing:
        best = max(order, key=lambda i: len(pairs_of[i] & missing))
        missing -= pairs_of[best]
        chosen.append(cases[best])
    return chosen


# ------------------------------------------------ decoding a stored matrix as the docstrings of its format describe it


def decode(stored: StoredMatrix, run: int) -> tuple[Any, Any, Any]:
    """Return (indptr, indices, data) of a stored matrix, with the entries of a row in the order of storage."""
    if isinstance(stored, CsrEntries):
        positions = [np.arange(a, b) for a, b in pairwise(host(stored.indptr))]
    elif isinstance(stored, Ellpack):
        assert stored.pitch % run == 0 and stored.pitch >= stored.num_rows
        positions = [row + stored.pitch * np.arange(stored.width) for row in range(stored.num_rows)]
    elif isinstance(stored, BlockedEllpack):
        positions = _slice_positions(stored.slices, run)
    elif isinstance(stored, Bsr):
        return _decode_blocks(stored, run)
    elif isinstance(stored, RowLanes):
        return _decode_hubs(stored, run)
    else:
        return _decode_patterns(stored, run)
    everywhere = np.concatenate([*positions, np.zeros(0, int)])
    assert np.unique(everywhere).size == everywhere.size
    columns, data = _columns_at(stored.columns, everywhere, run), _values_at(stored.values, everywhere)
    return _rows_of([p.size for p in positions], columns, data)


def _slice_positions(slices: Any, run: int) -> list[Any]:
    """Return the positions of each row, with padding."""
    assert slices.slice_size == run
    offsets = host(slices.slice_offsets)
    rows = np.arange(slices.num_slices * run) if slices.rows is None else host(slices.rows)
    positions: list[Any] = [None] * slices.num_rows
    for place, row in enumerate(rows):
        if 0 <= row < slices.num_rows:
            assert positions[row] is None
            begin, end = offsets[place // run : place // run + 2]
            positions[row] = begin + place % run + run * np.arange((end - begin) // run)
    long = slices.long_rows
    for row, begin, end in () if long is None else zip(*map(host, (long.rows, long.begins, long.ends)), strict=True):
        assert positions[row] is None
        assert begin % run == 0 and begin >= slices.num_slice_positions
        positions[row] = np.arange(begin, end)
    assert all(p is not None for p in positions)
    return positions


def _decode_blocks(stored: Bsr, run: int) -> tuple[Any, Any, Any]:
    """Return the entries of blocks, row by row; padding comes after the blocks of each part of a block row."""
    (rows, columns), size = stored.blocksize, stored.slices.slice_size
    parts = []
    for k in _slice_positions(stored.slices, size):
        block_columns = _columns_at(stored.columns, k, run)
        assert not np.any((block_columns[:-1] < 0) & (block_columns[1:] >= 0))
        parts.append((k[block_columns >= 0], block_columns[block_columns >= 0]))
    lengths, indices, data = [], [], []
    for first in range(0, len(parts), stored.row_lanes):
        k, block_columns = (np.concatenate(arrays) for arrays in zip(*parts[first : first + stored.row_lanes]))
        for r in range(rows):
            places = ((k // size)[:, None] * columns + np.arange(columns)) * size * rows
            indices.append((block_columns[:, None] * columns + np.arange(columns)).ravel())
            data.append(_values_at(stored.values, (places + (k % size)[:, None] * rows + r).ravel()))
            lengths.append(indices[-1].size)
    if not data:
        data.append(_values_at(stored.values, np.zeros(0, int)))
    return np.concatenate([[0], np.cumsum(lengths)]).astype(int), np.concatenate([[], *indices]), np.concatenate(data)


def _decode_hubs(stored: RowLanes, run: int) -> tuple[Any, Any, Any]:
    """Return the entries of each row in frequent columns and then those in rare ones, both in their order."""
    slices, end = stored.slices, stored.slices.num_frequent_positions
    codes, frequent = host(stored.codes).astype(np.int64), np.append(host(slices.frequent), -1)
    offsets = host(slices.frequent_offsets), host(slices.rare_offsets) + end
    columns = np.where(codes == 65535, -1, frequent[np.minimum(codes, frequent.size - 1)])
    rare = host(stored.columns).astype(np.int64)
    columns = np.concatenate([columns, np.where(rare == padding_code(stored.columns.dtype), -1, rare)])
    assert slices.slice_size == run and offsets[1][-1] == slices.num_positions == columns.size
    begins = {int(row): place for place, row in enumerate(host(slices.rows)) if row >= 0}
    assert sorted(begins) == list(range(stored.num_rows))
    kept, lengths, taken = [], [], []
    for row in range(stored.num_rows):
        place = begins[row]
        lanes = int(host(slices.lanes)[place // run])
        length = 0
        for begin_of in offsets:
            group = slices.group if begin_of is offsets[1] else 1
            steps = int(begin_of[place // run + 1] - begin_of[place // run]) // run
            lane, step = place + np.arange(lanes), np.arange(steps)[:, None]
            at = begin_of[lane // run] + lane % run * group + step // group * group * run + step % group
            is_entry = columns[at.ravel()] >= 0
            assert not np.any(~is_entry[:-1] & is_entry[1:])  # padding comes last
            kept.append(at.ravel()[is_entry])
            taken.append(at.ravel())
            length += kept[-1].size
        lengths.append(length)
    everywhere = np.concatenate([*taken, np.zeros(0, int)])
    assert np.unique(everywhere).size == everywhere.size
    k = np.concatenate([*kept, np.zeros(0, int)])
    return np.concatenate([[0], np.cumsum(lengths)]).astype(int), columns[k], _values_at(stored.values, k)


def frequent_first(stored: RowLanes, S: Any) -> Any:
    """Return a matrix whose rows have the entries in frequent columns first."""
    if stored.slices.numbers is None:
        return S
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    order = np.lexsort((np.arange(S.nnz), host(stored.slices.numbers)[S.indices] == 65535, rows))
    made = S.copy()
    made.indices, made.data = S.indices[order], S.data[order]
    return made


def _columns_at(columns: Any, k: Any, run: int) -> Any:
    """Return the column of each position, -1 for padding."""
    codes = host(columns.codes)[k]
    if columns.bases is None:
        return codes.astype(np.int64)
    return np.where(codes == np.iinfo(codes.dtype).max, -1, host(columns.bases)[k // run].astype(np.int64) + codes)


def _values_at(values: Any, k: Any) -> Any:
    if values.table is None:
        return host(values.codes)[k]
    return host(values.table)[np.zeros(k.size, int) if values.codes is None else host(values.codes)[k]]


def _rows_of(sizes: Any, columns: Any, data: Any) -> tuple[Any, Any, Any]:
    """Drop the padding, and check that it comes after the entries of a row."""
    row, is_entry = np.repeat(np.arange(len(sizes)), sizes), columns >= 0
    same = row[1:] == row[:-1]
    assert not np.any(same & is_entry[1:] & ~is_entry[:-1])
    lengths = np.bincount(row[is_entry], minlength=len(sizes))
    return np.concatenate([[0], np.cumsum(lengths)]), columns[is_entry], data[is_entry]


def _decode_patterns(stored: RowPattern, run: int) -> tuple[Any, Any, Any]:
    codes, starts, offsets = host(stored.codes).astype(int), host(stored.pattern_indptr), host(stored.offsets)
    entries = [np.arange(starts[p], starts[p + 1]) for p in codes]
    indptr = np.concatenate([[0], np.cumsum([e.size for e in entries])]).astype(int)
    flat = np.concatenate([*entries, np.zeros(0, int)])
    indices = np.repeat(np.arange(codes.size), np.diff(indptr)) + offsets[flat]
    if stored.values is None:
        return indptr, indices, host(stored.pattern_values)[flat]
    places = _slice_positions(stored.slices, run)
    k = np.concatenate([*(p[: e.size] for p, e in zip(places, entries, strict=True)), np.zeros(0, int)])
    return indptr, indices, _values_at(stored.values, k)


def assert_decodes(stored: StoredMatrix, S: Any, run: int) -> None:
    """Check that a stored matrix decodes to S: every entry, in its order, with the same bits once widened."""
    indptr, indices, data = decode(stored, run)
    S = frequent_first(stored, S) if isinstance(stored, RowLanes) else S
    data = data.astype(np.result_type(data.dtype, S.dtype))
    np.testing.assert_array_equal(indptr, S.indptr)
    np.testing.assert_array_equal(indices, S.indices)
    np.testing.assert_array_equal(bits(data), bits(S.data.astype(data.dtype)))


def bits(array: Any) -> Any:
    """Return the values as bytes, in which NaN equals NaN and -0.0 differs from 0.0."""
    return np.ascontiguousarray(array).view(np.uint8)
