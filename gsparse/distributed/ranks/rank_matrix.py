"""The user's matrix over ranks: one rank's rows, as an operator with sparse algebra and preconditioners."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.partition import RowPartition, check_one_block_per_rank
from gsparse.distributed.ranks.rank_algebra import RankAlgebra
from gsparse.distributed.ranks.rank_multigrid import amg_over_ranks
from gsparse.distributed.ranks.rank_operator import RankOperator, common_dtype
from gsparse.distributed.ranks.row_block import StoredRows
from gsparse.errors import ShapeError
from gsparse.linalg.registry import METHODS
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

HostArray = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class EntryOrder:
    """Maps a user's values, in the order of SciPy's canonical CSR, to the entries of a rank's two blocks.

    It depends on the structure alone. Within a row, the user's values are in the order of the columns:

        columns of a row      2  3  4  6  9      The rank owns the columns 3 to 6.
        values of the user    a  b  c  d  e
        diagonal block        b  c  d
        off-diagonal block    a  e

    Attributes
    ----------
    row_lengths : array of int64, shape (own rows,)
        The number of entries of each row, on the host. An entry that is stored several times counts once.
    diagonal, off_diagonal : array of int
        For each stored entry of the block, the position of its value, on the device. If an entry is stored several
        times, its first copy gets the value. The other copies get the position of a 0 that is appended to the values.
    """

    row_lengths: HostArray
    diagonal: Array
    off_diagonal: Array

    @staticmethod
    def of(matrix: RankOperator, own_columns: HostArray | None = None, ghosts: HostArray | None = None) -> EntryOrder:
        """Return the order of the entries of a matrix. Synchronizes.

        Parameters
        ----------
        matrix : RankOperator
        own_columns, ghosts : array of int, optional
            For each column of the diagonal and of the off-diagonal block, a number by which the user's values are
            ordered; by default the number of the column in the whole matrix.
        """
        own_columns = np.arange(matrix.shape[1]) + matrix.first_index if own_columns is None else own_columns
        ghosts = matrix.ghosts if ghosts is None else ghosts
        parts = [(*part.tocoo().coords, part.nnz) for part in (matrix.diagonal, matrix.off_diagonal)]
        rows = np.concatenate([parts[0][0], matrix.boundary[parts[1][0]]])
        columns = np.concatenate([own_columns[parts[0][1]], ghosts[parts[1][1]]])
        order = np.lexsort((columns, rows))
        rows, columns = rows[order], columns[order]
        is_first = np.ones(len(rows), bool)
        is_first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
        num_values = int(is_first.sum())
        numbers = np.empty(len(rows), np.int32 if num_values < 2**31 - 1 else np.int64)
        numbers[order] = np.where(is_first, np.cumsum(is_first) - 1, num_values)
        blocks = (matrix.device.upload(part) for part in (numbers[: parts[0][2]], numbers[parts[0][2] :]))
        return EntryOrder(np.bincount(rows[is_first], minlength=matrix.shape[0]), *blocks)

    def of_blocks(self, device: Device, values: Array) -> tuple[Array, Array]:
        """Return the values of the diagonal and of the off-diagonal block, from a user's values on the device."""
        xp = device.xp
        values = xp.concatenate([values, xp.zeros(1, values.dtype)])
        return values[self.diagonal], values[self.off_diagonal]


