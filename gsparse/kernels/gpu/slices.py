"""Positions of entries in padded formats, and copying items there (contract: `gsparse.kernels.set_up`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Slices
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.gpu.expressions import ITEM_TYPES, expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.scratch import records
from gsparse.kernels.gpu.survey import SORTING_SCOPE, SOURCE, THREADS, Counts
from gsparse.kernels.set_up import Survey

_SORT_THREADS = 512


def cut_slices(
    device: Device, indptr: Array, survey: Survey, long_length: int, sort: bool
) -> tuple[Array | None, Array, int]:
    """Sort the rows if `sort` is true, and place the slices. Synchronizes if rows are sorted."""
    counts: Counts = survey.counts
    num_rows = indptr.size - 1
    num_slices = -(-num_rows // device.lanes)
    rows = short_rows = None
    if sort:
        rows, positions = sort_rows(device, indptr, counts, long_length, num_slices * device.lanes)
        positions_of_parts = np.int32(1), positions
        num_positions = int(device.download(positions[counts.num_parts :])[0])  # synchronizes
    else:
        short_rows = None if long_length == NO_LIMIT else device.empty(num_slices * device.lanes, np.int32)
        counter = "slice_positions" if long_length == NO_LIMIT else "short_positions"
        positions_of_parts, num_positions = (counts.stride, counts.of(counter)), counts.total(counter)
    offsets = (device.empty if num_slices else device.xp.zeros)(num_slices + 1, np.int64)
    sizes = (np.int64(num_rows), np.int64(num_slices), np.int64(counts.part_rows), np.int64(long_length))
    args = (*sizes, *positions_of_parts, rows, indptr, offsets, short_rows)
    launch_blocks(device, SOURCE, expression("place_slices", indptr.dtype), counts.num_parts, THREADS, args)
    return rows if sort else short_rows, offsets, num_positions


def sort_rows(device: Device, indptr: Array, counts: Counts, long_length: int, num_places: int) -> tuple[Array, Array]:
    """Sort the rows of each scope by decreasing length; return them and the number of positions of each part.

    Places without a row hold -1: those of longer rows, and those after the last row.
    """
    num_rows = indptr.size - 1
    rows, positions = device.empty(num_places, np.int32), device.xp.zeros(counts.num_parts + 1, np.int64)
    sizes = (np.int32(num_rows), np.int32(num_places), np.int64(long_length))
    args = (*sizes, indptr, np.int64(counts.part_rows), np.int32(counts.num_parts), rows, positions.view(np.uint64))
    name, blocks = expression("sort_rows", indptr.dtype), -(-num_rows // SORTING_SCOPE)
    launch_blocks(device, SOURCE, name, blocks, _SORT_THREADS, args)
    return rows, positions


def lay_out(device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
    """Copy items, one for each entry of CSR, to the positions of slices and long rows."""
    long_rows, out = slices.long_rows, device.empty(slices.num_positions, items.dtype)
    num_places = slices.num_slices * device.lanes
    sizes = (np.int64(slices.num_rows), np.int64(num_places), np.int64(slices.long_length))
    layout = (slices.rows, slices.slice_offsets, np.int64(device.lanes), np.int32(0))
    _lay_out(device, indptr, items, padding, out, (*sizes, *layout), num_places)
    if long_rows is not None:
        name = expression("lay_out_long", _item_type(items), indptr.dtype)
        args = (np.int32(long_rows.num_chunks), records(device, long_rows), indptr, *_items(items, padding, out))
        launch_threads(device, SOURCE, name, long_rows.num_chunks * device.lanes, THREADS, args)
    return out


def lay_out_ellpack(device: Device, indptr: Array, items: Array, width: int, pitch: int, padding: Any) -> Array:
    """Copy items, one for each entry of CSR, to the positions of ELLPACK."""
    out = device.empty(width * pitch, items.dtype)
    sizes = (np.int64(indptr.size - 1), np.int64(pitch), np.int64(NO_LIMIT))
    _lay_out(device, indptr, items, padding, out, (*sizes, None, None, np.int64(pitch), np.int32(width)), pitch)
    return out


def _lay_out(
    device: Device, indptr: Array, items: Array, padding: Any, out: Array, layout: tuple[Any, ...], num_places: int
) -> None:
    name = expression("lay_out", _item_type(items), indptr.dtype)
    launch_threads(device, SOURCE, name, num_places, THREADS, (*layout, indptr, *_items(items, padding, out)))


def _item_type(items: Array) -> np.dtype[Any]:
    return ITEM_TYPES[items.dtype.itemsize]


def _items(items: Array, padding: Any, out: Array) -> tuple[Array, Any, Array]:
    """View items, padding and output as the type that they are copied as."""
    dtype = _item_type(items)
    return items.view(dtype), np.array(padding, items.dtype).view(dtype)[()], out.view(dtype)
