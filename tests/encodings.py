"""Every format with every encoding: made by name, multiplied by, and read back without `gsparse.products.storage`."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.formats import (
    BlockedEllpack,
    Columns,
    Csr,
    CsrEntries,
    Ellpack,
    RowPattern,
    Stored,
    Values,
)
from gsparse.formats.launch import Launch
from gsparse.kernels.backends import kernels_of
from gsparse.products.storage import Entries
from gsparse.products.structure import Structure
from tests.support import exact_product, from_lengths, host, on_device, random_values

PATTERN = "row_pattern"
# Values: as they are, in half the precision, as places in a table, and none where all are equal.
VALUES = ("plain", "narrow", "dictionary of uint8", "dictionary of uint16", "equal")
_DISTINCT = {"dictionary of uint8": 200, "dictionary of uint16": 1500, "equal": 1}
_NARROW = {"float64": "float32", "complex128": "complex64"}
# Columns of these structures lie in a window of less than 255 around these, so that any code can hold them.
FIRST_COLUMN, NUM_COLS = 70_000, 70_300


def _window(lengths: Any, rng: np.random.Generator) -> sp.csr_array:
    """Make rows of these lengths; columns unsorted and repeated, in a window that moves from row to row."""
    S = from_lengths(lengths, 80, rng)
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    indices = (FIRST_COLUMN + 5 * rows % 160 + S.indices).astype(np.int32)
    return sp.csr_array((S.data, indices, S.indptr), shape=(S.shape[0], NUM_COLS))


def _with(lengths: Any, **changed: int) -> Any:
    """Give lengths with some changed, by the number of the row."""
    lengths = np.array(lengths)
    for row, length in changed.items():
        lengths[int(row[1:])] = length
    return lengths


# By the constants of a device's kernels: lengths of rows that meet each way of sharing out the work, and its limits.
HURTING: dict[str, Any] = {
    "ragged": lambda k, rng: rng.integers(0, 12, 1001),
    "empty rows": lambda k, rng: np.where(rng.random(97) < 0.8, 0, 3),
    "one row": lambda k, rng: [k.BLOCK_WORK - 1],
    "sorted": lambda k, rng: np.where(rng.random(2 * k.SORTING_SCOPE + 33) < 0.9, 1, 25),
    "split": lambda k, rng: _with(np.full(65, 3), r7=k.LONG_LENGTH + 1, r40=3 * k.CHUNK_SIZE),
    "sorted and split": lambda k, rng: _with(
        np.where(rng.random(161) < 0.8, 1, 25),
        r3=k.LONG_LENGTH + 1,
        r99=min(600, 2 * k.CHUNK_SIZE - 1),
        r160=2 * k.LONG_LENGTH,
    ),
    "chunks": lambda k, rng: [k.CHUNK_SIZE + i for i in (-1, 0, 1)] + [0, 3 * k.CHUNK_SIZE + 5, 1, 7 * k.CHUNK_SIZE],
    "tiles": lambda k, rng: [k.TILE_WORK - 1, 0, k.TILE_WORK - 2, 2 * k.TILE_WORK - 1, 5, 3 * k.TILE_WORK + 7, 0, 2],
    "blocks": lambda k, rng: [k.BLOCK_WORK + i for i in (-2, -1, 0, 1)] + [1] * 70 + [k.BLOCK_WORK, 0, k.BLOCK_WORK],
}


def hurting(device: Device, name: str, rng: np.random.Generator) -> sp.csr_array:
    """Give a structure of `HURTING` for the kernels of a device."""
    return _window(HURTING[name](kernels_of(device), rng), rng)


def values_of_kind(kind: str, rng: np.random.Generator, size: int, dtype: Any) -> Any:
    """Draw values that can be written down in a way out of `VALUES`."""
    dtype = np.dtype(dtype)
    if kind == "narrow":
        return random_values(rng, size, _NARROW[dtype.name]).astype(dtype)
    if kind == "plain":
        return random_values(rng, size, dtype)
    table = random_values(rng, _DISTINCT[kind], dtype)
    return table[rng.integers(0, table.size, size)]


def write_down(kind: str, data: Any, compute: Any) -> tuple[Any, Any]:
    """Give the codes and the table of values, the latter in the compute dtype."""
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
) -> Stored:
    """Store a matrix in a format with columns of a dtype (None: as they are) and values in a way out of `VALUES`.

    `gsparse.products.storage` decides where each entry goes; how columns and values are encoded is asked for here.
    `row_pattern` has no columns, and with values "shared" stores these with the patterns.
    """
    compute = np.dtype(compute or S.dtype)
    parts = (on_device(device, part) for part in (S.indptr, S.indices, S.data))
    csr = Csr(S.shape, *parts)
    structure = Structure.of(device, csr)
    entries = Entries(structure, csr, compute, True)
    if values != "shared":
        codes, table = write_down(values, S.data, compute)
        entries.values = Values(*(None if a is None else on_device(device, a) for a in (codes, table)))
        entries.patterns = None
    if format != PATTERN:
        places, lay = {
            "ellpack": ("ellpack_columns", structure.plain_ellpack_columns),
            "blocked_ellpack": ("slice_columns", structure.plain_slice_columns),
        }.get(format, ("csr_columns", lambda: csr.indices))
        plain = lay()
        encode = kernels_of(device).encode_columns
        encoded = Columns(plain) if columns is None else encode(device, plain, np.dtype(columns))
        setattr(structure, places, encoded)
    return entries.stored(format)


def multiply(
    device: Device,
    stored: Stored,
    format: str,
    x: Any,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    y: Any = None,
    conjugate: bool = False,
    launch: Launch | None = None,
) -> Any:
    """Run a kernel on what is stored; the output holds `y`, or what must not survive: NaN, or a large integer."""
    compute = x.dtype
    poison = np.nan if compute.kind in "fc" else -(2**62)
    out = on_device(device, np.full(stored.num_rows, poison, compute) if y is None else y)
    kernel = kernels_of(device).SPMV[format](device, stored, compute, launch or Launch(256, 4))
    kernel(on_device(device, x), out, compute.type(alpha), compute.type(beta), conjugate)
    return host(out)


def assert_scaled_product(got: Any, S: Any, x: Any, alpha: Any, beta: Any, y: Any) -> None:
    """Check alpha·S·x + beta·y by the bound of `assert_product`, with a rounding more for each factor."""
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
    """Make a square matrix of few distinct rows; offsets of both signs, unsorted and repeated, values by pattern."""
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
    made = sp.csr_array((num_rows, num_rows))
    made.indptr, made.indices = indptr, np.concatenate(columns).astype(np.int32)
    made.data = np.concatenate([values[p] for p in chosen])
    return made


def covering(factors: dict[str, tuple[Any, ...]], fits: Any = lambda **case: True) -> list[dict[str, Any]]:
    """Give cases in which every two levels of two factors that may meet do meet: always the same ones."""
    everything = [dict(zip(factors, levels, strict=True)) for levels in product(*factors.values())]
    everything = [case for case in everything if fits(**case)]
    pairs_of = [set(combinations(case.items(), 2)) for case in everything]
    order, chosen, left = np.random.default_rng(0).permutation(len(everything)), [], set().union(*pairs_of)
    while left:
        best = max(order, key=lambda i: len(pairs_of[i] & left))
        left -= pairs_of[best]
        chosen.append(everything[best])
    return chosen


# ------------------------------------------------------------- what is stored, read back by the words of its docstring


def decode(stored: Stored, run: int) -> tuple[Any, Any, Any]:
    """Give (indptr, indices, data) of a stored matrix, entries of a row in the order they are stored in."""
    if isinstance(stored, CsrEntries):
        positions = [np.arange(a, b) for a, b in pairwise(host(stored.indptr))]
    elif isinstance(stored, Ellpack):
        assert stored.pitch % run == 0 and stored.pitch >= stored.num_rows
        positions = [row + stored.pitch * np.arange(stored.width) for row in range(stored.num_rows)]
    elif isinstance(stored, BlockedEllpack):
        positions = _slice_positions(stored.slices, run)
    else:
        return _decode_patterns(stored, run)
    everywhere = np.concatenate([*positions, np.zeros(0, int)])
    assert np.unique(everywhere).size == everywhere.size
    columns, data = _columns_at(stored.columns, everywhere, run), _values_at(stored.values, everywhere)
    return _rows_of([p.size for p in positions], columns, data)


def _slice_positions(slices: Any, run: int) -> list[Any]:
    """Give the positions of each row, padding included."""
    assert slices.slice_size == run
    offsets = host(slices.slice_offsets)
    rows = np.arange(slices.num_slices * run) if slices.rows is None else host(slices.rows)
    found: list[Any] = [None] * slices.num_rows
    for place, row in enumerate(rows):
        if 0 <= row < slices.num_rows:
            assert found[row] is None
            begin, end = offsets[place // run : place // run + 2]
            found[row] = begin + place % run + run * np.arange((end - begin) // run)
    long = slices.long_rows
    for row, begin, end in () if long is None else zip(*map(host, (long.rows, long.begins, long.ends)), strict=True):
        assert found[row] is None
        assert begin % run == 0 and begin >= slices.num_places
        found[row] = np.arange(begin, end)
    assert all(p is not None for p in found)
    return found


def _columns_at(columns: Any, k: Any, run: int) -> Any:
    """Give the column of each position, -1 for padding."""
    codes = host(columns.codes)[k]
    if columns.bases is None:
        return codes.astype(np.int64)
    return np.where(codes == np.iinfo(codes.dtype).max, -1, host(columns.bases)[k // run].astype(np.int64) + codes)


def _values_at(values: Any, k: Any) -> Any:
    if values.table is None:
        return host(values.codes)[k]
    return host(values.table)[np.zeros(k.size, int) if values.codes is None else host(values.codes)[k]]


def _rows_of(sizes: Any, columns: Any, data: Any) -> tuple[Any, Any, Any]:
    """Drop padding, which has to come after the entries of a row."""
    row, kept = np.repeat(np.arange(len(sizes)), sizes), columns >= 0
    same = row[1:] == row[:-1]
    assert not np.any(same & kept[1:] & ~kept[:-1])
    lengths = np.bincount(row[kept], minlength=len(sizes))
    return np.concatenate([[0], np.cumsum(lengths)]), columns[kept], data[kept]


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


def assert_decodes(stored: Stored, S: Any, run: int) -> None:
    """Check that what is stored is the matrix: every entry, in its order, with the same bits once widened."""
    indptr, indices, data = decode(stored, run)
    data = data.astype(np.result_type(data.dtype, S.dtype))
    np.testing.assert_array_equal(indptr, S.indptr)
    np.testing.assert_array_equal(indices, S.indices)
    np.testing.assert_array_equal(bits(data), bits(S.data.astype(data.dtype)))


def bits(array: Any) -> Any:
    """Give values as bytes: equal only where NaN and the sign of zero are."""
    return np.ascontiguousarray(array).view(np.uint8)
