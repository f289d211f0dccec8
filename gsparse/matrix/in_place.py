"""Methods that change a matrix in place, and its attributes `data`, `indices` and `indptr`, which users may assign."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.locks import make_lock
from gsparse.errors import StructureError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.dense_operands import check_home, is_on_device, is_scalar
from gsparse.matrix.host_operations import FROZEN, name_counterpart, write_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.sparse_operations import csr_of, matrix_of
from gsparse.profiling import recording
from gsparse.sparse.canonical import canonical, sorted_rows, without_zeros
from gsparse.sparse.editing import resized

# A thread holds this lock while it writes to a matrix.
_writing = make_lock()

Write = TypeVar("Write", bound=Callable[..., Any])


def one_at_a_time(write: Write) -> Write:
    """Return a function that waits until no other thread writes to a matrix, and then calls `write`."""

    @wraps(write)
    def write_alone(*arguments: Any, **options: Any) -> Any:
        with _writing:
            return write(*arguments, **options)

    return cast("Write", write_alone)


_SORTED, _CANONICAL = "has_sorted_indices", "has_canonical_format"


def is_written_on_host(matrix: MatrixLike) -> bool:
    """Return whether SciPy must write on the host: no device supports the dtype, or the user holds a host array."""
    return matrix.dtype.char in HOST_ONLY or matrix._arrays.is_on_loan


def _on_device(write: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a method without parameters that writes on the device, or on the host (`is_written_on_host`)."""

    @one_at_a_time
    @wraps(write)
    def write_there(self: MatrixLike) -> None:
        if is_written_on_host(self):
            write_on_host(self, write.__name__)
        else:
            write(self)

    return write_there


def check_not_frozen(matrix: MatrixLike) -> None:
    """Refuse a write to a frozen matrix.

    Raises
    ------
    ValueError
    """
    if matrix._arrays.is_frozen:
        raise ValueError(FROZEN)


def entries_of(matrix: MatrixLike) -> Csr:
    """Return the CSR arrays of a matrix for a write, conjugated if necessary.

    If the matrix's arrays have more than nnz elements, first replace them by arrays of nnz elements.
    """
    csr, arrays = csr_of(matrix, matrix, matrix._by_columns), matrix._arrays
    if arrays.indices.current_array().size != csr.nnz or arrays.data.current_array().size != csr.nnz:
        arrays.replace(csr)
    return csr


# ---------------------------------------------------------------------------------------------- order of the entries


def _are_sorted(matrix: MatrixLike) -> bool:
    """Return whether the columns of each row are in ascending order; they may repeat. Synchronizes."""
    if _are_canonical(matrix):
        return True
    device, csr = matrix.device, matrix._arrays.current(matrix._stored_shape).csr
    with device.active(), device.memory_guard():
        rows = kernels_of(device).sparse_rows.row_numbers(device, csr.indptr, csr.nnz)
        falls = (csr.indices[1:] < csr.indices[:-1]) & (rows[1:] == rows[:-1])
        return kernels_of(device).reductions.first_where(device, falls, "not zero") is None  # synchronizes


def _are_canonical(matrix: MatrixLike) -> bool:
    """Return whether the columns of each row are in ascending order without repetitions. Synchronizes."""
    return matrix._arrays.current(matrix._stored_shape).is_canonical


def _property_of_entries(name: str, is_true: Callable[[MatrixLike], bool], doc: str) -> property:
    """Return SciPy's property `name`. It has the value that the user assigned, until an entry moves; else the true one.

    `is_true` computes the true value.
    """

    def read(self: MatrixLike) -> bool:
        if self.dtype.char in HOST_ONLY:
            return bool(getattr(self._scipy_base, name).fget(self))
        declared = self._arrays.declared.get(name)
        return is_true(self) if declared is None else declared

    def write(self: MatrixLike, value: bool) -> None:
        if self.dtype.char in HOST_ONLY:
            getattr(self._scipy_base, name).fset(self, value)
        declared = self._arrays.declared
        declared[name] = bool(value)
        if value and name == _CANONICAL:
            declared[_SORTED] = True
        if not value and name == _SORTED:
            declared[_CANONICAL] = False

    return property(read, write, doc=doc)