class RankMatrix(RankAlgebra):
    """The rows of one rank of a matrix. All ranks construct their objects, multiply and solve at the same time.

    Each rank holds its part of every vector. For a vector that is multiplied, the part has an entry for each column
    that the rank owns. For a product, the part has an entry for each of the rank's rows.

    ``A @ B`` and the element-wise operations of SciPy's sparse arrays (``A + B``, ``2 * A``, ``A.multiply(x)``,
    ``abs(A)``, ``A > 0``, ``A.sqrt()``) return matrices over the same ranks, which all ranks compute at the same time.
    Their dtypes are SciPy's. For ``A @ B``, ranks send each other the rows of B that belong to ghosts of A. In an
    element-wise operation, the rows of A and of B must have the same owners. It sends nothing, except a row `x`'s
    elements at the ghosts. A result with A's structure has A's storage formats; others are chosen automatically.

    Parameters
    ----------
    block : csr_array or GpuSparseMatrix, shape (rows of the rank, N), or RowBlock
        The rank's rows, whole or split into two blocks. Rows on the rank's device stay there. Values are converted to
        NumPy's common dtype of all ranks.
    rows, columns : RowPartition
        The owners of the M rows and of the N columns.
    communicator : Communicator
        The rank's communicator, for host arrays.
    device : str or Device, optional
        Device of the rank's two blocks; the default is the default device of `GpuSparseMatrix`.
    **options
        Options of `GpuSparseMatrix`, for the diagonal block.

    Attributes
    ----------
    diagonal, off_diagonal : GpuSparseMatrix
        The two blocks of the rank's rows, as in `RowBlock`.
    boundary, ghosts : array of int64
        The rows and the columns of the off-diagonal block, as in `RowBlock`.
    halo : Halo
        The plan of the exchange of ghosts.
    shape : (int, int)
        Number of the rank's rows, and number of the columns that it owns.
    rows, columns : RowPartition
        The owners of the rows and of the columns.
    host_communicator, communicator : Communicator
        The rank's communicator for host arrays, and its communicator for device arrays, which products use.
    observer : callable or None
        Called with the `SolveLoop` whenever the host has read the scalars of a solve. If it raises an exception, the
        solve ends.

    Raises
    ------
    ShapeError
        If `rows` or `columns` does not have one block for each rank, or `block` does not have the rank's rows and all
        columns.
    CommunicationError, RankLostError

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.distributed import RankMatrix, RowPartition, run_ranks
    >>> from gsparse.linalg import cg
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(10, 10)).tocsr()
    >>> partition = RowPartition.by_nnz(S.indptr, 3)
    >>> def solve(communicator):
    ...     own = partition.rows(communicator.rank)
    ...     A = RankMatrix(S[own], partition, partition, communicator, device="cpu")
    ...     return cg(A, numpy.ones(own.stop - own.start))[0]
    >>> bool(numpy.allclose(S @ numpy.concatenate(run_ranks(solve, 3)), 1))
    True
    """

    _entry_order: EntryOrder | None = None

    def __gsparse_call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a preconditioner of `gsparse.linalg`: multigrid over all ranks, or any other of the diagonal block."""
        method = METHODS.get(name)
        if method is None or not method.spans_ranks:
            return super().__gsparse_call__(name, args, kwargs)
        bound = method.signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        return amg_over_ranks(self, bound.arguments)

    # ------------------------------------------------------------------ sparse algebra

    def __matmul__(self, x: Any) -> Any:
        if not isinstance(x, RankMatrix):
            return super().__matmul__(x)
        if self.whole_shape[1] != x.whole_shape[0]:
            raise ShapeError(f"dimension mismatch: {self.whole_shape} times {x.whole_shape}")
        return self._multiplied(x)

    def transpose(self) -> RankMatrix:
        """Return the transpose as a matrix over the same ranks. All ranks must call this together.

        Returns
        -------
        RankMatrix
            The transpose. Its rows have the owners of this matrix's columns, and its columns have the owners of this
            matrix's rows. Synchronizes.

        Raises
        ------
        CommunicationError, RankLostError
        """
        transposed: RankMatrix = self._transposed()
        return transposed

    def adjoint(self) -> RankMatrix:
        """Return the conjugate transpose as a matrix over the same ranks. All ranks must call this together.

        Returns
        -------
        RankMatrix
            The conjugate transpose, with the same owners as the result of `transpose`. Synchronizes.

        Raises
        ------
        CommunicationError, RankLostError
        """
        transposed: RankMatrix = self._transposed()
        return transposed.conjugate() if self.dtype.kind == "c" else transposed

    def with_columns(self, columns: RowPartition) -> RankMatrix:
        """Return the same matrix with other owners of the columns. All ranks must call this together.

        Each rank keeps its rows. Nothing is sent.

        Parameters
        ----------
        columns : RowPartition
            The owners of the N columns.

        Returns
        -------
        RankMatrix
            The matrix, or this object if the owners are the same. Synchronizes.

        Raises
        ------
        ShapeError
            If `columns` does not divide N columns, or does not have one block for each rank.
        CommunicationError, RankLostError
        """
        if columns == self.columns:
            return self
        check_one_block_per_rank("columns", columns, self.host_communicator.world_size)
        if columns.num_rows != self.columns.num_rows:
            raise ShapeError(
                f"the matrix has {self.columns.num_rows} columns, the partition is one of {columns.num_rows}"
            )
        return self._with_whole_rows(self.whole_rows(), self.rows, columns)

    # ------------------------------------------------------------------ entries

    def entry_order(self, own_columns: HostArray | None = None, ghosts: HostArray | None = None) -> EntryOrder:
        """Return the order of values for `with_data`. The first call computes the order. Synchronizes.

        Parameters
        ----------
        own_columns, ghosts : array of int, optional
            Arguments of `EntryOrder.of`, which only the first call uses.

        Returns
        -------
        EntryOrder
            The order, which matrices from `with_data` share.
        """
        if self._entry_order is None:
            with self.device.active(), self.device.memory_guard():
                self._entry_order = EntryOrder.of(self, own_columns, ghosts)
        return self._entry_order

    def with_data(self, data: Array) -> RankMatrix:
        """Return a matrix of the same structure with other values. All ranks must call this together.

        Both blocks keep their storage formats. The plan for the exchange of ghosts is reused, so ranks do not send each
        other column numbers.

        Parameters
        ----------
        data : array_like, shape (k,)
            The values of this rank's rows in the order of ``A.rows_on_host().data``, on the host or on the rank's
            device. The values are copied. If A stores an entry several times, `data` has one value for it.

        Returns
        -------
        RankMatrix
            The new matrix, in the common dtype of `data` on all ranks that have rows. Synchronizes the first time.

        Raises
        ------
        ShapeError
            If `data` does not have one value for each entry.
        CommunicationError, RankLostError
        """
        order, device = self.entry_order(), self.device
        values = data if device_of(data) is not None else np.asarray(data)
        if values.shape != (order.row_lengths.sum(),):
            raise ShapeError(f"these rows take {order.row_lengths.sum()} values, one per entry, got {values.shape}")
        values = values.astype(common_dtype(values.dtype, self.shape[0], self.host_communicator), copy=False)
        with device.active(), device.memory_guard():
            on_device = values if device_of(values) is not None else device.upload(np.ascontiguousarray(values))
            blocks = order.of_blocks(device, on_device)
            new = self._with_blocks(self.diagonal.with_data(blocks[0]), self.off_diagonal.with_data(blocks[1]))
        new._entry_order = order
        return new

    def main_diagonal(self) -> HostArray:
        """Return the entries of the rank's rows on the main diagonal of the whole matrix.

        The attribute `diagonal` is something else, the diagonal block.

        Returns
        -------
        ndarray
            The entries, on the host, one for each of the rank's rows that crosses the diagonal; 0 if no entry is
            stored. Synchronizes.
        """
        first = self.rows.rows(self.host_communicator.rank).start
        count = max(0, min(self.shape[0], self.whole_shape[1] - first))
        return self.entries_in(first)[:count]

    def entries_in(self, columns: HostArray | int) -> HostArray:
        """Return, for each row, its entry in one column of the whole matrix, or 0 if no entry is stored.

        Parameters
        ----------
        columns : array of int64, shape (own rows,), or int
            The column for each row, on the host. An integer is the column for the first row; it grows by 1 for each
            further row. For a number that is not a column, the result is 0.

        Returns
        -------
        ndarray, shape (own rows,)
            The entries, on the host. Synchronizes.
        """
        values = np.zeros(self.shape[0], self.dtype)
        if isinstance(columns, int):
            if -self.shape[0] < columns < self.whole_shape[1]:
                diagonal = self.whole_rows().diagonal(columns)
                first = max(0, -columns)
                values[first : first + diagonal.size] = diagonal
            return values
        rows, is_column = np.arange(self.shape[0]), (columns >= 0) & (columns < self.whole_shape[1])
        values[is_column] = np.asarray(self.whole_rows()[rows[is_column], columns[is_column]])
        return values

    def over(self, communicator: Communicator) -> RankMatrix:
        """Return a matrix with the same blocks, without copying them, and with another communicator.

        Parameters
        ----------
        communicator : Communicator
            Another communicator between the same ranks, for host arrays.

        Returns
        -------
        RankMatrix
            The matrix. Matrices that are computed from the result use the same communicator.
        """
        new = copy.copy(self)
        new.observer = None
        new.connect(communicator)
        return new

    def _with_blocks(self, diagonal: GpuSparseMatrix, off_diagonal: GpuSparseMatrix) -> RankMatrix:
        """Return a matrix with other blocks of the same structure."""
        new = self.over(self.host_communicator)
        blocks = replace(self.split(), diagonal=diagonal, off_diagonal=off_diagonal)
        new._stored = StoredRows(blocks=blocks, halo=self.halo)
        new.dtype = np.dtype(diagonal.dtype)
        new._entry_order = None
        return new

    def _with_whole_rows(self, whole: GpuSparseMatrix, rows: RowPartition, columns: RowPartition) -> RankMatrix:
        """Return a matrix over the same ranks of which `whole` has this rank's rows."""
        new = self.over(self.host_communicator)
        new._stored, new._entry_order = StoredRows(whole=whole), None
        new.dtype, new.rows, new.columns = np.dtype(whole.dtype), rows, columns
        own = columns.rows(self.host_communicator.rank)
        new.shape = whole.shape[0], own.stop - own.start
        return new
