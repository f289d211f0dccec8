"""One rank's rows of a matrix as an operator. Solvers of `gsparse.linalg` run on such operators of all ranks together.

`RankMatrix` is a subclass with sparse algebra. It has a separate file, because `rank_rows`, which implements the
algebra, imports `RankOperator`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import get_device
from gsparse.distributed.ranks.communicator import Communicator
from gsparse.distributed.ranks.halo import Halo, HaloExchange, RowBlock, split_columns
from gsparse.distributed.ranks.partition import RowPartition, check_one_block_per_rank
from gsparse.errors import ShapeError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.krylov.solve_loop import SolveLoop
from gsparse.linalg.operators import Apply, MatrixOperator, Operator
from gsparse.linalg.registry import METHODS
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.profiling import recording


class RankOperator(Operator):
    """One rank's rows of a matrix, as an operator.

    This is the base class of `RankMatrix`, whose docstring describes the parameters and attributes.
    """

    def __init__(
        self,
        block: sp.csr_array | RowBlock,
        rows: RowPartition,
        columns: RowPartition,
        communicator: Communicator,
        device: str | Device | None = None,
        **options: Any,
    ) -> None:
        for name, partition in (("rows", rows), ("columns", columns)):
            check_one_block_per_rank(name, partition, communicator.world_size)
        own_columns = columns.rows(communicator.rank)
        own_rows = rows.rows(communicator.rank)
        if isinstance(block, RowBlock):
            blocks = block
            _check_shape(block.diagonal, own_rows, own_columns.stop - own_columns.start)
        else:
            _check_shape(block, own_rows, columns.num_rows)
            blocks = split_columns(sp.csr_array(block), own_columns)
        blocks = blocks.astype(common_dtype(blocks.diagonal.dtype, blocks.diagonal.shape[0], communicator))
        self.device = get_device(device)
        is_prepared = isinstance(blocks.diagonal, GpuSparseMatrix)
        self.diagonal = (
            blocks.diagonal if is_prepared else GpuSparseMatrix(blocks.diagonal, device=self.device, **options)
        )
        self.off_diagonal = (
            blocks.off_diagonal if is_prepared else GpuSparseMatrix(blocks.off_diagonal, device=self.device)
        )
        self.matrices = self.diagonal, self.off_diagonal
        self.boundary, self.ghosts = blocks.boundary, blocks.ghosts
        self.shape, self.dtype = blocks.diagonal.shape, np.dtype(blocks.diagonal.dtype)
        self.column_sizes, self._first_column = np.diff(columns.row_bounds).tolist(), own_columns.start
        self.rows, self.columns = rows, columns
        self.observer: Callable[[SolveLoop], None] | None = None
        self.halo = Halo(blocks.ghosts, columns, communicator)
        self.connect(communicator)

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
        if rows is None:
            diagonal, off_diagonal, boundary = self.diagonal.tocoo(), self.off_diagonal.tocoo(), self.boundary
        else:
            places = np.searchsorted(self.boundary, rows)
            is_boundary = np.append(self.boundary, -1)[places] == rows
            diagonal, off_diagonal = self.diagonal[rows].tocoo(), self.off_diagonal[places[is_boundary]].tocoo()
            boundary = np.flatnonzero(is_boundary)
        row_numbers = np.concatenate([diagonal.coords[0], boundary[off_diagonal.coords[0]]])
        columns = np.concatenate([diagonal.coords[1] + self.first_index, self.ghosts[off_diagonal.coords[1]]])
        data = np.concatenate([diagonal.data, off_diagonal.data])
        num_rows = self.shape[0] if rows is None else len(rows)
        return sp.csr_array((data, (row_numbers, columns)), shape=(num_rows, self.whole_shape[1]))

    def row_lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of stored entries of each of the rank's rows.

        Returns
        -------
        array of int64, shape (own rows,)
            The numbers, on the host. Synchronizes.
        """
        with self.device.active():
            diagonal, off_diagonal = (
                np.diff(self.device.download(part._prepared()[0].csr.indptr)).astype(np.int64)
                for part in (self.diagonal, self.off_diagonal)
            )
        diagonal[self.boundary] += off_diagonal
        return diagonal

    @property
    def whole_shape(self) -> tuple[int, int]:
        """The shape of the whole matrix, (M, N)."""
        return self.rows.num_rows, self.columns.num_rows

    @property
    def first_index(self) -> int:
        return int(self._first_column)

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
            make = _AdjointProduct if adjoint else _Product
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


