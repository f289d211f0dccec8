"""Products with the user's vectors, which reach the ranks over sockets (NumPy) or by graphs of tasks (dask)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import result_dtype
from gsparse.distributed.client.calls import error_of_lost_worker, naming_lost_workers
from gsparse.distributed.client.task_arguments import scatter
from gsparse.distributed.client.task_group import TaskGroup
from gsparse.distributed.client.vector_layout import VectorLayout, divided, is_dask, undivided
from gsparse.distributed.ranks.product_connections import ProductClient
from gsparse.distributed.ranks.rank_calls import RankCalls
from gsparse.distributed.worker import product_tasks
from gsparse.distributed.worker.group_tasks import RankMetadata
from gsparse.distributed.worker.solve_vectors import moved_vector
from gsparse.errors import CommunicationError

HostArray = npt.NDArray[Any]


# How many numbers are reserved for the vectors of a solve: one half for arguments, the other one for results.
_NUMBERS_PER_SOLVE = 64


class StoredVectors(NamedTuple):
    """Numbers under which the ranks store the vectors of a solve: those of the first argument and the first result."""

    first_argument: int
    first_result: int


class WorkerProducts:
    """Computes products on the workers. Each rank is sent its part of the vector and the ghosts that it needs.

    Parameters
    ----------
    task_group : TaskGroup
    layout : VectorLayout
    rank_metadata : list of RankMetadata
        One for each rank, in their order.
    dtype : dtype
        Dtype of the matrix.
    """

    def __init__(
        self, task_group: TaskGroup, layout: VectorLayout, rank_metadata: list[RankMetadata], dtype: np.dtype[Any]
    ) -> None:
        self._task_group, self._layout, self._rank_metadata, self.dtype = task_group, layout, rank_metadata, dtype
        self._product_client: ProductClient | None = None
        self._rank_calls: RankCalls | None = None
        self._is_reachable, self._num_solves = True, 0

    def close(self) -> None:
        if self._product_client is not None and self._rank_calls is not None:
            self._product_client.close()
            self._rank_calls.close()

    # ------------------------------------------------------------------ vectors of solves

    def is_reachable(self) -> bool:
        """Return whether this process can reach the ranks."""
        return self._connect() is not None

    def numbers_of_vectors(self) -> StoredVectors:
        """Return unused numbers for the vectors of another solve."""
        self._num_solves += 1
        first = self._num_solves * _NUMBERS_PER_SOLVE
        return StoredVectors(first, first + _NUMBERS_PER_SOLVE // 2)

    def store(self, number: int, oldest: int, parts: list[HostArray]) -> None:
        """Store a vector on the ranks under a number, see `ProductClient.store`."""
        self._request(lambda client: client.store(number, oldest, parts))

    def take(self, number: int) -> HostArray:
        """Return a vector in the order of the blocks that the ranks have under a number, and drop it there."""
        x: HostArray = self._request(lambda client: client.take(number, self._layout.columns.row_bounds))
        return x

    def call(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: Sequence[tuple[Any, ...]],
        on_poll: Callable[[], None] | None = None,
    ) -> list[Any]:
        """Call a function on all ranks at the same time, see `TaskGroup.call`."""
        assert self._rank_calls is not None
        with self._naming_lost_workers():
            self._rank_calls.connect()
        return self._task_group.call(self._rank_calls, function, name, arguments, on_poll)

    def _request(self, request: Callable[[ProductClient], Any]) -> Any:
        """Make a request of the ranks. If a worker is lost, raise an error that names it."""
        client = self._connect()
        assert client is not None
        with self._naming_lost_workers():
            return request(client)

    @contextmanager
    def _naming_lost_workers(self) -> Iterator[None]:
        """Raise an error that names the worker if a connection has ended because its worker is lost."""
        group = self._task_group
        try:
            yield
        except CommunicationError as error:
            lost = error_of_lost_worker(group.client, group.workers, group.remedy)
            if lost is None:
                raise
            raise lost from error

    # ------------------------------------------------------------------ NumPy

    def multiply(self, x: HostArray, operation: str) -> HostArray:
        """Multiply an array of this process by the matrix ("plain"), its transpose ("transposed") or its "adjoint"."""
        self._task_group.check_open()
        layout, is_plain = self._layout, operation == "plain"
        x = layout.in_block_order(x)
        partition = layout.columns if is_plain else layout.rows
        parts = [
            (x[partition.rows(rank)], x[metadata.ghosts] if is_plain else x[:0])
            for rank, metadata in enumerate(self._rank_metadata)
        ]
        products = self._multiply_parts(operation, parts)
        if is_plain:
            return layout.join(products)
        # Each rank has returned its own part, and what it adds to the elements of other ranks that are its ghosts.
        y = np.concatenate([own_part for own_part, _ in products])
        for metadata, (_, ghost_values) in zip(self._rank_metadata, products, strict=True):
            y[metadata.ghosts] += ghost_values
        return layout.in_matrix_order(y)  # type: ignore[no-any-return]

    def _multiply_parts(self, operation: str, parts: list[tuple[HostArray, HostArray]]) -> list[Any]:
        """Multiply on the ranks, over sockets, or as tasks of dask if this process cannot reach the ranks."""
        task_group, product_client = self._task_group, self._connect()
        if product_client is None:
            key, workers = task_group.key, task_group.workers
            with task_group.on_workers(parts) as vectors:
                tasks = [
                    task_group.submit(product_tasks.multiply, "product", rank, key, workers[rank], x, ghosts, operation)
                    for rank, (x, ghosts) in enumerate(vectors)
                ]
                return task_group.wait(tasks)
        products: list[Any] = self._request(lambda client: client.multiply(operation, parts))
        return products

    def _connect(self) -> ProductClient | None:
        """Return connections to the ranks, made at the first call; None if this process cannot reach the ranks."""
        if self._product_client is None and self._is_reachable:
            task_group, tls = self._task_group, None
            if task_group.workers[0].startswith("tls://"):
                tls = task_group.client.security.get_connection_args("client")["ssl_context"]
            addresses = [metadata.product_address for metadata in self._rank_metadata]
            try:
                self._product_client = ProductClient(addresses, task_group.secret, task_group.timeout, tls)
                self._rank_calls = RankCalls(addresses, task_group.secret, task_group.timeout, tls)
            except CommunicationError as error:
                self._is_reachable = False
                warnings.warn(f"products and solves go through the scheduler, which is slow: {error}", stacklevel=4)
        return self._product_client

    # ------------------------------------------------------------------ dask

    def multiply_lazily(self, x: Any, operation: str) -> Any:
        """Return the product with a dask array as a dask array, to be computed on the workers that have the rows."""
        import dask

        layout, task_group, is_plain = self._layout, self._task_group, operation == "plain"
        x_partition, y_partition = (layout.columns, layout.rows) if is_plain else (layout.rows, layout.columns)
        chunks = layout.chunks(x, x_partition)
        pieces: list[Any] = []
        products = []
        for rank, (metadata, address) in enumerate(zip(self._rank_metadata, task_group.workers, strict=True)):
            with dask.annotate(workers=[address], allow_other_workers=False):
                if is_plain:
                    pieces = self._ghost_pieces(metadata, chunks)
                multiply = dask.delayed(product_tasks.join_and_multiply, pure=True)
                key, server = task_group.key, metadata.product_address
                products.append(multiply(key, address, server, chunks[rank], pieces, operation))
        if not is_plain:
            products = [self._with_contributions(products, rank) for rank in task_group.ranks]
        return layout.dask_array(products, y_partition, x.shape[1:], result_dtype(self.dtype, x.dtype))

    def persist(self, x: Any, *, of_rows: bool) -> Any:
        """Return a vector as a dask array in chunks on the workers that own the rows, or the columns, of the matrix."""
        task_group, layout = self._task_group, self._layout
        task_group.check_open()
        client, workers, x = task_group.client, task_group.workers, x if is_dask(x) else np.asarray(x)
        partition, name = (layout.rows, "a vector") if of_rows else (layout.columns, "a vector for axis=1")
        layout.check(x, partition, name)
        with naming_lost_workers(client, workers, task_group.remedy):
            if not is_dask(x):
                futures = [
                    scatter(client, worker, x[partition.rows(rank)].copy(), task_group.timeout)
                    for rank, worker in enumerate(workers)
                ]
            else:
                computed = [
                    client.compute(part, workers=[worker], allow_other_workers=True)
                    for part, worker in zip(divided(x, partition), workers, strict=True)
                ]
                owners = client.who_has(task_group.wait_for_inputs(computed, "the vector"))
                # An idle worker may have taken the task of a busy one. Such a part is moved to the worker of its rank.
                futures = [
                    part if worker in owners[part.key] else task_group.submit(moved_vector, "vector", rank, part)
                    for rank, (part, worker) in enumerate(zip(computed, workers, strict=True))
                ]
        return undivided(futures, partition, x.shape[1:], x.dtype)

    def _with_contributions(self, products: list[Any], rank: int) -> Any:
        """Return a rank's part of a transposed product: its own part plus the contributions of the other ranks.

        The contributions are added in the order of the ranks, so that the result has the same bits in every run.
        """
        import dask

        workers, own = self._task_group.workers, self._layout.columns.rows(rank)
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
            with dask.annotate(workers=[self._task_group.workers[owner]], allow_other_workers=True):
                pieces.append(dask.delayed(np.take, pure=True)(chunks[owner], numbers, 0))
        return pieces
