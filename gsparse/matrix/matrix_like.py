"""The base class of all matrices: arrays on a device, views and copies. Operations are mixins, which derive from it.

The only state of a matrix beside SciPy's is `self._arrays` (`arrays.py`): the arrays on the device and on the host, the
loans to the user, and the prepared matrix.
"""

from __future__ import annotations

from typing import Any, Self, TypeGuard, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.counters import Stats
from gsparse.device.dtypes import HOST_ONLY
from gsparse.device.locks import made_once
from gsparse.matrix.arrays import MatrixArrays
from gsparse.products.prepared import PreparedMatrix
from gsparse.products.transposing import ByColumns

# Number of entries that ``print(A)`` shows by default, as in SciPy.
_MAXPRINT = 50


class MatrixLike:
    """A matrix on a device, with CSR arrays. A subclass that reads the arrays by columns is the transpose.

    Attributes
    ----------
    device : Device
    stats : Stats
        Counts of this matrix alone: its copies and views have their own.
    """

    # Attributes of SciPy's class, from which the subclasses also derive.
    shape: tuple[int, ...]
    ndim: int
    nnz: int
    format: str
    maxprint: int
    _shape: tuple[int, ...]
    _ascontainer: Any  # makes a NumPy array, or an `np.matrix` for a subclass of `spmatrix`
    _coo_container: Any  # coo_array, or coo_matrix for a subclass of `spmatrix`
    _bsr_container: Any
    _dia_container: Any
    _allow_nd: Any  # the numbers of dimensions that the class may have

    # Attributes of mixins.
    data: np.ndarray[Any, Any]
    has_sorted_indices: Any
    has_canonical_format: Any
    sum: Any
    tocsr: Any
    tocoo: Any
    toarray: Any
    sum_duplicates: Any
    __matmul__: Any
    __neg__: Any
    _host_product: Any

    device: Device
    # Made when it is first used: the results of most operations never count anything.
    stats = made_once(lambda self: Stats())
    _arrays: MatrixArrays
    _came_from_spmatrix: bool  # whether its source was an `spmatrix`; False after `MatrixProductWarning` was issued

    _scipy_base: Any  # SciPy's class of the same format
    _by_columns = False  # whether the arrays are those of the transpose
    _transposed_class: type[Any]  # the class of `A.T`

    # CuPy's arrays have 100. With a larger number here, `cupy_array @ A` calls the method of the matrix.
    __array_priority__ = 1000.0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self._arrays.data.dtype

    @dtype.setter
    def dtype(self, newtype: Any) -> None:
        self.data = self.data.view(newtype)

    def __sizeof__(self) -> int:
        """Return the bytes of the three arrays and the object itself, for `dask.sizeof` and `sys.getsizeof`."""
        return object.__sizeof__(self) + self._arrays.nbytes

    def freeze(self) -> Self:
        """Lend only read-only host arrays from now on, so that no product has to upload them.

        Returns
        -------
        GpuSparseMatrix
            The matrix itself. Operations that would change its entries in place raise a ValueError from now on.
        """
        self._arrays.freeze()
        return self

    def release(self) -> None:
        """Drop converted formats, the transposed copy and unused host copies. They are made again when needed."""
        self._arrays.release()

    # ------------------------------------------------------------------------------------- what products multiply by

    @property
    def _stored_shape(self) -> tuple[int, int]:
        """The shape of the CSR arrays: (1, N) for a vector, the transposed shape if the class reads by columns."""
        # Every operation reads this property, so it makes no calls.
        shape: Any = self._shape
        stored: tuple[int, int] = (1, *shape) if len(shape) == 1 else shape[::-1] if self._by_columns else shape
        return stored

    def _reduced_shape(self, axis: int) -> tuple[int, ...]:
        """Return the shape of the result of a reduction along an axis."""
        return (self.shape[1 - axis],)

    def _selected_shape(self, found: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result of ``A[key]``.

        `wanted` is the shape that the index asks for, and `found` the shape of the selected matrix.
        """
        return wanted

    def _prepared(self, *, transpose: bool = False, adjoint: bool = False) -> tuple[PreparedMatrix, bool]:
        """Return the prepared matrix and whether to conjugate it (`gsparse.products.multiply.MultipliableMatrix`)."""
        prepared, flip = self._arrays.current(self._stored_shape), False
        if (transpose or adjoint) != self._by_columns:
            prepared, flip = prepared.transposed()
        return prepared, (self._arrays.data.conjugated != adjoint) != flip

    def _factor(
        self, storage: np.dtype[Any], *, transpose: bool, adjoint: bool
    ) -> tuple[PreparedMatrix | ByColumns, bool]:
        """Return the object that one product uses, and whether to conjugate: see `MultipliableMatrix`."""
        if (transpose or adjoint) != self._by_columns:
            first = self._arrays.current(self._stored_shape).by_columns(storage)
            if first is not None:
                return first, self._arrays.data.conjugated != adjoint
        return self._prepared(transpose=transpose, adjoint=adjoint)

    # -------------------------------------------------------------------------------------------- views and copies

    def _with_arrays(self, arrays: MatrixArrays, shape: tuple[int, ...], cls: Any = None) -> Any:
        """Return a matrix with these arrays, of class `cls` or this matrix's. Nothing is copied or checked."""
        return matrix_over(type(self) if cls is None else cls, arrays, shape, self._came_from_spmatrix)

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Return the transpose, a view on the same arrays, whose products run on the device.

        Parameters
        ----------
        axes : None or (1, 0)
            Both mean the same. The argument exists because NumPy's `transpose` has it.
        copy : bool
            Whether a write to one matrix leaves the other unchanged.

        Returns
        -------
        sparse array, shape (N, M)
            In CSC, on the same device; the transpose of that is a GpuSparseMatrix again.

        Raises
        ------
        ValueError
            If `axes` is not None or (1, 0).
        """
        if axes is not None and axes != (1, 0):
            raise ValueError(f"axes must be None or (1, 0) for a sparse matrix, got {axes!r}")
        if self.ndim == 1:
            return self.copy() if copy else self
        arrays = self._arrays.share() if copy else self._arrays
        return self._with_arrays(arrays, self.shape[::-1], self._transposed_class)

    @property
    def T(self) -> Any:
        """The transpose, a view."""
        return self.transpose()

    @property
    def H(self) -> Any:
        """The conjugate transpose. Products run on the device, with the same transposed copy as products of A.T."""
        if self.dtype.char not in HOST_ONLY:
            # Prepare now, so that every A.H shares the prepared matrix, the transposed copy included.
            self._arrays.current(self._stored_shape)
        return self.transpose().conj()

    def conjugate(self, copy: bool = True) -> Self:
        """Return the complex conjugate. Its values are computed only when the program reads them.

        Products conjugate the values as they read them.

        Parameters
        ----------
        copy : bool
            Whether to return a copy of a real matrix instead of the matrix itself. For a complex matrix, the result is
            always a new matrix, which shares the arrays of the device.

        Returns
        -------
        GpuSparseMatrix
            On the same device, of the same structure and dtype.
        """
        if self.dtype.kind != "c":
            return self.copy() if copy else self
        return cast(Self, self._with_arrays(self._arrays.share(flip=True), self.shape))

    conj = conjugate

    def copy(self) -> Self:
        """Return an independent matrix on the same device. Both share device arrays until one of them is written.

        Returns
        -------
        GpuSparseMatrix
            With the same plan. Device arrays are not copied.
        """
        return cast(Self, self._with_arrays(self._arrays.share(), self.shape))

    def __copy__(self) -> Self:  # A shallow copy, as in SciPy: a write to one matrix changes both.
        return cast(Self, self._with_arrays(self._arrays, self.shape))

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {super().__repr__()[1:-1]}, on {self.device.name}>"


def is_device_matrix(value: object) -> TypeGuard[MatrixLike]:
    """Return whether a value is a `GpuSparseMatrix` or a transposed view of one."""
    return isinstance(getattr(value, "_arrays", None), MatrixArrays)


def matrix_over(cls: Any, arrays: MatrixArrays, shape: tuple[int, ...], came_from_spmatrix: bool = False) -> Any:
    """Return a matrix with these arrays. Nothing is copied or checked."""
    new = cls.__new__(cls)
    own(new, arrays, shape, came_from_spmatrix)
    return new


def own(
    new: Any, arrays: MatrixArrays, shape: tuple[int, ...], came_from_spmatrix: bool, maxprint: int | None = None
) -> None:
    """Set the attributes of a new object, which is then a complete matrix. Every matrix is made by this function."""
    initialize(new, shape, maxprint)
    new.device, new._arrays = arrays.device, arrays
    new._came_from_spmatrix = came_from_spmatrix


def initialize(new: Any, shape: tuple[int, ...], maxprint: int | None = None) -> None:
    """Set SciPy's attributes without calling its constructor. Only this function names SciPy's private attributes.

    The public way, ``csr_array.__init__(self, shape)``, would allocate row pointers that the matrix does not need.
    """
    new._shape = shape
    new.maxprint = _MAXPRINT if maxprint is None else maxprint
