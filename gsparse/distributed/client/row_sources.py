"""Sources of the rows of a distributed matrix: this process, files, functions, dask arrays, and other matrices.

A matrix can be made from its source more than once. A result of sparse algebra is a matrix of its own on the same
workers. Its ranks share the connections of the first operand, which end when the last of these matrices is closed. If a
task of one of these matrices fails, the next task of any of them connects the ranks again.
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

from gsparse.distributed.client.products import VectorLayout, divided, is_dask
from gsparse.distributed.client.rank_group import RankGroup, argument
from gsparse.distributed.io.loaders import RowLoader
from gsparse.distributed.ranks.elementwise import check_elementwise, keeps_zeros
from gsparse.distributed.ranks.partition import RowPartition, check_same_rows, order_rows
from gsparse.distributed.worker import entry_tasks
from gsparse.distributed.worker.group_tasks import Computation
from gsparse.distributed.worker.rank import rank_key
from gsparse.errors import ShapeError

HostArray = npt.NDArray[Any]

Partition = str | Sequence[int]


class RowSource(ABC):
    """A source of the rows of a matrix: a matrix of this process, files, a function, a dask array, or other matrices.

    Attributes
    ----------
    shape : (int, int)
    block_size : int
        Number of rows and columns of the blocks of a block sparse matrix, else 1.
    is_lasting : bool
        Whether the rows can be read again after the matrix has been closed, or a worker lost.
    operand : RankGroup or None
        The group of a matrix on the same workers, from which they compute the rows.
    remedy : str
        What makes the matrix again after a worker was lost, as for `WorkerLostError`.
    """

    shape: tuple[int, int]
    block_size: int = 1
    is_lasting: bool = True
    operand: RankGroup | None = None
    remedy: str = ""

    @abstractmethod
    def row_lengths(self) -> HostArray | None:
        """Return the number of entries of each row; None if it is not known."""

    @abstractmethod
    def rank_input(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        """Return what a worker makes its rows from: the rows, a future for them, a `RowLoader` or a `Computation`."""

    def attach(self, rank_group: RankGroup, layout: VectorLayout) -> None:  # noqa: B027 (only computed rows need it)
        """Record that a matrix has been made from these rows, on the workers of a group."""

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
        """Divide the rows among the ranks, as `distribute` describes it for its argument `partition`."""
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


def stack_rows(chunks: list[Any], num_cols: int) -> sp.csr_array:
    """Stack sparse or dense chunks of rows, on their worker."""
    parts = [sp.csr_array(chunk if sp.issparse(chunk) else _converted_to_scipy(chunk)) for chunk in chunks]
    return sp.csr_array(sp.vstack(parts)) if parts else sp.csr_array((0, num_cols))


def _converted_to_scipy(chunk: Any) -> Any:
    """Convert an array of the package `sparse` to SciPy; return anything else as it is."""
    to_scipy: Callable[[], Any] | None = getattr(chunk, "to_scipy_sparse", None)
    return chunk if to_scipy is None else to_scipy()


class ComputedRows(RowSource):
    """Rows that the workers compute when a matrix is made from them for the first time.

    Every further matrix made from this source copies its rows from the latest of these matrices, which must still be
    open.

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
        """Take the rows from the matrix of this group from now on."""
        self._group, self._layout, self.operand, self._arguments = rank_group, layout, None, None

    def row_lengths(self) -> HostArray | None:
        assert self._group is not None
        return np.concatenate(self._group.call(entry_tasks.number_of_entries))

    def arrange(
        self, partition: Partition, reorder: str | None, world_size: int
    ) -> tuple[RowSource, HostArray | None, RowPartition]:
        """Choose a partition of the rows, which stay in the order that they have in the blocks."""
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
        """Return a future for rows that lie on the workers of a group."""
        group.check_open()
        pieces = []
        for rank in group.ranks:
            own = self._layout.rows.rows(rank)
            start, stop = max(own.start, rows.start), min(own.stop, rows.stop)
            if start < stop:
                key = rank_key(group.key, rank)
                pieces.append(group.submit(entry_tasks.rows_between, rank, key, start - own.start, stop - own.start))
        return client.submit(stack_rows, pieces, self.shape[1], workers=[worker], allow_other_workers=False, pure=False)


