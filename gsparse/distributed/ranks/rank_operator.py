"""One rank's rows of a matrix as an operator. Solvers of `gsparse.linalg` run on such operators of all ranks together.

`RankMatrix` is a subclass with sparse algebra. It has a separate file, because `rank_rows`, which implements the
algebra, imports `RankOperator`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import get_device
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.halo import Halo
from gsparse.distributed.ranks.partition import RowPartition, check_one_block_per_rank
from gsparse.distributed.ranks.rank_products import RankAdjointProduct, RankProduct
from gsparse.distributed.ranks.row_block import RowBlock, StoredRows
from gsparse.errors import ShapeError
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.operators import Apply, Operator
from gsparse.linalg.registry import METHODS
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix
from gsparse.profiling import recording


class RankOperator(Operator):
    """One rank's rows of a matrix, as an operator.

    This is the base class of `RankMatrix`, whose docstring describes the parameters and attributes.
    """

    def __init__(
        self,
        block: Any,
        rows: RowPartition,
        columns: RowPartition,
        communicator: Communicator,
        device: str | Device | None = None,
        **options: Any,
    ) -> None:
        for name, partition in (("rows", rows), ("columns", columns)):
            check_one_block_per_rank(name, partition, communicator.world_size)
        own_rows, own_columns = rows.rows(communicator.rank), columns.rows(communicator.rank)
        self.device = get_device(device)
        if isinstance(block, RowBlock):
            _check_shape(block.diagonal, own_rows, own_columns.stop - own_columns.start)
            dtype = common_dtype(block.diagonal.dtype, block.diagonal.shape[0], communicator)
            blocks = block.astype(dtype).on_device(self.device, options)
            self._stored = StoredRows(blocks=blocks, halo=Halo(block.ghosts, columns, communicator))
        else:
            _check_shape(block, own_rows, columns.num_rows)
            block = block if isinstance(block, DeviceMatrix) else sp.csr_array(block)
            dtype = common_dtype(block.dtype, block.shape[0], communicator)
            whole = GpuSparseMatrix(block.astype(dtype, copy=False), device=self.device)
            self._stored = StoredRows(whole=whole, options=options)
        self.dtype, self.rows, self.columns = dtype, rows, columns
        self.shape = own_rows.stop - own_rows.start, own_columns.stop - own_columns.start
        self.observer: Callable[[SolveLoop], None] | None = None
        self.connect(communicator)
        if options:  # Errors of wrong options are raised here, and not by the first product.
            self.split()

    @property
    def is_split(self) -> bool:
        """Whether the rows are stored as two blocks; the same on all ranks."""
        return self._stored.blocks is not None

    def split(self) -> RowBlock:
        """Return both blocks. All ranks must make the first call together, which makes the blocks and the halo.

        Returns
        -------
        RowBlock
            The blocks, on the rank's device. Synchronizes the first time.

        Raises
        ------
        CommunicationError, RankLostError
        """
        return self._stored.split(self.columns, self.host_communicator)

    @property
    def diagonal(self) -> GpuSparseMatrix:
        """The diagonal block."""
        diagonal: GpuSparseMatrix = self.split().diagonal
        return diagonal

    @property
    def off_diagonal(self) -> GpuSparseMatrix:
        """The off-diagonal block."""
        off_diagonal: GpuSparseMatrix = self.split().off_diagonal
        return off_diagonal

    @property
    def boundary(self) -> npt.NDArray[np.int64]:
        """The rank's rows that have entries in the off-diagonal block."""
        return self.split().boundary

    @property
    def ghosts(self) -> npt.NDArray[np.int64]:
        """The columns of the off-diagonal block."""
        return self.split().ghosts

    @property
    def halo(self) -> Halo:
        """The plan of the exchange of ghosts."""
        self.split()
        assert self._stored.halo is not None
        return self._stored.halo

    @property
    def matrices(self) -> tuple[DeviceMatrix, ...]:
        """Both blocks."""
        return self.diagonal, self.off_diagonal

    def whole_rows(self) -> GpuSparseMatrix:
        """Return the rank's rows with all columns of the matrix.

        Returns
        -------
        GpuSparseMatrix, shape (own rows, N)
            On the rank's device. It must not be changed. Synchronizes.
        """
        return self._stored.join(self.columns, self.host_communicator.rank)

    def connect(self, communicator: Communicator) -> None:
        """Replace the communicator by another one between the same ranks.

        Parameters
        ----------
        communicator : Communicator
            The rank's new communicator, for host arrays.
        """
        self.host_communicator, self.communicator = communicator, communicator.on(self.device)
        self.is_resident = self.device.is_host or self.communicator.is_queued
        # Bound products, with their buffers. Solvers can share them, because two products of a matrix never run at the
        # same time.
        self._bound_products: dict[Any, Apply] = {}

    def __gsparse_call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a preconditioner of `gsparse.linalg` from the diagonal block."""
        method = METHODS.get(name)
        if method is None or method.kind != "preconditioner" or method.spans_ranks:
            return NotImplemented
        return method.function(self.diagonal, *args, **kwargs)

    def rows_on_host(self, rows: npt.NDArray[np.integer] | None = None) -> sp.csr_array:
        """Return the rank's rows as one matrix in canonical form. Synchronizes.

        Parameters
        ----------
        rows : array of int, optional
            Numbers of rows, counted from the rank's first row; by default all of the rank's rows.

        Returns
        -------
        csr_array, shape (number of rows, N)
            The rows, on the host.
        """
        return sp.csr_array(self._stored.rows(rows, self.columns, self.host_communicator.rank).tocoo())

    @property
    def num_entries(self) -> int:
        """Number of the rank's stored entries."""
        return sum(part.nnz for part in (self.matrices if self.is_split else (self.whole_rows(),)))

    def row_lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of stored entries of each of the rank's rows.

        Returns
        -------
        array of int64, shape (own rows,)
            The numbers, on the host. Synchronizes.
        """
        parts = self.matrices if self.is_split else (self.whole_rows(),)
        with self.device.active():
            lengths, *others = (
                np.diff(self.device.download(part._prepared()[0].csr.indptr)).astype(np.int64) for part in parts
            )
        if others:
            lengths[self.boundary] += others[0]
        return lengths

    @property
    def whole_shape(self) -> tuple[int, int]:
        """The shape of the whole matrix, (M, N)."""
        return self.rows.num_rows, self.columns.num_rows

    @property
    def first_index(self) -> int:
        return int(self.columns.rows(self.host_communicator.rank).start)

    @property
    def ranks(self) -> RankOperator:
        return self

    def allreduce(self, values: Array) -> None:
        """Replace an array by its sum over all ranks, with the same bits on every rank and in every run.

        Parameters
        ----------
        values : array
            An array on the rank's device. It has the same shape and dtype on all ranks.

        Raises
        ------
        CommunicationError, RankLostError
        """
        if recording.recorder is None:
            self.communicator.allreduce(values)
            return
        with recording.span("wait for ranks", "sum", self.device, None, int(values.nbytes)):
            self.communicator.allreduce(values)

    def agreed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the first rank's `values` on all ranks. All ranks must call this together. Synchronizes.

        Parameters
        ----------
        values : ndarray
            An array on the host. It has the same shape and dtype on all ranks.

        Returns
        -------
        ndarray
            The array of the first rank, on the host.

        Raises
        ------
        CommunicationError, RankLostError
        """
        shared = self.device.upload(values if self.communicator.rank == 0 else np.zeros_like(values))
        self.allreduce(shared)
        return self.device.download(shared)

    def tabled(self, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int]:
        """Return a table of the values of all ranks. All ranks must call this together. Synchronizes.

        Parameters
        ----------
        values : ndarray, shape (k,)
            An array on the host. It has the same shape and dtype on all ranks.

        Returns
        -------
        (ndarray of shape (number of ranks, k), int)
            The table, on the host, and the number of this rank's row.
        """
        return self.host_communicator.table(values), self.communicator.rank

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for work on this rank's device that may depend on other ranks. Raise an error if a rank is lost.

        Parameters
        ----------
        is_done : callable
            Returns, without waiting, whether the work is done.

        Raises
        ------
        CommunicationError, RankLostError
        """
        self.communicator.wait(is_done)

    def observe(self, iteration: SolveLoop) -> None:
        """Call the `observer` if it is not None. Solvers call this method when the host has read the solve's scalars.

        Parameters
        ----------
        iteration : SolveLoop
            The current state of the solve.
        """
        if self.observer is not None:
            self.observer(iteration)

    def home(self) -> Device:
        return self.device

    def matmat(self, V: Array) -> Array:
        """Multiply by several vectors. All ranks must call this together.

        Parameters
        ----------
        V : array, shape (own columns, k)
            The rank's part of the vectors, on its device.

        Returns
        -------
        array, shape (own rows, k)
            The rank's part of the products, on its device, in NumPy's common dtype of A, V and float32.

        Raises
        ------
        CommunicationError, RankLostError
        """
        columns, dtype = V.shape[1], np.dtype(np.result_type(V.dtype, self.dtype, np.float32))
        xp = self.device.xp
        x, y = xp.ascontiguousarray(V.T.astype(dtype)).reshape(-1), xp.empty(columns * self.shape[0], dtype)
        self.bind(self.device, dtype, columns)(x, y)
        return y.reshape(columns, -1).T

    def bind(
        self,
        device: Device,
        dtype: np.dtype[Any],
        columns: int = 1,
        *,
        adjoint: bool = False,
        alpha: float = 1,
        beta: float = 0,
    ) -> Apply:
        """Prepare for products ``y = alpha·A·x + beta·y`` of flat arrays, which store one vector after the other.

        Parameters
        ----------
        device : Device
            The rank's device.
        dtype : dtype
            The dtype of the vectors.
        columns : int, optional
            Number of vectors.
        adjoint : bool, optional
            Whether to multiply by the conjugate transpose instead.
        alpha, beta : float, optional
            The factors in the formula above.

        Returns
        -------
        callable
            ``apply(x, y)``, which all ranks must call together. The same arguments return the same callable.
        """
        key = dtype, columns, adjoint, alpha, beta
        if key not in self._bound_products:
            make = RankAdjointProduct if adjoint else RankProduct
            self._bound_products[key] = make(self, dtype, columns, alpha, beta)
        return self._bound_products[key]


def common_dtype(dtype: npt.DTypeLike, num_rows: int, communicator: Communicator) -> np.dtype[Any]:
    """Return NumPy's common dtype of the ranks' dtypes. All ranks must call this together.

    Ranks without rows are ignored, because SciPy makes a matrix without rows in float64 unless a dtype is specified.
    """
    own_name = np.dtype(dtype).str.encode()  # at most 8 bytes, which are sent as an integer
    # One row per rank: its dtype, and whether it has rows.
    table = communicator.table(np.array([int.from_bytes(own_name, "little"), num_rows > 0], np.int64))
    counted = table[table[:, 1] > 0] if table[:, 1].any() else table
    names = {int(number).to_bytes(8, "little").rstrip(b"\0").decode() for number in counted[:, 0]}
    return np.dtype(np.result_type(*names))


def _check_shape(block: Any, own_rows: slice, num_columns: int) -> None:
    """Raise ShapeError if a block does not have these rows and this number of columns."""
    expected = own_rows.stop - own_rows.start, num_columns
    if block.shape != expected:
        raise ShapeError(
            f"the block of the rows {own_rows.start} to {own_rows.stop} must have the shape {expected}, got "
            f"{block.shape}"
        )
