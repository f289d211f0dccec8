"""What products with several dense columns have in common: the layout of X, and a launch for each layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.launching import Passed
from gsparse.formats.launch import Panel, PanelLaunch
from gsparse.kernels.contract import ChoosePanelLaunch
from gsparse.kernels.gpu.expressions import constant, packs

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
    alignment = array.strides[0] | address_of(array)
    return next((n for n in packs(itemsize) if array.shape[1] % n == 0 and alignment % (n * itemsize) == 0), 1)


def address_of(array: Array) -> int:
    """Return where the first element of an array lies."""
    try:
        pointer: int = array.data.ptr
    except AttributeError:  # an array of NumPy, in the emulator
        pointer = array.ctypes.data
    return pointer


def bits_of(power: int) -> Any:
    """Return the logarithm of a power of two, as an argument of a kernel."""
    return np.int32(power.bit_length() - 1)


class PanelProduct(ABC):
    """A product with dense columns. Kernels, chunks and scratch memory are made when they are first needed.

    A launch is bound for each layout of X and Y: shape, strides, and how the first elements are aligned.

    Parameters
    ----------
    device : Device
    num_rows : int
    dtype : dtype
        The compute dtype.
    choose : callable
        Returns the launch for the layout of an X.
    """

    def __init__(self, device: Device, num_rows: int, dtype: np.dtype[Any], choose: ChoosePanelLaunch) -> None:
        self._device, self._num_rows, self._dtype, self._choose = device, num_rows, dtype, choose
        self._launches: dict[Any, Callable[..., None]] = {}

    @abstractmethod
    def _partial_sums(self, launch: PanelLaunch) -> int:
        """Return the number of partial sums of long rows for each column."""

    @abstractmethod
    def _bind(self, launch: PanelLaunch, x: Array, y: Array) -> Callable[..., None]:
        """Return ``launch(x, y, alpha, beta, conjugate)`` for X and Y with the layout of these two."""

    def multiply(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        """Compute Y = alpha·A·X + beta·Y."""
        layout = x.shape, x.strides, y.strides, address_of(x) & 15, address_of(y) & 15
        launch = self._launches.get(layout)
        if launch is None:
            self._multiply_anew(layout, x, y, alpha, beta, conjugate)
        else:
            launch(x, y, alpha, beta, conjugate)

    def _multiply_anew(self, layout: Any, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        """Multiply an X and a Y with a layout for which no launch is bound, and bind one if one launch is enough."""
        num_columns = x.shape[1]
        if num_columns == 0 or self._num_rows == 0:
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
        tile, sums = launch.tile, self._partial_sums(launch)
        if not sums:
            return MAX_GRID_Y * tile
        num_tiles = MAX_PARTIAL_BYTES // (sums * self._dtype.itemsize) // tile
        return min(max(num_tiles, 1), MAX_GRID_Y) * tile


def panel_args(x: Array, y: Array, columns_per_load: int, row_step: Any) -> tuple[Any, ...]:
    """Return the arguments for X and Y: what stands for them and the factors, strides, and whether Y is packed.

    Parameters
    ----------
    x, y : array
    columns_per_load : int
    row_step : type
        The type of the bytes from one row of X to the next.
    """
    x_steps = row_step(x.strides[0]), np.int64(x.strides[1])
    row_stride, column_stride = (np.int64(step // y.itemsize) for step in y.strides)
    y_steps = row_stride, column_stride, np.int32(1 < columns_per_load <= _pack(y))
    return (
        Passed.X,
        *x_steps,
        Passed.Y,
        *y_steps,
        Passed.ALPHA,
        Passed.BETA,
        Passed.READ_Y,
        Passed.CONJUGATE,
    )
