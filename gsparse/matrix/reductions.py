"""Sums, means and counts, computed on the device.

Results are NumPy's, as in SciPy. The argument `out` of a method may also be an array on the device. The result is then
written to it, and not downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import scipy.sparse as sp

from gsparse.device.dtypes import Array, compute_dtype
from gsparse.device.select import device_of
from gsparse.errors import DeviceError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.host_operations import run_on_host
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.sparse.canonical import canonical, computed
from gsparse.sparse.reductions import column_sums_on_host, sum_of_all, sum_of_rows

# From SciPy 1.18 on, `sum` casts the values to `dtype` before it adds them up along an axis, and norms widen float32.
CASTS_FIRST = tuple(int(part) for part in scipy.__version__.split(".")[:2]) >= (1, 18)

# A function that maps the values on the device before they are added up.
Conversion = Callable[[Array], Array]


# ---------------------------------------------------------------------------------------------- what is reduced


def lines_of(matrix: MatrixLike, axis: int | None, *, summed: bool) -> tuple[Csr, int]:
    """Return CSR arrays whose rows run along `axis`, and the length of the longest row. Synchronizes at first.

    Parameters
    ----------
    axis : {0, 1, None}
        With 0, the columns of the matrix are the rows of the result. With None, the matrix's own arrays are returned.
    summed : bool
        Whether duplicates are added up first.
    """
    prepared, conjugated = matrix._prepared(transpose=matrix._by_columns if axis is None else axis == 0)
    csr, device = prepared.csr, matrix.device
    with device.active(), device.memory_guard():
        if conjugated:
            csr = csr.with_data(device.xp.conjugate(csr.data))
        if summed and not prepared.is_canonical:
            csr = canonical(device, csr)
    return csr, prepared.stats.max_length


def sums_along(
    matrix: MatrixLike, axis: int, terms: str = "value", convert: Conversion | None = None, *, summed: bool = False
) -> Array:
    """Return the sums along an axis, in a compute dtype, on the device.

    `convert` maps the values first, if it is not None. `terms` says what is added up for each mapped value, such as
    "square" (`gsparse.kernels.algebra.TERMS`).
    """
    device = matrix.device
    is_minor = (axis == 1) != matrix._by_columns
    on_host = device.is_host and not is_minor
    csr, longest = lines_of(matrix, None if on_host else axis, summed=summed)
    with device.active(), device.memory_guard():
        csr = csr.with_data(csr.data if convert is None else convert(csr.data))
        csr = computed(csr, csr.dtype)
        return column_sums_on_host(csr, terms) if on_host else sum_of_rows(device, csr, longest, terms)


def sums_of_all(
    matrix: MatrixLike, terms: str = "value", convert: Conversion | None = None, *, summed: bool = False
) -> Array:
    """Return the sum over all entries, on the device: of shape (1,), or (0,) if there are no entries.

    `terms` and `convert` are as in `sums_along`.
    """
    device = matrix.device
    csr, _ = lines_of(matrix, None, summed=summed)
    if not csr.nnz:
        return csr.data[:0]
    with device.active(), device.memory_guard():
        csr = csr.with_data(csr.data if convert is None else convert(csr.data))
        return sum_of_all(device, computed(csr, csr.dtype).data, terms)


def parse_axis(matrix: MatrixLike, name: str, axis: Any) -> int | None:
    """Return 0 or 1, or None for all axes. Raise SciPy's error if `axis` is invalid."""
    axes, ndim = axis if isinstance(axis, tuple) else (axis,), matrix.ndim
    if axis is None or not axes:
        return None if axis is None else _refuse_axis(matrix, name, axis)
    if not all(
        isinstance(part, int | np.integer) and not isinstance(part, bool) and -ndim <= part < ndim for part in axes
    ):
        return _refuse_axis(matrix, name, axis)
    numbers = {int(part) % ndim for part in axes}
    if len(numbers) != len(axes):
        return _refuse_axis(matrix, name, axis)
    return None if len(numbers) == ndim else numbers.pop()


def _refuse_axis(matrix: MatrixLike, name: str, axis: Any) -> int | None:
    like = sp.csc_array((1, 1)) if matrix.ndim == 2 else sp.coo_array((1,))
    getattr(like, name)(axis=axis)
    raise TypeError(f"axis must be an integer from {-matrix.ndim} to {matrix.ndim - 1}, or None, got {axis!r}")


def is_computed_here(matrix: MatrixLike, dtype: Any = None) -> bool:
    """Return whether kernels support the dtypes: neither extended nor half precision."""
    return compute_dtype(matrix.dtype) is not None and (dtype is None or compute_dtype(dtype) is not None)


