"""Entries of a distributed matrix: on the host (rows, diagonals, sums), in files, and replaced by other values."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.select import get_device
from gsparse.distributed.client.operators import DistributedOperator
from gsparse.distributed.client.products import VectorLayout, check_numbers
from gsparse.distributed.client.rank_group import RankGroup
from gsparse.distributed.client.row_sources import ComputedRows, RowSource
from gsparse.distributed.io.readers import FIRST_ROW, PERMUTATION
from gsparse.distributed.worker import entry_tasks
from gsparse.distributed.worker.group_tasks import Computation
from gsparse.errors import ShapeError
from gsparse.matrix.index import parse_index

HostArray = npt.NDArray[Any]

# Time limit, in seconds, for the ranks to remove a failed checkpoint. They continue after it without being watched.
_CLEANUP_TIMEOUT = 5.0


class DistributedEntries(DistributedOperator):
    """The methods of a distributed matrix that read its entries, save them, or replace their values."""

    _rank_group: RankGroup
    _layout: VectorLayout
    _source: RowSource
    _rank_metadata: list[Any]
    _value_order: ValueOrder | None

    def _computed(self, source: ComputedRows, layout: VectorLayout, keeps_options: bool) -> Any:
        """Return a matrix on the same workers, which compute its rows."""
        raise NotImplementedError

    def tocsr(self) -> sp.csr_array:
        """Return the whole matrix on this host.

        Returns
        -------
        csr_array, shape (M, N)
            In canonical form, with rows and columns in the original order, also if they were permuted.

        Raises
        ------
        CommunicationError, WorkerLostError
        """
        matrix = self._stacked(self._rank_group.call(entry_tasks.rows))
        return (
            matrix if self._layout.permutation is None else sp.csr_array(matrix[np.argsort(self._layout.permutation)])
        )

    def __getitem__(self, rows: Any) -> sp.csr_array:
        """Return rows of the matrix on this host: ``A[3:9]``, ``A[[5, 2]]``, ``A[mask]`` or ``A[4]``.

        Only these rows are sent. The result is SciPy's for ``A.tocsr()[rows]``.
        """
        numbers = _row_numbers(rows, self.shape)
        is_single = numbers.ndim == 0
        numbers = np.atleast_1d(numbers)
        in_blocks = self._numbers_in_blocks()[numbers] if self._layout.permutation is not None else numbers
        owners, bounds = self._layout.rows.owners(in_blocks), self._layout.rows.row_bounds
        places = [np.flatnonzero(owners == rank) for rank in self._rank_group.ranks]
        wanted = [(in_blocks[of_rank] - bounds[rank],) for rank, of_rank in enumerate(places)]
        matrix = self._stacked(self._rank_group.call(entry_tasks.rows, wanted))
        matrix = sp.csr_array(matrix[np.argsort(np.concatenate(places))])
        return matrix[0] if is_single else matrix

    def diagonal(self, k: int = 0) -> HostArray:
        """Return the entries on a diagonal.

        Parameters
        ----------
        k : int, optional
            Column minus row of the entries: 0, the default, is the main diagonal.

        Returns
        -------
        ndarray
            On this host, with a 0 where no entry is stored.

        Raises
        ------
        CommunicationError, WorkerLostError
        """
        (num_rows, num_columns), k = self.shape, index(k)
        if k <= -num_rows or k >= num_columns:
            return np.empty(0, self.dtype)
        layout = self._layout
        if layout.permutation is None:
            columns: list[Any] = [bound + k for bound in layout.rows.row_bounds[:-1]]
        else:
            numbers = layout.permutation + k
            is_column = (numbers >= 0) & (numbers < num_columns)
            in_blocks = np.where(is_column, self._numbers_in_blocks()[np.where(is_column, numbers, 0)], -1)
            columns = [in_blocks[layout.rows.rows(rank)] for rank in self._rank_group.ranks]
        entries = layout.join(self._rank_group.call(entry_tasks.entries_in, [(of_rank,) for of_rank in columns]))
        first = max(0, -k)
        return entries[first : first + min(num_rows - first, num_columns - max(0, k))]

    def sum(self, axis: int | None = None) -> Any:
        """Add up the entries of the matrix, of each column or of each row.

        Parameters
        ----------
        axis : {None, 0, 1, -1, -2}, optional
            None, the default, adds up all entries, 0 those of each column and 1 those of each row.

        Returns
        -------
        ndarray of shape (N,) or (M,), or scalar
            On this host, in the dtype of NumPy's sums: integers and booleans become 64-bit integers.

        Raises
        ------
        ValueError
            If the matrix has no such axis.
        CommunicationError, WorkerLostError
        """
        if axis is not None and index(axis) not in (-2, -1, 0, 1):
            raise ValueError(f"axis must be None, 0 or 1, got {axis}")
        dtype = np.sum(np.empty(0, self.dtype)).dtype
        if axis is not None and axis % 2 == 0:
            return (self.T @ np.ones(self.shape[0], dtype)).astype(dtype, copy=False)
        of_rows = (self @ np.ones(self.shape[1], dtype)).astype(dtype, copy=False)
        return of_rows if axis is not None else of_rows.sum()

    def with_data(self, data: Any) -> Any:
        """Return a matrix of the same structure with other values, on the same workers.

        Only its values are sent to each worker. Storage formats and the plan for the exchange of ghosts are reused, and
        files are not read again. So this is the fast way to the matrix of the next time step. If ``M = amg(A)``, then
        ``M.update(A.with_data(data))`` computes multigrid for these values.

        Parameters
        ----------
        data : array_like, shape (k,)
            The values in the order of ``A.tocsr().data``. If A is ``distribute(S)`` and S is in canonical form, it is
            the order of ``S.data``, also if rows were permuted.

        Returns
        -------
        DistributedMatrix
            A new matrix of the dtype of `data`. Close the old one when it is no longer needed.

        Raises
        ------
        ShapeError
            If the number of values is not the number of entries.
        DtypeError, CommunicationError, WorkerLostError

        Examples
        --------
        >>> import scipy.sparse
        >>> from distributed import Client
        >>> from gsparse.distributed import distribute
        >>> S = scipy.sparse.diags_array([1.0, 2.0], offsets=[0, 1], shape=(5, 5)).tocsr()
        >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
        ...     with distribute(S, client=client, device="cpu") as A, A.with_data(3 * S.data) as B:
        ...         bool((B.tocsr() != 3 * S).nnz == 0)
        True
        """
        values = np.asarray(data)
        check_numbers("with_data", values)
        order = self._known_value_order()
        if values.shape != (order.num_values,):
            raise ShapeError(
                f"a matrix with {order.num_values} entries takes as many values, in the order of A.tocsr().data, got "
                f"shape {values.shape}"
            )
        values = order.in_blocks(values)
        computation, size = Computation("with data", (self._rank_group.key,)), self._source.block_size
        source = ComputedRows(
            self._layout, computation, self._rank_group, size, lambda rows: order.of_rows(values, rows)
        )
        result = self._computed(source, self._layout, keeps_options=True)
        result._value_order = order
        return result

    def checkpoint(self, folder: str | Path) -> list[str]:
        """Make each worker save its rows in a folder that all workers share.

        A checkpoint in the same folder is replaced as a whole. If this checkpoint fails, or a worker or this process
        ends while it is written, `from_loaders` reads either all of the older checkpoint or all of the newer one. Only
        one matrix may be saved in a folder at a time.

        ``from_loaders(files, shape)`` makes the matrix again. If rows were permuted, the files hold `permutation`, and
        rows and columns in the new order: other programs read ``S[permutation][:, permutation]`` from them.

        Parameters
        ----------
        folder : path-like
            A folder to which each worker can write under this name. It is created if it does not exist. The checkpoint
            is a folder in it, to which a link with the name ``rows`` points.

        Returns
        -------
        list of str
            The files in SciPy's ``.npz`` format, in the order of the ranks. If rows were permuted, each file also holds
            its part of `permutation` as an array of that name.

        Raises
        ------
        CommunicationError, WorkerLostError
        OSError
            If a worker cannot write to the folder, or the disk is full.
        """
        group, new = self._rank_group, Path(folder) / uuid.uuid4().hex
        group.check_open()
        names = [f"rows-{rank:05d}.npz" for rank in group.ranks]
        try:
            group.call(entry_tasks.save, [(new, names[r], self._permutation_arrays(r)) for r in group.ranks])
        except BaseException:
            with suppress(Exception):  # The user must see the first error.
                group.ask_remaining(entry_tasks.discard, new, seconds=_CLEANUP_TIMEOUT)
            raise
        group.call(entry_tasks.publish, [(new,)], ranks=[0])
        return [str(Path(folder) / entry_tasks.LINK / name) for name in names]

    def _permutation_arrays(self, rank: int) -> dict[str, HostArray]:
        """Return the arrays in a rank's checkpoint that hold its part of the permutation, if there is one."""
        if self._layout.permutation is None:
            return {}
        own_rows = self._layout.rows.rows(rank)
        return {FIRST_ROW: np.array([own_rows.start]), PERMUTATION: self._layout.permutation[own_rows]}

    # ------------------------------------------------------------------ the order of rows, columns and values

    def _numbers_in_blocks(self) -> HostArray:
        """Return the number that each row and column of the matrix has in the new order of the blocks."""
        numbers: HostArray = self._layout.in_matrix_order(np.arange(self.shape[0]))
        return numbers

    def _stacked(self, parts: Sequence[sp.csr_array]) -> sp.csr_array:
        """Stack the rows of all ranks, and return them with columns in the original order."""
        matrix, permutation = sp.csr_array(sp.vstack(parts, format="csr")), self._layout.permutation
        if permutation is not None:
            matrix = sp.csr_array((matrix.data, permutation[matrix.indices], matrix.indptr), shape=matrix.shape)
            matrix.sort_indices()
        return matrix

    def _known_value_order(self) -> ValueOrder:
        """Return the order of values for `with_data`, which the first call computes."""
        if self._value_order is None:
            layout, orders = self._layout, list[Any]([(None, None)] * len(self._rank_metadata))
            if layout.permutation is not None:
                orders = [
                    (layout.permutation[layout.columns.rows(rank)], layout.permutation[metadata.ghosts])
                    for rank, metadata in enumerate(self._rank_metadata)
                ]
            counts = self._rank_group.call(entry_tasks.value_counts, orders)
            self._value_order = ValueOrder.of(np.concatenate(counts), layout.permutation)
        return self._value_order


