"""Sources of the rows of a distributed matrix: this process, files, functions, dask arrays, and other matrices.

A matrix can be made from its source more than once. A result of sparse algebra is an independent matrix on the same
workers. Its ranks share the connections of the first operand. The connections are closed when the last matrix that
shares them is closed. If a task of one of these matrices fails, the next task of any of them connects the ranks again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.select import device_of
from gsparse.distributed.client.products import VectorLayout
from gsparse.distributed.client.rank_group import RankGroup, argument
from gsparse.distributed.io.loaders import RowLoader
from gsparse.distributed.ranks.partition import RowPartition, order_rows
from gsparse.distributed.worker import entry_tasks
from gsparse.distributed.worker.group_tasks import Computation
from gsparse.distributed.worker.rank import rank_key
from gsparse.errors import ShapeError
from gsparse.matrix.assembly import vstack
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix

HostArray = npt.NDArray[Any]

Partition = str | Sequence[int]


class RowSource(ABC):
    """A source of the rows of a distributed matrix.

    Attributes
    ----------
    shape : (int, int)
    block_size : int
        Number of rows and columns of the blocks of a block sparse matrix, else 1.
    is_lasting : bool
        Whether the rows can be read again after the matrix has been closed, or a worker has been lost.
    operand : RankGroup or None
        The group of a matrix on the same workers, from which the rows are computed.
    remedy : str
        The end of an error message: how to make the matrix again after a worker was lost (`WorkerLostError`).
    """

    shape: tuple[int, int]
    block_size: int = 1
    is_lasting: bool = True
    operand: RankGroup | None = None
    remedy: str = ""

    @abstractmethod
    def row_lengths(self) -> HostArray | None:
        """Return the number of entries of each row; None if the numbers are not known."""

    @abstractmethod
    def rank_input(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        """Return the input from which a worker makes its rows: a CSR array, future, `RowLoader` or `Computation`."""

    def attach(self, rank_group: RankGroup, layout: VectorLayout) -> None:  # noqa: B027 (only computed rows need it)
        """Record that a matrix has been made from these rows on the workers of `rank_group`."""

    def arrange(
        self, partition: Partition, reorder: str | None, world_size: int
    ) -> tuple[RowSource, HostArray | None, RowPartition]:
        """Choose an order and a partition of the rows.

        Returns
        -------
        RowSource
            A source of the rows in their new order.
        array of int64 or None
            The permutation of rows and columns; None if no row moves.
        RowPartition
            The owners of the rows in their new order.
        """
        if reorder is not None or partition == "metis":
            raise ValueError("reorder and partition='metis' need the whole matrix: use distribute(S)")
        return self, None, self.partition(partition, world_size)

    def partition(self, partition: Partition, world_size: int) -> RowPartition:
        """Divide the rows among the ranks. The argument `partition` of `distribute` describes the choices."""
        if not isinstance(partition, str):
            rows = RowPartition.from_bounds(partition, self.shape[0])
            if rows.world_size != world_size:
                raise ShapeError(
                    f"the row bounds are those of {rows.world_size} workers, but the matrix has {world_size}: pass "
                    f"{world_size + 1} bounds, or other workers"
                )
            return rows
        lengths = self.row_lengths() if partition == "nnz" else None
        if lengths is None:
            return RowPartition.by_rows(self.shape[0], world_size).between_blocks(self.block_size)
        by_nnz = RowPartition.by_nnz(np.concatenate([[0], np.cumsum(lengths)]), world_size)
        return by_nnz.between_blocks(self.block_size)


class HostRows(RowSource):
    """A matrix of this process."""

    def __init__(self, matrix: sp.csr_array, block_size: int = 1) -> None:
        self.matrix, self.shape, self.block_size = matrix, matrix.shape, block_size

    def row_lengths(self) -> HostArray | None:
        lengths: HostArray = np.diff(self.matrix.indptr)
        return lengths

    def arrange(
        self, partition: Partition, reorder: str | None, world_size: int
    ) -> tuple[RowSource, HostArray | None, RowPartition]:
        if reorder is None and partition != "metis":
            return super().arrange(partition, reorder, world_size)
        permutation, bounds = order_rows(self.matrix, reorder, world_size if partition == "metis" else None)
        moved = HostRows(sp.csr_array(self.matrix[permutation][:, permutation]))
        return moved, permutation, moved.partition(bounds or partition, world_size)

    def rank_input(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        first, last = self.matrix.indptr[[rows.start, rows.stop]]
        indptr = self.matrix.indptr[rows.start : rows.stop + 1] - first  # the other arrays are not copied
        arrays = self.matrix.data[first:last], self.matrix.indices[first:last], indptr
        return sp.csr_array(arrays, shape=(rows.stop - rows.start, self.shape[1]))


class LoadedRows(RowSource):
    """Files or a function, from which each worker reads its rows."""

    def __init__(self, loader: RowLoader) -> None:
        self._loader, self.shape = loader, loader.shape
        self._permutation = loader.permutation()

    def arrange(
        self, partition: Partition, reorder: str | None, world_size: int
    ) -> tuple[RowSource, HostArray | None, RowPartition]:
        _, _, rows = super().arrange(partition, reorder, world_size)
        return self, self._permutation, rows

    def row_lengths(self) -> HostArray | None:
        return self._loader.row_lengths(0, self.shape[0])

    def rank_input(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        return self._loader


class DaskRows(RowSource):
    """A dask array in chunks of whole rows."""

    def __init__(self, array: Any) -> None:
        self._array, self.shape = array, array.shape
        self._chunk_bounds = np.cumsum((0, *array.chunks[0]))

    def row_lengths(self) -> HostArray | None:
        return None

    def partition(self, partition: Partition, world_size: int) -> RowPartition:
        bounds = super().partition(partition, world_size).row_bounds
        if isinstance(partition, str):  # take the nearest bounds of chunks
            nearest = [int(self._chunk_bounds[np.argmin(abs(self._chunk_bounds - bound))]) for bound in bounds]
            return RowPartition((0, *nearest[1:-1], self.shape[0]))
        chunk_bounds = self._chunk_bounds.tolist()
        if not set(bounds) <= set(chunk_bounds):
            raise ShapeError(
                f"row bounds {bounds} must be bounds of chunks of the dask array, which are {chunk_bounds}: rechunk "
                "the array, or use the partition 'rows'"
            )
        return RowPartition(bounds)

    def rank_input(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        first, last = np.searchsorted(self._chunk_bounds, [rows.start, rows.stop])
        chunks = list(self._array.to_delayed()[first:last].reshape(-1)) if rows.stop > rows.start else []
        futures = client.compute(chunks, workers=[worker], allow_other_workers=True)
        return client.submit(
            stack_rows, futures, self.shape[1], workers=[worker], allow_other_workers=False, pure=False
        )


def stack_rows(chunks: list[Any], num_cols: int) -> sp.csr_array | GpuSparseMatrix:
    """Stack sparse or dense chunks of rows, on their worker; on a device if the first chunk is there."""
    if not chunks:
        return sp.csr_array((0, num_cols))
    parts = [_as_sparse(chunk) for chunk in chunks]
    return vstack(parts) if isinstance(parts[0], DeviceMatrix) else sp.csr_array(sp.vstack(parts))


def _as_sparse(chunk: Any) -> Any:
    """Return a chunk as a sparse matrix: on its device, if it is one of gsparse or CuPy, otherwise as SciPy's CSR."""
    if isinstance(chunk, DeviceMatrix) or device_of(getattr(chunk, "data", chunk)) is not None:
        return GpuSparseMatrix(chunk)
    to_scipy: Callable[[], Any] | None = getattr(chunk, "to_scipy_sparse", None)  # the package `sparse` has it
    return sp.csr_array(chunk if to_scipy is None else to_scipy())


