"""Element-wise operations, reductions and selections of a matrix over ranks, by methods of `GpuSparseMatrix`.

Each operation uses one of three forms of a rank's rows:

    the two blocks         operations that leave zeros as they are, and so do not change the structure
    own columns + ghosts   operations of two matrices (`RankRows`)
    all columns            all other operations: reductions, selections, and operations that map zeros to other values
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.select import device_of
from gsparse.distributed.ranks.elementwise import OF_ARRAYS, ElementWise, check_elementwise, keeps_zeros
from gsparse.distributed.ranks.halo import Halo
from gsparse.distributed.ranks.partition import RowPartition, check_same_rows
from gsparse.distributed.ranks.rank_operator import RankOperator
from gsparse.distributed.ranks.rank_rows import RankRows
from gsparse.distributed.ranks.row_exchange import RankContext, stacked
from gsparse.errors import ShapeError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.preconditioners.square_matrix import canonical_entries
from gsparse.matrix.assembly import hstack, vstack
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.sparse.canonical import computed

HostArray = npt.NDArray[Any]


class RankAlgebra(ElementWise, RankOperator):
    """The element-wise operations, reductions and selections of `RankMatrix`."""

    __hash__ = RankOperator.__hash__

    @abstractmethod
    def _made_of(self, rows: RankRows, dtype: np.dtype[Any]) -> Any:
        """Return the matrix of these rows, in the given dtype."""

    @abstractmethod
    def _with_blocks(self, diagonal: GpuSparseMatrix, off_diagonal: GpuSparseMatrix) -> Any:
        """Return a matrix with other blocks, which have entries only where this matrix's blocks have."""

    def elementwise(self, name: str, *operands: Any, **options: Any) -> Any:
        """Return the result of an element-wise operation. All ranks call this method at the same time.

        Parameters
        ----------
        name : str
            The method of SciPy's sparse arrays, such as "multiply" or "__abs__".
        *operands : number, RankMatrix, or array
            A matrix must have the same shape and the same owners of the rows. Only "multiply" and "__truediv__" take an
            array. It is this rank's part of a row, of shape (own columns,); of a column, of shape (own rows, 1); or of
            an (M, N) array, of shape (own rows, N).
        **options
            Further arguments of the method.

        Returns
        -------
        RankMatrix
            The result, in SciPy's dtype. Synchronizes if the structure changes.

        Raises
        ------
        ShapeError
            If the shapes or the owners of the rows differ.
        TypeError
            If the operation does not take such an operand.
        CommunicationError, RankLostError
        """
        operand: Any = operands[0] if operands else None
        check_elementwise(name, operand, isinstance(operand, RankAlgebra))
        with self.device.active(), self.device.memory_guard():
            if isinstance(operand, RankAlgebra):
                return self._combined(name, operand)
            if name in OF_ARRAYS and np.ndim(operand):
                parts = self._parts_of(operand)
                return self._with_blocks(
                    getattr(self.diagonal, name)(parts[0]), getattr(self.off_diagonal, name)(parts[1])
                )
            if keeps_zeros(self.dtype, name, operand):
                blocks = (getattr(block, name)(*operands, **options) for block in (self.diagonal, self.off_diagonal))
                return self._with_blocks(*blocks)
            return self._of_whole_rows(getattr(self.whole_rows(), name)(*operands, **options), self.rows, self.columns)

    def without_zeros(self) -> Any:
        """Return the matrix without stored zeros.

        Returns
        -------
        RankMatrix
            The matrix. It has the same ghosts as this matrix. Synchronizes.
        """
        blocks = self.diagonal.copy(), self.off_diagonal.copy()
        for block in blocks:
            block.eliminate_zeros()
        return self._with_blocks(*blocks)

    def _combined(self, name: str, other: RankAlgebra) -> Any:
        """Return the result of an element-wise operation of two matrices."""
        if self.whole_shape != other.whole_shape:
            raise ShapeError(f"inconsistent shapes: {self.whole_shape} and {other.whole_shape}")
        check_same_rows(self.rows, other.rows)
        if keeps_zeros(self.dtype, name, other.dtype.type(0)):
            one, dtypes = RankRows.of(self), list[np.dtype[Any]]()

            def operation(a: Csr, b: Csr) -> Csr:
                result = getattr(self._local(a, self.dtype), name)(self._local(b, other.dtype))
                dtypes.append(np.dtype(result.dtype))
                return computed(canonical_entries(result), result.dtype)

            rows = one.combine(operation, RankRows.of(other).with_columns(one.columns))
            return self._made_of(rows, *dtypes)
        result = getattr(self.whole_rows(), name)(other.whole_rows())
        return self._of_whole_rows(result, self.rows, self.columns)

    def _parts_of(self, values: Any) -> tuple[Any, Any]:
        """Return the elements of an array of `elementwise` that belong to the diagonal and the off-diagonal block."""
        values = values if device_of(values) is not None else np.asarray(values)
        own = self.columns.rows(self.host_communicator.rank)
        if values.ndim == 1:
            if values.shape != (own.stop - own.start,):
                raise ShapeError(f"a row has {own.stop - own.start} elements on this rank, got {values.shape}")
            sent = self.device.xp.asarray(values).astype(np.result_type(values.dtype, np.int32))
            ghosts = RankContext(self.device, self.host_communicator).values_of_ghosts(self.halo, sent)
            return values, ghosts.astype(values.dtype)
        if values.shape == (self.shape[0], 1):
            return values, values[self.boundary]
        if values.shape != (self.shape[0], self.whole_shape[1]):
            raise ShapeError(f"this rank has rows of shape {(self.shape[0], self.whole_shape[1])}, got {values.shape}")
        return values[:, own], values[self.boundary][:, self.ghosts]

    # ------------------------------------------------------------------ rows with all columns

    def whole_rows(self) -> GpuSparseMatrix:
        """Return the rank's rows with all columns of the matrix.

        Returns
        -------
        GpuSparseMatrix, shape (own rows, N)
            On the rank's device, with columns in any order. It shares no array with this matrix. Synchronizes.
        """
        with self.device.active(), self.device.memory_guard():
            return self._local(RankRows.of(self).in_whole_columns(), self.dtype)

    def _local(self, csr: Csr, dtype: np.dtype[Any]) -> GpuSparseMatrix:
        arrays = csr.data.astype(dtype, copy=False), csr.indices, csr.indptr
        return GpuSparseMatrix(arrays, shape=csr.shape, device=self.device)

    def _of_whole_rows(self, result: GpuSparseMatrix, rows: RowPartition, columns: RowPartition) -> Any:
        """Return the matrix over ranks of which `result` has this rank's rows, with all columns. Synchronizes."""
        csr = computed(canonical_entries(result), result.dtype).with_index_dtype(np.dtype(np.int64))
        context = RankContext(self.device, self.host_communicator)
        return self._made_of(RankRows.of_whole_columns(context, csr, rows, columns), np.dtype(result.dtype))

    def reduce_rows(self, name: str, axis: int | None, **options: Any) -> Any:
        """Reduce each of the rank's rows (axis 1), or all its rows together (None), by a method of `GpuSparseMatrix`.

        Parameters
        ----------
        name : str
            "sum", "mean", "max", "min", "nanmax", "nanmin", "argmax", "argmin" or "count_nonzero".
        axis : {1, None}
        **options
            Further arguments of the method.

        Returns
        -------
        ndarray of shape (own rows,), or scalar
            The results, on the host. Synchronizes.
        """
        result = getattr(self.whole_rows(), name)(axis=axis, **options)
        return result.toarray() if sp.issparse(result) else result

    def take_rows(
        self, wanted: HostArray, rows: RowPartition, columns: RowPartition, order: HostArray | None = None
    ) -> Any:
        """Return a matrix of some rows of this matrix. All ranks call this method at the same time.

        Parameters
        ----------
        wanted : array of int64
            The row numbers, in this whole matrix, of the rows that this rank owns in the result; on the host.
        rows, columns : RowPartition
            The owners of the rows and of the columns of the result.
        order : array of int64, shape (N,), optional
            Column j of this matrix becomes column ``order[j]`` of the result; by default column j.

        Returns
        -------
        RankMatrix
            The matrix. Ranks send each other only the rows that change their owner. Synchronizes.

        Raises
        ------
        CommunicationError, RankLostError
        """
        return self._of_whole_rows(self.whole_rows_of(wanted, order), rows, columns)

    def whole_rows_of(self, wanted: HostArray, order: HostArray | None = None) -> GpuSparseMatrix:
        """Return rows of any ranks, with all columns. All ranks call this method at the same time.

        Parameters
        ----------
        wanted, order : array of int64
            As for `take_rows`.

        Returns
        -------
        GpuSparseMatrix, shape (len(wanted), N)
            The rows, on the rank's device. Synchronizes.
        """
        device, mine = self.device, RankRows.of(self)
        with device.active(), device.memory_guard():
            own = self.rows.rows(self.host_communicator.rank)
            is_own = (wanted >= own.start) & (wanted < own.stop)
            others = np.unique(wanted[~is_own])
            halo = Halo(others, self.rows, self.host_communicator)
            kernels = kernels_of(device).sparse_rows
            sent, taken = (
                mine.in_whole_columns(kernels.take_rows(device, mine.csr, device.upload(rows)))
                for rows in (halo.sent, wanted[is_own] - own.start)
            )
            csr, received = taken, mine.context.rows_of_ghosts(halo, sent)
            if len(others):
                places = np.where(is_own, np.cumsum(is_own) - 1, taken.num_rows + np.searchsorted(others, wanted))
                csr = kernels.take_rows(device, stacked(device, [taken, received]), device.upload(places))
            if order is not None:
                csr = replace(csr, indices=device.upload(order)[csr.indices], is_canonical=False)
            return self._local(csr, self.dtype)

    def take_columns(self, numbers: HostArray, columns: RowPartition) -> Any:
        """Return a matrix of some columns of this matrix. All ranks call this method at the same time.

        Parameters
        ----------
        numbers : array of int64, shape (K,)
            The columns of the result, as columns of this matrix, on the host.
        columns : RowPartition
            The owners of the K columns of the result.

        Returns
        -------
        RankMatrix
            The matrix. Its rows have the same owners. Synchronizes.

        Raises
        ------
        CommunicationError, RankLostError
        """
        return self._of_whole_rows(self.whole_rows()[:, numbers], self.rows, columns)

    def stacked_with(
        self, others: list[Any], axis: int, wanted: list[HostArray], rows: RowPartition, columns: RowPartition
    ) -> Any:
        """Stack this matrix and others, vertically or horizontally. All ranks call this method at the same time.

        Parameters
        ----------
        others : list of RankMatrix
            Matrices over the same ranks.
        axis : {0, 1}
            0 to stack vertically, 1 to stack horizontally.
        wanted : list of array of int64
            For each matrix, its rows that this rank owns in the result, on the host. For axis 1, these are the rank's
            own rows, the same for each matrix.
        rows, columns : RowPartition
            The owners of the rows and of the columns of the result.

        Returns
        -------
        RankMatrix
            The stacked matrix. Synchronizes.

        Raises
        ------
        CommunicationError, RankLostError
        """
        parts = [A.whole_rows_of(each) for A, each in zip((self, *others), wanted, strict=True)]
        with self.device.active(), self.device.memory_guard():
            whole = (hstack if axis else vstack)(parts, device=self.device)
        return self._of_whole_rows(whole, rows, columns)
