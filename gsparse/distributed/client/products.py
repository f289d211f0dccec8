"""Products with the user's vectors. Each vector is split among the ranks, and the parts of the product are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import distributed
import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.device.dtypes import result_dtype
from gsparse.distributed.client.rank_group import RankGroup
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.worker import entry_tasks
from gsparse.distributed.worker.rank import Rank, rank_key
from gsparse.errors import DtypeError, ShapeError

HostArray = npt.NDArray[Any]


def is_dask(x: Any) -> bool:
    """Return whether an object is a collection of dask, without importing dask."""
    return type(x).__module__.startswith("dask.")


def check_operand(shape: tuple[int, int], x: Any) -> None:
    """Raise an error if x does not hold numbers, or if its length does not match a matrix of this shape."""
    if isinstance(x, LinearOperator):  # SciPy multiplies two operators without products.
        return
    check_numbers("a product", x)
    if np.isscalar(x):
        return
    if np.ndim(x) not in (1, 2) or np.shape(x)[0] != shape[1]:
        raise ShapeError(f"dimension mismatch: {shape} times {np.shape(x)}")


def check_numbers(name: str, x: Any) -> None:
    """Raise an error if the elements of x are not numbers. Connections between ranks transfer only numbers."""
    dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    if dtype.kind not in "biufc":
        raise DtypeError(f"{name} needs numbers, got {dtype}: use astype(float)")


@dataclass(frozen=True, eq=False)
class VectorLayout:
    """The ranks that own each row and column of a matrix, and the order of the rows and columns in the blocks.

    Attributes
    ----------
    rows : RowPartition
        The owners of the rows. The entries of products have the same owners.
    columns : RowPartition
        The owners of the columns. The entries of vectors that are multiplied have the same owners. For a square matrix,
        `columns` is `rows`.
    permutation : array of int64 or None
        Row i of the blocks is row ``permutation[i]`` of the matrix, and the same holds for the columns. None if rows
        were not permuted.
    """

    rows: RowPartition
    columns: RowPartition
    permutation: HostArray | None = None
    _inverse: HostArray | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        inverse = None if self.permutation is None else np.argsort(self.permutation)
        object.__setattr__(self, "_inverse", inverse)

    @classmethod
    def of(cls, rows: RowPartition, num_columns: int, permutation: HostArray | None = None) -> VectorLayout:
        """Return the layout of a matrix whose row owners are `rows`."""
        is_square = rows.num_rows == num_columns
        return cls(rows, rows if is_square else RowPartition.by_rows(num_columns, rows.world_size), permutation)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.num_rows, self.columns.num_rows

    def check(self, x: Any, partition: RowPartition, name: str) -> None:
        """Raise an error if x is not one or several vectors of numbers that fit a partition."""
        check_numbers(name, x)
        if x.ndim not in (1, 2) or x.shape[0] != partition.num_rows:
            raise ShapeError(f"{name} of shape {x.shape} does not fit a matrix of shape {self.shape}")

    def in_block_order(self, x: Any) -> Any:
        """Convert a vector from the original order to the order of the blocks."""
        return x if self.permutation is None else x[self.permutation]

    def in_matrix_order(self, y: Any) -> Any:
        """Convert a vector from the order of the blocks to the original order."""
        return y if self._inverse is None else y[self._inverse]

    def split(self, x: HostArray, partition: RowPartition) -> list[HostArray]:
        """Return each rank's part of an array."""
        x = self.in_block_order(x)
        return [x[partition.rows(rank)] for rank in range(partition.world_size)]

    def join(self, parts: Sequence[HostArray]) -> HostArray:
        """Join the parts of the ranks to one array. A single part is returned without a copy if it is writeable."""
        is_whole = len(parts) == 1 and parts[0].flags.writeable
        return self.in_matrix_order(parts[0] if is_whole else np.concatenate(parts))  # type: ignore[no-any-return]


def divided(x: Any, partition: RowPartition) -> list[Any]:
    """Return each rank's part of a dask array, as a delayed object."""
    sizes = tuple(np.diff(partition.row_bounds).tolist())
    return list(x.rechunk((sizes, -1) if x.ndim == 2 else (sizes,)).to_delayed().reshape(-1))


def undivided(parts: Sequence[Any], partition: RowPartition, width: tuple[int, ...], like: Any) -> Any:
    """Join the parts of the ranks to one dask array, without moving the parts.

    Parameters
    ----------
    parts : sequence of delayed or Future
    partition : RowPartition
        The owners of the entries.
    width : tuple of int
        Shape of one row: () for a vector, (k,) for k vectors.
    like : array
        An array of the library and the dtype of the parts.
    """
    import dask.array as da

    sizes = np.diff(partition.row_bounds).tolist()
    return da.concatenate([da.from_delayed(part, (n, *width), meta=like) for part, n in zip(parts, sizes, strict=True)])