def run_reduction_on_host(matrix: MatrixLike, name: str, **options: Any) -> Any:
    """Run SciPy's method `name` on the host, with those options that are not None.

    Raises
    ------
    DeviceError
        If `out` is an array of a GPU.
    """
    if device_of(options.get("out")) is not None:
        raise DeviceError(f"{name} is computed on the host for this matrix: pass a NumPy array as out")
    return run_on_host(matrix, name, **{key: value for key, value in options.items() if value is not None})


# ------------------------------------------------------------------------------------------------------- results


def with_reduced_axes(matrix: MatrixLike, result: Any, axis: Any) -> npt.NDArray[Any]:
    """Return a result as a dense array with the matrix's number of dimensions. Each reduced axis has the length 1."""
    axes = range(matrix.ndim) if axis is None else [part % matrix.ndim for part in np.atleast_1d(axis)]
    shape = tuple(1 if number in axes else length for number, length in enumerate(matrix.shape))
    return np.asarray(result.toarray() if sp.issparse(result) else result).reshape(shape)


def _check_out(matrix: MatrixLike, out: Any, shape: tuple[int, ...]) -> None:
    """Refuse an array of another device or of another shape."""
    if not matrix.device.owns(out):
        raise DeviceError(f"out must live on {matrix.device.name}, where the matrix is")
    if out.shape != shape:
        raise ValueError(f"out dimensions do not match shape: {out.shape} instead of {shape}")


def written(matrix: MatrixLike, values: Array, out: Any, shape: tuple[int, ...]) -> Any:
    """Write device values, or a number, to the device array `out`, and return it. Does not synchronize."""
    _check_out(matrix, out, shape)
    with matrix.device.active():
        if isinstance(values, np.generic):
            out.fill(values)
        else:
            out[...] = values.reshape(shape)
    return out


def _sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which NumPy sums values of `dtype`: small integers and booleans are widened."""
    total: np.dtype[Any] = np.sum(np.empty(0, dtype)).dtype
    return total


def downloaded(matrix: MatrixLike, values: Array, dtype: np.dtype[Any]) -> Any:
    """Return device values as a NumPy array of a dtype. Integers wrap; numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return matrix.device.download_vector(values).astype(dtype, copy=False)  # synchronizes


def _sum_of(
    matrix: MatrixLike,
    axis: int,
    own: np.dtype[Any],
    convert: Conversion | None,
    dtype: Any,
    out: Any,
    *,
    summed: bool = False,
) -> Any:
    """Return the sums along an axis. `convert` maps the values to the dtype `own` first, which SciPy's `mean` needs."""
    sums, shape = sums_along(matrix, axis, convert=convert, summed=summed), matrix._reduced_shape(axis)
    if device_of(out) is not None:
        return written(matrix, sums, out, shape)
    host = downloaded(matrix, sums, _sum_dtype(own)).reshape(shape)
    if out is None:
        return matrix._ascontainer(host.astype(dtype or host.dtype, copy=False))
    if out.shape != shape:
        raise ValueError("out dimensions do not match shape")
    out[...] = host
    return out


def _sum_of_all(matrix: MatrixLike, own: np.dtype[Any], convert: Conversion | None, dtype: Any, out: Any) -> Any:
    result = _sum_dtype(own) if dtype is None else np.dtype(dtype)
    # Like NumPy, cast the values before the sum where that makes a difference, but never to fewer digits.
    is_cast = dtype is not None and result != own and (own.kind != result.kind or own.itemsize < result.itemsize)

    def cast(data: Array) -> Array:
        data = data if convert is None else convert(data)
        return data.astype(result) if is_cast else data

    # SciPy adds up repeated entries in their own dtype first, in which integers may wrap.
    is_summed = convert is None and (is_cast or (own.kind in "biu" and own.itemsize < 8))
    total = sums_of_all(matrix, convert=cast, summed=is_summed)
    if device_of(out) is not None:
        return written(matrix, total if total.size else matrix.device.xp.zeros(1, result), out, ())
    host = downloaded(matrix, total, result) if total.size else np.zeros(1, result)
    return np.sum(matrix._ascontainer(host), dtype=dtype, out=out)


