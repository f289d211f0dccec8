"""Where entries go in padded formats, and laying items out there (contract: `gsparse.kernels.contract`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Slices
from gsparse.formats.launch import NO_LIMIT
from gsparse.kernels.contract import Survey
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.launch import launch_blocks, launch_threads
from gsparse.kernels.gpu.scratch import records
from gsparse.kernels.gpu.survey import SORTING_SCOPE, SOURCE, THREADS, Counts

__all__ = ["cut_slices", "lay_out", "lay_out_ellpack"]

_SORT_THREADS = 512
# Unsigned or other types that stand for all items of their size when rows are laid out.
_ITEM_TYPES = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.int64, 16: np.complex128}


def cut_slices(
    device: Device, indptr: Array, survey: Survey, long_length: int, sort: bool
) -> tuple[Array | None, Array, int]:
    """Order the rows where asked; count and scan the positions of slices. Synchronizes where rows are sorted."""
    counts: Counts = survey.counts
    num_rows = indptr.size - 1
    num_slices = -(-num_rows // device.lanes)
    rows = kept = None
    if sort:
        rows, places = _sort(device, indptr, counts, long_length, num_slices * device.lanes)
        where = np.int32(1), places
        num_places = int(device.download(places[counts.num_parts :])[0])  # synchronizes
    else:
        kept = None if long_length == NO_LIMIT else device.empty(num_slices * device.lanes, np.int32)
        counter = "places" if long_length == NO_LIMIT else "split_places"
        where, num_places = (counts.stride, counts.of(counter)), counts.total(counter)
    offsets = (device.empty if num_slices else device.xp.zeros)(num_slices + 1, np.int64)
    sizes = (np.int64(num_rows), np.int64(num_slices), np.int64(counts.part_rows), np.int64(long_length))
    args = (*sizes, *where, rows, indptr, offsets, kept)
    launch_blocks(device, SOURCE, expression("place_slices", indptr.dtype), counts.num_parts, THREADS, args)
    return rows if sort else kept, offsets, num_places


def _sort(device: Device, indptr: Array, counts: Counts, long_length: int, num_places: int) -> tuple[Array, Array]:
    """Sort the rows of each scope by falling length; add up the positions of each part, and of all."""
    num_rows = indptr.size - 1
    rows, places = device.empty(num_places, np.int32), device.xp.zeros(counts.num_parts + 1, np.int64)
    sizes = (np.int32(num_rows), np.int32(num_places), np.int64(long_length))
    args = (*sizes, indptr, np.int64(counts.part_rows), np.int32(counts.num_parts), rows, places.view(np.uint64))
    name, blocks = expression("sort_rows", indptr.dtype), -(-num_rows // SORTING_SCOPE)
    launch_blocks(device, SOURCE, name, blocks, _SORT_THREADS, args)
    return rows, places


def lay_out(device: Device, indptr: Array, items: Array, slices: Slices, padding: Any) -> Array:
    """Give items at the positions of slices and long rows."""
    long_rows, out = slices.long_rows, device.empty(slices.num_positions, items.dtype)
    places = slices.num_slices * device.lanes
    sizes = (np.int64(slices.num_rows), np.int64(places), np.int64(slices.long_length))
    where = (slices.rows, slices.slice_offsets, np.int64(device.lanes), np.int32(0))
    _lay_out(device, indptr, items, padding, out, (*sizes, *where), places)
    if long_rows is not None:
        name = expression("lay_out_long", _item_type(items), indptr.dtype)
        args = (np.int32(long_rows.num_chunks), records(device, long_rows), indptr, *_items(items, padding, out))
        launch_threads(device, SOURCE, name, long_rows.num_chunks * device.lanes, THREADS, args)
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
    name = expression("lay_out", _item_type(items), indptr.dtype)
    launch_threads(device, SOURCE, name, places, THREADS, (*where, indptr, *_items(items, padding, out)))


def _item_type(items: Array) -> np.dtype[Any]:
    return np.dtype(_ITEM_TYPES[items.dtype.itemsize])


def _items(items: Array, padding: Any, out: Array) -> tuple[Array, Any, Array]:
    """Give items, padding and what they are written to as the type that stands for them."""
    kind = _item_type(items)
    return items.view(kind), np.array(padding, items.dtype).view(kind)[()], out.view(kind)