def parts_of_ranks(
    rank_group: RankGroup, layout: VectorLayout, x: Any, partition: RowPartition, name: str
) -> list[Any]:
    """Return a list with each rank's part of x, in the order of the blocks.

    Parts of a NumPy array are arrays. Parts of a dask array are futures on the ranks' workers; this function waits
    until they are computed. Error messages call x `name`.
    """
    client, x = rank_group.client, x if is_dask(x) else np.asarray(x)
    layout.check(x, partition, name)
    if not is_dask(x):
        return layout.split(x, partition)
    chunks = divided(layout.in_block_order(x), partition)
    if all(chunk.key in client.futures for chunk in chunks):  # they are computed already, or being computed
        futures = [distributed.Future(chunk.key, client) for chunk in chunks]
    else:
        futures = client.compute(chunks)
    return rank_group.on_own_workers(futures, name)


class WorkerProducts:
    """Computes products on the workers. Each rank receives its part of the vector, and the entries at its ghosts.

    Parameters
    ----------
    rank_group : RankGroup
    layout : VectorLayout
    ghosts : list of array of int64
        For each rank, the columns of other ranks in which it has entries, sorted.
    dtype : dtype
        Dtype of the matrix.
    """

    def __init__(
        self, rank_group: RankGroup, layout: VectorLayout, ghosts: list[HostArray], dtype: np.dtype[Any]
    ) -> None:
        self._rank_group, self._layout, self.ghosts, self.dtype = rank_group, layout, ghosts, dtype

    # ------------------------------------------------------------------ NumPy

    def multiply(self, x: HostArray, operation: str) -> HostArray:
        """Multiply an array of this process by the matrix ("plain"), its transpose ("transposed") or its "adjoint"."""
        layout, is_plain = self._layout, operation == "plain"
        x = layout.in_block_order(x)
        partition = layout.columns if is_plain else layout.rows
        parts = [
            (x[partition.rows(rank)], x[ghosts] if is_plain else x[:0], operation)
            for rank, ghosts in enumerate(self.ghosts)
        ]
        products = self._rank_group.call(entry_tasks.multiply, parts)
        if is_plain:
            return layout.join(products)
        # Each rank has returned its own part, and contributions to its ghosts, which are elements that others own.
        y = np.concatenate([own_part for own_part, _ in products])
        for ghosts, (_, ghost_values) in zip(self.ghosts, products, strict=True):
            y[ghosts] += ghost_values
        return layout.in_matrix_order(y)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ dask

    def multiply_lazily(self, x: Any, operation: str) -> Any:
        """Return the product with a dask array. The product is a dask array that the matrix's workers compute."""
        import dask

        layout, rank_group, is_plain = self._layout, self._rank_group, operation == "plain"
        x_partition, y_partition = (layout.columns, layout.rows) if is_plain else (layout.rows, layout.columns)
        chunks = divided(layout.in_block_order(x), x_partition)
        pieces: list[Any] = []
        products = []
        for rank, (ghosts, address) in enumerate(zip(self.ghosts, rank_group.workers, strict=True)):
            with dask.annotate(workers=[address], allow_other_workers=False):
                if is_plain:
                    pieces = self._ghost_pieces(ghosts, chunks)
                multiply = dask.delayed(entry_tasks.join_and_multiply, pure=True)
                products.append(multiply(rank_key(rank_group.key, rank), address, chunks[rank], pieces, operation))
        if not is_plain:
            products = [self._with_contributions(products, rank) for rank in rank_group.ranks]
        y = undivided(products, y_partition, x.shape[1:], x._meta.astype(result_dtype(self.dtype, x.dtype)))
        return layout.in_matrix_order(y)

    def persist(self, x: Any, *, of_rows: bool) -> Any:
        """Return a vector as a dask array whose chunks are on the owners of the rows (`of_rows`) or of the columns."""
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
            ]  # copied, because within one process nothing is sent
            futures = rank_group.futures_of_vector(rank_group.call(Rank.keep, parts))
        return undivided(futures, partition, x.shape[1:], x._meta if is_dask(x) else x[:0])

    def _with_contributions(self, products: list[Any], rank: int) -> Any:
        """Return a rank's part of a transposed product: its own part plus the contributions of the other ranks.

        The contributions are added in the order of the ranks, so that the result has the same bits in every run.
        """
        import dask

        workers, own = self._rank_group.workers, self._layout.columns.rows(rank)
        positions, pieces = [], []
        for ghosts, product, address in zip(self.ghosts, products, workers, strict=True):
            first, last = np.searchsorted(ghosts, [own.start, own.stop])
            if last > first:
                positions.append(ghosts[first:last] - own.start)
                with dask.annotate(workers=[address], allow_other_workers=True):
                    ghost_part = dask.delayed(entry_tasks.ghost_part, pure=True)
                    pieces.append(ghost_part(product, int(first), int(last)))
        with dask.annotate(workers=[workers[rank]], allow_other_workers=True):
            return dask.delayed(entry_tasks.add_contributions, pure=True)(products[rank], positions, pieces)

    def _ghost_pieces(self, ghosts: HostArray, chunks: list[Any]) -> list[Any]:
        """Return a rank's ghosts as a list of delayed pieces. Each owner's worker takes a piece from its chunk of x."""
        import dask

        columns = self._layout.columns
        owners = columns.owners(ghosts)
        pieces = []
        for owner in np.unique(owners):
            numbers = ghosts[owners == owner] - columns.row_bounds[owner]
            with dask.annotate(workers=[self._rank_group.workers[owner]], allow_other_workers=True):
                pieces.append(dask.delayed(np.take, pure=True)(chunks[owner], numbers, 0))
        return pieces
