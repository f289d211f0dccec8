"""Products with several dense columns (contract: `gsparse.kernels`; kernels: `src/spmm_*.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.device import Device
from gsparse.formats import Csr
from gsparse.kernels import Launch, Panel, PanelLaunch
from gsparse.kernels.gpu.catalogue import expression, packs
from gsparse.kernels.gpu.launch import check_grid, launch_threads
from gsparse.kernels.gpu.scratch import Scratch

__all__ = ["csr_spmm", "panel_of"]

# Blocks along y that CUDA and HIP both take, and so the most column tiles of one launch.
MAX_GRID_Y = 65_535
# Threads of a block of csr_spmm_split, and its most entries and row ends (GS_SPLIT_THREADS, GS_SPLIT_WORK).
SPLIT_THREADS, SPLIT_WORK = 256, 2048
# What parts leave unfinished may take so many bytes: more columns are multiplied one slab after the other.
MAX_CARRY_BYTES = 1 << 27
# Columns that neighbouring lanes of csr_spmm_carry own; the others take turns at the parts of a row.
CARRY_LANES = 8


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
    device: Device, matrix: Csr, dtype: np.dtype[Any], choose: Callable[[Panel], PanelLaunch]
) -> Callable[[Array, Array, Any, Any, bool], None]:
    """Multiply by rows or in equal parts, as `choose` says for each shape and layout of X."""
    return _Product(device, matrix, dtype, choose)


class _Product:
    """CSR arrays ready for dense columns: kernels, parts and scratch as they are first asked for."""

    def __init__(
        self, device: Device, matrix: Csr, dtype: np.dtype[Any], choose: Callable[[Panel], PanelLaunch]
    ) -> None:
        self._device, self._matrix, self._dtype, self._choose = device, matrix, dtype, choose
        self._csr = matrix.indptr, matrix.indices, matrix.data
        self._launches: dict[Panel, PanelLaunch] = {}
        self._parts: dict[int, Array] = {}
        self._carries: dict[int, Scratch] = {}

    def __call__(self, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> None:
        if x.shape[1] == 0 or self._matrix.num_rows == 0:
            return
        panel = panel_of(x)
        launch = self._launches.get(panel)
        if launch is None:
            launch = self._launches[panel] = self._choose(panel)
        run = self._by_rows if launch.schedule == "rows" else self._in_parts
        tile = launch.column_lanes * launch.columns_per_lane
        slab = MAX_GRID_Y * tile
        if launch.schedule == "split":
            carry_columns = MAX_CARRY_BYTES // (self._num_parts(launch) * self._dtype.itemsize)
            slab = max(1, min(carry_columns, MAX_GRID_Y * CARRY_LANES) // tile) * tile
        for first in range(0, panel.num_columns, slab):
            part = slice(first, first + slab)
            X, Y = (x, y) if slab >= panel.num_columns else (x[:, part], y[:, part])
            run(launch, panel.pack > 1, X, Y, alpha, beta, np.int32(conjugate))

    def _by_rows(
        self, launch: PanelLaunch, is_packed: bool, x: Array, y: Array, alpha: Any, beta: Any, conjugate: Any
    ) -> None:
        threads, num_rows = launch.threads_per_block, self._matrix.num_rows
        blocks = -(-num_rows * launch.column_lanes * launch.entry_lanes // threads)
        check_grid("csr_spmm", blocks)
        bits = _bits(launch.column_lanes), _bits(launch.entry_lanes)
        sizes = np.int64(num_rows), np.int64(x.shape[1]), *bits, np.int32(launch.cached)
        vectors = (*_panels(launch, x, y), alpha, beta, np.int32(beta != 0), conjugate)
        kernel = self._kernel("spmm_csr.cu", "csr_spmm", launch, is_packed)
        kernel((blocks, _tiles(launch, x)), (threads,), (*sizes, *self._csr, *vectors))

    def _in_parts(
        self, launch: PanelLaunch, is_packed: bool, x: Array, y: Array, alpha: Any, beta: Any, conjugate: Any
    ) -> None:
        matrix, num_columns, work = self._matrix, x.shape[1], _work(launch)
        num_parts = self._num_parts(launch)
        check_grid("csr_spmm_split", num_parts)
        first_rows, (carries,) = self._first_rows(work, num_parts), self._scratch(num_parts * num_columns).get()
        shape = _bits(launch.column_lanes), np.int32(launch.share), np.int32(launch.cached)
        panels = _panels(launch, x, y)
        vectors = (*panels, alpha, beta, np.int32(beta != 0), conjugate)
        kernel = self._kernel("spmm_split.cu", "csr_spmm_split", launch, is_packed)
        sizes = np.int64(matrix.nnz), np.int64(num_columns), *shape
        grid = num_parts, _tiles(launch, x)
        kernel(grid, (SPLIT_THREADS,), (*sizes, first_rows, carries, *self._csr, *vectors))
        lanes = min(CARRY_LANES, 1 << (num_columns - 1).bit_length())
        parts = np.int64(num_parts), np.int64(num_columns), np.int32(work), np.int32(lanes)
        carry = self._device.kernel("spmm_split.cu", expression("csr_spmm_carry", self._dtype, matrix.indptr.dtype))
        blocks = -(-num_parts * self._device.lanes // SPLIT_THREADS)
        args = (*parts, first_rows, matrix.indptr, carries, *panels[3:6], alpha)
        carry((blocks, -(-num_columns // lanes)), (SPLIT_THREADS,), args)

    def _kernel(self, source: str, name: str, launch: PanelLaunch, is_packed: bool) -> Callable[..., None]:
        types = self._matrix.dtype, self._dtype, self._matrix.indptr.dtype
        return self._device.kernel(source, expression(name, *types, launch.columns_per_lane, int(is_packed)))

    def _num_parts(self, launch: PanelLaunch) -> int:
        return -(-(self._matrix.nnz + self._matrix.num_rows) // _work(launch))

    def _first_rows(self, work: int, num_parts: int) -> Array:
        """Give the row ends before each part; found once, on a stream aside, for products on any stream."""
        found = self._parts.get(work)
        if found is None:
            matrix, device = self._matrix, self._device
            with device.aside():
                found = device.empty(num_parts + 1, matrix.indptr.dtype)
                sizes = np.int64(matrix.num_rows), np.int64(matrix.nnz), np.int32(work), np.int64(num_parts)
                name, threads = expression("csr_spmm_parts", matrix.indptr.dtype), Launch().threads_per_block
                args = (*sizes, matrix.indptr, found)
                launch_threads(device, "spmm_split.cu", name, num_parts + 1, threads, args)
            self._parts[work] = found
        return found

    def _scratch(self, size: int) -> Scratch:
        found = self._carries.get(size)
        if found is None:
            found = self._carries[size] = Scratch(self._device, (size, self._dtype))
        return found


def _work(launch: PanelLaunch) -> int:
    """Give the entries and row ends of a part."""
    return SPLIT_THREADS // launch.column_lanes * launch.share


def _tiles(launch: PanelLaunch, x: Array) -> int:
    num_columns: int = x.shape[1]
    return -(-num_columns // (launch.column_lanes * launch.columns_per_lane))


def _bits(power: int) -> Any:
    return np.int32(power.bit_length() - 1)


def _panels(launch: PanelLaunch, x: Array, y: Array) -> tuple[Any, ...]:
    """Give X and Y as kernels take them (GS_PANELS)."""
    strides = [[np.int64(step // array.itemsize) for step in array.strides] for array in (x, y)]
    is_packed = 1 < launch.columns_per_lane <= _pack(y)
    return x, *strides[0], y, *strides[1], np.int32(is_packed)
