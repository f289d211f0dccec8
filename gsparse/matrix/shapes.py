"""Methods for other shapes of a matrix, for counts of entries, and for maxima and minima."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.select import device_of
from gsparse.files.checks import scipy_matrices
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.host_operations import run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.matrix.reductions import (
    downloaded,
    is_computed_here,
    lines_of,
    parse_axis,
    run_reduction_on_host,
    with_reduced_axes,
    written,
)
from gsparse.matrix.sparse_operations import class_of_format, csr_of, matrix_of
from gsparse.sparse.canonical import canonical, computed
from gsparse.sparse.reductions import extreme_of_rows, first_extreme, positions_of_rows
from gsparse.sparse.reshaping import repeated, reshaped


def reshape_matrix(matrix: MatrixLike, shape: tuple[int, ...], order: str = "C") -> Any:
    """Return a matrix with the same elements and another shape; the matrix itself if it has this shape."""
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
    """Methods for other shapes and counts of entries."""

    def reshape(self, *args: Any, **options: Any) -> Any:
        """Return a matrix of another shape with the same elements.

        Parameters
        ----------
        *args : int or tuple of int
            The new shape, of which one length may be -1.
        **options
            ``order``, 'C' or 'F', is the order in which elements are counted. ``copy`` says whether to return a copy of
            a matrix that has this shape already.

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
        """Return a matrix in which the only row or column is repeated, for SciPy's code."""
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
            if self._arrays.is_lent:
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


# SciPy's methods, and the kernels' names of the extremes (`gsparse.kernels.algebra.EXTREMES`).
_EXTREMES = {"max": "maximum", "min": "minimum", "nanmax": "fmax", "nanmin": "fmin"}
_POSITIONS = {"argmax": "maximum", "argmin": "minimum"}

_EXTREME_DOC = """Return the {what} of all elements, or along an axis. Synchronizes, unless `out` is on the device.

    Parameters
    ----------
    axis : {{-2, -1, 0, 1, None}}
        0 looks at columns, 1 at rows, None at all of the matrix.
    out : array of the device, optional
        Of the result's shape. The result is then dense. SciPy takes none.
    explicit : bool
        Whether only stored entries count, and not the zeros that are not stored.
    keepdims : bool
        Whether the result is a dense array of two dimensions, in which each axis that is reduced has the length 1.

    Returns
    -------
    {result}
        `out` if it was passed.

    Raises
    ------
    ValueError
        If there are no elements, or if `out` is not on the device.
    """


def _extreme_method(name: str) -> Callable[..., Any]:
    """Return the method `name` of `_EXTREMES`."""

    def method(
        self: MatrixLike, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False
    ) -> Any:
        if keepdims:
            return with_reduced_axes(self, method(self, axis, out, explicit=explicit), axis)
        if out is not None and device_of(out) is None:
            raise ValueError("Sparse min/max does not support an 'out' parameter.")
        if not is_computed_here(self):
            return run_reduction_on_host(self, name, axis=axis, out=out, explicit=explicit)
        axis = parse_axis(self, name, axis)
        if 0 in (self.shape if axis is None else (self.shape[axis],)):
            raise ValueError("zero-size array to reduction operation")
        extreme = _extreme_of_all if axis is None else _extremes_along
        return extreme(self, axis, _EXTREMES[name], out, explicit)

    which = "greatest" if name.endswith("max") else "least"
    what = f"{which} {'number, ignoring NaN,' if name.startswith('nan') else 'value'}"
    method.__name__ = name
    method.__doc__ = _EXTREME_DOC.format(what=what, result="scalar or coo_array")
    return method