# -------------------------------------------------------------------------------------------------------------- scalars


def _scaled_in_own_dtype(values: Array, factor: Any) -> Array:
    """Multiply values by a factor, in the dtype of the values."""
    products = values * factor
    return products if products.dtype == values.dtype else products.astype(values.dtype)


class Rearrangements(MatrixLike):
    """Methods that change the order of the entries, the shape or the scale in place."""

    has_sorted_indices = _property_of_entries(
        _SORTED,
        _are_sorted,
        "Whether the columns of each row ascend (they may repeat), or what was assigned. May synchronize.",
    )
    has_canonical_format = _property_of_entries(
        _CANONICAL,
        _are_canonical,
        "Whether the columns of each row ascend and none repeats, or what was assigned. May synchronize.",
    )

    @_on_device
    def sort_indices(self) -> None:
        """Sort the entries of each row by their columns, in place. Repeated entries keep their order."""
        if self.has_sorted_indices:
            return
        if not _are_sorted(self):
            check_not_frozen(self)
            csr = entries_of(self)
            with self.device.active(), self.device.memory_guard():
                csr = sorted_rows(self.device, csr)
            self._arrays.replace(csr)
        self._arrays.declared.clear()

    @_on_device
    def eliminate_zeros(self) -> None:
        """Remove entries that are 0, in place. Synchronizes."""
        check_not_frozen(self)
        csr = entries_of(self)
        with self.device.active(), self.device.memory_guard():
            kept = without_zeros(self.device, csr)
        if kept.nnz < csr.nnz:
            self._arrays.replace(kept)

    @_on_device
    def prune(self) -> None:
        """Cut the arrays off behind the last entry, in place."""
        arrays = self._arrays
        nnz = arrays.current(self._stored_shape).csr.nnz
        if arrays.indices.current_array().size != nnz or arrays.data.current_array().size != nnz:
            check_not_frozen(self)
            entries_of(self)

    def check_format(self, full_check: bool = True) -> None:
        """Check whether the arrays describe a matrix.

        Parameters
        ----------
        full_check : bool
            Has no effect: everything is always checked. SciPy has this parameter.

        Raises
        ------
        ValueError
            If the arrays do not describe a matrix.
        """
        if is_written_on_host(self):
            write_on_host(self, "check_format", full_check)
            return
        try:
            self._arrays.current(self._stored_shape)
        except StructureError:
            # SciPy's check names the first fault. If it finds no fault, the device's error is raised.
            write_on_host(self, "check_format", full_check)
            raise

    @one_at_a_time
    def resize(self, *shape: Any) -> None:
        """Change the shape in place. Entries keep their rows and columns; entries outside the new shape are removed.

        Parameters
        ----------
        *shape : int or tuple of int
            Rows and columns. Views that were made before keep their shape and their entries.
        """
        target = self._coo_container(self.shape)
        target.resize(*shape)  # SciPy parses the arguments.
        if target.ndim not in self._allow_nd:
            raise ValueError(f"shape must have length in {self._allow_nd}. Got new_shape={target.shape}")
        if is_written_on_host(self):
            write_on_host(self, "resize", *shape)
            return
        if target.shape == self.shape:
            return
        rows, columns = (1, *target.shape)[-2:]
        stored = (columns, rows) if self._by_columns else (rows, columns)
        if stored[0] == self._stored_shape[0] and stored[1] >= self._stored_shape[1]:
            self._arrays = self._arrays.with_other_shape()
        else:
            check_not_frozen(self)
            device, csr = self.device, csr_of(self, self, self._by_columns)
            with device.active(), device.memory_guard():
                csr = resized(device, csr, stored)
            self._arrays = matrix_of(self, csr, target.shape, type(self))._arrays
        self._shape = target.shape

    @one_at_a_time
    def __imul__(self, other: Any) -> Any:
        """Multiply the values by a scalar in place, for ``A *= other``."""
        if not is_scalar(other):
            return NotImplemented
        if is_written_on_host(self):
            return write_on_host(self, "__imul__", other)
        check_home(self, other)
        factor: Any = other[()] if isinstance(other, np.ndarray) else other
        factor = factor.get()[()] if is_on_device(factor) else factor  # synchronizes
        if not (isinstance(factor, float) and self.dtype.kind in "fc"):
            probe = np.ones(1, self.dtype)
            with np.errstate(all="ignore"):
                probe *= factor  # raises NumPy's error if the dtypes do not allow it
        check_not_frozen(self)
        device, csr = self.device, entries_of(self)
        with device.active(), device.memory_guard():
            values = device.map_values(lambda part: _scaled_in_own_dtype(part, factor), csr.data)
        self._arrays.replace_values(values, self._stored_shape, keeps_declarations=bool(np.isrealobj(factor)))
        return self

    @one_at_a_time
    def __itruediv__(self, other: Any) -> Any:
        """Multiply the values by the reciprocal of a scalar in place, for ``A /= other``."""
        if not is_scalar(other):
            return NotImplemented
        return self.__imul__(1.0 / other)

    @_on_device
    def sum_duplicates(self) -> None:
        """Sort the entries of each row by their columns, and add repeated ones up, in place. Synchronizes."""
        if self.has_canonical_format:
            return
        if not _are_canonical(self):
            check_not_frozen(self)
            csr = entries_of(self)
            with self.device.active(), self.device.memory_guard():
                csr = canonical(self.device, csr)
            self._arrays.replace(csr)
        self._arrays.declared.clear()


