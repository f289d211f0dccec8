"""A rank's rows of a matrix as one `Csr` on its device, and the sparse algebra of such rows over all ranks.

The columns that the rank owns come first, then its ghosts. A rank that owns columns 4 to 7 and has entries in columns
2 and 9 of other ranks:

    local column      0  1  2  3  4  5
    of the matrix     4  5  6  7  2  9
                      own columns ghosts

Kernels for a single device work on these rows as they are. What one rank cannot do alone, it does with the rows of its
ghosts, or with rows for its ghosts, which the owners send and add up (`RankContext`):

    A·B       the owners send the rows of B that belong to A's ghosts
    Aᵀ        the transposed rows of A's ghosts go to their owners
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.distributed.ranks.halo import Halo, RowBlock
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_operator import RankOperator
from gsparse.distributed.ranks.row_exchange import RankContext, stacked
from gsparse.errors import ShapeError
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.preconditioners.square_matrix import canonical_entries
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.sparse import arithmetic
from gsparse.sparse.assembly import from_coordinates
from gsparse.sparse.canonical import canonical, computed

__all__ = ["RankRows"]

HostArray = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class RankRows:
    """A rank's rows of a matrix. All ranks make theirs, and compute with them, at the same time.

    Attributes
    ----------
    context : RankContext
    csr : Csr, shape (own rows, own columns + ghosts)
        In canonical form, with values of a dtype in which kernels compute (`gsparse.device.dtypes.COMPUTE_DTYPES`).
    ghosts : array of int64
        Columns of other ranks in which the rank has entries, sorted, on the host. Some may have none.
    rows, columns : RowPartition
        The owners of the rows and of the columns of the whole matrix.
    halo : Halo
        The plan by which the values of the ghosts are exchanged.
    """

    context: RankContext
    csr: Csr
    ghosts: HostArray
    rows: RowPartition
    columns: RowPartition
    halo: Halo

    @staticmethod
    def make(context: RankContext, csr: Csr, ghosts: HostArray, rows: RowPartition, columns: RowPartition) -> RankRows:
        """Return rows with a halo."""
        return RankRows(context, csr, ghosts, rows, columns, Halo(ghosts, columns, context.communicator))

    @staticmethod
    def of(matrix: RankOperator, dtype: npt.DTypeLike | None = None) -> RankRows:
        """Return the rows of a matrix. Synchronizes.

        Parameters
        ----------
        matrix : RankOperator
        dtype : dtype, optional
            The dtype to which the values are converted; by default that of the matrix. The values of the result have
            the dtype in which kernels compute it: int64 for booleans and integers.
        """
        device = matrix.device
        context = RankContext(device, matrix.host_communicator)
        wanted = matrix.dtype if dtype is None else np.dtype(dtype)
        with device.active():
            diagonal, others = (
                computed(csr.with_data(csr.data.astype(wanted, copy=False)), wanted)
                for csr in map(canonical_entries, (matrix.diagonal, matrix.off_diagonal))
            )
            row_numbers, boundary = kernels_of(device).row_numbers, device.upload(matrix.boundary)
            rows = [
                row_numbers(device, diagonal.indptr, diagonal.nnz).astype(np.int64),
                boundary[row_numbers(device, others.indptr, others.nnz)],
            ]
            columns = [diagonal.indices.astype(np.int64), others.indices.astype(np.int64) + diagonal.num_cols]
            shape = (matrix.shape[0], diagonal.num_cols + others.num_cols)
            concatenate = device.xp.concatenate
            data = concatenate([diagonal.data, others.data])
            csr = from_coordinates(device, shape, concatenate(rows), concatenate(columns), data)
        csr = replace(csr, is_canonical=True)
        return RankRows(context, csr, matrix.ghosts, matrix.rows, matrix.columns, matrix.halo)

    @staticmethod
    def of_whole_columns(
        context: RankContext, csr: Csr, rows: RowPartition, columns: RowPartition, block_size: int = 1
    ) -> RankRows:
        """Return rows whose entries are in columns of the whole matrix; duplicates are added up. Synchronizes.

        Parameters
        ----------
        context : RankContext
        csr : Csr, shape (own rows, N)
            With indices of int64, in any order.
        rows, columns : RowPartition
        block_size : int
            Ghosts are nodes of this number of columns: if one of them has an entry, all are ghosts.
        """
        csr, ghosts = _with_own_columns(context.device, csr, columns.rows(context.rank), block_size)
        return RankRows.make(context, csr, ghosts, rows, columns)

    def matrix(self, **options: Any) -> RankOperator:
        """Return the rows as an operator. `options` are those of `GpuSparseMatrix`. Synchronizes."""
        block = self.blocks(**options)
        return RankOperator(block, self.rows, self.columns, self.context.communicator, self.context.device)

    def blocks(self, **options: Any) -> RowBlock:
        """Return the rows as the two blocks of an operator, see `matrix`. Synchronizes."""
        device, csr, num_own = self.context.device, self.csr, self.num_own_columns
        kernels, xp = kernels_of(device), device.xp
        places = xp.arange(csr.num_cols, dtype=csr.indices.dtype)
        own, others = xp.where(places < num_own, places, -1), xp.where(places < num_own, -1, places - num_own)
        diagonal = kernels.map_columns(device, csr, own.astype(places.dtype), num_own)
        rest = kernels.map_columns(device, csr, others.astype(places.dtype), len(self.ghosts))
        boundary = np.flatnonzero(np.diff(device.download(rest.indptr)))
        starts = rest.indptr[device.upload(np.append(boundary, rest.num_rows))]
        off_diagonal = Csr((len(boundary), rest.num_cols), starts, rest.indices, rest.data)
        blocks = [
            GpuSparseMatrix((part.data, part.indices, part.indptr), shape=part.shape, device=device, **of_part)
            for part, of_part in ((diagonal, options), (off_diagonal, {}))
        ]
        return RowBlock(blocks[0], blocks[1], boundary, self.ghosts)

    # ------------------------------------------------------------------ numbers

    @property
    def num_own_columns(self) -> int:
        own = self.columns.rows(self.context.rank)
        return int(own.stop - own.start)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the whole matrix."""
        return self.rows.num_rows, self.columns.num_rows

    @property
    def nnz(self) -> int:
        """Number of entries on all ranks. Waits for the other ranks."""
        return int(self.context.table(np.array([self.csr.nnz])).sum())

    def whole_columns(self) -> Array:
        """Return the column of the whole matrix for each local column, as int64 on the device."""
        own, xp = self.columns.rows(self.context.rank), self.context.device.xp
        ghosts = self.context.device.upload(self.ghosts.astype(np.int64))
        return xp.concatenate([xp.arange(own.start, own.stop, dtype=np.int64), ghosts])

    def in_whole_columns(self) -> Csr:
        """Return the rows with columns of the whole matrix, as int64."""
        indices = self.whole_columns()[self.csr.indices]
        return Csr((self.csr.num_rows, self.shape[1]), self.csr.indptr.astype(np.int64), indices, self.csr.data)

    def with_ghosts(self, values: Array) -> Array:
        """Return values of the own columns, and those of the ghosts after them. Synchronizes.

        Parameters
        ----------
        values : array, shape (own columns, ...)
            On the device.
        """
        ghosts = self.context.values_of_ghosts(self.halo, values)
        return self.context.device.xp.concatenate([values, ghosts])

    def entries_in(self, columns: Array) -> Array:
        """Return the entry that each row has in one column of the whole matrix, or 0 if it has none there.

        Parameters
        ----------
        columns : array of int64, shape (own rows,)
            The column for each row, on the device. A number that is not that of a column stands for no entry.
        """
        device, csr = self.context.device, self.csr
        rows = kernels_of(device).row_numbers(device, csr.indptr, csr.nnz)
        is_wanted = self.whole_columns()[csr.indices] == columns[rows]
        values = device.xp.zeros(csr.num_rows, csr.dtype)
        values[rows[is_wanted]] = csr.data[is_wanted]
        return values

    # ------------------------------------------------------------------ algebra

    def with_columns(self, columns: RowPartition) -> RankRows:
        """Return the same rows of a matrix whose columns have other owners. Synchronizes."""
        if columns == self.columns:
            return self
        return RankRows.of_whole_columns(self.context, self.in_whole_columns(), self.rows, columns)

    def with_data(self, data: Array) -> RankRows:
        """Return rows of the same structure with other values."""
        return replace(self, csr=self.csr.with_data(data))

    def with_csr(self, csr: Csr) -> RankRows:
        """Return rows with other entries in the same columns."""
        return replace(self, csr=csr)

    def adjoint(self, block_size: int = 1) -> RankRows:
        """Return the rows of the conjugate transpose that belong to this rank. Synchronizes.

        `block_size` is as for `of_whole_columns`.
        """
        conjugate = self.context.device.xp.conj
        result = self.transposed(block_size)
        return result.with_data(conjugate(result.csr.data)) if self.csr.dtype.kind == "c" else result

    def transposed(self, block_size: int = 1) -> RankRows:
        """Return the rows of the transpose that belong to this rank. Synchronizes."""
        context, device, kernels = self.context, self.context.device, kernels_of(self.context.device)
        flipped, first_row = kernels.csr_transpose(device, self.csr), self.rows.rows(context.rank).start
        whole = replace(
            flipped,
            shape=(flipped.num_rows, self.rows.num_rows),
            indptr=flipped.indptr.astype(np.int64),
            indices=flipped.indices.astype(np.int64) + first_row,
        )
        own = kernels.slice_rows(device, whole, 0, self.num_own_columns)
        of_ghosts = kernels.slice_rows(device, whole, self.num_own_columns, len(self.ghosts))
        sources, numbers, received = context.rows_to_owners(self.halo, of_ghosts)
        summed = _sum_of_parts(context, own, sources, numbers, received)
        return RankRows.of_whole_columns(context, summed, self.columns, self.rows, block_size)

    def multiply(self, other: RankRows, block_size: int = 1) -> RankRows:
        """Return the rows of the product with another matrix. Synchronizes.

        `block_size` is as for `of_whole_columns`. Entries that add up to 0 are left out.

        Raises
        ------
        ShapeError
            If the columns of this matrix are not distributed as the rows of the other one.
        """
        if self.columns != other.rows:
            raise ShapeError(
                f"cannot multiply shapes {self.shape} and {other.shape}, whose columns and rows are distributed by "
                f"{self.columns.row_bounds} and {other.rows.row_bounds}: distribute them in the same way"
            )
        context, device = self.context, self.context.device
        whole = other.in_whole_columns()
        operand = stacked(device, [whole, context.rows_of_ghosts(self.halo, whole)])
        own_columns = other.columns.rows(context.rank)
        local, ghosts = _with_own_columns(device, operand, own_columns, 1)
        product = arithmetic.product(device, self.csr, local)
        own = device.xp.arange(own_columns.start, own_columns.stop, dtype=np.int64)
        columns = device.xp.concatenate([own, device.upload(ghosts)])
        whole = Csr((product.num_rows, other.shape[1]), product.indptr.astype(np.int64), columns[product.indices],
                    product.data)  # fmt: skip
        return RankRows.of_whole_columns(context, whole, self.rows, other.columns, block_size)

    def combine(self, operation: str, other: RankRows) -> RankRows:
        """Return ``operation(A, B)`` entry by entry, see `gsparse.sparse.arithmetic.combine`. Synchronizes.

        Raises
        ------
        ShapeError
            If the matrices are not distributed in the same way.
        """
        if (self.rows, self.columns) != (other.rows, other.columns):
            raise ShapeError(
                f"cannot combine shapes {self.shape} and {other.shape}, distributed by {self.rows.row_bounds} and "
                f"{other.rows.row_bounds}: distribute them in the same way"
            )
        device, ghosts = self.context.device, np.union1d(self.ghosts, other.ghosts)
        parts = [self._with_more_ghosts(ghosts), other._with_more_ghosts(ghosts)]
        csr = arithmetic.combine(device, operation, *parts)
        return RankRows.make(self.context, csr, ghosts, self.rows, self.columns)

    def _with_more_ghosts(self, ghosts: HostArray) -> Csr:
        """Return the rows as entries of a matrix with more ghosts, which contain those of this one."""
        num_own = self.num_own_columns
        places = np.concatenate([np.arange(num_own), num_own + np.searchsorted(ghosts, self.ghosts)])
        device, index = self.context.device, self.csr.indices.dtype
        mapped = kernels_of(device).map_columns(
            device, self.csr, device.upload(places.astype(index)), num_own + len(ghosts)
        )
        return replace(mapped, is_canonical=True)

    def equals_adjoint(self, tolerance: float) -> bool:
        """Return whether the matrix is its conjugate transpose, up to rounding. Synchronizes.

        Parameters
        ----------
        tolerance : float
            Two values that mirror each other may differ by this fraction of the largest magnitude in either of their
            rows.
        """
        device, kernels, xp = self.context.device, kernels_of(self.context.device), self.context.device.xp
        difference = self.combine("minus", self.adjoint())
        csr, magnitudes = difference.csr, xp.abs(self.csr.data)
        longest = int(xp.max(self.csr.indptr[1:] - self.csr.indptr[:-1])) if self.csr.num_rows else 0
        largest = kernels.extreme_entries(device, self.csr.indptr, magnitudes, "maximum", longest)
        of_columns = difference.with_ghosts(largest)
        rows = kernels.row_numbers(device, csr.indptr, csr.nnz)
        allowed = tolerance * xp.maximum(largest[rows], of_columns[csr.indices])
        return self.context.all_ranks(not bool((xp.abs(csr.data) > allowed).any()))


