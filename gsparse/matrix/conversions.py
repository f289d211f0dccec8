"""The same matrix in another format, as a dense array, or as a matrix of another library.

Everything is computed on the device. What SciPy or NumPy holds is downloaded once, when it is complete.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.select import device_of
from gsparse.errors import DeviceError, DtypeError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.arrays import MatrixArrays, frames_to_the_caller
from gsparse.matrix.host_operations import name_counterpart, run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.sparse_operations import csr_of
from gsparse.sparse.canonical import canonical, first_of_each_place, sorted_rows, without_zeros
from gsparse.sparse.reshaping import added_to, dense_of

# Number of diagonals from which on SciPy warns that a matrix of diagonals is inefficient.
_MANY_DIAGONALS = 100
# The values that matrices of CuPy may have.
_CUPY_DTYPES = "?fdFD"


# ---------------------------------------------------------------------------------------------- rows, columns


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


# ---------------------------------------------------------------------------------------------------- CuPy's matrices


# ----------------------------------------------------------------------------------------------------- SciPy's formats


def _coordinates(device: Device, csr: Csr) -> tuple[Array, Array]:
    """Return the row and the column of each entry, in the dtype of the indices."""
    return kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz), csr.indices


def _written_to(matrix: MatrixLike, order: Any, out: Array) -> Array:
    """Write a matrix to a dense array of the host or of its device, and return that."""
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


def _entries_by_block(device: Device, csr: Csr, height: int, width: int) -> tuple[Csr, Array]:
    """Return the numbers of the entries in the order of their blocks, and whether each is the first one of its block.

    The numbers are the values of a matrix that has a row for each row of blocks, and a column for each column of them.
    """
    xp, shape = device.xp, (csr.num_rows // height, csr.num_cols // width)
    indptr, numbers = xp.ascontiguousarray(csr.indptr[::height]), xp.arange(csr.nnz, dtype=np.int64)
    entries = sorted_rows(device, Csr(shape, indptr, csr.indices // csr.indices.dtype.type(width), numbers))
    return entries, first_of_each_place(device, entries)


def _blocks(device: Device, csr: Csr, height: int, width: int) -> tuple[Array, Array, Array]:
    """Return the values, the columns of blocks and the row pointers of a canonical matrix in blocks."""
    xp, index = device.xp, csr.indices.dtype
    entries, is_first = _entries_by_block(device, csr, height, width)
    counts = xp.cumsum(is_first, dtype=np.int64)  # of the blocks up to each entry
    first = xp.flatnonzero(is_first)  # synchronizes
    rows, columns = (part[entries.data] for part in _coordinates(device, csr))
    data = xp.zeros((int(first.size), height, width), csr.dtype)
    places = (counts - 1) * (height * width) + (rows % height) * width + columns % width
    data.reshape(-1)[places] = csr.data[entries.data]
    indptr = xp.concatenate([xp.zeros(1, counts.dtype), counts])[entries.indptr]
    return data, entries.indices[first], indptr.astype(index)


def _estimated_blocksize(device: Device, csr: Csr) -> tuple[int, int]:
    """Choose the size of blocks as `scipy.sparse._spfuncs.estimate_blocksize` does."""

    def efficiency(size: int) -> float:
        """Return the number of entries, divided by the number of elements of all blocks that contain entries."""
        if csr.num_rows % size or csr.num_cols % size:
            return 0.0
        _, is_first = _entries_by_block(device, csr, size, size)
        count = kernels_of(device).reductions.count_where(device, is_first, "not zero")  # synchronizes
        return csr.nnz / (size * size * count)

    enough = 0.7
    if not csr.nnz:
        return 1, 1
    two, three = efficiency(2), efficiency(3)
    if min(two, three) > (1 + enough) / 2:
        size = 6 if efficiency(6) > enough else 3
    else:
        size = 4 if efficiency(4) > enough else 3 if three > enough else 2 if two > enough else 1
    return size, size


class Conversions(MatrixLike):
    """Other formats and libraries."""

    def tocsr(self, copy: bool = False) -> Any:
        """Return this matrix in CSR.

        Parameters
        ----------
        copy : bool
            Whether a matrix that is in CSR already comes back as a copy.

        Returns
        -------
        GpuSparseMatrix
            The matrix itself; of a transposed view a matrix with sorted rows, made on the device.
        """
        return _to_format(self, "csr", copy)

    def tocsc(self, copy: bool = False) -> Any:
        """Return this matrix in CSC.

        Parameters
        ----------
        copy : bool
            Whether a transposed view, which is in CSC already, comes back as a copy.

        Returns
        -------
        TransposedMatrix
            A `scipy.sparse.csc_array` on the same device, with sorted columns: a matrix of its own, of the class that
            `A.T` has. A transposed view is returned itself.

        Raises
        ------
        ValueError
            If the matrix has one dimension.
        """
        if self.ndim == 1:
            raise ValueError("Cannot convert a 1d sparse array to csc format")
        return _to_format(self, "csc", copy)

    def to_cupy(self, copy: bool = True) -> Any:
        """Return this matrix as one of CuPy on the same GPU. CuPy synchronizes.

        Parameters
        ----------
        copy : bool
            Whether the result has arrays of its own. Without a copy it shares those of this matrix, and nobody may
            write to it: other matrices may share them too.

        Returns
        -------
        cupyx.scipy.sparse.csr_matrix
            Or a `csc_matrix` of a transposed view, or a `csr_array` of one dimension.

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
            As SciPy's; the arrays are copies in any case.

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

    def todia(self, copy: bool = False) -> Any:
        """Return this matrix in DIA, in the memory of the host. Repeated entries are added up. Synchronizes.

        Parameters
        ----------
        copy : bool
            As SciPy's; the arrays are copies in any case.

        Returns
        -------
        scipy.sparse.dia_array
            A plain SciPy array.
        """
        if self.ndim != 2:
            raise ValueError(f"Cannot convert. DIA format must be 2D. Got {self.ndim}D")
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "todia")
        device, csr = self.device, csr_of(self, self, False)
        xp = device.xp
        with device.active(), device.memory_guard():
            csr = canonical(device, csr)
            rows, columns = _coordinates(device, csr)
            offsets, diagonals = xp.unique(columns - rows, return_inverse=True)  # synchronizes
            width = int(columns.max()) + 1 if csr.nnz else 0  # synchronizes
            data = xp.zeros((offsets.size, width), csr.dtype)
            data.reshape(-1)[diagonals * width + columns] = csr.data
        if offsets.size > _MANY_DIAGONALS:
            warnings.warn(
                f"Constructing a DIA matrix with {offsets.size} diagonals is inefficient",
                sp.SparseEfficiencyWarning,
                stacklevel=frames_to_the_caller(),
            )
        parts = tuple(device.download(part) for part in (data, offsets))  # synchronizes
        return self._dia_container(parts, shape=self.shape)

    def tobsr(self, blocksize: tuple[int, int] | None = None, copy: bool = True) -> Any:
        """Return this matrix in BSR, in the memory of the host. Synchronizes.

        Parameters
        ----------
        blocksize : (int, int), optional
            Rows and columns of a block, of which M and N are multiples; chosen as SciPy does by default.
        copy : bool
            As SciPy's; the arrays are copies in any case.

        Returns
        -------
        scipy.sparse.bsr_array
            A plain SciPy array, with sorted blocks.

        Raises
        ------
        ValueError
            If the matrix cannot be divided into such blocks.
        """
        if self.ndim != 2:
            raise ValueError("Cannot convert a 1d sparse array to bsr format")
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "tobsr", blocksize=blocksize, copy=True)
        device, csr = self.device, csr_of(self, self, False)
        with device.active(), device.memory_guard():
            height, width = _estimated_blocksize(device, csr) if blocksize is None else blocksize
            if height < 1 or width < 1 or self.shape[0] % height or self.shape[1] % width:
                raise ValueError(f"invalid blocksize {blocksize}")
            blocks = _blocks(device, canonical(device, csr), height, width)
        parts = tuple(device.download(part) for part in blocks)  # synchronizes
        return self._bsr_container(parts, shape=self.shape)

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
        """Return the places of the entries that are not 0. Synchronizes.

        Returns
        -------
        tuple of ndarray
            Their rows and columns.
        """
        if self.dtype.char in HOST_ONLY:
            return run_on_host(self, "nonzero")  # type: ignore[no-any-return]
        device, csr = self.device, csr_of(self, self, False)
        with device.active(), device.memory_guard():
            coordinates = _coordinates(device, without_zeros(device, csr))
        return tuple(device.download(part) for part in coordinates[2 - self.ndim :])  # synchronizes
