"""A matrix made ready for products: checked CSR on a device, its plans, and what was built from it.

An operand's arrays never change. A matrix whose arrays changed has another operand; where only the values did, the new
one keeps the statistics and so the plan.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gsparse._typing import INDEX_DTYPES, Array
from gsparse.device import Device
from gsparse.errors import StructureError
from gsparse.formats import Csr, Stored
from gsparse.kernels import DEFAULT_THREADS_PER_BLOCK
from gsparse.plan import CPU_MODEL, EXPECTED_PRODUCTS, GPU_MODEL, Plan, RowStats, make_plan

__all__ = ["Operand", "Request", "make_operand", "row_stats"]


@dataclass(frozen=True)
class Request:
    """What the user asked for when the matrix was made."""

    format: str = "auto"
    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK
    expected_products: int = EXPECTED_PRODUCTS


@dataclass(eq=False)
class Operand:
    """CSR arrays on a device and everything derived from them, each made when first needed.

    Parameters
    ----------
    device : Device
    csr : Csr
        Checked.
    request : Request
    stats : RowStats
    source : (array, array, array)
        indptr, indices and data as they came: whoever still has these very arrays has this operand.
    """

    device: Device
    csr: Csr
    request: Request
    stats: RowStats
    source: tuple[Array, Array, Array]
    _stored: dict[np.dtype[Any], Stored] = field(default_factory=dict, repr=False)
    _columns: dict[np.dtype[Any], Csr] = field(default_factory=dict, repr=False)
    _plans: dict[np.dtype[Any], Plan] = field(default_factory=dict, repr=False)
    _transposed: Operand | None = field(default=None, repr=False)
    _lock: Any = field(default_factory=threading.RLock, repr=False)

    def plan(self, storage: np.dtype[Any]) -> Plan:
        """Choose the format for values read as `storage`."""
        found = self._plans.get(storage)
        if found is None:
            found = self._plans[storage] = make_plan(
                self.stats,
                device=self.device.name,
                lanes=self.device.lanes,
                model=GPU_MODEL if self.device.kind == "gpu" else CPU_MODEL,
                value_bytes=storage.itemsize,
                index_bytes=self.csr.indices.dtype.itemsize,
                format=self.request.format,
                threads_per_block=self.request.threads_per_block,
                expected_products=self.request.expected_products,
            )
        return found

    def values_as(self, storage: np.dtype[Any]) -> Csr:
        """Give the CSR arrays with values of dtype `storage`."""
        if self.csr.dtype == storage:
            return self.csr
        with self.device.memory_guard():
            return self.csr.with_data(self.csr.data.astype(storage))

    def stored(self, storage: np.dtype[Any]) -> Stored:
        """Give the matrix in the format its plan chose, converted on the device when first asked for."""
        found = self._stored.get(storage)
        if found is None:
            with self._lock:
                found = self._stored.get(storage) or self._convert(storage)
                self._stored[storage] = found
        return found

    def columns(self, storage: np.dtype[Any]) -> Csr:
        """Give the CSR arrays for products with several columns; values of another dtype are cast once."""
        found = self._columns.get(storage)
        if found is None:
            with self._lock, self.device.active():
                found = self._columns[storage] = self.values_as(storage)
                self.device.synchronize()  # synchronizes: read on any stream from now on, as in `_convert`
        return found

    def _convert(self, storage: np.dtype[Any]) -> Stored:
        chosen, device = self.plan(storage).format, self.device
        with device.active(), device.memory_guard():
            csr = self.values_as(storage)
            if chosen == "ellpack":
                stored: Stored = device.kernels.csr_to_ellpack(device, csr, self.stats.max_length)
            elif chosen == "blocked_ellpack":
                stored = device.kernels.csr_to_blocked_ellpack(device, csr, device.lanes)
            else:
                stored = csr
            # What was built on this stream may be read on any other from now on.
            device.synchronize()  # synchronizes
        return stored

    def transposed(self) -> Operand:
        """Give the operand of the transposed matrix, made on the device when first asked for and kept."""
        if self._transposed is None:
            with self._lock, self.device.active(), self.device.memory_guard():
                if self._transposed is None:
                    csr = self.device.kernels.csr_transpose(self.device, self.csr)
                    source = (csr.indptr, csr.indices, csr.data)
                    stats = row_stats(self.device, csr)
                    self._transposed = Operand(self.device, csr, self.request, stats, source)
        return self._transposed

    def with_data(self, data: Array, request: Request | None = None) -> Operand:
        """Give the operand of the same structure with other values (or another request): the statistics are kept."""
        csr, source = _filled(self.csr, data), (*self.source[:2], data)
        other = Operand(self.device, csr, request or self.request, self.stats, source)
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k == "is_canonical"})
        return other

    def release(self) -> None:
        """Drop what was built; it is made again when next needed."""
        with self._lock:
            self._stored.clear()
            self._columns.clear()
            self._transposed = None

    @cached_property
    def is_canonical(self) -> bool:
        """Whether columns rise strictly within every row: sorted, no duplicates. Synchronizes."""
        xp, indptr, indices = self.device.xp, self.csr.indptr, self.csr.indices
        with self.device.active(), self.device.memory_guard():
            rises = indices[1:] > indices[:-1]
            starts = indptr[1:-1]
            rises[starts[(starts > 0) & (starts < indices.size)] - 1] = True  # the step into another row counts not
            return bool(xp.all(rises))  # synchronizes


def make_operand(
    device: Device, shape: tuple[int, int], indptr: Array, indices: Array, data: Array, request: Request
) -> Operand:
    """Check CSR arrays on their device, once, and give their operand. Synchronizes.

    Raises
    ------
    StructureError
        Where the arrays do not describe a matrix of this shape.
    """
    with device.active(), device.memory_guard():
        source = (indptr, indices, data)
        indptr, indices = _common_index_dtype(indptr, indices)
        # As in SciPy, arrays may have room for more entries than the row pointers speak of.
        used = max(int(indptr[-1]), 0) if indptr.size else 0  # synchronizes
        csr = _filled(Csr(shape, indptr, indices[:used], data[:used]), data)
        check_structure(device, csr)
        return Operand(device, csr, request, row_stats(device, csr), source)


def _filled(csr: Csr, data: Array) -> Csr:
    """Give a structure with these values, as many as it has entries."""
    if csr.indices.ndim != 1 or data.ndim != 1 or data.size < csr.nnz:
        raise StructureError(
            f"data and indices must be vectors of one length, got {data.shape}, {csr.indices.shape}: bind both"
        )
    return csr.with_data(data[: csr.nnz])


def _common_index_dtype(indptr: Array, indices: Array) -> tuple[Array, Array]:
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.dtype.kind not in "iu":
            raise StructureError(f"{name} must hold integers, got {array.dtype}: convert it with astype(numpy.int32)")
    narrow, wide = INDEX_DTYPES
    dtype = narrow if all(np.can_cast(a.dtype, narrow) for a in (indptr, indices)) else wide
    return indptr.astype(dtype, copy=False), indices.astype(dtype, copy=False)


def check_structure(device: Device, csr: Csr) -> None:
    """Refuse arrays that are no CSR matrix, saying what is required and what came. Synchronizes."""
    xp, indptr, indices = device.xp, csr.indptr, csr.indices
    if indptr.shape != (csr.num_rows + 1,):
        raise StructureError(f"indptr must have num_rows + 1 = {csr.num_rows + 1} elements, got shape {indptr.shape}")
    first, last = int(indptr[0]), int(indptr[-1])  # synchronizes
    if first != 0 or last != csr.nnz:
        raise StructureError(f"indptr must run from 0 to the {csr.nnz} entries, it runs from {first} to {last}")
    if bool(xp.any(indptr[1:] < indptr[:-1])):  # synchronizes
        row = int(xp.argmax(indptr[1:] < indptr[:-1]))  # synchronizes
        begin, end = int(indptr[row]), int(indptr[row + 1])  # synchronizes
        raise StructureError(f"indptr must not decrease, it does at row {row}, from {begin} to {end}")
    if csr.nnz == 0:
        return
    low, high = int(indices.min()), int(indices.max())  # synchronizes
    if low < 0 or high >= csr.num_cols:
        raise StructureError(
            f"indices must lie in 0 to {csr.num_cols - 1}, they span {low} to {high}: is the shape right?"
        )


def row_stats(device: Device, csr: Csr) -> RowStats:
    """Measure the rows of a matrix on its device. Synchronizes."""
    xp, num_rows, lanes = device.xp, csr.num_rows, device.lanes
    lengths = xp.diff(csr.indptr)
    if num_rows == 0:
        return RowStats(0, csr.num_cols, 0, 0, 0, 0.0, 0.0, 0, 0)
    whole = num_rows // lanes * lanes
    blocked = int(lengths[:whole].reshape(-1, lanes).max(axis=1).sum(dtype=np.int64)) if whole else 0  # synchronizes
    blocked += int(lengths[whole:].max()) if whole < num_rows else 0  # synchronizes
    return RowStats(
        num_rows=num_rows,
        num_cols=csr.num_cols,
        nnz=csr.nnz,
        min_length=int(lengths.min()),  # synchronizes
        max_length=int(lengths.max()),  # synchronizes
        mean_length=csr.nnz / num_rows,
        std_length=float(lengths.astype(np.float64).std()),  # synchronizes
        num_empty=int(xp.count_nonzero(lengths == 0)),  # synchronizes
        blocked_stored=blocked * lanes,
    )
