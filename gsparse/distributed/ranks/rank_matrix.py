"""One rank's rows of a matrix as an operator: solvers run on it as they are, all ranks together."""

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
from gsparse.distributed.ranks.halo import Halo, HaloExchange, RowBlock, split_columns
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.krylov.solve_loop import Iteration
from gsparse.linalg.operators import Apply, MatrixOperator, Operator
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

__all__ = ["RankMatrix"]


class RankMatrix(Operator):
    """The rows of one rank. All ranks make theirs, multiply and solve at the same time.

    Vectors are parts: of those that are multiplied, the rank's columns; of products, its rows.

    Parameters
    ----------
    block : csr_array, shape (rows of the rank, N), or RowBlock
        The rank's rows, split or not. All ranks' values are converted to their common dtype, as NumPy promotes them.
    rows, columns : RowPartition
        Of the M rows and the N columns.
    communicator : Communicator
        The rank's end, for arrays of the host.
    device : str, optional
        Of the rank's two blocks.
    **options
        As `GpuSparseMatrix` takes them, for the diagonal block.

    Attributes
    ----------
    diagonal, off_diagonal : GpuSparseMatrix
        Entries in the rank's own columns, and in others: only rows that have any, `boundary`, on columns `ghosts`.
    halo : Halo
    shape : (int, int)
        Of the rank's part: its rows, and the columns that it owns.
    whole_shape : (int, int)
        (M, N).
    column_sizes : list of int
        How many columns each rank owns.
    observer : callable or None
        Called with the `Iteration` whenever a solve has looked at its scalars; what it raises ends the solve.

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

    def __init__(
        self,
        block: sp.csr_array | RowBlock,
        rows: RowPartition,
        columns: RowPartition,
        communicator: Communicator,
        device: str | Device = "auto",
        **options: Any,
    ) -> None:
        own = columns.rows(communicator.rank)
        parts = block if isinstance(block, RowBlock) else split_columns(sp.csr_array(block), own)
        parts = parts.astype(_common_dtype(parts.diagonal, communicator))
        self.device = get_device(device)
        given = isinstance(parts.diagonal, GpuSparseMatrix)
        self.diagonal = parts.diagonal if given else GpuSparseMatrix(parts.diagonal, device=self.device, **options)
        self.off_diagonal = GpuSparseMatrix(parts.off_diagonal, device=self.device)
        self.boundary, self.ghosts = parts.boundary, parts.ghosts
        self.shape, self.dtype = parts.diagonal.shape, np.dtype(parts.diagonal.dtype)
        self.column_sizes, self._first_column = np.diff(columns.row_bounds).tolist(), own.start
        self._whole_shape = rows.num_rows, columns.num_rows
        self.observer: Callable[[Iteration], None] | None = None
        self.halo = Halo(parts.ghosts, columns, communicator)
        self.connect(communicator)

    def connect(self, communicator: Communicator) -> None:
        """Go on with another communicator between the same ranks.

        Parameters
        ----------
        communicator : Communicator
            The rank's end of the new group.
        """
        self.communicator = communicator.on(self.device)
        self.is_resident = self.device.is_host or self.communicator.is_queued
        self._bound: dict[Any, Apply] = {}

    def rows_on_host(self) -> sp.csr_array:
        """Give the rank's rows as they were, columns rising in each.

        Returns
        -------
        csr_array, shape (rows of the rank, N)
            On the host. Synchronizes.
        """
        inner, outer = self.diagonal.tocoo(), self.off_diagonal.tocoo()
        rows = np.concatenate([inner.coords[0], self.boundary[outer.coords[0]]])
        columns = np.concatenate([inner.coords[1] + self._first_column, self.ghosts[outer.coords[1]]])
        data = np.concatenate([inner.data, outer.data])
        return sp.csr_array((data, (rows, columns)), shape=(self.shape[0], self.whole_shape[1]))

    @property
    def whole_shape(self) -> tuple[int, int]:
        return self._whole_shape

    @property
    def ranks(self) -> RankMatrix:
        return self

    def allreduce(self, values: Array) -> None:
        """Add an array up over all ranks, in place: the same bits on each, run after run.

        Parameters
        ----------
        values : array
            On the rank's device, of the same shape and dtype on all ranks.

        Raises
        ------
        CommunicationError, RankLostError
        """
        self.communicator.allreduce(values)

    def agreed(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Give what the first rank has, on all. Synchronizes.

        Parameters
        ----------
        values : ndarray
            On the host, of the same shape and dtype on all ranks.

        Returns
        -------
        ndarray
            On the host: the first rank's.

        Raises
        ------
        CommunicationError, RankLostError
        """
        shared = self.device.upload(values if self.communicator.rank == 0 else np.zeros_like(values))
        self.allreduce(shared)
        return self.device.download(shared)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for something on this rank's device that others may keep from ever being done.

        Parameters
        ----------
        is_done : callable
            Tells, without waiting, whether it is.

        Raises
        ------
        CommunicationError, RankLostError
        """
        self.communicator.wait(is_done)

    def look(self, iteration: Iteration) -> None:
        """Call `observer`, if there is one: a solve does, whenever the host has looked at its scalars.

        Parameters
        ----------
        iteration : Iteration
            Of `gsparse.linalg.krylov.solve_loop`, as it is now.
        """
        if self.observer is not None:
            self.observer(iteration)

    def home(self) -> Device:
        return self.device

    def matmat(self, V: Array) -> Array:
        """Multiply parts of several vectors, all ranks at the same time.

        Parameters
        ----------
        V : array, shape (own columns, k)
            On the rank's device.

        Returns
        -------
        array, shape (own rows, k)
            On the rank's device.

        Raises
        ------
        CommunicationError, RankLostError
        """
        columns, dtype = V.shape[1], np.dtype(np.result_type(V.dtype, self.dtype, np.float32))
        xp = self.device.xp
        x, y = xp.ascontiguousarray(V.T.astype(dtype)).reshape(-1), xp.empty(columns * self.shape[0], dtype)
        self.bind(self.device, dtype, columns)(x, y)
        return y.reshape(columns, -1).T

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        key = dtype, columns, adjoint
        if key not in self._bound:  # (buffers are kept: products follow one another)
            self._bound[key] = (_Adjoint if adjoint else _Product)(self, dtype, columns)
        return self._bound[key]


def _common_dtype(part: sp.csr_array, communicator: Communicator) -> np.dtype[Any]:
    """Return the dtype that holds the values of all ranks, the same on each; ranks without rows do not count.

    (SciPy makes matrices without rows in float64 where nothing else is said.)
    """
    mine = np.dtype(part.dtype).str.encode()  # (of at most 8 bytes, which travel as an integer)
    known = np.zeros((communicator.world_size, 2), np.int64)
    known[communicator.rank] = int.from_bytes(mine, "little"), part.shape[0] > 0
    communicator.allreduce(known)
    counted = known[known[:, 1] > 0] if known[:, 1].any() else known
    names = {int(number).to_bytes(8, "little").rstrip(b"\0").decode() for number in counted[:, 0]}
    return np.dtype(np.result_type(*names))


class _Bound:
    """Products of both blocks, the exchange between them, and what they need in between."""

    def __init__(self, matrix: RankMatrix, dtype: np.dtype[Any], columns: int, *, adjoint: bool) -> None:
        device = self._device = matrix.device
        self._inner, self._outer = (
            MatrixOperator(part).bind(device, dtype, columns, adjoint=adjoint)
            for part in (matrix.diagonal, matrix.off_diagonal)
        )
        self._exchange = HaloExchange(matrix.halo, matrix.communicator, device, dtype, columns)
        numbers = matrix.shape[0] * np.arange(columns)[:, None] + matrix.boundary
        kind = np.int32 if columns * matrix.shape[0] < 2**31 else np.int64
        self._boundary = device.upload(numbers.astype(kind).reshape(-1))
        self._part = device.empty(self._boundary.size, dtype)


class _Product(_Bound):
    """y = A·x as `Apply`: own columns while ghosts travel, then theirs; with sums of conj(x)·y where kernels have them.

    Attributes
    ----------
    num_dots : int
    """

    def __init__(self, matrix: RankMatrix, dtype: np.dtype[Any], columns: int) -> None:
        super().__init__(matrix, dtype, columns, adjoint=False)
        self._inner_dots: int = getattr(self._inner, "num_dots", 0)
        self.num_dots = self._inner_dots
        if self.num_dots:
            self.num_dots += kernels_of(self._device).num_scatter_dots(self._part.size)

    def __call__(self, x: Array, y: Array, dots: Array | None = None) -> None:
        finish = self._exchange.gather(x)
        of_inner, of_outer = ((), ()) if dots is None else ((dots[: self._inner_dots],), (x, dots[self._inner_dots :]))
        inner: Any = self._inner
        inner(x, y, *of_inner)
        self._outer(finish(), self._part)
        kernels_of(self._device).scatter_add(self._device, self._part, self._boundary, y, *of_outer)


class _Adjoint(_Bound):
    """y = Aᴴ·x as `Apply`: what belongs to others first, so that it travels meanwhile."""

    def __init__(self, matrix: RankMatrix, dtype: np.dtype[Any], columns: int) -> None:
        super().__init__(matrix, dtype, columns, adjoint=True)
        self._ghosts = self._device.empty(columns * matrix.halo.num_ghosts, dtype)

    def __call__(self, x: Array, y: Array) -> None:
        kernels_of(self._device).gather(self._device, x, self._boundary, self._part)
        self._outer(self._part, self._ghosts)
        add_to = self._exchange.scatter_add(self._ghosts)
        self._inner(x, y)
        add_to(y)
