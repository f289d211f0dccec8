"""Matrices in every format and encoding, made directly with the functions of the CPU backend that build formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.select import get_device
from gsparse.formats import (
    BlockedEllpack,
    Columns,
    Csr,
    CsrEntries,
    Ellpack,
    LongRows,
    RowPattern,
    Slices,
    Values,
    padding_code,
)
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels import cpu

DEVICE = get_device("cpu")
RUN = DEVICE.lanes

COLUMNS = ("plain", "uint16", "uint8")
VALUES = ("plain", "uint8", "uint16", "equal")


def encode_values(data: Any, how: str, compute: Any) -> Values:
    """Encode values as `how` says: in a table (of few distinct values), or as one value."""
    if how == "plain":
        return Values(data)
    table = np.unique(data).astype(compute)
    if how == "equal":
        assert table.size <= 1
        return Values(None, table if table.size else np.zeros(1, compute))
    return Values(np.searchsorted(table, data).astype(how), table if table.size else np.zeros(1, compute))


def encode_columns(columns: Any, how: str, num_cols: int) -> Columns:
    if how == "plain":
        return Columns(columns)
    assert cpu.run_span(DEVICE, columns, num_cols) < padding_code(how)
    return cpu.encode_columns(DEVICE, columns, np.dtype(how))


def make_long_rows(indptr: Any, limit: int, first: int | None) -> tuple[LongRows, int]:
    """Return the rows longer than `limit`, in CSR or copied to position `first`, and the end of the copies."""
    lengths = np.diff(indptr).astype(np.int64)
    rows = np.flatnonzero(lengths > limit)
    begins = indptr[rows].astype(np.int64)
    end = 0
    if first is not None:
        spaces = -(-lengths[rows] // RUN) * RUN
        begins, end = first + np.cumsum(spaces) - spaces, first + int(spaces.sum())
    chunks = -(-lengths[rows] // cpu.CHUNK_SIZE)
    first_chunk = np.concatenate([[0], np.cumsum(chunks)]).astype(np.int32)
    chunk_rows = np.repeat(np.arange(rows.size), chunks).astype(np.int32)
    ends = begins + lengths[rows]
    long_rows = LongRows(rows.astype(np.int32), begins, ends, first_chunk, chunk_rows, cpu.CHUNK_SIZE, limit)
    return long_rows, end


def make_slices(csr: Csr, *, ordered: bool = False, long_length: int = NO_LIMIT) -> Slices:
    survey = cpu.survey(DEVICE, csr.indptr, csr.indices, False)
    rows, offsets, num_positions = cpu.cut_slices(DEVICE, csr.indptr, survey, long_length, ordered)
    long_rows, end = None, num_positions
    if long_length != NO_LIMIT:
        long_rows, end = make_long_rows(csr.indptr, long_length, num_positions)
    scope = cpu.SORTING_SCOPE if ordered else 1
    return Slices(csr.num_rows, RUN, scope, offsets, rows, long_rows, long_length, num_positions, end)


def lay_values_out(values: Values, lay_out: Any) -> Values:
    return values if values.codes is None else Values(lay_out(values.codes, 0), values.table)


def make_blocked(
    csr: Csr, compute: Any, columns: str = "plain", values: str = "plain", **slicing: Any
) -> BlockedEllpack:
    slices = make_slices(csr, **slicing)

    def lay_out(items: Any, padding: Any) -> Any:
        return cpu.lay_out(DEVICE, csr.indptr, items, slices, padding)

    laid_out = encode_columns(lay_out(csr.indices, -1), columns, csr.num_cols)
    return BlockedEllpack(
        csr.shape, csr.nnz, slices, laid_out, lay_values_out(encode_values(csr.data, values, compute), lay_out)
    )


def make_ellpack(csr: Csr, compute: Any, columns: str = "plain", values: str = "plain") -> Ellpack:
    width = int(np.diff(csr.indptr).max(initial=0))
    pitch = -(-csr.num_rows // RUN) * RUN

    def lay_out(items: Any, padding: Any) -> Any:
        return cpu.lay_out_ellpack(DEVICE, csr.indptr, items, width, pitch, padding)

    laid_out = encode_columns(lay_out(csr.indices, -1), columns, csr.num_cols)
    stored = lay_values_out(encode_values(csr.data, values, compute), lay_out)
    return Ellpack(csr.shape, csr.nnz, width, pitch, laid_out, stored)


def make_entries(csr: Csr, compute: Any, columns: str = "plain", values: str = "plain") -> CsrEntries:
    encoded = encode_columns(csr.indices, columns, csr.num_cols), encode_values(csr.data, values, compute)
    return CsrEntries(csr.shape, csr.nnz, csr.indptr, *encoded)


def make_patterns(csr: Csr, compute: Any, *, constant: bool, values: str = "plain") -> RowPattern:
    keys = cpu.row_keys(DEVICE, csr, constant)
    table, representatives = np.unique(keys, return_index=True)
    codes = cpu.encode_keys(DEVICE, keys, table, np.dtype(np.uint8 if table.size <= 256 else np.uint16))
    lengths = cpu.rows_follow(DEVICE, csr, codes, representatives, constant)
    assert lengths is not None
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    begins = np.repeat(csr.indptr[representatives].astype(np.int64), lengths)
    places = begins + np.arange(indptr[-1]) - np.repeat(indptr[:-1], lengths)
    offsets = (csr.indices[places].astype(np.int64) - np.repeat(representatives, lengths)).astype(np.int32)
    if constant:
        return RowPattern(csr.shape, csr.nnz, codes, indptr, offsets, csr.data[places].astype(compute))
    slices = make_slices(csr)
    kept = lay_values_out(
        encode_values(csr.data, values, compute),
        lambda items, padding: cpu.lay_out(DEVICE, csr.indptr, items, slices, padding),
    )
    return RowPattern(csr.shape, csr.nnz, codes, indptr, offsets, None, slices, kept)


def store(format: str, csr: Csr, compute: Any, columns: str = "plain", values: str = "plain") -> Any:
    """Store a matrix in the format of a name; "+" in the name adds a variant."""
    match format:
        case "csr_scalar" | "csr_vector":
            return make_entries(csr, compute, columns, values)
        case "ellpack":
            return make_ellpack(csr, compute, columns, values)
        case "blocked_ellpack":
            return make_blocked(csr, compute, columns, values)
        case "blocked_ellpack+sorted":
            return make_blocked(csr, compute, columns, values, ordered=True)
        case "blocked_ellpack+long":
            return make_blocked(csr, compute, columns, values, long_length=40)
        case "blocked_ellpack+sorted+long":
            return make_blocked(csr, compute, columns, values, ordered=True, long_length=cpu.LONG_LENGTH)
        case "row_pattern":
            return make_patterns(csr, compute, constant=True)
        case "row_pattern+values":
            return make_patterns(csr, compute, constant=False, values=values)
    raise ValueError(format)
