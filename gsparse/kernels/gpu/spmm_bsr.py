"""Products of square blocks (BSR) with several dense columns (kernel: `src/spmm_bsr.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Bsr
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.launch import PanelLaunch
from gsparse.kernels.contract import ChoosePanelLaunch
from gsparse.kernels.gpu.expressions import expression, packs, plain_types
from gsparse.kernels.gpu.launch import check_grid
from gsparse.kernels.gpu.panels import THREADS, PanelProduct, bits_of, panel_args
from gsparse.kernels.gpu.scratch import PerStream, call_for_stream, records

SOURCE = "spmm_bsr.cu"
# The types of block columns.
BLOCK_COLUMN_TYPES = (np.dtype(np.int32), np.dtype(np.uint16))
# The most bytes of sums that a thread holds in registers. With 192 bytes, some kernels spill.
_SUM_BYTES = 160


class BlockPanelProduct(PanelProduct):
    """A product of square blocks of plain values."""

    def __init__(self, device: Device, matrix: Bsr, dtype: np.dtype[Any], choose: ChoosePanelLaunch) -> None:
        size = matrix.blocksize[0]
        super().__init__(device, matrix.num_rows, dtype, lambda panel: _fitted(choose(panel), dtype.itemsize, size))
        self._matrix, self._size = matrix, size

    def _partial_sums(self, launch: PanelLaunch) -> int:
        long_rows = self._matrix.slices.long_rows
        return 0 if long_rows is None else long_rows.num_chunks * self._size

    @cached_property
    def _chunks(self) -> Array | None:
        """The chunks of long block rows, made on a stream of their own."""
        long_rows = self._matrix.slices.long_rows
        if long_rows is None:
            return None
        with self._device.outside_capture():
            return records(self._device, long_rows)

    def _bind(self, launch: PanelLaunch, x: Array, y: Array) -> Callable[..., None]:
        device, dtype, matrix, size = self._device, self._dtype, self._matrix, self._size
        slices, num_columns, column_lanes = matrix.slices, x.shape[1], launch.column_lanes
        tiles = -(-num_columns // launch.tile)
        # Groups of lanes share a block row if they lie in one warp.
        share = min(matrix.row_lanes, device.lanes // column_lanes)
        num_places, num_chunks = slices.num_slices * device.lanes, len(() if self._chunks is None else self._chunks)
        num_groups = num_places * share // matrix.row_lanes
        blocks = -(-num_chunks * device.lanes // THREADS) - (-num_groups * column_lanes // THREADS)
        check_grid("bsr_spmm", blocks)
        sizes = np.int64(slices.num_rows), np.int64(num_places), np.int32(num_columns)
        before = *sizes, *map(bits_of, (column_lanes, matrix.row_lanes, share)), slices.slice_offsets, slices.rows
        before = *before, np.int32(num_chunks), self._chunks
        stored = matrix.columns.codes, matrix.columns.bases, matrix.values.codes
        after = *stored, *panel_args(x, y, launch.columns_per_load, np.int64)
        types = matrix.dtype, matrix.columns.codes.dtype, dtype, size, launch.loads, launch.columns_per_load

        def bind(*sums: Array | None) -> Callable[..., None]:
            args, name = (*before, *sums, *after), expression("bsr_spmm", *types)
            return device.bind_product(SOURCE, name, (blocks, tiles), (THREADS,), args, dtype)

        if slices.long_rows is None:
            return bind(None, None)
        arrivals = slices.long_rows.num_long * tiles, np.dtype(np.uint32)
        return call_for_stream(PerStream(device, bind, (num_chunks * size * num_columns, dtype), arrivals))


def _loads(itemsize: int, columns_per_load: int, size: int) -> tuple[int, ...]:
    """Return the numbers of accesses, of `columns_per_load` columns each, that a lane may make for a row of X."""
    return tuple(n for n in (1, 2) if n == 1 or n * columns_per_load * itemsize * size <= _SUM_BYTES)


def _fitted(launch: PanelLaunch, itemsize: int, size: int) -> PanelLaunch:
    """Return the launch with fewer loads for each lane, if its sums would need too many registers."""
    return replace(launch, loads=max(n for n in _loads(itemsize, launch.columns_per_load, size) if n <= launch.loads))


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of the kernels above."""
    kernels = []
    for stored, compute in (types for types in plain_types() if types[0].kind == types[1].kind):
        for column, size in product(BLOCK_COLUMN_TYPES, range(2, MAX_BLOCK + 1)):
            for each in (*packs(compute.itemsize), 1):
                types = stored, column, compute, size
                kernels += [expression("bsr_spmm", *types, n, each) for n in _loads(compute.itemsize, each, size)]
    return [(SOURCE, kernel) for kernel in kernels]
