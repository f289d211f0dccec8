"""The matrix flavour: classes for code that accepts only `scipy.sparse.csr_matrix`, or whose `*` is the matrix product.

    CsrMatrix ---+                                       +--> scipy.sparse.csr_matrix
                 +--> MatrixFlavour ---> DeviceMatrix ---+
    CscMatrix ---+                                       +--> scipy.sparse.csc_matrix

SciPy has its sparse classes in two flavours. *Arrays* (`csr_array`) follow `numpy.ndarray`: `*` is elementwise, and a
row of a matrix is a vector. *Matrices* (`csr_matrix`) follow `numpy.matrix`: `*` is the matrix product, and every
result has two dimensions. `MatrixFlavour` has the methods that differ. All others are in `DeviceMatrix`, which serves
both flavours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.files.checks import scipy_matrices
from gsparse.matrix.dense_operands import is_scalar
from gsparse.matrix.elementwise import scale
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, ReadableMatrix


def _maker(cls: type[Any]) -> Any:
    """Return a function that makes objects of a SciPy matrix class without SciPy's DeprecationWarning."""

    def make(*args: Any, **options: Any) -> Any:
        with scipy_matrices():
            return cls(*args, **options)

    return staticmethod(make)


class MatrixFlavour(DeviceMatrix):
    """The methods in which SciPy's `spmatrix` differs from its sparse arrays."""

    __getitem__: Any
    reshape: Any

    # The functions that make matrices of other formats, which SciPy's methods and gsparse's use.
    _bsr_container = _maker(sp.bsr_matrix)
    _coo_container = _maker(sp.coo_matrix)
    _csc_container = _maker(sp.csc_matrix)
    _csr_container = _maker(sp.csr_matrix)
    _dia_container = _maker(sp.dia_matrix)
    _dok_container = _maker(sp.dok_matrix)
    _lil_container = _maker(sp.lil_matrix)

    # ----------------------------------------------------------------------------------------------------- operators

    # For S * M with SciPy's csr_matrix S, Python asks M first only if M's class has an `__rmul__` of its own.
    def __mul__(self, other: Any) -> Any:
        return scale(self, other) if is_scalar(other) else self.__matmul__(other)

    def __rmul__(self, other: Any) -> Any:
        return scale(self, other) if is_scalar(other) else self.__rmatmul__(other)

    __pow__ = sp.spmatrix.__pow__  # SciPy's method, which computes products

    def __matmul__(self, other: Any) -> Any:
        product = super().__matmul__(other)
        return self._ascontainer(product) if isinstance(other, np.matrix) else product

    def __rmatmul__(self, other: Any) -> Any:
        product = super().__rmatmul__(other)
        return self._ascontainer(product) if isinstance(other, np.matrix) else product

    # ------------------------------------------------------------------------------------------------ two dimensions

    def _reduced_shape(self, axis: int) -> tuple[int, ...]:
        return (1, self.shape[1]) if axis == 0 else (self.shape[0], 1)

    def _selected_shape(self, found: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
        if len(wanted) == 2:
            return wanted
        return found or (1, *wanted)

    def _getrow(self, i: Any) -> Any:
        return self[int(i), :]

    def _getcol(self, j: Any) -> Any:
        return self[:, int(j)]

    def set_shape(self, shape: Any) -> None:
        """Change the shape in place, as SciPy's `set_shape` does.

        Parameters
        ----------
        shape : (int, int)
            With the same number of elements.
        """
        new = self.reshape(shape).asformat(self.format)
        if new is not self:
            self._shape, self._arrays = new._shape, new._arrays

    shape = property(sp.spmatrix.get_shape, set_shape, doc="Shape of the matrix")


class CsrMatrix(MatrixFlavour, ReadableMatrix, sp.csr_matrix):  # type: ignore[misc]
    """A sparse matrix on a device for code that accepts only `scipy.sparse.csr_matrix`: ``gsparse.sparse.csr_matrix``.

    It differs from `gsparse.GpuSparseMatrix` as SciPy's `csr_matrix` differs from `csr_array`: ``*`` is the matrix
    product and ``**`` its power, and rows, columns and reductions have two dimensions. Reductions return objects of
    `numpy.matrix`. Use it where a package checks for `csr_matrix`, and `GpuSparseMatrix` in code of your own.

    Parameters
    ----------
    arg1 : object
        As for `gsparse.GpuSparseMatrix`, which may also be `arg1`. ``csr_matrix(A)`` and ``csr_array(M)`` convert
        between the two classes. Both matrices share the device arrays and the plan until one of them is written.
    shape : tuple of int, optional
        (M, N); by default the shape of `arg1`.
    dtype, copy, device, format, schedule, threads_per_block, expected_products, compress, tune : optional
        As for `gsparse.GpuSparseMatrix`.
    symmetric, maxprint : optional
        As for `gsparse.GpuSparseMatrix`.

    Raises
    ------
    ShapeError
        If `arg1` has one dimension: a matrix has two.
    StructureError, DeviceError, DeviceMemoryError, FormatError, DtypeError
        As for `gsparse.GpuSparseMatrix`.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> import gsparse.sparse as sp
    >>> M = sp.csr_matrix([[2.0, 0.0], [1.0, 3.0]], device="cpu")
    >>> isinstance(M, scipy.sparse.csr_matrix)
    True
    >>> M * numpy.ones(2)
    array([2., 4.])
    >>> M.sum(axis=1)
    matrix([[2.],
            [4.]])
    >>> (sp.csr_array(M) * [1.0, 10.0]).toarray()
    array([[ 2.,  0.],
           [ 1., 30.]])
    """

    _scipy_base = sp.csr_matrix


class CscMatrix(MatrixFlavour, sp.csc_matrix):  # type: ignore[misc]
    """The transpose of a CsrMatrix: it reads the same arrays by columns, and multiplies on the same device."""

    _scipy_base = sp.csc_matrix
    _by_columns = True


CsrMatrix._transposed_class, CscMatrix._transposed_class = CscMatrix, CsrMatrix