def multiply(A: Any, B: Any) -> Any:
    """Return A·B. Column j of A is given to the owner of row j of B first, which moves no row of A."""
    if A.shape[1] != B.shape[0]:
        raise ShapeError(f"dimension mismatch: {A.shape} times {B.shape}")
    _check_together(A, B)
    layout = _layout(A._layout.rows, B._layout.columns, A._layout.permutation)
    return _result(A, "product", (A, B), layout)


def elementwise(A: Any, name: str, *operands: Any, **options: Any) -> Any:
    """Return the result of an element-wise operation; the operand is a number, another matrix, or an array."""
    operand: Any = operands[0] if operands else None
    is_matrix = hasattr(operand, "_rank_group")
    check_elementwise(name, operand, is_matrix)
    if is_matrix:
        if A.shape != operand.shape:
            raise ShapeError(f"inconsistent shapes: {A.shape} and {operand.shape}")
        _check_together(A, operand)
        check_same_rows(A._layout.rows, operand._layout.rows)
        return _result(A, "element-wise", (A, operand), A._layout, name, options)
    if np.ndim(operand) and name != "astype":
        parts = _parts_of_array(A, operand)
        return _result(A, "element-wise", (A,), A._layout, name, options, parts=parts, keeps_options=True)
    is_same_structure = keeps_zeros(A.dtype, name, operand)
    return _result(A, "element-wise", (A,), A._layout, name, options, *operands, keeps_options=is_same_structure)


def _parts_of_array(A: Any, x: Any) -> list[tuple[Any]]:
    """Return each rank's part of a row, a column, or a dense array of the shape of A: arrays, or futures for them."""
    layout, (m, n) = A._layout, A.shape
    is_row = x.shape in ((n,), (1, n)) and not (x.ndim == 2 and m == 1)
    x = x.reshape(-1) if is_row else x
    if not is_row and x.shape not in ((m, 1), (m, n)):
        raise ShapeError(
            f"a matrix of shape {A.shape} takes rows {(n,)}, columns {(m, 1)}, or {A.shape}, got {x.shape}"
        )
    partition, x = layout.columns if is_row else layout.rows, layout.in_block_order(x)
    if x.ndim == 2 and x.shape[1] > 1 and layout.permutation is not None:
        x = x[:, layout.permutation]
    if not is_dask(x):
        return [(x[partition.rows(rank)],) for rank in range(partition.world_size)]
    group = A._rank_group
    futures = [
        group.client.compute(part, workers=[worker], allow_other_workers=True)
        for part, worker in zip(divided(x, partition), group.workers, strict=True)
    ]
    return [(future,) for future in group.on_own_workers(futures, "the operand")]


def select_rows(A: Any, numbers: HostArray) -> Any:
    """Return some rows of a matrix as a matrix, in its order. Rows in rising order stay on their ranks."""
    layout = A._layout
    owned = numbers if layout.permutation is None else layout.in_matrix_order(np.arange(A.shape[0]))[numbers]
    if np.all(owned[1:] > owned[:-1]):
        bounds = np.searchsorted(owned, layout.rows.row_bounds)
        rows = RowPartition((*bounds.tolist()[:-1], len(owned)))
    else:
        rows = RowPartition.by_rows(len(owned), layout.rows.world_size)
    new = VectorLayout.of(rows, A.shape[1])
    parts = [(owned[rows.rows(rank)], rows, new.columns, layout.permutation) for rank in range(rows.world_size)]
    return _result(A, "rows", (A,), new, parts=parts)


