"""Matrices of another shape with the same elements, and the number of entries of a matrix, of its rows or columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import HOST_ONLY
from gsparse.files.checks import scipy_matrices
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.host_operations import run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.sparse_operations import class_of_format, csr_of, matrix_of
from gsparse.sparse.canonical import canonical
from gsparse.sparse.reshaping import repeated, reshaped


def reshape_matrix(matrix: MatrixLike, shape: tuple[int, ...], order: str = "C") -> Any:
    """Return a matrix of a shape of one or two dimensions with the same elements; itself if it has this shape."""
    if shape == matrix.shape:
        return matrix
    by_columns = order == "F" and matrix.ndim == 2
    stored = (1, *shape)[-2:] if len(shape) == 1 or order == "C" else shape[::-1]
    device, csr = matrix.device, csr_of(matrix, matrix, by_columns)
    with device.active(), device.memory_guard():
        csr = reshaped(device, csr, stored)  # type: ignore[arg-type]
    is_csc = order == "F" and len(shape) == 2
    return matrix_of(matrix, csr, shape, class_of_format(matrix, by_columns=is_csc))


class Shapes(MatrixLike):
    """Other shapes, and counts of entries."""

    def reshape(self, *args: Any, **options: Any) -> Any:
        """Return a matrix of another shape with the same elements.

        Parameters
        ----------
        *args : int or tuple of int
            The new shape, of which one length may be -1.
        **options
            ``order``, 'C' or 'F', is the order in which elements are counted. ``copy`` says whether a matrix that has
            this shape already comes back as a copy.

        Returns
        -------
        GpuSparseMatrix
            On the device, in CSR (in CSC for the order F); a plain SciPy array for more than two dimensions.
        """
        # SciPy parses the arguments, for an empty array of the shape of this matrix.
        with scipy_matrices():
            target = self._coo_container(self.shape).reshape(*args, **options).shape
        order, copy = options.get("order", "C"), options.get("copy", False)
        if target == self.shape:
            return self.copy() if copy else self
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "reshape", *args, **options)
        if len(target) > 2:
            return self.tocoo().reshape(target, order=order)
        return reshape_matrix(self, target, order)

    def _broadcast_to(self, shape: tuple[int, ...], copy: bool = False) -> Any:
        """Return a matrix whose only row or column is repeated, for SciPy's own code."""
        if self.shape == shape:
            return self.copy() if copy else self
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "_broadcast_to", shape, copy)
        if len(shape) > 2:
            raise ValueError(f"CSR/CSC broadcast_to cannot have shape >2D. Got {len(shape)}D")
        if np.broadcast_shapes(self.shape, shape) != shape:
            raise ValueError("cannot be broadcast")
        device, csr = self.device, csr_of(self, self, self._by_columns)
        stored = (1, *shape)[-2:]
        with device.active(), device.memory_guard():
            csr = canonical(device, csr)
            csr = repeated(device, csr, stored[::-1] if self._by_columns else stored)  # type: ignore[arg-type]
        return matrix_of(self, csr, shape, type(self))

    def _getnnz(self, axis: int | None = None) -> Any:
        """Return the number of stored entries, for SciPy's `nnz` and `size`, and the `getnnz` of its matrices."""
        if axis is None:
            # While SciPy changes the arrays one after the other, only the row pointers say which entries are valid.
            if self._arrays.lent_names:
                return int(self._arrays.indptr.read()[-1])
            return self._arrays.current(self._stored_shape).csr.nnz
        if not -self.ndim <= axis < self.ndim:
            raise ValueError("axis out of bounds")
        if self.ndim == 1:
            return self.nnz
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "_getnnz", axis=axis)
        device, csr = self.device, self._arrays.current(self._stored_shape).csr
        with device.active(), device.memory_guard():
            if (axis % 2 == 1) != self._by_columns:
                counts = csr.indptr[1:] - csr.indptr[:-1]
            else:
                counts = kernels_of(device).sparse_rows.count_numbers(device, csr.indices, csr.num_cols)
        return device.download(counts)  # synchronizes
