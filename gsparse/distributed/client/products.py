"""Products with the user's vectors: calls of the ranks for NumPy arrays, graphs of tasks for dask arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import result_dtype
from gsparse.distributed.client.rank_group import RankGroup
from gsparse.distributed.client.vector_layout import VectorLayout, divided, is_dask, undivided
from gsparse.distributed.worker import product_tasks
from gsparse.distributed.worker.group_tasks import RankMetadata
from gsparse.distributed.worker.rank import Rank, rank_key

HostArray = npt.NDArray[Any]


class WorkerProducts:
    """Computes products on the workers. Each rank is sent its part of the vector and the ghosts that it needs.

    Parameters
    ----------
    rank_group : RankGroup
    layout : VectorLayout
    rank_metadata : list of RankMetadata
        One for each rank, in their order.
    dtype : dtype
        Dtype of the matrix.
    """

    def __init__(
        self, rank_group: RankGroup, layout: VectorLayout, rank_metadata: list[RankMetadata], dtype: np.dtype[Any]
    ) -> None:
        self._rank_group, self._layout, self._rank_metadata, self.dtype = rank_group, layout, rank_metadata, dtype

    # ------------------------------------------------------------------ NumPy

    def multiply(self, x: HostArray, operation: str) -> HostArray:
        """Multiply an array of this process by the matrix ("plain"), its transpose ("transposed") or its "adjoint"."""
        layout, is_plain = self._layout, operation == "plain"
        x = layout.in_block_order(x)
        partition = layout.columns if is_plain else layout.rows
        parts = [
            (x[partition.rows(rank)], x[metadata.ghosts] if is_plain else x[:0], operation)
            for rank, metadata in enumerate(self._rank_metadata)
        ]
        products = self._rank_group.call(product_tasks.multiply, parts)
        if is_plain:
            return layout.join(products)
        # Each rank has returned its own part, and what it adds to the elements of other ranks that are its ghosts.
        y = np.concatenate([own_part for own_part, _ in products])
        for metadata, (_, ghost_values) in zip(self._rank_metadata, products, strict=True):
            y[metadata.ghosts] += ghost_values
        return layout.in_matrix_order(y)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ dask

    def multiply_lazily(self, x: Any, operation: str) -> Any:
        """Return the product with a dask array as a dask array, to be computed on the workers that have the rows."""
        import dask

        layout, rank_group, is_plain = self._layout, self._rank_group, operation == "plain"
        x_partition, y_partition = (layout.columns, layout.rows) if is_plain else (layout.rows, layout.columns)
        chunks = layout.chunks(x, x_partition)
        pieces: list[Any] = []
        products = []
        for rank, (metadata, address) in enumerate(zip(self._rank_metadata, rank_group.workers, strict=True)):
            with dask.annotate(workers=[address], allow_other_workers=False):
                if is_plain:
                    pieces = self._ghost_pieces(metadata, chunks)
                multiply = dask.delayed(product_tasks.join_and_multiply, pure=True)
                products.append(multiply(rank_key(rank_group.key, rank), address, chunks[rank], pieces, operation))
        if not is_plain:
            products = [self._with_contributions(products, rank) for rank in rank_group.ranks]
        return layout.dask_array(products, y_partition, x.shape[1:], result_dtype(self.dtype, x.dtype))

    def persist(self, x: Any, *, of_rows: bool) -> Any:
        """Return a vector as a dask array in chunks on the workers that own the rows, or the columns, of the matrix."""
        rank_group, layout = self._rank_group, self._layout
        rank_group.check_open()
        client, workers, x = rank_group.client, rank_group.workers, x if is_dask(x) else np.asarray(x)
        partition, name = (layout.rows, "a vector") if of_rows else (layout.columns, "a vector for axis=1")
        layout.check(x, partition, name)
        if is_dask(x):
            futures = [
                client.compute(part, workers=[worker], allow_other_workers=True)
                for part, worker in zip(divided(x, partition), workers, strict=True)
            ]
            futures = rank_group.on_own_workers(futures, "the vector")
        else:
            parts = [
                (x[partition.rows(rank)].copy(),) for rank in rank_group.ranks
            ]  # within one process, nothing is sent
            futures = rank_group.futures_of_vector(rank_group.call(Rank.keep, parts))
        return undivided(futures, partition, x.shape[1:], x.dtype)

    def _with_contributions(self, products: list[Any], rank: int) -> Any:
        """Return a rank's part of a transposed product: its own part plus the contributions of the other ranks.

        The contributions are added in the order of the ranks, so that the result has the same bits in every run.
        """
        import dask

        workers, own = self._rank_group.workers, self._layout.columns.rows(rank)
        positions, pieces = [], []
        for metadata, product, address in zip(self._rank_metadata, products, workers, strict=True):
            first, last = np.searchsorted(metadata.ghosts, [own.start, own.stop])
            if last > first:
                positions.append(metadata.ghosts[first:last] - own.start)
                with dask.annotate(workers=[address], allow_other_workers=True):
                    ghost_part = dask.delayed(product_tasks.ghost_part, pure=True)
                    pieces.append(ghost_part(product, int(first), int(last)))
        with dask.annotate(workers=[workers[rank]], allow_other_workers=True):
            return dask.delayed(product_tasks.add_contributions, pure=True)(products[rank], positions, pieces)

    def _ghost_pieces(self, metadata: RankMetadata, chunks: list[Any]) -> list[Any]:
        """Return the ghosts of a rank in one piece for each owner, whose worker takes the piece from its own chunk."""
        import dask

        columns = self._layout.columns
        owners = columns.owners(metadata.ghosts)
        pieces = []
        for owner in np.unique(owners):
            numbers = metadata.ghosts[owners == owner] - columns.row_bounds[owner]
            with dask.annotate(workers=[self._rank_group.workers[owner]], allow_other_workers=True):
                pieces.append(dask.delayed(np.take, pure=True)(chunks[owner], numbers, 0))
        return pieces
