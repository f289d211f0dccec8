"""Products with several dense columns (contract: `gsparse.kernels.contract`).

The kernels are `src/spmm_csr.cu`, and `src/spmm_bsr.cu` for square blocks. A launch is prepared for each memory layout
of X and Y.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import INDEX_DTYPES, Array
from gsparse.device.launching import Passed
from gsparse.formats import Bsr, Csr, RowPattern
from gsparse.formats.bsr import MAX_BLOCK
from gsparse.formats.launch import NO_LIMIT, Panel, PanelLaunch
from gsparse.kernels.contract import ChoosePanelLaunch, MultiplyColumns
from gsparse.kernels.gpu.launch import (
    MAX_GRID_Y,
    PerStream,
    address_of,
    call_for_stream,
    check_grid,
    constant,
    expression,
    loads_choices,
    packs,
    plain_types,
    records,
)
from gsparse.kernels.gpu.layout import Counts, long_rows, sort_rows
from gsparse.kernels.set_up import Survey

# The formats, besides CSR, that products with several columns read: row patterns whose rows share values, and BSR. They
# also read CSR values in half the precision.
FORMATS: tuple[str, ...] = ("row_pattern", "bsr")
READS_HALVES = True
# The GPU has no kernel for ``A.T @ X`` that reads A: it would add in an order that differs from run to run.
TRANSPOSED_PRODUCT = None

# A chunk of a long row is computed by a block if at most _FEW_PLACES threads of a warp have the same columns, or if
# there are at most _FEW_CHUNKS chunks and most long rows have more than _VERY_LONG entries. Otherwise a warp computes
# it.
_FEW_PLACES, _FEW_CHUNKS, _VERY_LONG = 2, 256, 512
# If rows are sorted by length, lanes that make this number of loads per entry also fetch later entries in advance. With
# fewer loads this gains nothing; with more, no registers are left.
_LOADS_AHEAD = 2

_BLOCKS = "spmm_bsr.cu"
# The dtypes of column indices of blocks.
BLOCK_COLUMN_TYPES = (np.dtype(np.int32), np.dtype(np.uint16))
# Maximum number of bytes of sums that a thread holds in registers. With 192 bytes, some kernels spill.
_SUM_BYTES = 160


# Number of threads of a block.
THREADS = constant("spmm.cuh", "GS_SPMM_THREADS")
# Maximum number of bytes of partial sums of long rows. If a product would need more, its columns are multiplied in
# several launches, one for each slab of columns.
MAX_PARTIAL_BYTES = 1 << 27
_INT32 = 2**31 - 1


def panel_of(x: Array) -> Panel:
    """Return the memory layout of the columns of X.

    Examples
    --------
    >>> import numpy as np
    >>> panel_of(np.zeros((5, 8), np.float32)[:, :6])
    Panel(num_columns=6, pack=2, by_columns=False)
    """
    if x.shape[1] > 1 and abs(x.strides[0]) < abs(x.strides[1]):
        return Panel(x.shape[1], by_columns=True)
    return Panel(x.shape[1], _pack(x))


def _pack(array: Array) -> int:
    """Return how many neighbouring columns one access reads. They must be contiguous and aligned in every row."""
    itemsize: int = array.itemsize
    if array.strides[1] != itemsize:
        return 1
    alignment = array.strides[0] | address_of(array)
    return next((n for n in packs(itemsize) if array.shape[1] % n == 0 and alignment % (n * itemsize) == 0), 1)


def bits_of(power: int) -> Any:
    """Return the base-2 logarithm of a power of two as a kernel argument."""
    return np.int32(power.bit_length() - 1)


class PanelProduct(ABC):
    """A product with dense columns. Its kernels, chunks and scratch memory are created when first needed.

    Each layout of X and Y has its own launch. The layout consists of shapes, strides, and alignment of the first
    elements.

    Parameters
    ----------
    device : Device
    num_rows : int
    dtype : dtype
        The compute dtype.
    choose : callable
        Function that returns the `PanelLaunch` for the `Panel` of an X.
    """

    def __init__(self, device: Device, num_rows: int, dtype: np.dtype[Any], choose: ChoosePanelLaunch) -> None:
        self._device, self._num_rows, self._dtype, self._choose = device, num_rows, dtype, choose
        self._launches: dict[Any, Callable[..., None]] = {}

    @abstractmethod
    def _partial_sums(self, launch: PanelLaunch) -> int:
        """Return the number of partial sums of long rows for each column."""

    @abstractmethod
    def _bind(self, launch: PanelLaunch, x: Array, y: Array) -> Callable[..., None]:
        """Return ``launch(x, y, alpha, beta, conjugate)`` for all X and Y with the layout of `x` and `y`."""

    def multiply(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        """Compute Y = alpha·A·X + beta·Y."""
        layout = x.shape, x.strides, y.strides, address_of(x) & 15, address_of(y) & 15
        launch = self._launches.get(layout)
        if launch is None:
            self._multiply_anew(layout, x, y, alpha, beta, conjugate)
        else:
            launch(x, y, alpha, beta, conjugate)

    def _multiply_anew(self, layout: Any, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        """Multiply with a layout that has no prepared launch, and prepare one if a single launch is enough."""
        num_columns = x.shape[1]
        if num_columns == 0 or self._num_rows == 0:
            return
        if abs(x.strides[0]) > _INT32:  # kernels hold this stride in the dtype of column indices
            self.multiply(x.copy(), y, alpha, beta, conjugate)
            return
        panel_launch = self._choose(panel_of(x))
        slab = self._slab(panel_launch)
        if slab < num_columns:
            for first in range(0, num_columns, slab):
                part = slice(first, first + slab)
                self.multiply(x[:, part], y[:, part], alpha, beta, conjugate)
            return
        launch = self._launches[layout] = self._bind(panel_launch, x, y)
        launch(x, y, alpha, beta, conjugate)

    def _slab(self, launch: PanelLaunch) -> int:
        """Return the largest number of columns of one launch."""
        tile, sums = launch.tile, self._partial_sums(launch)
        if not sums:
            return MAX_GRID_Y * tile
        num_tiles = MAX_PARTIAL_BYTES // (sums * self._dtype.itemsize) // tile
        return min(max(num_tiles, 1), MAX_GRID_Y) * tile


def panel_args(x: Array, y: Array, columns_per_load: int, row_step: Any) -> tuple[Any, ...]:
    """Return kernel arguments: placeholders for X, Y and factors, strides, and whether Y is written in packed accesses.

    Parameters
    ----------
    x, y : array
    columns_per_load : int
    row_step : type
        The type that holds the number of bytes between rows of X.
    """
    x_steps = row_step(x.strides[0]), np.int64(x.strides[1])
    row_stride, column_stride = (np.int64(step // y.itemsize) for step in y.strides)
    y_steps = row_stride, column_stride, np.int32(1 < columns_per_load <= _pack(y))
    factors = Passed.ALPHA, Passed.BETA, Passed.READ_Y, Passed.CONJUGATE
    return Passed.X, *x_steps, Passed.Y, *y_steps, *factors


def csr_spmm(
    device: Device,
    matrix: Csr | RowPattern | Bsr,
    dtype: np.dtype[Any],
    choose: ChoosePanelLaunch,
    survey: Survey,
    transpose: Csr | None = None,
) -> MultiplyColumns:
    """Return a function that multiplies. `choose` returns the launch for each layout of X."""
    if isinstance(matrix, Bsr):
        return BlockPanelProduct(device, matrix, dtype, choose).multiply
    return _Product(device, matrix, dtype, choose, survey).multiply


class _Product(PanelProduct):
    """A product of CSR, or of row patterns whose rows share values."""

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
        """Return the number of threads that compute a chunk of a long row: those of a block or of a warp."""
        lanes, counts = self._device.lanes, self._survey.counts
        if lanes // column_lanes <= _FEW_PLACES:
            return THREADS
        is_very_long = 0 < num_chunks <= _FEW_CHUNKS and 2 * counts.above(_VERY_LONG)[0] >= num_long
        return THREADS if is_very_long else lanes

    def _order(self, launch: PanelLaunch) -> Array | None:
        """Return the rows sorted by length within each scope; None for their natural order. Results are cached."""
        matrix, limit = self._matrix, launch.long_length
        if not launch.by_length or not isinstance(matrix, Csr) or not 0 < matrix.num_rows <= _INT32:
            return None
        if limit not in self._orders:
            with self._device.outside_capture():
                counts: Counts = self._survey.counts
                self._orders[limit], _ = sort_rows(self._device, matrix.indptr, counts, limit, matrix.num_rows)
        return self._orders[limit]

    def _long_rows(self, limit: int) -> tuple[int, int, Array | None]:
        """Return the number of rows longer than `limit`, the number of their chunks, and the chunks (None without any).

        Results are cached, and computed on a separate stream.
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
    """A product of square blocks with unencoded values."""

    def __init__(self, device: Device, matrix: Bsr, dtype: np.dtype[Any], choose: ChoosePanelLaunch) -> None:
        size = matrix.blocksize[0]
        super().__init__(device, matrix.num_rows, dtype, lambda panel: _fitted(choose(panel), dtype.itemsize, size))
        self._matrix, self._size = matrix, size

    def _partial_sums(self, launch: PanelLaunch) -> int:
        long_rows = self._matrix.slices.long_rows
        return 0 if long_rows is None else long_rows.num_chunks * self._size

    @cached_property
    def _chunks(self) -> Array | None:
        """The chunks of long block rows; None without any. They are computed on a separate stream."""
        long_rows = self._matrix.slices.long_rows
        if long_rows is None:
            return None
        with self._device.outside_capture():
            return records(self._device, long_rows)

    def _bind(self, launch: PanelLaunch, x: Array, y: Array) -> Callable[..., None]:
        device, dtype, matrix, size = self._device, self._dtype, self._matrix, self._size
        slices, num_columns, column_lanes = matrix.slices, x.shape[1], launch.column_lanes
        tiles = -(-num_columns // launch.tile)
        # Groups of lanes that share a block row must be in the same warp.
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
    """Return how many accesses a lane may make per row of X. Each access reads `columns_per_load` columns."""
    return tuple(n for n in (1, 2) if n == 1 or n * columns_per_load * itemsize * size <= _SUM_BYTES)


def _fitted(launch: PanelLaunch, itemsize: int, size: int) -> PanelLaunch:
    """Return the launch, with fewer loads per lane if its sums would otherwise need too many registers."""
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
