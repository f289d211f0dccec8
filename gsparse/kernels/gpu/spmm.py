"""Products with several dense columns (contract: `gsparse.kernels.contract`; kernel: `src/spmm_csr.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.launching import Slot
from gsparse.formats import Csr, RowPattern
from gsparse.formats.launch import FEW_PLACES, NO_LIMIT, Panel, PanelLaunch
from gsparse.kernels.contract import ChoosePanelLaunch, MultiplyColumns
from gsparse.kernels.gpu.expressions import expression, packs
from gsparse.kernels.gpu.launch import check_grid
from gsparse.kernels.gpu.scratch import PerStream, call_for_stream, records
from gsparse.kernels.gpu.source_constants import constant
from gsparse.kernels.gpu.survey import long_rows
from gsparse.kernels.set_up import Survey

__all__ = ["csr_spmm", "panel_of"]

# Threads in a block.
THREADS = constant("spmm.cuh", "GS_SPMM_THREADS")
# The largest number of blocks along y that both CUDA and HIP accept, and so of column tiles in one launch.
MAX_GRID_Y = 65_535
# The most bytes of partial sums of long rows. If a product needed more, its columns are multiplied in several slabs.
MAX_PARTIAL_BYTES = 1 << 27
_INT32 = 2**31 - 1


def panel_of(x: Array) -> Panel:
    """Return how the columns of X lie in memory.

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
    """Return how many neighbouring columns one access may take: they must be contiguous and aligned in every row."""
    itemsize: int = array.itemsize
    if array.strides[1] != itemsize:
        return 1
    alignment = array.strides[0] | _address(array)
    return next((n for n in packs(itemsize) if array.shape[1] % n == 0 and alignment % (n * itemsize) == 0), 1)


def _address(array: Array) -> int:
    try:
        pointer: int = array.data.ptr
    except AttributeError:  # an array of NumPy, in the emulator
        pointer = array.ctypes.data
    return pointer


def csr_spmm(
    device: Device,
    matrix: Csr | RowPattern,
    dtype: np.dtype[Any],
    choose: ChoosePanelLaunch,
    survey: Survey,
) -> MultiplyColumns:
    """Bind a product whose launch `choose` decides for each shape and layout of X."""
    return _Product(device, matrix, dtype, choose, survey).multiply


class _Product:
    """A product with dense columns. Kernels, chunks and scratch memory are made when they are first needed.

    A launch is bound for each layout of X and Y: shape, strides, and how the first elements are aligned.
    """

    def __init__(
        self,
        device: Device,
        matrix: Csr | RowPattern,
        dtype: np.dtype[Any],
        choose: ChoosePanelLaunch,
        survey: Survey,
    ) -> None:
        self._device, self._matrix, self._dtype, self._choose = device, matrix, dtype, choose
        self._survey = survey
        if isinstance(matrix, Csr):
            self._matrix_args: tuple[Any, ...] = None, np.int32(0), matrix.indptr, matrix.indices, matrix.data
        else:
            codes = matrix.codes, np.int32(matrix.codes.itemsize)
            self._matrix_args = *codes, matrix.pattern_indptr, matrix.offsets, matrix.pattern_values
        self._index = self._matrix_args[2].dtype
        self._launches: dict[Any, Callable[..., None]] = {}
        self._chunks: dict[int, tuple[int, int, Array]] = {}

    def multiply(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        """Compute Y = alpha·A·X + beta·Y."""
        layout = x.shape, x.strides, y.strides, _address(x) & 15, _address(y) & 15
        launch = self._launches.get(layout)
        if launch is None:
            self._multiply_anew(layout, x, y, alpha, beta, conjugate)
        else:
            launch(x, y, alpha, beta, conjugate)

    def _multiply_anew(self, layout: Any, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        """Multiply an X and a Y with a layout for which no launch is bound, and bind one if one launch is enough."""
        num_columns = x.shape[1]
        if num_columns == 0 or self._matrix.num_rows == 0:
            return
        if abs(x.strides[0]) > _INT32:  # kernels hold the bytes from row to row in the type of column indices
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
        tile, num_chunks = launch.tile, self._long_rows(launch.long_length)[1]
        if not num_chunks:
            return MAX_GRID_Y * tile
        num_tiles = MAX_PARTIAL_BYTES // (num_chunks * self._dtype.itemsize) // tile
        return min(max(num_tiles, 1), MAX_GRID_Y) * tile

    def _bind(self, launch: PanelLaunch, x: Array, y: Array) -> Callable[..., None]:
        """Return ``launch(x, y, alpha, beta, conjugate)`` for X and Y with the layout of these two."""
        device, dtype, num_columns = self._device, self._dtype, x.shape[1]
        num_long, num_chunks, chunks = self._long_rows(launch.long_length)
        chunk_threads = THREADS if device.lanes // launch.column_lanes <= FEW_PLACES else device.lanes
        chunk_blocks = -(-num_chunks * chunk_threads // THREADS)
        blocks = chunk_blocks - (-self._matrix.num_rows * launch.column_lanes * launch.entry_lanes // THREADS)
        check_grid("csr_spmm", blocks)
        tiles = -(-num_columns // launch.tile)
        limit = np.int64(launch.long_length if num_chunks else NO_LIMIT)
        sizes = np.int64(self._matrix.num_rows), np.int32(num_columns)
        shape = _bits(launch.column_lanes), _bits(launch.entry_lanes), limit, _bits(chunk_threads)
        before = *sizes, *shape, np.int32(num_chunks), chunks
        after = *self._matrix_args, *self._panel_args(launch, x, y)
        name = expression("csr_spmm", self._matrix.dtype, dtype, self._index, launch.loads, launch.columns_per_load)

        def bind(*sums: Array | None) -> Callable[..., None]:
            args = (*before, *sums, *after)
            return device.bind_product("spmm_csr.cu", name, (blocks, tiles), (THREADS,), args, dtype)

        if not num_chunks:
            return bind(None, None)
        arrays = (num_chunks * num_columns, dtype), (num_long * tiles, np.dtype(np.uint32))
        return call_for_stream(PerStream(device, bind, *arrays))

    def _panel_args(self, launch: PanelLaunch, x: Array, y: Array) -> tuple[Any, ...]:
        """Return the arguments for X and Y: what stands for them and the factors, strides, and whether Y is packed."""
        x_steps = self._index.type(x.strides[0]), np.int64(x.strides[1])
        row_stride, column_stride = (np.int64(step // y.itemsize) for step in y.strides)
        y_steps = row_stride, column_stride, np.int32(1 < launch.columns_per_load <= _pack(y))
        return Slot.X, *x_steps, Slot.Y, *y_steps, Slot.ALPHA, Slot.BETA, Slot.READ_Y, Slot.CONJUGATE

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


def _bits(power: int) -> Any:
    return np.int32(power.bit_length() - 1)