def select_columns(A: Any, numbers: HostArray) -> Any:
    """Return some columns of a matrix, whose rows are in the order of the matrix, as a matrix."""
    layout = VectorLayout.of(A._layout.rows, len(numbers))
    return _result(A, "columns", (A,), layout, numbers, layout.columns)


def stack(matrices: Sequence[Any], axis: int) -> Any:
    """Return matrices below each other (axis 0) or side by side (axis 1) as a matrix."""
    matrices = [select_rows(A, np.arange(A.shape[0])) if A._layout.permutation is not None else A for A in matrices]
    A, sizes = matrices[0], {B.shape[1 - axis] for B in matrices}
    if len(sizes) > 1:
        raise ShapeError(f"matrices of shapes {[B.shape for B in matrices]} cannot be stacked along axis {axis}")
    for B in matrices:
        _check_together(A, B)
    heights = [B.shape[0] for B in matrices] if axis == 0 else [A.shape[0]]
    tops, world = np.cumsum([0, *heights]).tolist(), A._layout.rows.world_size
    rows = RowPartition.by_rows(tops[-1], world) if axis == 0 else A._layout.rows
    layout = VectorLayout.of(rows, A.shape[1] if axis == 0 else sum(B.shape[1] for B in matrices))
    parts = []
    for rank in range(world):
        own = rows.rows(rank)
        ends = [(max(own.start, top), min(own.stop, top + B.shape[0])) for top, B in zip(tops, matrices, strict=False)]
        wanted = [np.arange(a - top, max(a, b) - top) for (a, b), top in zip(ends, tops, strict=False)]
        wanted = wanted if axis == 0 else [np.arange(own.start, own.stop)] * len(matrices)
        parts.append((axis, wanted, rows, layout.columns))
    return _result(A, "stack", tuple(matrices), layout, parts=parts)


def transpose(A: Any, operation: str) -> Any:
    """Return the "transpose" or the "adjoint" of a matrix as a matrix."""
    return _result(A, operation, (A,), _layout(A._layout.columns, A._layout.rows, A._layout.permutation))


def _check_together(A: Any, B: Any) -> None:
    """Raise an error if the workers cannot compute with both matrices."""
    if A._rank_group.workers != B._rank_group.workers:
        raise ShapeError(
            f"the matrices lie on different workers, or on the same ones in another order, {A._rank_group.workers} and "
            f"{B._rank_group.workers}: use B = B.repartition(workers=A.workers)"
        )
    one, two = A._layout.permutation, B._layout.permutation
    if one is not two and (one is None or two is None or not np.array_equal(one, two)):
        raise ShapeError(
            "the blocks hold the rows of the two matrices in different orders (A.permutation and B.permutation): "
            "distribute both in the same order, such as that of the matrix, without reorder and partition='metis'"
        )


def _layout(rows: RowPartition, columns: RowPartition, permutation: npt.NDArray[Any] | None) -> VectorLayout:
    """Return the layout of a result. The rows and the columns of a square matrix have the same owners."""
    return VectorLayout(rows, rows if rows.num_rows == columns.num_rows else columns, permutation)


def _result(
    A: Any,
    operation: str,
    operands: tuple[Any, ...],
    layout: VectorLayout,
    *arguments: Any,
    parts: Sequence[tuple[Any, ...]] | None = None,
    keeps_options: bool = False,
) -> Any:
    """Return the result of an operation as a matrix on the workers of A. `parts` are further arguments of each rank."""
    for operand in operands:
        operand._rank_group.check_open()
    sizes = {operand._source.block_size for operand in operands}
    block_size = sizes.pop() if len(sizes) == 1 and layout.shape == A.shape and layout.rows == A._layout.rows else 1
    keys = tuple(operand._rank_group.key for operand in operands)
    source = ComputedRows(layout, Computation(operation, keys, arguments), A._rank_group, block_size, parts)
    return A._computed(source, layout, keeps_options)