class ComputedRows(RowSource):
    """Rows that the workers compute when the first matrix is made from this source.

    Each further matrix copies its rows from the latest matrix of this source, which must still be open.

    Parameters
    ----------
    layout : VectorLayout
        The layout of the matrix.
    computation : Computation
    operand : RankGroup
        The group of the first operand.
    block_size : int
        As in `RowSource`.
    arguments : sequence of tuple, optional
        Further arguments of each rank, after those of the computation.
    """

    is_lasting = False
    remedy = (
        "the matrix was computed from other matrices, so compute it from them again, after A = A.repartition() for "
        "those that have lost rows too"
    )

    def __init__(
        self,
        layout: VectorLayout,
        computation: Computation,
        operand: RankGroup,
        block_size: int,
        arguments: Sequence[tuple[Any, ...]] | None = None,
    ) -> None:
        self.shape, self.block_size, self._layout = layout.shape, block_size, layout
        self._computation, self.operand, self._arguments = computation, operand, arguments
        self._group: RankGroup | None = None

    def attach(self, rank_group: RankGroup, layout: VectorLayout) -> None:
        """Let further matrices copy their rows from the matrix of this group."""
        self._group, self._layout, self.operand, self._arguments = rank_group, layout, None, None

    def row_lengths(self) -> HostArray | None:
        assert self._group is not None
        return np.concatenate(self._group.call(entry_tasks.number_of_entries))

    def arrange(
        self, partition: Partition, reorder: str | None, world_size: int
    ) -> tuple[RowSource, HostArray | None, RowPartition]:
        """Choose a partition of the rows. The rows keep their order in the blocks."""
        if reorder is not None or partition == "metis":
            raise ValueError(
                "reorder and partition='metis' need the whole matrix, and this one was computed on its workers: use "
                "distribute(A.tocsr(), ...)"
            )
        lost = None if self._group is None else self._group.error_of_lost_worker()
        if lost is not None:
            raise lost
        return self, self._layout.permutation, self.partition(partition, world_size)

    def rank_input(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        if self._group is not None:
            return self._rows_of_workers(self._group, client, worker, rows)
        if self._arguments is None:
            return self._computation
        assert self.operand is not None
        of_rank = map(argument, self._arguments[self.operand.workers.index(worker)])
        return replace(self._computation, arguments=(*self._computation.arguments, *of_rank))

    def _rows_of_workers(self, group: RankGroup, client: distributed.Client, worker: str, rows: slice) -> Any:
        """Return a future for rows that are copied from the workers of a group."""
        group.check_open()
        pieces = []
        for rank in group.ranks:
            own = self._layout.rows.rows(rank)
            start, stop = max(own.start, rows.start), min(own.stop, rows.stop)
            if start < stop:
                key = rank_key(group.key, rank)
                pieces.append(group.submit(entry_tasks.rows_between, rank, key, start - own.start, stop - own.start))
        return client.submit(stack_rows, pieces, self.shape[1], workers=[worker], allow_other_workers=False, pure=False)
