"""Products with several dense columns (contract: `gsparse.kernels.contract`; kernel: `src/spmm_csr.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, RowPattern
from gsparse.formats.launch import FEW_PLACES, NO_LIMIT, Panel, PanelLaunch
from gsparse.kernels.contract import ChoosePanelLaunch, MultiplyColumns, Survey
from gsparse.kernels.gpu.expressions import expression, packs
from gsparse.kernels.gpu.launch import check_grid
from gsparse.kernels.gpu.scratch import Scratch, records
from gsparse.kernels.gpu.survey import long_rows

__all__ = ["csr_spmm", "panel_of"]

# Threads of a block (GS_SPMM_THREADS).
THREADS = 256
# Blocks along y that CUDA and HIP both take, and so the most column tiles of one launch.
MAX_GRID_Y = 65_535
# Sums of chunks of long rows may take so many bytes: more columns are multiplied one slab after the other.
MAX_PARTIAL_BYTES = 1 << 27
_INT32 = 2**31 - 1
_FLAGS = np.int32(0), np.int32(1)


class _Bound(NamedTuple):
    """A kernel and what stays the same from product to product: arguments before the scratch, and of X and Y."""

    kernel: Callable[..., None]
    grid: tuple[int, int]
    before: tuple[Any, ...]
    scratch: Scratch | None
    x_steps: tuple[Any, Any]
    y_steps: tuple[Any, Any, Any]


def panel_of(x: Array) -> Panel:
    """Tell what of X lies side by side.

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
    """Give how many neighbours in a row one access may take: all rows divide into as many, aligned."""
    itemsize: int = array.itemsize
    if array.strides[1] != itemsize:
        return 1
    together = array.strides[0] | _address(array)
    return next((n for n in packs(itemsize) if array.shape[1] % n == 0 and together % (n * itemsize) == 0), 1)


def _address(array: Array) -> int:
    pointer = getattr(array.data, "ptr", None)
    return int(array.ctypes.data if pointer is None else pointer)


def csr_spmm(
    device: Device,
    matrix: Csr | RowPattern,
    dtype: np.dtype[Any],
    choose: ChoosePanelLaunch,
    survey: Survey,
) -> MultiplyColumns:
    """Multiply as `choose` says for each shape and layout of X."""
    return _Product(device, matrix, dtype, choose, survey)


class _Product:
    """A matrix ready for dense columns: kernels, chunks and scratch as they are first asked for."""

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
            self._read: tuple[Any, ...] = None, np.int32(0), matrix.indptr, matrix.indices, matrix.data
        else:
            codes = matrix.codes, np.int32(matrix.codes.itemsize)
            self._read = *codes, matrix.pattern_indptr, matrix.offsets, matrix.pattern_values
        self._bound: dict[Any, _Bound] = {}
        self._chunks: dict[int, tuple[int, int, Array]] = {}

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        num_columns = x.shape[1]
        if num_columns == 0 or self._matrix.num_rows == 0:
            return
        if abs(x.strides[0]) > _INT32:  # (kernels count the bytes of a row as they count columns)
            x = x.copy()
        key = num_columns, x.strides, y.strides, _address(x) & 15, _address(y) & 15
        bound = self._bound.get(key)
        if bound is None:
            launch = self._choose(panel_of(x))
            slab = self._slab(launch)
            if slab < num_columns:
                for first in range(0, num_columns, slab):
                    part = slice(first, first + slab)
                    self(x[:, part], y[:, part], alpha, beta, conjugate)
                return
            bound = self._bound[key] = self._bind(launch, x, y)
        sums = (None, None) if bound.scratch is None else bound.scratch.get()
        panels = x, *bound.x_steps, y, *bound.y_steps
        scalars = alpha, beta, _FLAGS[bool(beta)], _FLAGS[conjugate]
        bound.kernel(bound.grid, (THREADS,), (*bound.before, *sums, *self._read, *panels, *scalars))

    def _slab(self, launch: PanelLaunch) -> int:
        """Give the columns that one launch may take."""
        tile, num_chunks = launch.tile, self._long_rows(launch.long_length)[1]
        if not num_chunks:
            return MAX_GRID_Y * tile
        room = MAX_PARTIAL_BYTES // (num_chunks * self._dtype.itemsize) // tile
        return min(max(room, 1), MAX_GRID_Y) * tile

    def _bind(self, launch: PanelLaunch, x: Array, y: Array) -> _Bound:
        matrix, device, num_columns = self._matrix, self._device, x.shape[1]
        num_long, num_chunks, chunks = self._long_rows(launch.long_length)
        limit = launch.long_length if num_chunks else NO_LIMIT
        chunk_threads = THREADS if device.lanes // launch.column_lanes <= FEW_PLACES else device.lanes
        chunk_blocks = -(-num_chunks * chunk_threads // THREADS)
        blocks = chunk_blocks - (-matrix.num_rows * launch.column_lanes * launch.entry_lanes // THREADS)
        check_grid("csr_spmm", blocks)
        tiles = -(-num_columns // launch.tile)
        sizes = np.int64(matrix.num_rows), np.int32(num_columns)
        shape = _bits(launch.column_lanes), _bits(launch.entry_lanes), np.int64(limit), _bits(chunk_threads)
        before = *sizes, *shape, np.int32(num_chunks), chunks
        index = self._read[2].dtype
        x_steps = index.type(x.strides[0]), np.int64(x.strides[1])
        row_stride, column_stride = (np.int64(step // y.itemsize) for step in y.strides)
        y_steps = row_stride, column_stride, np.int32(1 < launch.columns_per_load <= _pack(y))
        types = matrix.dtype, self._dtype, index, launch.loads, launch.columns_per_load
        kernel = device.kernel("spmm_csr.cu", expression("csr_spmm", *types))
        scratch = (
            Scratch(device, (num_chunks * num_columns, self._dtype), (num_long * tiles, np.dtype(np.uint32)))
            if num_chunks
            else None
        )
        return _Bound(kernel, (blocks, tiles), before, scratch, x_steps, y_steps)

    def _long_rows(self, limit: int) -> tuple[int, int, Array | None]:
        """Give the number of rows longer than `limit`, of their chunks, and these; found once, on a stream aside."""
        matrix = self._matrix
        if not isinstance(matrix, Csr) or self._survey.max_length <= limit or matrix.num_rows > _INT32:
            return 0, 0, None
        found = self._chunks.get(limit)
        if found is None:
            with self._device.aside():
                rows, _ = long_rows(self._device, matrix.indptr, self._survey, limit)
                found = rows.num_long, rows.num_chunks, records(self._device, rows)
            self._chunks[limit] = found
        return found


def _bits(power: int) -> Any:
    return np.int32(power.bit_length() - 1)