class Reductions(MatrixLike):
    """Methods for sums, means and counts."""

    def sum(self, axis: Any = None, dtype: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """Return the sum of the entries, or the sums along an axis. Synchronizes, unless `out` is on the device.

        Parameters
        ----------
        axis : {-2, -1, 0, 1, None}
            0 adds up each column, 1 each row, None everything.
        dtype : dtype, optional
            The dtype of the result; by default the dtype of NumPy's sums, which widen narrow integers and booleans.
        out : array, optional
            A NumPy array as in SciPy, or an array of the device of the result's shape and of any dtype.
        keepdims : bool
            Whether the result is a dense array of two dimensions, in which each axis that is reduced has the length 1.

        Returns
        -------
        scalar or ndarray
            `out` if it was passed. The same matrix gives the same bits each time.
        """
        if keepdims:
            return with_reduced_axes(self, self.sum(axis, dtype, out), axis)
        if not is_computed_here(self, dtype):
            return run_reduction_on_host(self, "sum", axis=axis, dtype=dtype, out=out)
        which = parse_axis(self, "sum", axis)
        if which is None:
            return _sum_of_all(self, self.dtype, None, dtype, out)
        is_direct = not isinstance(axis, tuple) and (which == 1) != self._by_columns
        own, convert = self.dtype, None
        if dtype is not None and CASTS_FIRST:
            own = np.dtype(dtype)

            def convert(data: Array) -> Array:
                return data.astype(own, copy=False)

        if not is_direct or device_of(out) is not None:
            return _sum_of(self, which, own, convert, dtype, out, summed=convert is not None and not is_direct)
        sums = _sum_of(self, which, own, convert, None, None)
        if dtype is None and out is None:
            return sums
        # Where SciPy adds up the rows as they are stored, it casts and writes the sums by the rules of NumPy's `sum`.
        total = np.asarray(sums).sum(axis=(), dtype=dtype, out=out)
        return self._ascontainer(total) if out is None else total

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, *, keepdims: bool = False) -> Any:
        """Return the mean of all elements, or the means along an axis. Synchronizes, unless `out` is on the device.

        Parameters
        ----------
        axis : {-2, -1, 0, 1, None}
            0 is the mean of each column, 1 of each row, None of everything.
        dtype : dtype, optional
            The dtype of the result; by default the matrix's, or float64 for integers and booleans.
        out : array, optional
            A NumPy array as in SciPy, or an array of the device of the result's shape and of any dtype.
        keepdims : bool
            Whether the result is a dense array of two dimensions, in which each axis that is reduced has the length 1.

        Returns
        -------
        scalar or ndarray
            `out` if it was passed.
        """
        if keepdims:
            return with_reduced_axes(self, self.mean(axis, dtype, out), axis)
        if not is_computed_here(self):
            return run_reduction_on_host(self, "mean", axis=axis, dtype=dtype, out=out)
        axis = parse_axis(self, "mean", axis)
        own = np.dtype(np.float64) if self.dtype.kind in "biu" else self.dtype
        factor = 1.0 / prod(self.shape if axis is None else (self.shape[axis],))

        def scaled(data: Array) -> Array:
            return data.astype(own, copy=False) * factor

        mean = _sum_of_all(self, own, scaled, own, out) if axis is None else _sum_of(self, axis, own, scaled, own, out)
        return mean if dtype is None or out is not None else mean.astype(dtype, copy=False)

    def trace(self, offset: int = 0) -> Any:
        """Return the sum of the entries on a diagonal. Synchronizes.

        Parameters
        ----------
        offset : int
            Column minus row of the entries.

        Returns
        -------
        scalar
            Of the dtype of NumPy's sums, which widens narrow integers and booleans.
        """
        if self.ndim != 2:
            raise ValueError("trace requires two dimensions")
        if not is_computed_here(self):
            return run_on_host(self, "trace", offset)
        device, (csr, _) = self.device, lines_of(self, None, summed=False)
        with device.active(), device.memory_guard():
            own = computed(csr, self.dtype)
            diagonal = kernels_of(device).sparse_rows.diagonal_entries(
                device, own, -offset if self._by_columns else offset
            )
            if not diagonal.size:
                return np.zeros(0, self.dtype).sum()
            if self.dtype.kind in "biu":
                diagonal = diagonal.astype(self.dtype).astype(np.int64)
            total = sum_of_all(device, diagonal)
        return downloaded(self, total, _sum_dtype(self.dtype))[0]

    def count_nonzero(self, axis: Any = None) -> Any:
        """Return the number of entries that are not 0. Synchronizes.

        Parameters
        ----------
        axis : {-2, -1, 0, 1, None}
            0 counts in columns, 1 in rows, None in all of the matrix.

        Returns
        -------
        int or ndarray of int
            The number in the whole matrix, or one for each row or column.
        """
        if not is_computed_here(self):
            return run_reduction_on_host(self, "count_nonzero", axis=axis)
        if isinstance(axis, tuple):
            return _refuse_axis(self, "count_nonzero", axis)
        axis = parse_axis(self, "count_nonzero", axis)
        if axis is None:
            total = sums_of_all(self, "nonzero", summed=True)
            return np.int64(int(total[0]) if total.size else 0)  # synchronizes
        counts = self.device.download(sums_along(self, axis, "nonzero", summed=True))  # synchronizes
        csr, _ = lines_of(self, None, summed=True)
        if (axis == 1) != self._by_columns and counts.sum() == csr.nnz:
            return counts.astype(csr.indptr.dtype, copy=False)  # In this case, SciPy counts by row pointers.
        return counts.astype(np.int64, copy=False)