def _with_own_columns(device: Device, csr: Csr, own: slice, block_size: int) -> tuple[Csr, HostArray]:
    """Return rows with local columns, in canonical form, and the ghosts. Synchronizes."""
    xp, num_own, columns = device.xp, own.stop - own.start, csr.indices
    is_own = (columns >= own.start) & (columns < own.stop)
    if block_size == 1:
        ghosts = xp.unique(columns[~is_own])
    else:
        nodes = xp.unique(columns[~is_own] // block_size)
        ghosts = (nodes[:, None] * block_size + xp.arange(block_size)).reshape(-1)
    local = xp.where(is_own, columns - own.start, num_own + xp.searchsorted(ghosts, columns))
    shape = (csr.num_rows, num_own + int(ghosts.size))
    index = np.int32 if max(*shape, csr.nnz) <= MAX_INT32 else np.int64
    narrow = Csr(shape, csr.indptr.astype(index), local.astype(index), csr.data)
    return canonical(device, narrow), device.download(ghosts)


def _sum_of_parts(context: RankContext, own: Csr, sources: dict[int, slice], numbers: HostArray, received: Csr) -> Csr:
    """Return own rows with the entries that other ranks have sent for them, in the order of the ranks. Synchronizes."""
    device, kernels, xp = context.device, kernels_of(context.device), context.device.xp
    before = sum(part.stop - part.start for peer, part in sources.items() if peer < context.rank)
    places = device.upload(numbers)
    parts = [
        (kernels.slice_rows(device, received, 0, before), places[:before]),
        (own, xp.arange(own.num_rows, dtype=np.int64)),
        (kernels.slice_rows(device, received, before, received.num_rows - before), places[before:]),
    ]
    rows = [target[kernels.row_numbers(device, part.indptr, part.nnz)] for part, target in parts]
    index = np.int32 if own.num_rows <= MAX_INT32 else np.int64
    order, indptr = kernels.order_by_row(device, xp.concatenate(rows).astype(index), own.num_rows)
    columns, data = (xp.concatenate([getattr(part, name) for part, _ in parts])[order] for name in ("indices", "data"))
    return Csr(own.shape, indptr.astype(np.int64), columns, data)