def _extreme_of_all(matrix: MatrixLike, axis: None, extreme: str, out: Any, explicit: bool) -> Any:
    device, (csr, _) = matrix.device, lines_of(matrix, None, summed=True)
    value = zero = matrix.dtype.type(0)
    if csr.nnz:
        with device.active(), device.memory_guard():
            data, unsigned = computed(csr, matrix.dtype).data, matrix.dtype == np.uint64
            found = kernels_of(device).reductions.extreme_entries(device, None, data, extreme, csr.nnz, 0, unsigned)
        value = downloaded(matrix, found, matrix.dtype)[0]
        if csr.nnz != prod(matrix.shape) and not explicit:
            value = getattr(np, extreme)(zero, value)
    return value if out is None else written(matrix, value, out, ())


def _extremes_along(matrix: MatrixLike, axis: int, extreme: str, out: Any, explicit: bool) -> Any:
    device, (csr, longest) = matrix.device, lines_of(matrix, axis, summed=True)
    with device.active(), device.memory_guard():
        lines = computed(csr, matrix.dtype)
        extremes = extreme_of_rows(device, lines, longest, extreme, explicit, matrix.dtype == np.uint64)
    shape = matrix._reduced_shape(axis)
    if out is not None:
        return written(matrix, extremes, out, shape)
    values = downloaded(matrix, extremes, matrix.dtype)
    places = np.flatnonzero(values != 0).astype(np.int32 if csr.num_rows <= MAX_INT32 else np.int64)
    vector = sp.coo_array((values[places], (places,)), shape=(csr.num_rows,), dtype=matrix.dtype)
    return matrix._coo_container(vector.reshape(shape))


def _position_method(name: str) -> Callable[..., Any]:
    """Return the method `name` of `_POSITIONS`."""

    def method(
        self: MatrixLike, axis: Any = None, out: Any = None, *, explicit: bool = False, keepdims: bool = False
    ) -> Any:
        if keepdims:
            return with_reduced_axes(self, method(self, axis, out, explicit=explicit), axis)
        if out is not None and device_of(out) is None:
            raise ValueError(f"Sparse {name} does not support an 'out' parameter.")
        if not is_computed_here(self):
            return run_reduction_on_host(self, name, axis=axis, out=out, explicit=explicit)
        axis = parse_axis(self, name, axis)
        if axis is None:
            position = _position_in_all(self, name, explicit)
            return position if out is None else written(self, np.int64(position), out, ())
        if self.shape[axis] == 0:
            raise ValueError(f"Cannot apply {name} along a zero-sized dimension.")
        positions = _positions_along(self, axis, _POSITIONS[name], explicit)
        shape = self._reduced_shape(axis)
        if out is not None:
            return written(self, positions, out, shape)
        return self._ascontainer(self.device.download(positions).reshape(shape))  # synchronizes

    which = "greatest" if name.endswith("max") else "least"
    method.__name__ = name
    method.__doc__ = _EXTREME_DOC.format(what=f"index of the {which} value", result="int or ndarray of int")
    return method


def _position_in_all(matrix: MatrixLike, name: str, explicit: bool) -> Any:
    if 0 in matrix.shape:
        raise ValueError(f"Cannot apply {name} to an empty matrix.")
    device, (csr, _) = matrix.device, lines_of(matrix, 1, summed=True)
    if not csr.nnz:
        if explicit:
            raise ValueError(f"Cannot apply {name} to zero matrix when explicit=True.")
        return 0
    with device.active(), device.memory_guard():
        lines = computed(csr, matrix.dtype)
        return first_extreme(device, lines, _POSITIONS[name], explicit, matrix.dtype)


def _positions_along(matrix: MatrixLike, axis: int, extreme: str, explicit: bool) -> Array:
    device, (csr, longest) = matrix.device, lines_of(matrix, axis, summed=True)
    with device.active(), device.memory_guard():
        lines = computed(csr, matrix.dtype)
        return positions_of_rows(device, lines, longest, extreme, explicit, matrix.dtype == np.uint64)


class Extremes(MatrixLike):
    """Methods for maxima, minima and their positions."""

    max = _extreme_method("max")
    min = _extreme_method("min")
    nanmax = _extreme_method("nanmax")
    nanmin = _extreme_method("nanmin")
    argmax = _position_method("argmax")
    argmin = _position_method("argmin")
