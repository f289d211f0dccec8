"""Sparse algebra of distributed matrices: the checks, and the matrices that the workers are asked to compute.

A result is a matrix of its own on the same workers. Its ranks share the connections of the first operand, which end
when the last of these matrices is closed. If a task of one of these matrices fails, the next task of any of them
connects the ranks again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import distributed
import numpy as np
import numpy.typing as npt

from gsparse.distributed.client.products import VectorLayout
from gsparse.distributed.client.rank_group import RankGroup
from gsparse.distributed.client.row_sources import Partition, RowSource, stack_rows
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_matrix import check_factor
from gsparse.distributed.worker import entry_tasks
from gsparse.distributed.worker.group_tasks import Computation
from gsparse.distributed.worker.rank import rank_key
from gsparse.errors import ShapeError

HostArray = npt.NDArray[Any]


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
    values_of : callable, optional
        Returns the values of a slice of rows. They become the only argument beside the operands.
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
        values_of: Callable[[slice], HostArray] | None = None,
    ) -> None:
        self.shape, self.block_size, self._layout = layout.shape, block_size, layout
        self._computation, self.operand, self._values_of = computation, operand, values_of
        self._group: RankGroup | None = None

    def attach(self, rank_group: RankGroup, layout: VectorLayout) -> None:
        """Take the rows from the matrix of this group from now on."""
        self._group, self._layout, self.operand, self._values_of = rank_group, layout, None, None

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
        if self._values_of is None:
            return self._computation
        return replace(self._computation, arguments=(self._values_of(rows),))

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


class AlgebraMatrix(Protocol):
    """The attributes of a distributed matrix that its sparse algebra uses."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    _rank_group: RankGroup
    _layout: VectorLayout
    _source: RowSource

    def _computed(self, source: ComputedRows, layout: VectorLayout, keeps_options: bool) -> Any: ...


def multiply(A: AlgebraMatrix, B: AlgebraMatrix) -> Any:
    """Return A·B. Column j of A is given to the owner of row j of B first, which moves no row of A."""
    if A.shape[1] != B.shape[0]:
        raise ShapeError(f"dimension mismatch: {A.shape} times {B.shape}")
    _check_together(A, B)
    layout = _layout(A._layout.rows, B._layout.columns, A._layout.permutation)
    return _result(A, "product", (A, B), layout)


def combine(A: AlgebraMatrix, B: AlgebraMatrix, operation: str) -> Any:
    """Return the "sum" A + B or the "difference" A - B."""
    if A.shape != B.shape:
        raise ShapeError(f"inconsistent shapes: {A.shape} and {B.shape}")
    _check_together(A, B)
    if A._layout.rows != B._layout.rows:
        raise ShapeError(
            f"the rows of the two matrices are distributed by {A._layout.rows.row_bounds} and "
            f"{B._layout.rows.row_bounds}: use B = B.repartition(A.row_bounds, workers=A.workers)"
        )
    return _result(A, operation, (A, B), A._layout)


def scale(A: AlgebraMatrix, operation: str, factor: Any) -> Any:
    """Return the "multiple" or the "quotient" of a matrix and a number."""
    check_factor(factor)
    return _result(A, operation, (A,), A._layout, factor)


def negative(A: AlgebraMatrix) -> Any:
    """Return -A."""
    return _result(A, "negative", (A,), A._layout)


def transpose(A: AlgebraMatrix, operation: str) -> Any:
    """Return the "transpose" or the "adjoint" of a matrix as a matrix."""
    return _result(A, operation, (A,), _layout(A._layout.columns, A._layout.rows, A._layout.permutation))


def _check_together(A: AlgebraMatrix, B: AlgebraMatrix) -> None:
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
    A: AlgebraMatrix, operation: str, operands: tuple[AlgebraMatrix, ...], layout: VectorLayout, *arguments: Any
) -> Any:
    """Return the result of an operation as a matrix on the workers of A."""
    for operand in operands:
        operand._rank_group.check_open()
    sizes = {operand._source.block_size for operand in operands}
    block_size = sizes.pop() if len(sizes) == 1 and layout.rows == A._layout.rows else 1
    keys = tuple(operand._rank_group.key for operand in operands)
    source = ComputedRows(layout, Computation(operation, keys, arguments), A._rank_group, block_size)
    return A._computed(source, layout, operation in ("multiple", "quotient", "negative"))
