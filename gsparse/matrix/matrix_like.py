"""What every matrix of this package has: arrays on a device, views and copies. Its operations are mixins of this class.

A matrix is composed. Its only state beside SciPy's is `self._arrays` (`arrays.py`): the arrays on both sides, the loans
to the host, and the prepared matrix.
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

# Entries that SciPy prints of a matrix.
_MAXPRINT = 50


class MatrixLike:
    """A matrix on a device, in the arrays of CSR. A class that reads them by columns is the transpose.

    Attributes
    ----------
    device : Device
    stats : Stats
        Counts of this matrix alone: its copies and views have their own.
    """

    # SciPy's, from the class that comes next in the order of inheritance.
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

    # Those of mixins.
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
    # Made when it is first asked for: the results of most operations never count anything.
    stats = made_once(lambda self: Stats())
    _arrays: MatrixArrays
    _came_from_spmatrix: bool  # whether its source was an `spmatrix`, until `MatrixProductWarning` has been given

    _scipy_base: Any  # SciPy's class of the same format
    _by_columns = False  # whether the arrays describe the transpose
    _transposed_class: type[Any]  # the class of `A.T`

    # CuPy's arrays have 100: with a larger number, `cupy_array @ A` calls the method of the matrix.
    __array_priority__ = 1000.0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self._arrays.data.dtype

    @dtype.setter
    def dtype(self, newtype: Any) -> None:
        self.data = self.data.view(newtype)

    def __sizeof__(self) -> int:
        """Return the bytes of the three arrays and the object itself: `dask.sizeof` and `sys.getsizeof` ask for it."""
        return object.__sizeof__(self) + self._arrays.nbytes

    def freeze(self) -> Self:
        """Hand out read-only host arrays from now on, so that no loan ever costs a product anything.

        Returns
        -------
        GpuSparseMatrix
            The matrix itself. Operations that would change its entries in place raise a ValueError from now on.
        """
        self._arrays.freeze()
        return self

    def release(self) -> None:
        """Drop converted formats, the transposed copy and idle host copies; each is made again when next needed."""
        self._arrays.release()

    # ------------------------------------------------------------------------------------- what products multiply by

    @property
    def _stored_shape(self) -> tuple[int, int]:
        """The shape of the CSR arrays: one row for a vector, the transposed shape for a class that reads by columns."""
        # Every operation asks for it, so this function makes no calls.
        shape: Any = self._shape
        stored: tuple[int, int] = (1, *shape) if len(shape) == 1 else shape[::-1] if self._by_columns else shape
        return stored

    def _reduced_shape(self, axis: int) -> tuple[int, ...]:
        """Return the shape of the result of a reduction along an axis."""
        return (self.shape[1 - axis],)

    def _selected_shape(self, found: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a selection: `wanted` is that of the index, and `found` that of the selected matrix."""
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
        """Return what one product reads (`gsparse.products.multiply.MultipliableMatrix`)."""
        if (transpose or adjoint) != self._by_columns:
            first = self._arrays.current(self._stored_shape).by_columns(storage)
            if first is not None:
                return first, self._arrays.data.conjugated != adjoint
        return self._prepared(transpose=transpose, adjoint=adjoint)

    # -------------------------------------------------------------------------------------------- views and copies

    def _with_arrays(self, arrays: MatrixArrays, shape: tuple[int, ...], cls: Any = None) -> Any:
        """Return a matrix of this class, or another, that owns these arrays; nothing is copied and nothing checked."""
        return matrix_over(type(self) if cls is None else cls, arrays, shape, self._came_from_spmatrix)

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Return the transpose as a view whose products run on the device; it lends the same arrays as this matrix.

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
            If `axes` is anything else.
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
        """The conjugate transpose; its products run on the device and share A.T's transposed copy."""
        if self.dtype.char not in HOST_ONLY:
            # Every A.H shares what is prepared now, the transposed copy included.
            self._arrays.current(self._stored_shape)
        return self.transpose().conj()

    def conjugate(self, copy: bool = True) -> Self:
        """Return the complex conjugate, whose values are computed only when they are asked for.

        Products conjugate the values as they read them.

        Parameters
        ----------
        copy : bool
            Whether to return a copy of a real matrix, and not the matrix itself. A complex matrix always gives a new
            one, which shares the arrays of the device.

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
        """Return an independent matrix on the same device. It shares device arrays until one of the two is written.

        Returns
        -------
        GpuSparseMatrix
            With the same plan. Device arrays are not copied.
        """
        return cast(Self, self._with_arrays(self._arrays.share(), self.shape))

    def __copy__(self) -> Self:  # A shallow copy, as SciPy's: writes to one show in the other.
        return cast(Self, self._with_arrays(self._arrays, self.shape))

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {super().__repr__()[1:-1]}, on {self.device.name}>"


def is_device_matrix(value: object) -> TypeGuard[MatrixLike]:
    """Return whether a value is a `GpuSparseMatrix` or a transposed view of one."""
    return isinstance(getattr(value, "_arrays", None), MatrixArrays)


def matrix_over(cls: Any, arrays: MatrixArrays, shape: tuple[int, ...], came_from_spmatrix: bool = False) -> Any:
    """Return a matrix that owns these arrays; nothing is copied and nothing checked."""
    new = cls.__new__(cls)
    own(new, arrays, shape, came_from_spmatrix)
    return new


def own(
    new: Any, arrays: MatrixArrays, shape: tuple[int, ...], came_from_spmatrix: bool, maxprint: int | None = None
) -> None:
    """Make a new object a matrix with these arrays. Every matrix is made by this function, and is complete after it."""
    initialize(new, shape, maxprint)
    new.device, new._arrays = arrays.device, arrays
    new._came_from_spmatrix = came_from_spmatrix


def initialize(new: Any, shape: tuple[int, ...], maxprint: int | None = None) -> None:
    """Set what SciPy's constructor would, without its arrays: the one place that names SciPy's private attributes.

    The public way, ``csr_array.__init__(self, shape)``, allocates row pointers for a view that has its own.
    """
    new._shape = shape
    new.maxprint = _MAXPRINT if maxprint is None else maxprint
