"""Methods that read the entries of a distributed matrix, save them in files, or replace their values."""

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
import psutil
import scipy.sparse as sp

from gsparse.device.select import get_device
from gsparse.distributed.client.algebra import select_columns, select_rows
from gsparse.distributed.client.operators import DistributedOperator
from gsparse.distributed.client.products import VectorLayout, check_numbers, undivided
from gsparse.distributed.client.rank_group import RankGroup
from gsparse.distributed.client.row_sources import ComputedRows, RowSource
from gsparse.distributed.io.readers import FIRST_ROW, PERMUTATION
from gsparse.distributed.worker import entry_tasks
from gsparse.distributed.worker.group_tasks import Computation
from gsparse.distributed.worker.rank import rank_key
from gsparse.errors import ShapeError
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.index import parse_index

HostArray = npt.NDArray[Any]

# Number of copies of all entries that `tocsr` holds at the same time: the parts of the ranks, and the whole matrix.
_COPIES = 2
# Time, in seconds, for which this process waits until the ranks have removed a failed checkpoint.
_CLEANUP_TIMEOUT = 5.0


class DistributedEntries(DistributedOperator):
    """The methods of a distributed matrix that read its entries, save them, or replace their values."""

    _rank_group: RankGroup
    _layout: VectorLayout
    _source: RowSource
    _rank_metadata: list[Any]
    _value_order: ValueOrder | None

    def _computed(self, source: ComputedRows, layout: VectorLayout, keeps_options: bool) -> Any:
        """Return a matrix that this matrix's workers compute. With `keeps_options`, it has this matrix's options."""
        raise NotImplementedError

    def tocsr(self) -> sp.csr_array:
        """Return the whole matrix on this host.

        Returns
        -------
        csr_array, shape (M, N)
            The matrix in canonical form. Permuted rows and columns are returned to their original order.

        Raises
        ------
        MemoryError
            If the matrix does not fit into the memory of this host. ``A[rows].tocsr()`` returns a part of it.
        CommunicationError, WorkerLostError
        """
        nnz = sum(metadata.nnz for metadata in self._rank_metadata)
        needed, available = _COPIES * nnz * (self.dtype.itemsize + 8), psutil.virtual_memory().available
        if needed > available:
            raise MemoryError(
                f"the whole matrix needs {needed / 1e9:.1f} GB of this host's memory while it is put together, "
                f"{available / 1e9:.1f} GB are available: take a part, A[rows].tocsr(), or save it with A.checkpoint()"
            )
        matrix = self._stacked(self._rank_group.call(entry_tasks.rows))
        return (
            matrix if self._layout.permutation is None else sp.csr_array(matrix[np.argsort(self._layout.permutation)])
        )

    def to_dask(self) -> Any:
        """Return the matrix as a dask array, with one chunk of whole rows for each rank.

        Returns
        -------
        dask.array.Array, shape (M, N)
            Its chunks are copies of the rows, in a `GpuSparseMatrix` on each worker's device. They remain on the
            workers while the array exists, also if this matrix is closed.

        Raises
        ------
        CommunicationError, WorkerLostError
        """
        matrix = self._in_matrix_order()
        group, like = matrix._rank_group, GpuSparseMatrix((0, 0), dtype=self.dtype, device="cpu")
        group.check_open()
        futures = [group.submit(entry_tasks.whole_rows, rank, rank_key(group.key, rank)) for rank in group.ranks]
        return undivided(group.wait_for_inputs(futures, "the matrix"), matrix._layout.rows, self.shape[1:], like)

    def toarray(self) -> HostArray:
        """Return the whole matrix on this host as a dense array.

        Returns
        -------
        ndarray, shape (M, N)
            See `tocsr`, also for the errors.
        """
        dense: HostArray = self.tocsr().toarray()
        return dense

    def __getitem__(self, key: Any) -> Any:
        """Return rows, columns, or both.

        Parameters
        ----------
        key : index, or tuple of two
            ``A[rows]``, ``A[:, columns]`` or ``A[rows, columns]`` with slices, boolean masks, arrays of integers, or an
            integer for a row. Both may be arrays only in the form of `numpy.ix_`.

        Returns
        -------
        DistributedMatrix, or csr_array of one dimension
            A matrix on the same workers, in the order of `key`; for a single row, its entries on this host. Rows in
            increasing order stay on their workers. Other rows are divided equally among the workers, which send them to
            each other.

        Raises
        ------
        IndexError
            If `key` selects a row or column that does not exist, or single elements by pairs of row and column.
        CommunicationError, WorkerLostError
        """
        rows, columns = _selected(key, self.shape)
        if columns is not None:
            part = self[rows] if rows is not None else self._in_matrix_order()
            if isinstance(part, sp.sparray):
                return part[columns if columns.ndim else columns[()]]
            taken = select_columns(part, np.atleast_1d(columns))
            return taken if columns.ndim else taken.tocsr()[:, 0]
        if rows is None:
            return self._in_matrix_order()
        if rows.ndim:
            return select_rows(self, rows)
        in_block = self._numbers_in_blocks()[rows] if self._layout.permutation is not None else rows
        owner = int(self._layout.rows.owners(np.atleast_1d(in_block))[0])
        number = np.atleast_1d(in_block - self._layout.rows.row_bounds[owner])
        wanted = [(number if rank == owner else number[:0],) for rank in self._rank_group.ranks]
        return self._stacked(self._rank_group.call(entry_tasks.rows, wanted))[0]

    def _in_matrix_order(self) -> Any:
        """Return this matrix. If its rows and columns were permuted, return a copy with the permutation undone."""
        return self if self._layout.permutation is None else select_rows(self, np.arange(self.shape[0]))

    def diagonal(self, k: int = 0) -> HostArray:
        """Return the entries on a diagonal.

        Parameters
        ----------
        k : int, optional
            Column minus row of the entries: 0, the default, is the main diagonal.

        Returns
        -------
        ndarray
            The diagonal on this host, with a 0 where no entry is stored.

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

    def with_data(self, data: Any) -> Any:
        """Return a matrix of the same structure with other values, on the same workers.

        Each worker receives only the values of its rows. Storage formats and the plan for the exchange of ghosts are
        reused, and files are not read again. So this is the fast way to the matrix of the next time step. If
        ``M = amg(A)``, then ``M.update(A.with_data(data))`` computes multigrid for these values.

        Parameters
        ----------
        data : array_like, shape (k,)
            The values in the order of ``A.tocsr().data``. If A is ``distribute(S)`` and S is in canonical form, this is
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
        of_ranks = [(order.of_rows(values, self._layout.rows.rows(rank)),) for rank in self._rank_group.ranks]
        source = ComputedRows(self._layout, computation, self._rank_group, size, of_ranks)
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
        """Return the arrays, by name, with a rank's part of the permutation; an empty dict without a permutation."""
        if self._layout.permutation is None:
            return {}
        own_rows = self._layout.rows.rows(rank)
        return {FIRST_ROW: np.array([own_rows.start]), PERMUTATION: self._layout.permutation[own_rows]}

    # ------------------------------------------------------------------ the order of rows, columns and values

    def _numbers_in_blocks(self) -> HostArray:
        """Return the new number of each row and column of the original matrix, in the order of the blocks."""
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
        """Return the order of values for `with_data`. The first call computes it on the ranks."""
        if self._value_order is None:
            layout, ghosts = self._layout, self._worker_products.ghosts
            orders = [
                (None, None)
                if layout.permutation is None
                else (layout.permutation[layout.columns.rows(rank)], layout.permutation[ghosts[rank]])
                for rank in self._rank_group.ranks
            ]
            counts = self._rank_group.call(entry_tasks.value_counts, orders)
            self._value_order = ValueOrder.of(np.concatenate(counts), layout.permutation)
        return self._value_order


