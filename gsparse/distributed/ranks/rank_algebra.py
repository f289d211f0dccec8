"""Element-wise operations, reductions and selections of a matrix over ranks, by methods of `GpuSparseMatrix`.

They use the rank's whole rows, and so need no other ranks, except for rows that change their owner. If a product has
split the rows already, operations that keep the structure use both blocks, so that the result can be multiplied without
a new halo.
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
from gsparse.distributed.ranks.row_exchange import (
    RankContext,
    beside,
    columns_of_others,
    narrowed,
    placed,
    stacked,
)
from gsparse.errors import ShapeError
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.preconditioners.square_matrix import canonical_entries
from gsparse.matrix.assembly import hstack, vstack
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.simple_matrices import made
from gsparse.matrix.sparse_operations import csr_of

HostArray = npt.NDArray[Any]


class RankAlgebra(ElementWise, RankOperator):
    """The element-wise operations, reductions and selections of `RankMatrix`."""

    __hash__ = RankOperator.__hash__

    @abstractmethod
    def _with_blocks(self, diagonal: GpuSparseMatrix, off_diagonal: GpuSparseMatrix) -> Any:
        """Return a matrix with other blocks, which have entries only where this matrix's blocks have."""

    @abstractmethod
    def _with_whole_rows(self, whole: GpuSparseMatrix, rows: RowPartition, columns: RowPartition) -> Any:
        """Return a matrix over the same ranks of which `whole` has this rank's rows."""

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
        is_array = name in OF_ARRAYS and np.ndim(operand) > 0
        with self.device.active(), self.device.memory_guard():
            if isinstance(operand, RankAlgebra):
                return self._combined(name, operand)
            if is_array:
                operand = operand if device_of(operand) is not None else np.asarray(operand)
                self._check_array(operand)
            is_row = is_array and operand.ndim == 1  # its elements at the ghosts come from other ranks
            if is_row or (self.is_split and (is_array or keeps_zeros(self.dtype, name, operand))):
                of_blocks = [(part,) for part in self._parts_of(operand)] if is_array else [operands] * 2
                pairs = zip(self.matrices, of_blocks, strict=True)
                return self._with_blocks(*(getattr(block, name)(*args, **options) for block, args in pairs))
            whole = getattr(self.whole_rows(), name)(*operands, **options)
            return self._with_whole_rows(whole, self.rows, self.columns)

    def without_zeros(self) -> Any:
        """Return the matrix without stored zeros.

        Returns
        -------
        RankMatrix
            The matrix. It has the same ghosts as this matrix. Synchronizes.
        """
        parts: list[Any] = [part.copy() for part in (self.matrices if self.is_split else (self.whole_rows(),))]
        for part in parts:
            part.eliminate_zeros()
        return self._with_blocks(*parts) if self.is_split else self._with_whole_rows(parts[0], self.rows, self.columns)

    def _combined(self, name: str, other: RankAlgebra) -> Any:
        """Return the result of an element-wise operation of two matrices."""
        if self.whole_shape != other.whole_shape:
            raise ShapeError(f"inconsistent shapes: {self.whole_shape} and {other.whole_shape}")
        check_same_rows(self.rows, other.rows)
        if self.is_split and other.is_split and keeps_zeros(self.dtype, name, other.dtype.type(0)):
            is_same = self.columns == other.columns and all(
                np.array_equal(getattr(self, part), getattr(other, part)) for part in ("boundary", "ghosts")
            )
            if RankContext(self.device, self.host_communicator).all_ranks(is_same):
                pairs = zip(self.matrices, other.matrices, strict=True)
                return self._with_blocks(*(getattr(a, name)(b) for a, b in pairs))
        whole = getattr(self.whole_rows(), name)(other.whole_rows())
        return self._with_whole_rows(whole, self.rows, self.columns)

    def _check_array(self, values: Any) -> None:
        """Raise ShapeError if an array is no operand of `elementwise` for this rank."""
        row, column, whole = (self.shape[1],), (self.shape[0], 1), (self.shape[0], self.whole_shape[1])
        if values.shape not in (row, column, whole):
            raise ShapeError(f"this rank takes rows {row}, columns {column}, or {whole}, got {values.shape}")

    def _parts_of(self, values: Any) -> tuple[Any, Any]:
        """Return the elements of an array of `elementwise` that belong to the diagonal and the off-diagonal block."""
        if values.ndim == 1:
            sent = self.device.xp.asarray(values).astype(np.result_type(values.dtype, np.int32))
            ghosts = RankContext(self.device, self.host_communicator).values_of_ghosts(self.halo, sent)
            return values, ghosts.astype(values.dtype)
        of_boundary = values[self.boundary]
        if values.shape[1] == 1:
            return values, of_boundary
        return values[:, self.columns.rows(self.host_communicator.rank)], of_boundary[:, self.ghosts]

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
        self, wanted: HostArray | range, rows: RowPartition, columns: RowPartition, order: HostArray | None = None
    ) -> Any:
        """Return a matrix of some rows of this matrix. All ranks call this method at the same time.

        Parameters
        ----------
        wanted : array of int64, or range
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
        return self._with_whole_rows(self.whole_rows_of(wanted, order), rows, columns)

    def whole_rows_of(self, wanted: HostArray | range, order: HostArray | None = None) -> GpuSparseMatrix:
        """Return rows of any ranks, with all columns. All ranks call this method at the same time.

        Parameters
        ----------
        wanted : array of int64, or range
            The row numbers, in this whole matrix, of the rows.
        order : array of int64, shape (N,), optional
            As for `take_rows`.

        Returns
        -------
        GpuSparseMatrix, shape (len(wanted), N)
            The rows, on the rank's device. Synchronizes.
        """
        device, whole = self.device, self.whole_rows()
        with device.active(), device.memory_guard():
            context, kernels = RankContext(device, self.host_communicator), kernels_of(device).sparse_rows
            mine, own = csr_of(whole, whole, False), self.rows.rows(context.rank)
            wanted = np.arange(wanted.start, wanted.stop) if isinstance(wanted, range) else wanted
            is_own = (wanted >= own.start) & (wanted < own.stop)
            others = np.unique(wanted[~is_own])
            halo = Halo(others, self.rows, self.host_communicator)
            csr = kernels.take_rows(device, mine, device.upload(wanted[is_own] - own.start))
            sent = kernels.take_rows(device, mine, device.upload(halo.sent))
            received = context.rows_of_ghosts(halo, sent.with_index_dtype(np.dtype(np.int64)))
            if len(others):
                places = np.where(is_own, np.cumsum(is_own) - 1, csr.num_rows + np.searchsorted(others, wanted))
                csr = kernels.take_rows(device, stacked(device, [csr, received]), device.upload(places))
            csr = narrowed(csr)
            if order is not None:
                places = device.upload(order.astype(csr.indices.dtype))
                csr = replace(csr, indices=places[csr.indices], is_canonical=False)
            rows: GpuSparseMatrix = made(device, csr, None)
            return rows

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
        return self._with_whole_rows(self.whole_rows()[:, numbers], self.rows, columns)

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
        return self._with_whole_rows(whole, rows, columns)

    # ------------------------------------------------------------------ products and transposes

    def _multiplied(self, other: RankAlgebra) -> Any:
        """Return the product with another matrix, whose rows at this matrix's ghosts are sent by their owners."""
        context, device = RankContext(self.device, self.host_communicator), self.device
        whole, factor = self.whole_rows(), other.whole_rows()
        if context.communicator.world_size == 1:
            return self._with_whole_rows(whole @ factor, self.rows, other.columns)
        kernels, own = kernels_of(device).sparse_rows, other.rows.rows(context.rank)
        with device.active(), device.memory_guard():
            csr, rows = canonical_entries(whole), canonical_entries(factor)
            if self.is_split and self.columns == other.rows:
                ghosts, halo = self.ghosts, self.halo
            else:
                ghosts = columns_of_others(device, csr, own)
                halo = Halo(ghosts, other.rows, context.communicator)
            received = context.rows_of_ghosts(halo, kernels.take_rows(device, rows, device.upload(halo.sent)))
            # The rows of the other matrix that are multiplied, in the order of their numbers.
            before = int(np.searchsorted(ghosts, own.start))
            first = kernels.slice_rows(device, received, 0, before)
            last = kernels.slice_rows(device, received, before, len(ghosts) - before)
            numbers = np.concatenate([ghosts[:before], np.arange(own.start, own.stop), ghosts[before:]])
            if len(ghosts):
                rows = replace(narrowed(stacked(device, [first, rows, last])), is_canonical=True)
                places = device.xp.full(csr.num_cols, -1, csr.indices.dtype)
                places[device.upload(numbers)] = device.xp.arange(len(numbers), dtype=places.dtype)
                csr = replace(kernels.map_columns(device, csr, places, len(numbers)), is_canonical=True)
            else:
                csr = replace(
                    csr, shape=(csr.num_rows, len(numbers)), indices=csr.indices - csr.indices.dtype.type(own.start)
                )
            product = made(device, csr, None) @ made(device, rows, None)
        return self._with_whole_rows(product, self.rows, other.columns)

    def _transposed(self) -> Any:
        """Return the transpose. Its rows that have the numbers of ghosts are sent to the ghosts' owners."""
        context, device = RankContext(self.device, self.host_communicator), self.device
        kernels, whole, own = kernels_of(device), self.whole_rows(), self.columns.rows(self.host_communicator.rank)
        with device.active(), device.memory_guard():
            csr = kernels.transpose.csr_transpose(device, canonical_entries(whole))
            if max(self.rows.num_rows, csr.nnz) > MAX_INT32:
                csr = csr.with_index_dtype(np.dtype(np.int64))
            first_row = self.rows.rows(context.rank).start
            shape = csr.num_rows, self.rows.num_rows
            csr = replace(csr, shape=shape, indices=csr.indices + csr.indices.dtype.type(first_row))
            has_entries = csr.indptr[1:] > csr.indptr[:-1]
            has_entries[own] = False
            ghosts = device.download(device.xp.flatnonzero(has_entries)).astype(np.int64)
            halo = Halo(ghosts, self.columns, context.communicator)
            sent = kernels.sparse_rows.take_rows(device, csr, device.upload(ghosts))
            received = context.rows_to_owners(halo, sent)
            mine = kernels.sparse_rows.slice_rows(device, csr, own.start, own.stop - own.start)
            # Lower ranks send lower column numbers, so the columns of each row that `placed` returns are sorted.
            more = placed(device, received, device.upload(halo.sent), mine.num_rows)
            result = made(device, narrowed(beside(device, mine, more, self.rows.num_rows)), None)
        return self._with_whole_rows(result, self.columns, self.rows)
