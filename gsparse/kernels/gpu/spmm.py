"""Products with several dense columns (contract: `gsparse.kernels.contract`).

The kernels are `src/spmm_csr.cu`, and `src/spmm_bsr.cu` for square blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.formats import Bsr, Csr, RowPattern
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.launch import NO_LIMIT, PanelLaunch
from gsparse.kernels.contract import ChoosePanelLaunch, MultiplyColumns
from gsparse.kernels.gpu.expressions import expression, loads_choices, packs, plain_types
from gsparse.kernels.gpu.launch import PerStream, call_for_stream, check_grid, records
from gsparse.kernels.gpu.layout import Counts, long_rows, sort_rows
from gsparse.kernels.gpu.panels import THREADS, PanelProduct, bits_of, panel_args
from gsparse.kernels.set_up import Survey

# Products with several columns also read row patterns that share values, blocks, and CSR in half the precision.
FORMATS: tuple[str, ...] = ("row_pattern", "bsr")
READS_HALVES = True

_INT32 = 2**31 - 1
# A block computes each chunk of a long row if at most this number of threads of a warp have the same columns, or if
# there are few chunks and most of the long rows have more entries than this. Otherwise a warp does.
_FEW_PLACES, _FEW_CHUNKS, _VERY_LONG = 2, 256, 512
# The loads of a lane that also loads entries ahead, where rows are taken by length. Otherwise it has no registers left
# for them, or gains nothing.
_LOADS_AHEAD = 2

_BLOCKS = "spmm_bsr.cu"
# The types of block columns.
BLOCK_COLUMN_TYPES = (np.dtype(np.int32), np.dtype(np.uint16))
# The most bytes of sums that a thread holds in registers. With 192 bytes, some kernels spill.
_SUM_BYTES = 160


def csr_spmm(
    device: Device,
    matrix: Csr | RowPattern | Bsr,
    dtype: np.dtype[Any],
    choose: ChoosePanelLaunch,
    survey: Survey,
    transpose: Csr | None = None,
) -> MultiplyColumns:
    """Bind a product whose launch `choose` decides for each shape and layout of X."""
    if isinstance(matrix, Bsr):
        return BlockPanelProduct(device, matrix, dtype, choose).multiply
    return _Product(device, matrix, dtype, choose, survey).multiply


class _Product(PanelProduct):
    """A product of CSR, or of row patterns that share values."""

    def __init__(
        self,
        device: Device,
        matrix: Csr | RowPattern,
        dtype: np.dtype[Any],
        choose: ChoosePanelLaunch,
        survey: Survey,
    ) -> None:
        super().__init__(device, matrix.num_rows, dtype, choose)
        self._matrix, self._survey = matrix, survey
        if isinstance(matrix, Csr):
            self._matrix_args: tuple[Any, ...] = None, np.int32(0), matrix.indptr, matrix.indices, matrix.data
        else:
            codes = matrix.codes, np.int32(matrix.codes.itemsize)
            self._matrix_args = *codes, matrix.pattern_indptr, matrix.offsets, matrix.pattern_values
        self._index = self._matrix_args[2].dtype
        self._chunks: dict[int, tuple[int, int, Array]] = {}
        self._orders: dict[int, Array] = {}

    def _partial_sums(self, launch: PanelLaunch) -> int:
        return self._long_rows(launch.long_length)[1]

    def _bind(self, launch: PanelLaunch, x: Array, y: Array) -> Callable[..., None]:
        device, dtype, num_columns = self._device, self._dtype, x.shape[1]
        num_long, num_chunks, chunks = self._long_rows(launch.long_length)
        chunk_threads = self._chunk_threads(launch.column_lanes, num_long, num_chunks)
        chunk_blocks = -(-num_chunks * chunk_threads // THREADS)
        blocks = chunk_blocks - (-self._num_rows * launch.column_lanes * launch.entry_lanes // THREADS)
        check_grid("csr_spmm", blocks)
        tiles = -(-num_columns // launch.tile)
        limit = np.int64(launch.long_length if num_chunks else NO_LIMIT)
        sizes = np.int64(self._num_rows), np.int32(num_columns)
        shape = bits_of(launch.column_lanes), bits_of(launch.entry_lanes), limit, bits_of(chunk_threads)
        before = *sizes, *shape, np.int32(num_chunks), chunks
        after = *self._matrix_args, self._order(launch), *panel_args(x, y, launch.columns_per_load, self._index.type)
        shape_of_lanes = launch.loads, launch.columns_per_load, int(launch.by_length and launch.loads == _LOADS_AHEAD)
        name = expression("csr_spmm", self._matrix.dtype, dtype, self._index, *shape_of_lanes)

        def bind(*sums: Array | None) -> Callable[..., None]:
            args = (*before, *sums, *after)
            return device.bind_product("spmm_csr.cu", name, (blocks, tiles), (THREADS,), args, dtype)

        if not num_chunks:
            return bind(None, None)
        arrays = (num_chunks * num_columns, dtype), (num_long * tiles, np.dtype(np.uint32))
        return call_for_stream(PerStream(device, bind, *arrays))

    def _chunk_threads(self, column_lanes: int, num_long: int, num_chunks: int) -> int:
        """Return the number of threads that compute a chunk of a long row: a block or a warp."""
        lanes, counts = self._device.lanes, self._survey.counts
        if lanes // column_lanes <= _FEW_PLACES:
            return THREADS
        is_very_long = 0 < num_chunks <= _FEW_CHUNKS and 2 * counts.above(_VERY_LONG)[0] >= num_long
        return THREADS if is_very_long else lanes

    def _order(self, launch: PanelLaunch) -> Array | None:
        """Return the rows by length within each scope, or None for their natural order. They are sorted once."""
        matrix, limit = self._matrix, launch.long_length
        if not launch.by_length or not isinstance(matrix, Csr) or not 0 < matrix.num_rows <= _INT32:
            return None
        if limit not in self._orders:
            with self._device.outside_capture():
                counts: Counts = self._survey.counts
                self._orders[limit], _ = sort_rows(self._device, matrix.indptr, counts, limit, matrix.num_rows)
        return self._orders[limit]

    def _long_rows(self, limit: int) -> tuple[int, int, Array | None]:
        """Return the number of rows longer than `limit`, the number of their chunks, and the chunks.

        They are made once, on a stream of their own.
        """
        matrix = self._matrix
        if not isinstance(matrix, Csr) or self._survey.max_length <= limit or matrix.num_rows > _INT32:
            return 0, 0, None
        chunks = self._chunks.get(limit)
        if chunks is None:
            with self._device.outside_capture():
                rows, _ = long_rows(self._device, matrix.indptr, self._survey, limit)
                chunks = rows.num_long, rows.num_chunks, records(self._device, rows)
            self._chunks[limit] = chunks
        return chunks


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
            return device.bind_product(_BLOCKS, name, (blocks, tiles), (THREADS,), args, dtype)

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


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    kernels = []
    for stored, compute in (types for types in plain_types() if types[0].kind == types[1].kind):
        for each in (*packs(compute.itemsize), 1):
            for index, loads in product(INDEX_DTYPES, loads_choices(compute.itemsize, each)):
                for ahead in (0, 1) if loads == _LOADS_AHEAD else (0,):
                    name = expression("csr_spmm", stored, compute, index, loads, each, ahead)
                    kernels.append(("spmm_csr.cu", name))
            for column, size in product(BLOCK_COLUMN_TYPES, range(2, MAX_BLOCK + 1)):
                types = stored, column, compute, size
                for loads in _loads(compute.itemsize, each, size):
                    kernels.append((_BLOCKS, expression("bsr_spmm", *types, loads, each)))
    return kernels
