"""Conversions to other formats, to dense arrays, and to matrices of other libraries.

Conversions are computed on the device. A result on the host is downloaded once, when it is complete.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.arrays import MatrixArrays
from gsparse.matrix.host_operations import name_counterpart, run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.sparse_operations import csr_of
from gsparse.sparse.canonical import sorted_rows, without_zeros
from gsparse.sparse.reshaping import added_to, dense_of

# The dtypes (`dtype.char`) that matrices of CuPy may have.
_CUPY_DTYPES = "?fdFD"


def _to_format(matrix: MatrixLike, format: str, copy: bool) -> Any:
    if matrix.format == format:
        return matrix.copy() if copy else matrix
    if matrix.dtype.char in HOST_ONLY:
        return run_on_host(matrix, f"to{format}", copy=True)
    options, device = matrix._arrays.options, matrix.device
    csr, flip = matrix._arrays.current(matrix._stored_shape).transposed_csr()
    if options.symmetric and not csr.is_canonical:
        # The transpose of a symmetric matrix is the matrix itself, whose rows may be in any order.
        with device.active(), device.memory_guard():
            csr = sorted_rows(device, csr)
    conjugated = matrix._arrays.data.conjugated != flip
    arrays = MatrixArrays.of_result(device, options.transposed(), csr, conjugated=conjugated)
    converted = matrix._with_arrays(arrays, matrix.shape, matrix._transposed_class)
    converted.maxprint = matrix.maxprint
    return converted


def _coordinates(device: Device, csr: Csr) -> tuple[Array, Array]:
    """Return the row and the column of each entry, in the dtype of the indices."""
    return kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz), csr.indices


def _written_to(matrix: MatrixLike, order: Any, out: Array) -> Array:
    """Write a matrix to a dense array `out` of the host or of the matrix's device, and return `out`."""
    if order is not None:
        raise ValueError("order cannot be specified if out is not None")
    if out.shape != matrix.shape or out.dtype != matrix.dtype:
        raise ValueError("out array must be same dtype and shape as sparse array")
    device, home, flags = matrix.device, device_of(out), out.flags
    if home not in (None, device):
        raise DeviceError(f"out must live on {device.name}, where the matrix is, or on the host")
    if home is None and not (flags.c_contiguous or flags.f_contiguous):
        raise ValueError("Output array must be C or F contiguous")
    if flags.c_contiguous == flags.f_contiguous or (home is None and not device.is_host):
        dense = matrix.toarray(order="C") if home is None else _dense_on_device(matrix)
        out[...] = dense
        return out
    is_by_columns = not flags.c_contiguous
    csr = csr_of(matrix, matrix, is_by_columns)
    with device.active(), device.memory_guard():
        target = np.asarray(out) if home is None else out  # makes a plain array of a numpy.matrix
        target = target.T if is_by_columns else target
        target[...] = 0
        added_to(device, csr, target.reshape(csr.shape))
    return out


def _dense_on_device(matrix: MatrixLike) -> Array:
    csr = csr_of(matrix, matrix, False)
    with matrix.device.active(), matrix.device.memory_guard():
        return dense_of(matrix.device, csr).reshape(matrix.shape)