@dataclass(frozen=True, eq=False)
class ValueOrder:
    """Maps values between the original order of rows and columns and the order of the blocks.

    Attributes
    ----------
    indptr : array of int64, shape (M + 1,)
        In the order of the blocks, the position of each row's first value, then the number of values.
    numbers : array of int64 or None
        For each value in the order of the blocks, its position in the original order; None if rows were not permuted.
    """

    indptr: HostArray
    numbers: HostArray | None

    @staticmethod
    def of(row_lengths: HostArray, permutation: HostArray | None) -> ValueOrder:
        """Return the order of values. `row_lengths` has each row's number of values, in the order of the blocks."""
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


def _selected(key: Any, shape: tuple[int, int]) -> tuple[HostArray | None, HostArray | None]:
    """Return the row and the column numbers that a key selects. None means all; a single number has no dimension."""
    host: Any = SimpleNamespace(shape=shape, ndim=2, device=get_device("cpu"))
    axes: tuple[Any, ...] = parse_index(host, key).axes
    rows: HostArray | None
    columns: HostArray | None
    rows, columns = (
        None if isinstance(axis, range) and axis == range(size) else np.asarray(axis, np.int64)
        for axis, size in zip(axes, shape, strict=True)
    )
    if not any(isinstance(axis, range | int) for axis in axes):
        if not (axes[0].ndim == axes[1].ndim == 2 and axes[0].shape[1] == axes[1].shape[0] == 1):
            raise IndexError(
                "pairs of rows and columns are not selected from a distributed matrix: use A[rows][:, columns] for all "
                "pairs, or A[rows].tocsr() and then SciPy's index"
            )
        rows, columns = axes[0].reshape(-1), axes[1].reshape(-1)
    is_new_axis = any(part is None for part in (key if isinstance(key, tuple) else (key,)))
    if is_new_axis or any(numbers is not None and numbers.ndim > 1 for numbers in (rows, columns)):
        raise IndexError("rows and columns are selected by integers, slices, masks, or arrays of one dimension")
    return rows, columns
