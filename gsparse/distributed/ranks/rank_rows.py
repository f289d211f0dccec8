"""A rank's rows of a matrix as one `Csr` on its device, and the sparse algebra of such rows over all ranks.

The columns that the rank owns come first, and its ghosts follow. An example is a rank that owns columns 4 to 7, and has
entries in columns 2 and 9 of other ranks:

    local column      0  1  2  3  4  5
    of the matrix     4  5  6  7  2  9
                      own columns ghosts

Kernels for a single device compute with these rows. In addition, ranks exchange rows that belong to ghosts
(`RankContext`):

    A·B       the owners of A's ghosts send the rows of B that have the ghosts' numbers
    Aᵀ        the rows of Aᵀ that have the numbers of A's ghosts go to the ghosts' owners

Most rows have no entries in ghosts, and are not exchanged. So most of the time is spent in the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.distributed.ranks.halo import Halo
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_operator import RankOperator
from gsparse.distributed.ranks.row_block import RowBlock, split_on_device
from gsparse.distributed.ranks.row_exchange import (
    RankContext,
    beside,
    columns_of_others,
    placed,
    stacked,
    union,
    whole_nodes,
    with_own_columns,
)
from gsparse.errors import ShapeError
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.preconditioners.square_matrix import canonical_entries
from gsparse.matrix.simple_matrices import made
from gsparse.sparse import arithmetic
from gsparse.sparse.canonical import computed

HostArray = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class RankRows:
    """A rank's rows of a matrix. All ranks must construct their objects and compute with them together.

    Attributes
    ----------
    context : RankContext
    csr : Csr, shape (own rows, own columns + ghosts)
        In canonical form, with values of a compute dtype (`gsparse.device.dtypes.COMPUTE_DTYPES`).
    ghosts : array of int64
        Columns of other ranks in which the rank may have entries, sorted, on the host.
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
        """Return the rows with a new halo for these ghosts. All ranks must call this together."""
        return RankRows(context, csr, ghosts, rows, columns, Halo(ghosts, columns, context.communicator))

    @staticmethod
    def of(matrix: RankOperator, dtype: npt.DTypeLike | None = None) -> RankRows:
        """Return the rows of a matrix. Synchronizes.

        Parameters
        ----------
        matrix : RankOperator
        dtype : dtype, optional
            The dtype to which the values are converted; by default the matrix's dtype. The result has the compute dtype
            of `dtype`, which is int64 for booleans and integers.
        """
        device = matrix.device
        context = RankContext(device, matrix.host_communicator)
        wanted = matrix.dtype if dtype is None else np.dtype(dtype)
        with device.active():
            diagonal, others = (
                computed(csr.with_data(csr.data.astype(wanted, copy=False)), wanted)
                for csr in map(canonical_entries, (matrix.diagonal, matrix.off_diagonal))
            )
            if max(diagonal.nnz + others.nnz, diagonal.num_cols + others.num_cols) <= MAX_INT32:
                others = others.with_index_dtype(diagonal.indices.dtype)  # The diagonal block has the most entries.
            others = replace(others, indices=others.indices + diagonal.num_cols)
            rows = placed(device, others, device.upload(matrix.boundary), diagonal.num_rows)
            csr = beside(device, diagonal, rows, diagonal.num_cols + others.num_cols)
        return RankRows(context, csr, matrix.ghosts, matrix.rows, matrix.columns, matrix.halo)

    @staticmethod
    def of_whole_columns(
        context: RankContext, csr: Csr, rows: RowPartition, columns: RowPartition, block_size: int = 1
    ) -> RankRows:
        """Return the rows from a `csr` whose column numbers are numbers in the whole matrix. Synchronizes.

        Duplicates are added up. All ranks must call this together.

        Parameters
        ----------
        context : RankContext
        csr : Csr, shape (own rows, N)
            The entries, with int64 indices, in any order.
        rows, columns : RowPartition
        block_size : int
            Number of columns of a node. If a rank needs one column of a node as a ghost, all columns of the node become
            ghosts.
        """
        own = columns.rows(context.rank)
        ghosts = whole_nodes(columns_of_others(context.device, csr, own), block_size)
        return RankRows.make(context, with_own_columns(context.device, csr, own, ghosts), ghosts, rows, columns)

    def matrix(self, **options: Any) -> RankOperator:
        """Return the rows as an operator, with `options` of `GpuSparseMatrix` for the diagonal block. Synchronizes."""
        block = self.blocks(**options)
        return RankOperator(block, self.rows, self.columns, self.context.communicator, self.context.device)

    def blocks(self, **options: Any) -> RowBlock:
        """Return both blocks of the rows, with `options` of `GpuSparseMatrix` for the diagonal block. Synchronizes."""
        num_own, whole = self.num_own_columns, made(self.context.device, self.csr, None)
        local_ghosts = num_own + np.arange(len(self.ghosts))
        return replace(split_on_device(whole, slice(0, num_own), options, local_ghosts), ghosts=self.ghosts)

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
        """Number of entries on all ranks. All ranks must read this property together."""
        return int(self.context.communicator.table([self.csr.nnz]).sum())

    def whole_columns(self) -> Array:
        """Return each local column's number in the whole matrix, as int64 on the device."""
        own, xp = self.columns.rows(self.context.rank), self.context.device.xp
        ghosts = self.context.device.upload(self.ghosts.astype(np.int64))
        return xp.concatenate([xp.arange(own.start, own.stop, dtype=np.int64), ghosts])

    def in_whole_columns(self, csr: Csr | None = None) -> Csr:
        """Return the rows `csr`, by default all, with column numbers of the whole matrix and int64 indices."""
        csr = self.csr if csr is None else csr
        return replace(
            csr,
            shape=(csr.num_rows, self.shape[1]),
            indptr=csr.indptr.astype(np.int64, copy=False),
            indices=self.whole_columns()[csr.indices],
            is_canonical=False,
        )

    def with_ghosts(self, values: Array) -> Array:
        """Append the ghosts' values to the values of the own columns. All ranks must call this. Synchronizes.

        Parameters
        ----------
        values : array, shape (own columns, ...)
            The rank's values, on the device.
        """
        ghosts = self.context.values_of_ghosts(self.halo, values)
        return self.context.device.xp.concatenate([values, ghosts])

    # ------------------------------------------------------------------ algebra

    def with_data(self, data: Array) -> RankRows:
        """Return rows of the same structure with other values."""
        return replace(self, csr=self.csr.with_data(data))

    def adjoint(self, block_size: int = 1) -> RankRows:
        """Return this rank's rows of the conjugate transpose. All ranks must call this together. Synchronizes.

        `block_size` is as for `of_whole_columns`.
        """
        conjugate = self.context.device.xp.conj
        result = self.transposed(block_size)
        return result.with_data(conjugate(result.csr.data)) if self.csr.dtype.kind == "c" else result

    def transposed(self, block_size: int = 1) -> RankRows:
        """Return this rank's rows of the transpose. All ranks must call this together. Synchronizes."""
        context, device, kernels = self.context, self.context.device, kernels_of(self.context.device)
        flipped, num_own = kernels.transpose.csr_transpose(device, self.csr), self.num_own_columns
        own = kernels.sparse_rows.slice_rows(device, flipped, 0, num_own)
        of_ghosts = kernels.sparse_rows.slice_rows(device, flipped, num_own, len(self.ghosts))
        own_rows = self.rows.rows(context.rank)
        whole = replace(
            of_ghosts,
            shape=(of_ghosts.num_rows, self.rows.num_rows),
            indptr=of_ghosts.indptr.astype(np.int64),
            indices=of_ghosts.indices.astype(np.int64) + own_rows.start,
        )
        received = context.rows_to_owners(self.halo, whole)
        ghosts = whole_nodes(columns_of_others(device, received, own_rows), block_size)
        # Received rows of lower ranks come first, and have smaller column numbers in the whole matrix. So the columns
        # of each row that `placed` returns are sorted.
        received = with_own_columns(device, received, own_rows, ghosts)
        more = placed(device, received, device.upload(self.halo.sent), num_own)
        csr = beside(device, own, more, own_rows.stop - own_rows.start + len(ghosts))
        return RankRows.make(context, csr, ghosts, self.columns, self.rows)

    def multiply(self, other: RankRows, block_size: int = 1) -> RankRows:
        """Return this rank's rows of the product with another matrix. All ranks must call this. Synchronizes.

        `block_size` is as for `of_whole_columns`. Entries that add up to 0 are dropped.

        Raises
        ------
        ShapeError
            If the columns of this matrix are not distributed in the same way as the rows of the other matrix.
        """
        if self.columns != other.rows:
            raise ShapeError(
                f"cannot multiply shapes {self.shape} and {other.shape}, whose columns and rows are distributed by "
                f"{self.columns.row_bounds} and {other.rows.row_bounds}: distribute them in the same way"
            )
        context, device = self.context, self.context.device
        received = other._rows_for(self.halo)
        own = other.columns.rows(context.rank)
        ghosts = union(other.ghosts, columns_of_others(device, received, own))
        operand = other._with_other_ghosts(ghosts)
        if received.num_rows:
            operand = stacked(device, [operand, with_own_columns(device, received, own, ghosts)])
            operand = replace(operand, is_canonical=True)
        csr = arithmetic.product(device, self.csr, operand)
        result = RankRows(context, csr, ghosts, self.rows, other.columns, other.halo)  # The return replaces the halo.
        return result.with_ghosts_of_entries(block_size)

    def _rows_for(self, halo: Halo) -> Csr:
        """Send other ranks the rows that their halos need, and return the rows that this rank's halo needs.

        Synchronizes.
        """
        device = self.context.device
        wanted = kernels_of(device).sparse_rows.take_rows(device, self.csr, device.upload(halo.sent))
        return self.context.rows_of_ghosts(halo, self.in_whole_columns(wanted))

    def with_ghosts_of_entries(self, block_size: int = 1) -> RankRows:
        """Return the same rows without ghosts of nodes in which no row has an entry. Synchronizes."""
        device, xp, num_own = self.context.device, self.context.device.xp, self.num_own_columns
        rows = kernels_of(device).sparse_rows.take_rows(device, self.csr, _boundary_rows(device, self.csr, num_own))
        used = device.download(xp.unique(rows.indices[rows.indices >= num_own])) - num_own
        ghosts = whole_nodes(self.ghosts[used], block_size)
        return RankRows.make(self.context, self._with_other_ghosts(ghosts), ghosts, self.rows, self.columns)

    def combine(self, operation: Callable[[Csr, Csr], Csr], other: RankRows) -> RankRows:
        """Apply ``operation(a, b)`` to the rows of two matrices, with the same ghosts. Synchronizes.

        Raises
        ------
        ShapeError
            If the matrices are not distributed in the same way.
        """
        if (self.rows, self.columns) != (other.rows, other.columns):
            axis, owners = "rows", (self.rows, other.rows)
            if self.rows == other.rows:
                axis, owners = "columns", (self.columns, other.columns)
            bounds = " and ".join(str(each.row_bounds) for each in owners)
            raise ShapeError(
                f"cannot combine shapes {self.shape} and {other.shape}, whose {axis} are distributed by {bounds}: "
                "distribute them in the same way"
            )
        ghosts = union(self.ghosts, other.ghosts)
        csr = operation(self._with_other_ghosts(ghosts), other._with_other_ghosts(ghosts))
        return RankRows.make(self.context, csr, ghosts, self.rows, self.columns)

    def _with_other_ghosts(self, ghosts: HostArray) -> Csr:
        """Return the rows with local columns for `ghosts`, which must include all ghosts in which rows have entries."""
        if np.array_equal(ghosts, self.ghosts):
            return self.csr
        device, xp, num_own, csr = self.context.device, self.context.device.xp, self.num_own_columns, self.csr
        places = device.upload(num_own + np.searchsorted(ghosts, self.ghosts))
        places = xp.concatenate([xp.arange(num_own, dtype=places.dtype), places]).astype(csr.indices.dtype)
        return replace(csr, shape=(csr.num_rows, num_own + len(ghosts)), indices=places[csr.indices])

    def equals_adjoint(self, tolerance: float) -> bool:
        """Return whether the matrix equals its conjugate transpose, up to rounding.

        All ranks must call this. Synchronizes.

        Parameters
        ----------
        tolerance : float
            An entry and the conjugate of its mirror entry may differ by this fraction of the largest magnitude in their
            rows.
        """
        device, kernels, xp = self.context.device, kernels_of(self.context.device), self.context.device.xp
        diagonal = _own_entries(device, self.csr, self.num_own_columns)
        is_symmetric = bool(kernels.transpose.is_symmetric(device, diagonal, self.csr.dtype.kind == "c", tolerance))
        if not self.context.all_ranks(is_symmetric):
            return False
        boundary = _boundary_rows(device, self.csr, self.num_own_columns)
        rows = kernels.sparse_rows.take_rows(device, self.csr, boundary)
        rows = kernels.sparse_rows.keep_entries(device, rows, rows.indices >= self.num_own_columns)
        others = replace(self, csr=replace(placed(device, rows, boundary, self.csr.num_rows), is_canonical=True))
        difference = others.combine(partial(arithmetic.combine, device, "minus"), others.adjoint())
        csr = difference.csr
        if self.context.all_ranks(not csr.nnz):
            return True
        magnitudes = xp.abs(self.csr.data)
        longest = int(xp.max(self.csr.indptr[1:] - self.csr.indptr[:-1])) if self.csr.num_rows else 0
        largest = kernels.reductions.extreme_entries(device, self.csr.indptr, magnitudes, "maximum", longest)
        of_columns = difference.with_ghosts(largest)
        of_rows = largest[kernels.sparse_rows.row_numbers(device, csr.indptr, csr.nnz)]
        allowed = tolerance * xp.maximum(of_rows, of_columns[csr.indices])
        return self.context.all_ranks(not bool((xp.abs(csr.data) > allowed).any()))


def _own_entries(device: Device, csr: Csr, num_own: int) -> Csr:
    """Return the entries in the rank's own columns."""
    if csr.num_cols == num_own:
        return csr
    places = device.xp.full(csr.num_cols, -1, csr.indices.dtype)
    places[:num_own] = device.xp.arange(num_own)
    return replace(kernels_of(device).sparse_rows.map_columns(device, csr, places, num_own), is_canonical=True)


def _boundary_rows(device: Device, csr: Csr, num_own: int) -> Array:
    """Return the numbers of the rows that have entries in ghosts, as int64 on the device. Synchronizes."""
    xp = device.xp
    if csr.num_cols == num_own or not csr.nnz:
        return xp.zeros(0, np.int64)
    ends = csr.indptr[1:]
    last = csr.indices[xp.maximum(ends - 1, 0)]  # A row's columns are sorted, so only the last column is tested.
    return xp.flatnonzero((ends > csr.indptr[:-1]) & (last >= num_own)).astype(np.int64)