def lent_array(name: str, doc: str) -> np.ndarray[Any, Any]:
    """Return a property that lends a host array of the matrix, and whose assignment replaces the array.

    Parameters
    ----------
    name : {"data", "indices", "indptr"}
    doc : str
        The docstring of the property.
    """

    def lend(matrix: MatrixLike) -> np.ndarray[Any, Any]:
        arrays = matrix._arrays
        pair = getattr(arrays, name)
        if not pair.lent:
            matrix.stats.left_device(name)
            name_counterpart(matrix.device)
        arrays.scipy_array = None
        arrays.drop_unconverted()
        if recording.recorder is None:
            return cast("np.ndarray[Any, Any]", pair.lend())
        with recording.span("host", f"A.{name}: the program asks for a host array", None, None, pair.nbytes):
            return cast("np.ndarray[Any, Any]", pair.lend())

    def replace(matrix: MatrixLike, value: Any) -> None:
        matrix._arrays = matrix._arrays.with_host_array(name, value)

    return cast("np.ndarray[Any, Any]", property(lend, one_at_a_time(replace), doc=doc))


class LentArrays(MatrixLike):
    """The arrays of a matrix: on loan on the host, and read-only on the device."""

    data = lent_array("data", "Values as a host array, on loan: see `freeze` and `device_data`. Synchronizes.")
    indices = lent_array("indices", "Column indices as a host array, on loan. Synchronizes.")
    indptr = lent_array("indptr", "Row pointers as a host array, on loan. Synchronizes.")

    @property
    def name(self) -> str | None:
        """Name of the matrix in profiles (`gsparse.profile`), None by default. Copies and views have no name."""
        return self.stats.name

    @name.setter
    def name(self, name: str | None) -> None:
        """Set the name of the matrix."""
        self.stats.name = name

    @property
    def device_data(self) -> Array:
        """Values on the device. Read the array, but never write to it: other matrices may share it."""
        self._arrays.current(self._stored_shape)
        pair = self._arrays.data
        if not pair.conjugated:
            return pair.current_array()
        with self.device.active(), self.device.memory_guard():
            return self.device.xp.conjugate(pair.current_array())

    @property
    def device_indices(self) -> Array:
        """Column indices on the device. Read the array, but never write to it."""
        return self._arrays.indices.current_array()

    @property
    def device_indptr(self) -> Array:
        """Row pointers on the device. Read the array, but never write to it."""
        return self._arrays.indptr.current_array()
