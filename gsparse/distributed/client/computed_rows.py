"""Rows of a matrix that the workers compute from other matrices, and of which this process has no copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt

from gsparse.distributed.client.row_sources import Partition, RowSource, stack_rows
from gsparse.distributed.client.task_group import TaskGroup
from gsparse.distributed.client.vector_layout import VectorLayout
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.worker import entry_tasks
from gsparse.distributed.worker.computations import Computation
from gsparse.distributed.worker.rank import rank_key

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
    operand : TaskGroup
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
        operand: TaskGroup,
        block_size: int,
        values_of: Callable[[slice], HostArray] | None = None,
    ) -> None:
        self.shape, self.block_size, self._layout = layout.shape, block_size, layout
        self._computation, self.operand, self._values_of = computation, operand, values_of
        self._group: TaskGroup | None = None

    def attach(self, task_group: TaskGroup, layout: VectorLayout) -> None:
        """Take the rows from the matrix of this group from now on."""
        self._group, self._layout, self.operand, self._values_of = task_group, layout, None, None

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

    def _rows_of_workers(self, group: TaskGroup, client: distributed.Client, worker: str, rows: slice) -> Any:
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
