"""A rank's rows, whole or divided into two blocks, as in PETSc's MPIAIJ matrices.

The rows of rank 1 of 3, divided by the rank that owns the columns:

                rank 0        rank 1        rank 2
            +-------------+-------------+-------------+
    rows    |   *      *  |  diagonal   |    *        |     *  entries of the off-diagonal block, which has only the
    of      |   *         |  block      |    *     *  |        rows and columns with such entries
    rank 1  |             |             |             |
            +-------------+-------------+-------------+
                ^      ^                     ^     ^        columns of these entries: the ghosts of rank 1

Sparse algebra uses the whole rows, and products with vectors use the blocks.

References
----------
S. Balay et al., "PETSc/TAO users manual", ANL-21/39, Argonne National Laboratory: MPIAIJ matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import compute_dtype
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.halo import Halo
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.row_exchange import columns_of_others
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix
from gsparse.matrix.simple_matrices import made
from gsparse.matrix.sparse_operations import csr_of


@dataclass(frozen=True, eq=False)
class RowBlock:
    """The rows of one rank, split into the columns that the rank owns and the columns of other ranks.

    Attributes
    ----------
    diagonal : csr_array
        The entries in the rank's own columns, numbered from 0; a SciPy array or a `GpuSparseMatrix`.
    off_diagonal : csr_array
        All other entries. Row i of this block is row ``boundary[i]`` of the rank, and column j is column ``ghosts[j]``
        of the matrix.
    boundary : array of int64
        The rank's rows that have entries in columns of other ranks, counted from its first row.
    ghosts : array of int64
        Columns of other ranks in which the rank's rows have entries, sorted.
    """

    diagonal: Any
    off_diagonal: Any
    boundary: npt.NDArray[np.int64]
    ghosts: npt.NDArray[np.int64]

    def astype(self, dtype: np.dtype[Any]) -> RowBlock:
        """Convert the values of both blocks.

        Parameters
        ----------
        dtype : dtype
            New dtype of the values.

        Returns
        -------
        RowBlock
            The converted blocks. Values that already have this dtype are not copied.
        """
        diagonal, off_diagonal = (part.astype(dtype, copy=False) for part in (self.diagonal, self.off_diagonal))
        return replace(self, diagonal=diagonal, off_diagonal=off_diagonal)

    def taken(self, rows: npt.NDArray[np.integer]) -> RowBlock:
        """Return some rows.

        Parameters
        ----------
        rows : array of int
            The numbers of the rows, counted from the rank's first row.

        Returns
        -------
        RowBlock
            The rows in this order, with the same ghosts.
        """
        places = np.searchsorted(self.boundary, rows)
        is_boundary = np.append(self.boundary, -1)[places] == rows
        others = self.off_diagonal[places[is_boundary]]
        return RowBlock(self.diagonal[rows], others, np.flatnonzero(is_boundary), self.ghosts)

    def on_device(self, device: Device, options: dict[str, Any]) -> RowBlock:
        """Return blocks that are matrices on a device.

        Parameters
        ----------
        device : Device
            The device of the new matrices.
        options : dict
            Options of `GpuSparseMatrix` for the diagonal block.

        Returns
        -------
        RowBlock
            This object if its blocks are such matrices already.
        """
        if isinstance(self.diagonal, DeviceMatrix):
            return self
        diagonal = GpuSparseMatrix(self.diagonal, device=device, **options)
        return replace(self, diagonal=diagonal, off_diagonal=GpuSparseMatrix(self.off_diagonal, device=device))


def split_columns(block: sp.csr_array, columns: slice) -> RowBlock:
    """Split a rank's rows into a diagonal and an off-diagonal block. Entries keep their order.

    Parameters
    ----------
    block : csr_array, shape (rows of the rank, all columns)
        The rows of the rank, on the host.
    columns : slice
        The columns that the rank owns.

    Returns
    -------
    RowBlock
        The two blocks. Indices are int32 if the numbers fit, else int64.

    Examples
    --------
    >>> import scipy.sparse
    >>> from gsparse.distributed import split_columns
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(6, 6)).tocsr()
    >>> block = split_columns(S[2:4], slice(2, 4))
    >>> block.diagonal.nnz, block.off_diagonal.nnz, block.ghosts
    (4, 2, array([1, 4]))
    """
    is_own = (block.indices >= columns.start) & (block.indices < columns.stop)
    ghosts, ghost_numbers = np.unique(block.indices[~is_own], return_inverse=True)
    own_numbers = block.indices[is_own] - columns.start

    def select(mask: npt.NDArray[np.bool_], indices: npt.NDArray[Any], num_columns: int) -> sp.csr_array:
        """Return the entries that a mask selects, with new column indices."""
        num_selected_before = np.concatenate([[0], np.cumsum(mask)])
        indptr = num_selected_before[block.indptr]
        dtype = np.int32 if max(indptr[-1], num_columns) < 2**31 else np.int64
        arrays = block.data[mask], indices.astype(dtype), indptr.astype(dtype)
        return sp.csr_array(arrays, shape=(block.shape[0], num_columns))

    diagonal = select(is_own, own_numbers, columns.stop - columns.start)
    others = select(~is_own, ghost_numbers, ghosts.size)
    # Drop the rows without entries in columns of other ranks.
    boundary = np.flatnonzero(np.diff(others.indptr))
    indptr = np.append(others.indptr[:-1][boundary], others.indptr[-1])
    shape = (boundary.size, ghosts.size)
    off_diagonal = sp.csr_array((others.data, others.indices, indptr), shape=shape)
    return RowBlock(diagonal, off_diagonal, boundary, ghosts.astype(np.int64))


def split_on_device(
    matrix: DeviceMatrix, columns: slice, options: dict[str, Any], ghosts: npt.NDArray[np.int64] | None = None
) -> RowBlock:
    """Split a rank's rows, as `split_columns` does on the host. The blocks are on the matrix's device. Synchronizes.

    Parameters
    ----------
    matrix : GpuSparseMatrix, shape (rows of the rank, all columns)
        The rows of the rank.
    columns : slice
        The columns that the rank owns.
    options : dict
        Options of `GpuSparseMatrix` for the diagonal block.
    ghosts : array of int64, optional
        The columns of the off-diagonal block, sorted; by default all other columns in which the rows have entries.
    """
    device = matrix.device
    if compute_dtype(matrix.dtype) is None:
        return split_columns(sp.csr_array(matrix, copy=True), columns).on_device(device, options)
    kernels, xp = kernels_of(device).sparse_rows, device.xp
    with device.active(), device.memory_guard():
        csr, num_own = _entries(matrix), columns.stop - columns.start

        def selected(part: Csr, numbers: Any) -> Csr:
            """Return the entries in some columns, which get the numbers 0, 1, ... in their order."""
            places = xp.full(csr.num_cols, -1, part.indices.dtype)
            places[numbers] = xp.arange(places[numbers].size)
            mapped = kernels.map_columns(device, part, places, places[numbers].size)
            return replace(mapped, is_canonical=csr.is_canonical)

        own = csr if num_own == csr.num_cols else selected(csr, columns)
        lengths, own_lengths = (part.indptr[1:] - part.indptr[:-1] for part in (csr, own))
        boundary = xp.flatnonzero(lengths != own_lengths).astype(np.int64)
        rest = kernels.take_rows(device, csr, boundary)
        ghosts = columns_of_others(device, rest, columns) if ghosts is None else ghosts
        diagonal = made(device, own, None)
        if options:
            diagonal = GpuSparseMatrix(diagonal, **options)
        others = made(device, selected(rest, device.upload(ghosts)), None)
        return RowBlock(diagonal, others, device.download(boundary), ghosts)


def _entries(matrix: DeviceMatrix) -> Csr:
    """Return the entries of a matrix as they are stored."""
    return replace(csr_of(matrix, matrix, False), is_canonical=bool(matrix.has_canonical_format))


def join_on_device(block: RowBlock, first_column: int, num_columns: int) -> GpuSparseMatrix:
    """Return the whole rows of which `split_on_device` has made two blocks. Synchronizes.

    Parameters
    ----------
    block : RowBlock
        Its blocks are matrices on one device.
    first_column : int
        The first column that the rank owns.
    num_columns : int
        Number of columns of the whole matrix.
    """
    device, kernels = block.diagonal.device, kernels_of(block.diagonal.device)
    if compute_dtype(block.diagonal.dtype) is None:
        own, rest = block.diagonal.tocoo(), block.off_diagonal.tocoo()
        rows = np.concatenate([own.coords[0], block.boundary[rest.coords[0]]])
        columns = np.concatenate([own.coords[1] + first_column, block.ghosts[rest.coords[1]]])
        entries = np.concatenate([own.data, rest.data]), (rows, columns)
        return GpuSparseMatrix(sp.coo_array(entries, shape=(own.shape[0], num_columns)), device=device)
    with device.active(), device.memory_guard():
        own, rest = map(_entries, (block.diagonal, block.off_diagonal))
        index = np.dtype(np.int32 if max(own.nnz + rest.nnz, num_columns) <= MAX_INT32 else np.int64)
        own, is_sorted = own.with_index_dtype(index), own.is_canonical and rest.is_canonical
        csr = replace(own, shape=(own.num_rows, num_columns), indices=own.indices + index.type(first_column))
        if rest.nnz:
            rows = kernels.sparse_rows.row_numbers(device, rest.indptr, rest.nnz)
            places = device.upload(block.boundary)[rows], device.upload(block.ghosts)[rest.indices]
            csr = kernels.edits.insert_entries(device, csr, *places, rest.data, is_sorted)
        whole: GpuSparseMatrix = made(device, replace(csr, is_canonical=is_sorted), None)
        return whole


@dataclass(eq=False)
class StoredRows:
    """A rank's rows, whole or in two blocks. The first product with a vector splits the rows.

    Attributes
    ----------
    whole : GpuSparseMatrix or None
        The rows with all columns of the matrix, if they have not been split, or have been needed again since.
    blocks : RowBlock or None
    halo : Halo or None
        The plan of the exchange of ghosts, if there are blocks.
    options : dict
        Options of `GpuSparseMatrix` for the diagonal block.
    """

    whole: GpuSparseMatrix | None = None
    blocks: RowBlock | None = None
    halo: Halo | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def split(self, columns: RowPartition, communicator: Communicator) -> RowBlock:
        """Return both blocks. The first call makes them and the halo, and all ranks must run it together."""
        if self.blocks is None:
            assert self.whole is not None
            blocks = split_on_device(self.whole, columns.rows(communicator.rank), self.options)
            self.halo = Halo(blocks.ghosts, columns, communicator)
            self.blocks = blocks
            self.whole = None  # to save memory; `join` makes it again if it is needed
        return self.blocks

    def rows(self, numbers: npt.NDArray[np.integer] | None, columns: RowPartition, rank: int) -> GpuSparseMatrix:
        """Return some rows, or all for None, of the rank with this number. Only these rows are joined."""
        if numbers is None or self.blocks is None or self.whole is not None:
            whole = self.join(columns, rank)
            return whole if numbers is None else whole[numbers]
        return join_on_device(self.blocks.taken(numbers), columns.rows(rank).start, columns.num_rows)

    def join(self, columns: RowPartition, rank: int) -> GpuSparseMatrix:
        """Return the whole rows of the rank with this number."""
        if self.whole is None:
            assert self.blocks is not None
            self.whole = join_on_device(self.blocks, columns.rows(rank).start, columns.num_rows)
        return self.whole
