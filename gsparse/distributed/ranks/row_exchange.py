"""Exchanges between ranks for sparse algebra and multigrid: rows of matrices, and values of ghosts.

Rows are sent as `Csr` with column numbers of the whole matrix, because local column numbers differ between ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import get_device
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.halo import Halo
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.sparse.canonical import canonical, computed, in_common

HostArray = npt.NDArray[Any]


def union(one: HostArray, other: HostArray) -> HostArray:
    """Return the sorted union of two sorted arrays, without repetitions, as int64."""
    # NumPy's `union1d` takes ten times as long as this function.
    both = np.concatenate([one, other]).astype(np.int64, copy=False)
    both.sort(kind="stable")  # merges sorted runs
    return both[np.append(True, both[1:] != both[:-1])] if both.size else both


def whole_nodes(columns: HostArray, block_size: int) -> HostArray:
    """Return all columns of the nodes to which the given columns belong, sorted."""
    if block_size == 1:
        return columns.astype(np.int64, copy=False)
    nodes = np.unique(columns // block_size).astype(np.int64)
    return (nodes[:, None] * block_size + np.arange(block_size)).reshape(-1)


def columns_of_others(device: Device, csr: Csr, own: slice) -> HostArray:
    """Return the columns of other ranks in which rows have entries, sorted, on the host. Synchronizes.

    The columns of `csr` are those of the whole matrix.
    """
    xp = device.xp
    outside = csr.indices[(csr.indices < own.start) | (csr.indices >= own.stop)]
    if outside.size < csr.num_cols // 64:
        columns = xp.unique(outside)
    else:  # without a sort
        is_outside = xp.zeros(csr.num_cols, bool)
        is_outside[outside] = True
        columns = xp.flatnonzero(is_outside)
    numbers: HostArray = device.download(columns).astype(np.int64, copy=False)  # synchronizes
    return numbers


def with_own_columns(device: Device, csr: Csr, own: slice, ghosts: HostArray) -> Csr:
    """Replace column numbers of the whole matrix by local numbers. Return rows in canonical form. Synchronizes."""
    xp, num_own, columns = device.xp, own.stop - own.start, csr.indices
    is_own = (columns >= own.start) & (columns < own.stop)
    of_ghosts = num_own + xp.searchsorted(device.upload(ghosts), columns)
    local = xp.where(is_own, columns - own.start, of_ghosts)
    shape = (csr.num_rows, num_own + len(ghosts))
    index = np.int32 if max(*shape, csr.nnz) <= MAX_INT32 else np.int64
    return canonical(device, Csr(shape, csr.indptr.astype(index), local.astype(index), csr.data))


def placed(device: Device, csr: Csr, rows: Array, num_rows: int) -> Csr:
    """Return a matrix with `num_rows` rows, whose row ``rows[i]`` has the entries of row i of `csr`. Synchronizes.

    If several rows of `csr` go to the same row of the result, their entries are concatenated in the order of `csr`.
    """
    kernels = kernels_of(device)
    of_entries = rows.astype(csr.indices.dtype)[kernels.sparse_rows.row_numbers(device, csr.indptr, csr.nnz)]
    order, indptr = kernels.transpose.order_by_row(device, of_entries, num_rows)
    return Csr((num_rows, csr.num_cols), indptr, csr.indices[order], csr.data[order])


def beside(device: Device, left: Csr, right: Csr, num_cols: int) -> Csr:
    """Return rows with the entries of both `left` and `right`, in canonical form.

    The columns in each row of `left` and of `right` must be sorted. No entry may be in both matrices.
    """
    if not right.nnz:
        return replace(left, shape=(left.num_rows, num_cols), is_canonical=True)
    kernels, (left, right) = kernels_of(device), in_common(left, right)
    rows = kernels.sparse_rows.row_numbers(device, right.indptr, right.nnz).astype(np.int64)
    wide = replace(left, shape=(left.num_rows, num_cols))
    columns = right.indices.astype(np.int64)
    return replace(kernels.edits.insert_entries(device, wide, rows, columns, right.data, True), is_canonical=True)


@dataclass(frozen=True, eq=False)
class RankContext:
    """A rank's device and communicator. All ranks must call the same methods in the same order.

    Attributes
    ----------
    device : Device
        The device of the rank's arrays, which must be active.
    communicator : Communicator
        The rank's communicator, for host arrays.
    """

    device: Device
    communicator: Communicator

    @property
    def rank(self) -> int:
        return self.communicator.rank

    def all_ranks(self, is_true: bool) -> bool:
        """Return whether `is_true` is true on all ranks."""
        return bool(self.communicator.table([int(is_true)]).all())

    def values_of_ghosts(self, halo: Halo, values: Array) -> Array:
        """Exchange values with other ranks, and return the values of this rank's ghosts. Synchronizes.

        Parameters
        ----------
        halo : Halo
        values : array, shape (own columns, ...)
            This rank's values, on its device: float32, float64, complex64, complex128, int32 or int64.

        Returns
        -------
        array, shape (ghosts, ...)
        """
        device, xp = self.device, self.device.xp
        received = device.empty((halo.num_ghosts, *values.shape[1:]), values.dtype)
        sent = {peer: xp.ascontiguousarray(values[device.upload(rows)]) for peer, rows in halo.sends.items()}
        self._exchange(sent, {peer: received[part] for peer, part in halo.receives.items()})
        return received

    def rows_of_ghosts(self, halo: Halo, rows: Csr) -> Csr:
        """Send other ranks the rows that they need, and return the rows that this rank needs. Synchronizes.

        Parameters
        ----------
        halo : Halo
        rows : Csr
            A row for each number in ``halo.sent``, with column numbers of the whole matrix.

        Returns
        -------
        Csr
            A row for each ghost, in the order of the ghosts.
        """
        sends = {peer: len(numbers) for peer, numbers in halo.sends.items()}
        counts = {peer: part.stop - part.start for peer, part in halo.receives.items()}
        return self.exchange_rows(rows, _consecutive(sends), counts)

    def rows_to_owners(self, halo: Halo, rows: Csr) -> Csr:
        """Send the rows of ghosts to the ghosts' owners, and return the received rows. Synchronizes.

        Parameters
        ----------
        halo : Halo
        rows : Csr
            A row for each ghost, with column numbers of the whole matrix.

        Returns
        -------
        Csr
            A row for each number in ``halo.sent``.
        """
        return self.exchange_rows(rows, halo.receives, {peer: len(numbers) for peer, numbers in halo.sends.items()})

    def exchange_rows(self, rows: Csr, sends: Mapping[int, slice], counts: Mapping[int, int]) -> Csr:
        """Send consecutive rows to other ranks, and return the rows that they send. Synchronizes.

        Parameters
        ----------
        rows : Csr
            The rows, with column numbers of the whole matrix.
        sends : mapping of rank to slice
            The rows that are sent to each rank.
        counts : mapping of rank to int
            Number of rows that each rank sends to this rank.

        Returns
        -------
        Csr
            The received rows, in the order of the senders' ranks, with int64 indices.
        """
        device, dtype = self.device, rows.dtype
        rows = computed(rows, dtype)  # connections transfer only these dtypes
        ends = device.download(rows.indptr).astype(np.int64)
        lengths = np.diff(ends)
        incoming = {peer: np.empty(count, np.int64) for peer, count in sorted(counts.items()) if count}
        outgoing = {peer: np.ascontiguousarray(lengths[part]) for peer, part in sends.items() if part.start < part.stop}
        self.communicator.on(get_device("cpu")).exchange(outgoing, incoming)()
        indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.empty(0, np.int64), *incoming.values()]))])
        columns, data = device.empty(int(indptr[-1]), np.int64), device.empty(int(indptr[-1]), rows.dtype)
        places = _consecutive({peer: int(part.sum()) for peer, part in incoming.items()})
        entries = {peer: slice(int(ends[part.start]), int(ends[part.stop])) for peer, part in sends.items()}
        for source, target in ((rows.indices.astype(np.int64, copy=False), columns), (rows.data, data)):
            self._exchange(
                {peer: source[part] for peer, part in entries.items() if part.start < part.stop},
                {peer: target[part] for peer, part in places.items() if part.start < part.stop},
            )
        shape = (indptr.size - 1, rows.num_cols)
        return Csr(shape, device.upload(indptr.astype(np.int64)), columns, data.astype(dtype, copy=False))

    def rows_of_all(self, rows: Csr, partition: RowPartition) -> Csr:
        """Return the rows of all ranks as one matrix, on every rank. Synchronizes.

        Parameters
        ----------
        rows : Csr
            This rank's rows, with column numbers of the whole matrix.
        partition : RowPartition
            The owners of the rows.
        """
        counts = np.diff(partition.row_bounds).tolist()
        others = [peer for peer in range(len(counts)) if peer != self.rank]
        every_row = slice(0, rows.num_rows)
        received = self.exchange_rows(rows, dict.fromkeys(others, every_row), {peer: counts[peer] for peer in others})
        before = sum(counts[: self.rank])
        kernels, device = kernels_of(self.device), self.device
        first = kernels.sparse_rows.slice_rows(device, received, 0, before)
        last = kernels.sparse_rows.slice_rows(device, received, before, received.num_rows - before)
        return stacked(device, [first, rows, last])

    def values_of_all(self, values: Array, partition: RowPartition) -> Array:
        """Return the values of all ranks as one array, on every rank. Synchronizes.

        Parameters
        ----------
        values : array, shape (own rows, ...)
        partition : RowPartition
            The owners of the rows.
        """
        return self.values_of_rows(values, partition, [slice(0, partition.num_rows)] * partition.world_size)

    def values_of_rows(self, values: Array, partition: RowPartition, wanted: list[slice]) -> Array:
        """Return the values of the rows that this rank wants, which may have several owners. Synchronizes.

        Parameters
        ----------
        values : array, shape (own rows, ...)
        partition : RowPartition
            The owners of the rows.
        wanted : list of slice
            For each rank, the consecutive rows whose values it receives.
        """
        device, xp = self.device, self.device.xp
        own, mine = partition.rows(self.rank), wanted[self.rank]
        result = device.empty((mine.stop - mine.start, *values.shape[1:]), values.dtype)
        values = xp.ascontiguousarray(values)
        sends, receives = dict[int, Array](), dict[int, Array]()
        for peer in range(partition.world_size):
            to_peer, from_peer = _common(own, wanted[peer]), _common(partition.rows(peer), mine)
            if peer == self.rank:
                result[_shifted(to_peer, mine)] = values[_shifted(to_peer, own)]
                continue
            if to_peer.start < to_peer.stop:
                sends[peer] = values[_shifted(to_peer, own)]
            if from_peer.start < from_peer.stop:
                receives[peer] = result[_shifted(from_peer, mine)]
        self._exchange(sends, receives)
        return result

    def _exchange(self, sends: dict[int, Array], receives: dict[int, Array]) -> None:
        self.communicator.on(self.device).exchange(sends, receives)()


def stacked(device: Device, parts: list[Csr]) -> Csr:
    """Stack the rows of several matrices.

    Parameters
    ----------
    device : Device
        The device of the arrays, which must be active.
    parts : list of Csr
        Matrices with the same columns and the same dtype of values.
    """
    xp, nnz = device.xp, sum(part.nnz for part in parts)
    index = np.result_type(*(part.indices.dtype for part in parts), np.int32 if nnz <= MAX_INT32 else np.int64)
    parts = [part.with_index_dtype(index) for part in parts]
    starts = np.cumsum([0, *(part.nnz for part in parts)])
    indptr = [part.indptr[:-1] + index.type(start) for part, start in zip(parts, starts[:-1], strict=True)]
    return Csr(
        (sum(part.num_rows for part in parts), parts[0].num_cols),
        xp.concatenate([*indptr, xp.full(1, nnz, index)]),
        xp.concatenate([part.indices for part in parts]),
        xp.concatenate([part.data for part in parts]),
    )


def narrowed(csr: Csr) -> Csr:
    """Return a matrix whose index arrays are int32 if the numbers fit, else int64."""
    return csr.with_index_dtype(np.dtype(np.int32 if max(csr.nnz, *csr.shape) <= MAX_INT32 else np.int64))


def _consecutive(counts: Mapping[int, int]) -> dict[int, slice]:
    """Return consecutive slices of the lengths `counts`, with the same keys. The first slice begins at 0."""
    ends = np.cumsum(list(counts.values()), dtype=np.int64).tolist()
    return {peer: slice(end - count, end) for (peer, count), end in zip(counts.items(), ends, strict=True)}


def _common(one: slice, two: slice) -> slice:
    """Return the intersection of two slices."""
    start = max(one.start, two.start)
    return slice(start, max(start, min(one.stop, two.stop)))


def _shifted(rows: slice, within: slice) -> slice:
    """Return the same rows as a slice that counts from the first row of `within`."""
    return slice(rows.start - within.start, rows.stop - within.start)