class _BoundProduct:
    """The products of both blocks, bound to buffers, and the exchange of ghosts."""

    def __init__(
        self, matrix: RankOperator, dtype: np.dtype[Any], columns: int, alpha: float, beta: float, *, adjoint: bool
    ) -> None:
        device = self._device = matrix.device
        self._diagonal, self._off_diagonal = (
            MatrixOperator(part).bind(device, dtype, columns, adjoint=adjoint, alpha=alpha, beta=factor)
            for part, factor in ((matrix.diagonal, beta), (matrix.off_diagonal, 0))
        )
        self._exchange = HaloExchange(matrix.halo, matrix.communicator, device, dtype, columns)
        # The positions of the boundary rows in vectors that are stored one after the other, and a buffer for the values
        # at these positions.
        numbers = matrix.shape[0] * np.arange(columns)[:, None] + matrix.boundary
        index_dtype = np.int32 if columns * matrix.shape[0] < 2**31 else np.int64
        self._boundary = device.upload(numbers.astype(index_dtype).reshape(-1))
        self._boundary_values = device.empty(self._boundary.size, dtype)


class _Product(_BoundProduct):
    """Computes y = alpha·A·x + beta·y as an `Apply`.

    The diagonal block is multiplied during the exchange of ghosts. With a second stream, the off-diagonal block is also
    multiplied at the same time:

        one stream       gather and send → diagonal block → receive → off-diagonal block → add to y

        two streams      diagonal block ---------------------------------+
                                                                         +-> add to y
                         gather and send → receive → off-diagonal block -+

    If the kernels support it, the product also stores partial sums of conj(x)·y.

    Attributes
    ----------
    num_dots : int
        Number of the partial sums; 0 if the kernels do not support partial sums.
    """

    def __init__(self, matrix: RankOperator, dtype: np.dtype[Any], columns: int, alpha: float, beta: float) -> None:
        super().__init__(matrix, dtype, columns, alpha, beta, adjoint=False)
        self._uses_second_stream = matrix.communicator.uses_second_stream
        self._num_diagonal_dots: int = getattr(self._diagonal, "num_dots", 0)
        self.num_dots = self._num_diagonal_dots
        if self.num_dots:
            self.num_dots += kernels_of(self._device).exchange.num_scatter_dots(self._boundary_values.size)

    def __call__(self, x: Array, y: Array, dots: Array | None = None) -> None:
        if self._uses_second_stream:
            wait = self._device.alongside(lambda: self._multiply_ghosts(self._exchange.gather(x)))
        else:
            wait = partial(self._multiply_ghosts, self._exchange.gather(x))
        diagonal_arguments: tuple[Any, ...] = ()
        scatter_arguments: tuple[Any, ...] = ()
        if dots is not None:
            diagonal_arguments = (dots[: self._num_diagonal_dots],)
            scatter_arguments = (x, dots[self._num_diagonal_dots :])
        diagonal: Any = self._diagonal
        diagonal(x, y, *diagonal_arguments)
        wait()
        kernels = kernels_of(self._device)
        kernels.exchange.scatter_add(self._device, self._boundary_values, self._boundary, y, *scatter_arguments)

    def _multiply_ghosts(self, wait_for_ghosts: Callable[[], Array]) -> None:
        self._off_diagonal(wait_for_ghosts(), self._boundary_values)


class _AdjointProduct(_BoundProduct):
    """Computes y = alpha·Aᴴ·x + beta·y as an `Apply`.

    The off-diagonal block is multiplied first. Its results are sent to their owners during the product with the
    diagonal block.
    """

    def __init__(self, matrix: RankOperator, dtype: np.dtype[Any], columns: int, alpha: float, beta: float) -> None:
        super().__init__(matrix, dtype, columns, alpha, beta, adjoint=True)
        self._ghost_values = self._device.empty(columns * matrix.halo.num_ghosts, dtype)

    def __call__(self, x: Array, y: Array) -> None:
        kernels_of(self._device).exchange.gather(self._device, x, self._boundary, self._boundary_values)
        self._off_diagonal(self._boundary_values, self._ghost_values)
        add_to = self._exchange.scatter_add(self._ghost_values)
        self._diagonal(x, y)
        add_to(y)
