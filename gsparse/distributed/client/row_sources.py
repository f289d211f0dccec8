"""Where the rows of a distributed matrix come from, once and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.io.loaders import RowSources
from gsparse.distributed.ranks.ordering import order_rows
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.errors import ShapeError

__all__ = ["Blocks", "Here", "Loaded", "Partition", "RowSource"]

Host = npt.NDArray[Any]

Partition = str | Sequence[int]


class RowSource(ABC):
    """What a distributed matrix can be made of again."""

    shape: tuple[int, int]

    @abstractmethod
    def lengths(self) -> Host | None:
        """Give the entries of each row, where they are known."""

    @abstractmethod
    def part(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        """Give a worker's rows, or what it can make them of."""

    def ordered(
        self, partition: Partition, reorder: str | None, world_size: int
    ) -> tuple[RowSource, Host | None, RowPartition]:
        """Give the source in the order of the blocks, the permutation that makes it so, and the blocks' bounds."""
        if reorder is not None or partition == "metis":
            raise ValueError("reorder and partition='metis' need the whole matrix: use distribute(S)")
        return self, None, self.partition(partition, world_size)

    def partition(self, partition: Partition, world_size: int) -> RowPartition:
        if not isinstance(partition, str):
            found = RowPartition.from_bounds(partition, self.shape[0])
            if found.world_size != world_size:
                raise ShapeError(f"row bounds for {found.world_size} workers, and there are {world_size}")
            return found
        lengths = self.lengths() if partition == "nnz" else None
        if lengths is None:
            return RowPartition.by_rows(self.shape[0], world_size)
        return RowPartition.by_nnz(np.concatenate([[0], np.cumsum(lengths)]), world_size)


class Here(RowSource):
    """A matrix of this process."""

    def __init__(self, matrix: sp.csr_array) -> None:
        self.matrix, self.shape = matrix, matrix.shape

    def lengths(self) -> Host | None:
        found: Host = np.diff(self.matrix.indptr)
        return found

    def ordered(
        self, partition: Partition, reorder: str | None, world_size: int
    ) -> tuple[RowSource, Host | None, RowPartition]:
        if reorder is None and partition != "metis":
            return super().ordered(partition, reorder, world_size)
        permutation, rows = order_rows(self.matrix, reorder, partition, world_size)
        if permutation is None:
            return self, None, rows
        return Here(sp.csr_array(self.matrix[permutation][:, permutation])), permutation, rows

    def part(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        return client.scatter(self.matrix[rows], workers=[worker], hash=False)


class Loaded(RowSource):
    """Sources that each worker reads its rows from."""

    def __init__(self, sources: RowSources) -> None:
        self._sources, self.shape = sources, sources.shape
        self._permutation = sources.permutation()

    def ordered(
        self, partition: Partition, reorder: str | None, world_size: int
    ) -> tuple[RowSource, Host | None, RowPartition]:
        _, _, rows = super().ordered(partition, reorder, world_size)
        return self, self._permutation, rows

    def lengths(self) -> Host | None:
        return self._sources.row_lengths(0, self.shape[0])

    def part(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        return self._sources


class Blocks(RowSource):
    """Row chunks of a dask array."""

    def __init__(self, blocks: Any) -> None:
        self._blocks, self.shape = blocks, blocks.shape
        self._ends = np.cumsum((0, *blocks.chunks[0]))

    def lengths(self) -> Host | None:
        return None

    def partition(self, partition: Partition, world_size: int) -> RowPartition:
        wanted = super().partition(partition, world_size).row_bounds
        if isinstance(partition, str):  # the chunk bounds nearest to what is wanted
            near = [int(self._ends[np.argmin(abs(self._ends - bound))]) for bound in wanted]
            return RowPartition((0, *near[1:-1], self.shape[0]))
        if not set(wanted) <= set(self._ends.tolist()):
            raise ShapeError(f"row bounds {wanted} are not between chunks of the dask array: {self._ends.tolist()}")
        return RowPartition(wanted)

    def part(self, client: distributed.Client, worker: str, rows: slice) -> Any:
        first, last = np.searchsorted(self._ends, [rows.start, rows.stop])
        blocks = list(self._blocks.to_delayed()[first:last].reshape(-1)) if rows.stop > rows.start else []
        futures = client.compute(blocks, workers=[worker], allow_other_workers=True)
        return client.submit(
            _stack_rows, futures, self.shape[1], workers=[worker], allow_other_workers=False, pure=False
        )


def _stack_rows(blocks: list[Any], num_cols: int) -> sp.csr_array:
    """Put sparse or dense blocks on top of each other, on their worker."""
    parts = [sp.csr_array(block if sp.issparse(block) else _scipy_of(block)) for block in blocks]
    return sp.csr_array(sp.vstack(parts)) if parts else sp.csr_array((0, num_cols))


def _scipy_of(block: Any) -> Any:
    to_scipy: Callable[[], Any] | None = getattr(block, "to_scipy_sparse", None)  # (the package sparse)
    return block if to_scipy is None else to_scipy()