@dataclass(frozen=True, eq=False)
class ValueOrder:
    """The order of the values, in the original order of rows and columns and in the order of the blocks.

    Attributes
    ----------
    indptr : array of int64, shape (M + 1,)
        The position of the first value of each row, in the order of the blocks.
    numbers : array of int64 or None
        For each value in the order of the blocks, its position in the original order; None if rows were not permuted.
    """

    indptr: HostArray
    numbers: HostArray | None

    @staticmethod
    def of(row_lengths: HostArray, permutation: HostArray | None) -> ValueOrder:
        """Return the order of values, from the number of values in each row of the blocks."""
        indptr = np.concatenate([[0], np.cumsum(row_lengths, dtype=np.int64)])
        if permutation is None:
            return ValueOrder(indptr, None)
        of_matrix = np.empty_like(row_lengths)
        of_matrix[permutation] = row_lengths
        starts = np.concatenate([[0], np.cumsum(of_matrix, dtype=np.int64)])[permutation]
        return ValueOrder(indptr, np.repeat(starts - indptr[:-1], row_lengths) + np.arange(indptr[-1]))

    @property
    def num_values(self) -> int:
        return int(self.indptr[-1])

    def in_blocks(self, values: HostArray) -> HostArray:
        """Return a copy of the values in the order of the blocks."""
        return values.copy() if self.numbers is None else values[self.numbers]

    def of_rows(self, values: HostArray, rows: slice) -> HostArray:
        """Return the values of some rows, with rows and values in the order of the blocks."""
        return values[self.indptr[rows.start] : self.indptr[rows.stop]]


def _row_numbers(rows: Any, shape: tuple[int, int]) -> HostArray:
    """Return the numbers of the rows that an index selects; an array of zero dimensions for a single row."""
    if isinstance(rows, tuple):
        raise IndexError("a distributed matrix has an index for rows only: A[rows][:, columns]")
    host: Any = SimpleNamespace(shape=shape, ndim=2, device=get_device("cpu"))
    parsed = parse_index(host, rows)
    numbers = np.asarray(parsed.axes[0], np.int64)
    if numbers.ndim > 1 or parsed.shape != (*numbers.shape, shape[1]):
        raise IndexError(f"rows are selected by integers, a slice, or a mask, got {type(rows).__name__}")
    return numbers