class Conversions(MatrixLike):
    """Methods that convert to other formats and libraries."""

    def tocsr(self, copy: bool = False) -> Any:
        """Return this matrix in CSR.

        Parameters
        ----------
        copy : bool
            Whether to return a copy of a matrix that is in CSR already.

        Returns
        -------
        GpuSparseMatrix
            The matrix itself. For a transposed view, a new matrix with sorted rows, made on the device.
        """
        return _to_format(self, "csr", copy)

    def tocsc(self, copy: bool = False) -> Any:
        """Return this matrix in CSC.

        Parameters
        ----------
        copy : bool
            Whether to return a copy of a transposed view, which is in CSC already.

        Returns
        -------
        TransposedMatrix
            An independent matrix on the same device, with sorted columns, of the class of `A.T`, which is a
            `scipy.sparse.csc_array`. For a transposed view, the view itself.

        Raises
        ------
        ValueError
            If the matrix has one dimension.
        """
        if self.ndim == 1:
            raise ValueError("Cannot convert a 1d sparse array to csc format")
        return _to_format(self, "csc", copy)

    def to_cupy(self, copy: bool = True) -> Any:
        """Return this matrix as a CuPy matrix on the same GPU. CuPy synchronizes.

        Parameters
        ----------
        copy : bool
            Whether the result has its own arrays. If not, it shares this matrix's arrays, and must not be written:
            other matrices may share them too.

        Returns
        -------
        cupyx.scipy.sparse.csr_matrix
            A `csc_matrix` for a transposed view, a `csr_array` for an array of one dimension.

        Raises
        ------
        DeviceError
            If the matrix is not on a GPU.
        DtypeError
            If CuPy has no matrices of this dtype, for instance of integers.
        """
        if self.device.is_host:
            raise DeviceError(
                f"the matrix lives on {self.device.name}, where CuPy has no matrices: make it with device='gpu', "
                "or give it to CuPy as it is"
            )
        if self.dtype.char not in _CUPY_DTYPES:
            raise DtypeError(
                f"CuPy has matrices of booleans, floating-point and complex numbers, not of {self.dtype}: "
                "convert with astype(float)"
            )
        import cupyx.scipy.sparse as cusp  # on GPUs only

        csr = csr_of(self, self, self._by_columns)
        cls = cusp.csr_array if self.ndim == 1 else cusp.csc_matrix if self._by_columns else cusp.csr_matrix
        with self.device.active(), self.device.memory_guard():
            return cls((csr.data, csr.indices, csr.indptr), shape=self.shape, copy=copy)

    def tocoo(self, copy: bool = True) -> Any:
        """Return this matrix in COO, in the memory of the host. Synchronizes.

        Parameters
        ----------
        copy : bool
            Has no effect: the arrays are always copies. SciPy has this parameter.

        Returns
        -------
        scipy.sparse.coo_array
            A plain SciPy array.
        """
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "tocoo", copy=True)
        name_counterpart(self.device)
        device, csr = self.device, csr_of(self, self, self._by_columns)
        with device.active(), device.memory_guard():
            coordinates = _coordinates(device, csr)
        major, minor = device.download_vector(coordinates[0]), device.download(csr.indices)  # synchronizes
        parts = (minor, major) if self._by_columns else (major, minor)
        coo = self._coo_container((device.download(csr.data), parts[2 - self.ndim :]), shape=self.shape)  # synchronizes
        if not self._by_columns:
            coo.has_canonical_format = self.has_canonical_format
        return coo

    def toarray(self, order: Any = None, out: Array | None = None) -> Any:
        """Return this matrix as a dense array. Synchronizes, unless `out` is on the device.

        Parameters
        ----------
        order : {'C', 'F'}, optional
            By default C order, or F order for a transposed view.
        out : array, optional
            A contiguous NumPy array as in SciPy, or any array of the device, of the matrix's shape and dtype.

        Returns
        -------
        ndarray
            The dense array: `out`, if it was passed.

        Raises
        ------
        ValueError
            If `out` has another shape or dtype or is a NumPy array that is not contiguous, or if `order` is passed as
            well.
        DeviceError
            If `out` lives on another device.
        """
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "toarray", order, out)
        if out is not None:
            return _written_to(self, order, out)
        if order not in (None, "C", "F", "c", "f"):
            raise ValueError(f"order must be 'C' or 'F', got {order!r}")
        is_by_columns = self._by_columns if order is None else order in ("F", "f") and self.ndim == 2
        device, csr = self.device, csr_of(self, self, is_by_columns)
        with device.active(), device.memory_guard():
            dense = dense_of(device, csr)
        host = device.download_vector(dense)  # synchronizes
        return host.T if is_by_columns else host.reshape(self.shape)

    def nonzero(self) -> tuple[Any, ...]:
        """Return the rows and columns of the entries that are not 0. Synchronizes.

        Returns
        -------
        tuple of ndarray
            The rows and the columns; for an array of one dimension, only the columns.
        """
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "nonzero")  # type: ignore[no-any-return]
        device, csr = self.device, csr_of(self, self, False)
        with device.active(), device.memory_guard():
            coordinates = _coordinates(device, without_zeros(device, csr))
        return tuple(device.download(part) for part in coordinates[2 - self.ndim :])  # synchronizes
