"""Set-up on the device (contract: `gsparse.kernels`; kernels: `src/setup_rows.cu`, `src/setup_entries.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse._typing import COMPUTE_DTYPES, Array
from gsparse.device import Device
from gsparse.formats import Columns, Csr, Slices
from gsparse.kernels import MAX_MISSING, NO_LIMIT, Launch
from gsparse.kernels.gpu.catalogue import expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.scratch import records

__all__ = [
    "CSR_CODES",
    "LONG_LENGTH",
    "LOOKS_UP",
    "SCALAR_LENGTH",
    "SORTING_SCOPE",
    "VECTOR_LENGTH",
    "csr_transpose",
    "encode_columns",
    "encode_keys",
    "is_symmetric",
    "lay_out",
    "lay_out_ellpack",
    "measure_rows",
    "row_keys",
    "rows_follow",
    "run_span",
    "slice_offsets",
    "sort_rows",
]

# Rows sorted by one block (GS_SCOPE, setup_rows.cu).
SORTING_SCOPE = 1024
# A row of two warps' worth of entries keeps a warp of its own busy.
LONG_LENGTH = 64
# Entries above which a row is kept apart from the others in csr_scalar, and in csr_vector for each lane.
SCALAR_LENGTH = 16
VECTOR_LENGTH = 8
# What columns in CSR's order may be narrowed to, and whether a value looked up beats one of half the precision.
CSR_CODES = (np.dtype(np.uint16),)
LOOKS_UP = True

_THREADS = Launch().threads_per_block
_SORT_THREADS = 512
# Blocks of kernels whose warps go round and tell what they found once: enough to fill any GPU, few enough that their
# atomics on one word do not queue.
_MAX_BLOCKS = 1024
# Unsigned or other types that stand for all items of their size when rows are laid out.
_ITEM_TYPES = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.int64, 16: np.complex128}


def measure_rows(device: Device, indptr: Array, long_length: int) -> Any:
    """Measure all rows in one pass over the row pointers. Synchronizes."""
    num_rows = indptr.size - 1
    num_slices = -(-num_rows // device.lanes)
    found = device.xp.zeros(8, np.uint64)
    blocks = min(-(-num_slices * device.lanes // _THREADS), _MAX_BLOCKS)
    args = (np.int64(num_rows), np.int64(num_slices), np.int64(long_length), indptr, found)
    launch_blocks(device, "setup_rows.cu", expression("measure_rows", indptr.dtype), blocks, _THREADS, args)
    host = device.download(found).view(np.int64)  # synchronizes
    host[0] = np.iinfo(np.int64).max - host[0] if num_rows else 0
    return host


def sort_rows(device: Device, indptr: Array, long_length: int) -> Array:
    """Sort the rows of each scope by length."""
    num_rows = indptr.size - 1
    num_places = -(-num_rows // device.lanes) * device.lanes
    rows = device.empty(num_places, np.int32)
    args = (np.int32(num_rows), np.int32(num_places), np.int64(long_length), indptr, rows)
    name, blocks = expression("sort_rows", indptr.dtype), -(-num_rows // SORTING_SCOPE)
    launch_blocks(device, "setup_rows.cu", name, blocks, _SORT_THREADS, args)
    return rows


def slice_offsets(device: Device, indptr: Array, rows: Array | None, long_length: int) -> Array:
    """Count the places of each slice, and scan."""
    num_rows = indptr.size - 1
    num_slices = -(-num_rows // device.lanes)
    offsets = device.xp.zeros(num_slices + 1, np.int64)
    args = (np.int64(num_rows), np.int64(num_slices), np.int64(long_length), rows, indptr, offsets[1:])
    name = expression("slice_sizes", indptr.dtype)
    launch_threads(device, "setup_rows.cu", name, num_slices * device.lanes, _THREADS, args)
    device.xp.cumsum(offsets, out=offsets)
    return offsets


def lay_out(device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
    """Give items at the positions of slices and long rows."""
    long_rows, out = slices.long_rows, device.empty(slices.num_positions, items.dtype)
    places = slices.num_slices * device.lanes
    sizes = (np.int64(slices.num_rows), np.int64(places), np.int64(slices.long_length))
    where = (slices.rows, slices.slice_offsets, np.int64(device.lanes), np.int32(0))
    _lay_out(device, indptr, items, padding, out, (*sizes, *where), places)
    if long_rows is not None:
        out[slices.num_places :] = padding
        item, name = _as_items(items), expression("lay_out_long", _item_type(items), indptr.dtype)
        args = (np.int32(long_rows.num_chunks), records(device, long_rows), indptr, item, _as_items(out))
        launch_threads(device, "setup_rows.cu", name, long_rows.num_chunks * device.lanes, _THREADS, args)
    return out


def lay_out_ellpack(device: Device, indptr: Array, items: Array, width: int, pitch: int, padding: Any) -> Array:
    """Give items at the positions of ELLPACK."""
    out = device.empty(width * pitch, items.dtype)
    sizes = (np.int64(indptr.size - 1), np.int64(pitch), np.int64(NO_LIMIT))
    _lay_out(device, indptr, items, padding, out, (*sizes, None, None, np.int64(pitch), np.int32(width)), pitch)
    return out


def _lay_out(
    device: Device, indptr: Array, items: Array, padding: Any, out: Array, where: tuple[Any, ...], places: int
) -> None:
    kind = _item_type(items)
    pad = np.array(padding, items.dtype).view(kind)[()]
    name = expression("lay_out", kind, indptr.dtype)
    args = (*where, indptr, _as_items(items), pad, _as_items(out))
    launch_threads(device, "setup_rows.cu", name, places, _THREADS, args)


def _item_type(items: Array) -> np.dtype[Any]:
    return np.dtype(_ITEM_TYPES[items.dtype.itemsize])


def _as_items(array: Array) -> Array:
    return array.view(_item_type(array))


def run_span(device: Device, columns: Array, num_cols: int) -> int:
    """Find the largest distance of columns within a run. Synchronizes."""
    span = device.xp.zeros(1, np.uint64)
    blocks = min(-(-columns.size // _THREADS), _MAX_BLOCKS)
    args = (np.int64(columns.size), columns, span)
    launch_blocks(device, "setup_entries.cu", expression("run_span", columns.dtype), blocks, _THREADS, args)
    return int(device.download(span)[0])  # synchronizes


def encode_columns(device: Device, columns: Array, dtype: Any) -> Columns:
    """Give a base a run, and what each column has above it."""
    dtype = np.dtype(dtype)
    codes = device.empty(columns.size, dtype)
    bases = device.empty(-(-columns.size // device.lanes), np.int32)
    name = expression("encode_columns", columns.dtype, dtype)
    args = (np.int64(columns.size), columns, bases, codes)
    launch_threads(device, "setup_entries.cu", name, columns.size, _THREADS, args)
    return Columns(codes, bases)


def _words(csr: Csr, values: bool) -> tuple[np.int32, Array | None, np.dtype[Any]]:
    """Give a matrix's values as words: how many a value, the words, their type."""
    size = csr.data.dtype.itemsize
    word = np.dtype(np.int32) if size == 4 else np.dtype(np.int64)
    if not values:
        return np.int32(0), None, word
    return np.int32(size // word.itemsize), csr.data.view(word), word


def row_keys(device: Device, csr: Csr, values: bool) -> Array:
    """Hash each row's offsets, and its values where asked."""
    keys = device.empty(csr.num_rows, np.uint64)
    words, data, word = _words(csr, values)
    name = expression("row_keys", csr.indptr.dtype, word)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, words, data, keys)
    launch_threads(device, "setup_entries.cu", name, csr.num_rows, _THREADS, args)
    return keys


