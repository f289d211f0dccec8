"""What all matrices of the package have in common: arrays on loan, views, copies, plans, products.

A matrix is composed. Its only state beside SciPy's is `self._arrays` (`arrays.py`): the arrays on both sides, the loans
to the host, and the prepared matrix. These modules hold its methods:

    constructor.py        parses what the matrix is made from
    array_access.py       the arrays on loan to the host, and those of the device
    plans.py              the chosen format, and why
    product_methods.py    products
    elementwise.py        tables of operations on the stored values
    ufuncs.py             NumPy's functions
    index.py              parses what is between the brackets of A[...]
    indexing.py           entries, rows and columns that an index selects
    writes.py             A[...] = values, and writes to a diagonal
    in_place.py           order of the entries, shape and scale, changed in place
    conversions.py        other formats and libraries
    shapes.py             other shapes, and counts of entries
    sparse_operations.py  products with a second sparse matrix
    dense_operands.py     products and quotients by dense arrays
    combinations.py       sums, differences, extremes and comparisons
    reductions.py         sums, means and counts
    extremes.py           maxima and minima, and where they are
    host_operations.py    what SciPy computes on the host
    upper_layers.py       methods that upper layers serve

The functions of tables become methods at the end of this file. The others are named in the body of the class, where
type checkers see their signatures.
"""

from __future__ import annotations

from typing import Any, Literal, Self, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.counters import Stats
from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.locks import made_once
from gsparse.files.checks import scipy_matrices
from gsparse.matrix import (
    array_access,
    combinations,
    conversions,
    elementwise,
    extremes,
    host_operations,
    in_place,
    indexing,
    plans,
    product_methods,
    reductions,
    shapes,
    ufuncs,
    upper_layers,
    writes,
)
from gsparse.matrix.anndata_writer import offer_writers
from gsparse.matrix.array_access import lent_array
from gsparse.matrix.arrays import MatrixArrays
from gsparse.matrix.constructor import construct, matrix_over, rebuild
from gsparse.matrix.matrix_like import as_property, install
from gsparse.products.prepared import PreparedMatrix
from gsparse.profiling.recorded import recorded_call

__all__ = ["DeviceMatrix"]


class DeviceMatrix:
    """A sparse matrix whose arrays live on a device; the subclasses are CSR or CSC, arrays or matrices of SciPy.

    The arrays are those of CSR; `TransposedMatrix` reads them as CSC, which is the transpose.
    """

    # SciPy's, from the class that comes next in the order of inheritance.
    shape: tuple[int, ...]
    ndim: int
    nnz: int
    format: str
    maxprint: int
    _shape: tuple[int, ...]
    _ascontainer: Any
    _coo_container: Any
    _bsr_container: Any
    _dia_container: Any
    _allow_nd: Any
    has_sorted_indices: bool
    has_canonical_format: bool
    sum: Any

    device: Device
    # Made when it is first asked for: the results of most operations never count anything.
    stats = made_once(lambda self: Stats())
    _arrays: MatrixArrays
    _came_from_spmatrix: bool

    _scipy_base: Any
    _by_columns = False
    _transposed_class: type[Any]

    # CuPy's arrays have 100: with a larger number, `cupy_array @ A` calls the method of the matrix.
    __array_priority__ = 1000.0

    def __init__(
        self,
        arg1: Any,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
        copy: bool = False,
        *,
        device: str | Device | None = None,
        format: str | None = None,
        schedule: str | None = None,
        threads_per_block: int | None = None,
        expected_products: int | None = None,
        compress: bool | Literal["columns", "values"] | None = None,
        tune: bool | Literal["lazy"] | None = None,
        symmetric: bool | Literal["hermitian"] | None = None,
        maxprint: int | None = None,
    ) -> None:
        options = {
            "format": format,
            "schedule": schedule,
            "threads_per_block": threads_per_block,
            "expected_products": expected_products,
            "compress": compress,
            "tune": tune,
            "symmetric": symmetric,
        }
        offer_writers((type(self), self._transposed_class))
        construct(self, arg1, shape, dtype, copy, device, options, maxprint)

    # The name in a TypeError about arguments: users never see this class.
    __init__.__qualname__ = "GpuSparseMatrix.__init__"

    # -------------------------------------------------------------------------------- methods from other modules

    matvec = product_methods.matvec
    rmatvec = product_methods.rmatvec
    matmat = product_methods.matmat
    rmatmat = product_methods.rmatmat
    dot = product_methods.dot
    as_linear_operator = product_methods.as_linear_operator

    astype = elementwise.astype
    multiply = elementwise.multiply
    with_data = elementwise.with_data

    tocsr = conversions.tocsr
    tocsc = conversions.tocsc
    to_cupy = conversions.to_cupy
    tocoo = conversions.tocoo
    tobsr = conversions.tobsr
    toarray = conversions.toarray

    plan = as_property(plans.plan)
    plan_for = plans.plan_for
    stored = as_property(plans.stored)
    block_shape = as_property(plans.block_shape)

    distribute = upper_layers.distribute
    accelerated = upper_layers.accelerated

    # -------------------------------------------------------------------------------------------- arrays on loan

    data = lent_array("data", "Values as a host array, on loan: see `freeze` and `device_data`. Synchronizes.")
    indices = lent_array("indices", "Column indices as a host array, on loan. Synchronizes.")
    indptr = lent_array("indptr", "Row pointers as a host array, on loan. Synchronizes.")

    name = as_property(array_access.name, array_access.set_name)

    device_data = as_property(array_access.device_data)
    device_indices = as_property(array_access.device_indices)
    device_indptr = as_property(array_access.device_indptr)

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

    @recorded_call("host", "product: {0.dtype} values")
    def _host_product(self, x: Array, *, transpose: bool, adjoint: bool) -> Array:
        """Multiply through SciPy: only for dtypes that no device computes in, such as longdouble."""
        array = host_operations.counted_scipy_array(self, "product")
        with scipy_matrices():
            matrix = array.T.conj() if adjoint else array.T if transpose else array
        return matrix @ (x if isinstance(x, np.ndarray) else self.device.download(x))

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

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = tuple(map(np.array, self._arrays.read()))
        state = (self.shape, self.device.kind, self._arrays.options, self._came_from_spmatrix, self.maxprint)
        return rebuild, (type(self), arrays, *state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {super().__repr__()[1:-1]}, on {self.device.name}>"

    def _repr_html_(self) -> str:
        return cast(str, upper_layers.UPPER_LAYERS["html"](self))


_TABLES = (product_methods, elementwise, host_operations, conversions, shapes, combinations)
for _module in (*_TABLES, indexing, writes, in_place, reductions, extremes, ufuncs):
    install(DeviceMatrix, _module.METHODS)
for _name, _property in in_place.PROPERTIES.items():
    setattr(DeviceMatrix, _name, _property)
