"""What the operations of this folder ask of the matrix that they are methods of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, TypeVar, cast

import numpy as np

from gsparse.device.base import Device
from gsparse.device.counters import Stats
from gsparse.device.dtypes import Array
from gsparse.matrix.arrays import MatrixArrays
from gsparse.products.prepared import PreparedMatrix

__all__ = ["MatrixLike", "as_property", "install", "is_device_matrix", "method"]


class MatrixLike(Protocol):
    """A `GpuSparseMatrix` or its transposed view, as the modules see it whose functions become methods of both.

    Attributes
    ----------
    device : Device
    stats : Stats
        Counts of this matrix alone: its copies and views have their own.
    """

    # SciPy's.
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
    has_sorted_indices: bool
    sum: Any
    has_canonical_format: bool

    device: Device
    stats: Stats
    _arrays: MatrixArrays
    _by_columns: bool  # whether the arrays describe the transpose
    _transposed_class: type[Any]  # the class of `A.T`
    _scipy_base: Any  # SciPy's class of the same format
    _came_from_spmatrix: bool  # whether its source was an `spmatrix`, until `MatrixProductWarning` has been given

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def _stored_shape(self) -> tuple[int, int]: ...

    def _prepared(self, *, transpose: bool = False, adjoint: bool = False) -> tuple[PreparedMatrix, bool]: ...

    def _host_product(self, x: Array, *, transpose: bool, adjoint: bool) -> Array: ...

    def _reduced_shape(self, axis: int) -> tuple[int, ...]: ...

    def _selected_shape(self, found: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]: ...

    def _with_arrays(self, arrays: MatrixArrays, shape: tuple[int, ...], cls: Any = None) -> Any: ...

    def copy(self) -> Any: ...

    def tocsr(self, copy: bool = False) -> Any: ...

    def tocoo(self, copy: bool = True) -> Any: ...

    def toarray(self, order: Any = None, out: Array | None = None) -> Any: ...


def is_device_matrix(value: object) -> TypeGuard[MatrixLike]:
    """Return whether a value is a `GpuSparseMatrix` or a transposed view of one."""
    return isinstance(getattr(value, "_arrays", None), MatrixArrays)


Method = TypeVar("Method", bound=Callable[..., Any])
Value = TypeVar("Value")


def method(function: Method) -> Method:
    """Remove the type of `self` from the signature of a function that becomes a method, and return the function."""
    function.__annotations__.pop("self", None)
    return function


def as_property(
    read: Callable[[Any], Value], write: Callable[[Any, Any], None] | None = None, doc: str | None = None
) -> Value:
    """Return a property of these functions. Type checkers see an attribute of the type that `read` returns."""
    return cast(Value, property(read, write, doc=doc))


def install(cls: type, methods: dict[str, Callable[..., Any]]) -> None:
    """Make the functions of a table methods of a class, under the names that they have in the table."""
    for name, function in methods.items():
        function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
        function.__module__ = cls.__module__
        setattr(cls, name, method(function))