def rows_follow(device: Device, csr: Csr, codes: Array, representatives: Array, values: bool) -> bool:
    """Compare each row with its representative. Synchronizes."""
    differs = device.xp.zeros(1, np.int32)
    words, data, word = _words(csr, values)
    name = expression("rows_follow", csr.indptr.dtype, word, codes.dtype)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, words, data, codes, representatives, differs)
    launch_threads(device, "setup_entries.cu", name, csr.num_rows, _THREADS, args)
    return not device.download(differs)[0]  # synchronizes


def encode_keys(device: Device, keys: Array, table: Array, dtype: Any) -> tuple[Array, Any]:
    """Look every key up in a sorted table. Synchronizes."""
    dtype = np.dtype(dtype)
    codes = device.empty(keys.size, dtype)
    num_missing = device.xp.zeros(1, np.int32)
    max_missing = min(keys.size, MAX_MISSING)
    missing = device.empty(max_missing, keys.dtype)
    name = expression("encode_keys", keys.dtype, dtype)
    args = (np.int64(keys.size), keys, np.int32(table.size), table, codes, np.int32(max_missing), num_missing, missing)
    launch_threads(device, "setup_entries.cu", name, keys.size, _THREADS, args)
    count = min(int(device.download(num_missing)[0]), max_missing)  # synchronizes
    return codes, device.download(missing[:count]) if count else np.empty(0, keys.dtype)


def is_symmetric(device: Device, csr: Csr, hermitian: bool) -> bool:
    """Look every entry's mirror image up, by binary search. Synchronizes."""
    differs = device.xp.zeros(1, np.int32)
    data = csr.data if csr.dtype in COMPUTE_DTYPES else csr.data.astype(np.int64)
    name = expression("mirrored", csr.indptr.dtype, data.dtype)
    args = (np.int64(csr.num_rows), csr.indptr, csr.indices, data, np.int32(hermitian), differs)
    launch_threads(device, "setup_entries.cu", name, csr.num_rows, _THREADS, args)
    return not device.download(differs)[0]  # synchronizes


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Transpose: a stable sort by column keeps the rows in order, so columns of the result rise. Synchronizes.

    The sort is CuPy's; NumPy's in the emulator.
    """
    xp = device.xp
    order = xp.argsort(csr.indices, kind="stable")
    rows = xp.searchsorted(csr.indptr[1:], order, side="right").astype(csr.indices.dtype)
    indptr = xp.zeros(csr.num_cols + 1, csr.indptr.dtype)
    xp.cumsum(xp.bincount(csr.indices, minlength=csr.num_cols), out=indptr[1:])  # synchronizes
    return Csr(csr.shape[::-1], indptr, rows, csr.data[order])
