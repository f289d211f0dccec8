"""Parse the arguments of a matrix's constructor into CSR arrays, and refuse those that do not describe a matrix."""

from __future__ import annotations

from collections.abc import Sized
from operator import index
from os import PathLike, fspath
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import DtypeError, ShapeError, StructureError
from gsparse.files.checks import scipy_matrices
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.kernels.backends import kernels_of


def check_source(source: Any) -> None:
    """Raise an error for arguments that users pass by mistake instead of a matrix: a file name, None, or a tensor."""
    if isinstance(source, str | PathLike):
        raise StructureError(
            f"a matrix is not made from a string or path: to read a file, use "
            f"GpuSparseMatrix.from_file({fspath(source)!r})"
        )
    if source is None:
        raise StructureError(
            "no matrix can be made of None: give a SciPy sparse array, a dense array, (data, (row, col)), "
            "(data, indices, indptr) or a shape"
        )
    if str(getattr(source, "layout", "")).startswith("torch.sparse"):
        raise StructureError(
            "a sparse tensor is no matrix of SciPy's: with C = tensor.cpu().to_sparse_csr(), give "
            "(C.values(), C.col_indices(), C.crow_indices()) and shape=tuple(C.shape)"
        )


def check_maxprint(maxprint: Any) -> None:
    """Raise ShapeError for a `maxprint` with which SciPy would fail when it prints the matrix."""
    if maxprint is not None and not (isinstance(maxprint, int | float | np.integer | np.floating) and maxprint >= 0):
        raise ShapeError(f"maxprint must be a number of entries, at least 0, got {maxprint!r}")


def device_of_source(source: Any) -> Device | None:
    """Return the GPU on which a constructor's argument or a part of it lives; None if all of it is on the host."""
    parts = source if isinstance(source, tuple) else (source,)
    for part in parts:
        for item in part if isinstance(part, tuple) else (part,):
            device = device_of(item)
            if device is not None:  # on GPUs only
                return device
    return None


def is_spmatrix(source: Any) -> bool:
    """Return whether ``*`` with this object is a matrix product, as for `spmatrix` and CuPy's sparse matrices."""
    return isinstance(source, sp.spmatrix) or (hasattr(source, "tocsr") and device_of(source) is not None)


def device_arrays(device: Device, source: Any, shape: Any, dtype: Any, copy: bool) -> tuple[Any, Array, Array, Array]:
    """Return shape, indptr, indices and data of a source that is on the device. May synchronize.

    No array is copied to the host.

    Parameters
    ----------
    source : CuPy sparse matrix, CuPy dense array, (data, (row, col)) or (data, indices, indptr)
    shape : (int, int) or None
        None means the shape of `source`, or the smallest shape into which its indices fit.
    dtype : dtype or None
        The dtype of the values; None means the dtype of `source`.
    copy : bool
        Whether the result must not share memory with `source`.

    Raises
    ------
    ShapeError, StructureError
        If the shapes do not fit together, or indices are not integers within the shape.
    """
    xp = device.xp
    if not isinstance(source, tuple):
        if hasattr(source, "tocsr"):
            csr = source.tocsr()
            shape, source = shape or csr.shape, (csr.data, csr.indices, csr.indptr)
        else:
            shape, source = _shape_of(source.shape if shape is None else shape), _from_dense(device, source, shape)
    elif len(source) == 2:
        shape, source = _from_coordinates(device, source[0], source[1], shape)
    elif len(source) != 3:
        raise ShapeError(f"device arrays are (data, (row, col)) or (data, indices, indptr), got {len(source)} parts")
    data, indices, indptr = (xp.asarray(part) for part in source)
    if shape is None:
        shape = (int(indptr.size) - 1, int(indices.max()) + 1 if indices.size else 0)  # synchronizes
    data = data.astype(data.dtype if dtype is None else dtype, copy=copy)
    return _shape_of(shape), indptr.astype(indptr.dtype, copy=copy), indices.astype(indices.dtype, copy=copy), data


def _shape_of(shape: Any) -> tuple[int, int]:
    try:
        num_rows, num_cols = shape
        return int(num_rows), int(num_cols)
    except (TypeError, ValueError):
        raise ShapeError(f"shape must be two integers, got {shape!r}") from None


def _from_dense(device: Device, dense: Array, shape: Any) -> tuple[Array, Array, Array]:
    if dense.ndim != 2:
        raise ShapeError(f"a dense device array must have two dimensions, got shape {dense.shape}")
    if shape is not None and _shape_of(shape) != dense.shape:
        raise ShapeError(f"shape {shape} was given for a dense array of shape {dense.shape}: leave it out")
    rows, columns = device.xp.nonzero(dense)
    return dense[rows, columns], _narrow(columns, dense.shape[1]), _row_pointers(device, rows, dense.shape[0])


def _from_coordinates(
    device: Device, data: Array, coordinates: Any, shape: Any
) -> tuple[Any, tuple[Array, Array, Array]]:
    """Return the shape, and the data, indices and indptr of coordinates. Synchronizes.

    Entries of one row keep their order, and repeated entries remain.
    """
    xp, kernels = device.xp, kernels_of(device)
    row, column = (xp.asarray(part) for part in coordinates)
    data = xp.asarray(data)
    if not row.shape == column.shape == data.shape or data.ndim != 1:
        shapes = f"{row.shape}, {column.shape}, {data.shape}"
        raise StructureError(f"row, col and data must be vectors of one length, got {shapes}")
    for name, part in (("row", row), ("column", column)):
        if part.dtype.kind not in "iu":
            raise StructureError(f"{name} indices must be integers, got {part.dtype}: use astype(numpy.int32)")
    if shape is None:
        shape = tuple(int(part.max()) + 1 if part.size else 0 for part in (row, column))  # synchronizes
    shape = _shape_of(shape)
    for name, part, size in zip(("row", "column"), (row, column), shape, strict=True):
        if not kernels.sparse_rows.are_in_range(device, part, size):  # synchronizes
            span = f"{int(part.min())} to {int(part.max())}"  # synchronizes
            raise StructureError(f"{name} indices must lie in 0 to {size - 1}, they span {span}")
    dtype = np.int32 if max(*shape, int(data.size)) <= MAX_INT32 else np.int64
    order, indptr = kernels.transpose.order_by_row(device, row.astype(dtype, copy=False), shape[0])
    return shape, (data[order], column.astype(dtype, copy=False)[order], indptr)


def _row_pointers(device: Device, rows: Array, num_rows: int) -> Array:
    xp, indptr = device.xp, device.xp.zeros(num_rows + 1, np.int64)
    counts = kernels_of(device).sparse_rows.count_numbers(device, xp.ascontiguousarray(rows), num_rows)
    xp.cumsum(counts, out=indptr[1:])
    return _narrow(indptr, int(rows.size))


def _narrow(indices: Array, bound: int) -> Array:
    return indices.astype(np.int32 if bound <= np.iinfo(np.int32).max else np.int64)


def parse_host_source(
    scipy_class: Any, source: Any, shape: Any, dtype: Any, copy: bool
) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """Parse a source on the host with SciPy's constructor.

    Parameters
    ----------
    scipy_class : {csr_array, csc_array, csr_matrix, csc_matrix}
    source, shape, dtype, copy
        The arguments of the constructor of `scipy_class`.

    Returns
    -------
    dict, [ndarray, ndarray, ndarray]
        The attributes that SciPy's constructor sets, and indptr, indices and data. Only the caller refers to these
        arrays when this function has returned.
    """
    check_index_kinds(source)
    try:
        with scipy_matrices():
            parsed = scipy_class(source, shape=shape, dtype=dtype, copy=copy)
    except ValueError as error:
        if "dtype" in str(error):
            remedy = "use astype(float), or encode text and categories as numbers first"
            raise DtypeError(f"no matrix can be made of this source: {str(error).rstrip('.')}: {remedy}") from error
        raise StructureError(f"no matrix can be made of this source: {_uneven_rows(source) or error}") from error
    attributes = vars(parsed)
    return attributes, [attributes.pop(name) for name in ("indptr", "indices", "data")]


def _uneven_rows(source: Any) -> str:
    """Return an error message if the source is a list of rows that differ in length, else an empty string."""
    if not isinstance(source, list) or not all(isinstance(row, Sized) and not isinstance(row, str) for row in source):
        return ""
    lengths = {len(row) for row in source}
    if len(lengths) < 2:
        return ""
    return (
        f"all rows need the same length, they have {min(lengths)} to {max(lengths)} elements: fill them up with zeros"
    )


def downloaded(source: Any) -> Any:  # on GPUs only
    """Return a constructor's argument with its device arrays copied to the host. Synchronizes."""
    if isinstance(source, tuple):
        return tuple(map(downloaded, source))
    home = device_of(source)
    if home is not None and home.owns(source):
        return home.download(source)
    return source.get() if hasattr(source, "get") else source


def check_index_kinds(source: Any) -> None:
    """Raise an error for indices that are not integers, which SciPy would accept or cast."""
    parts: Any = ()
    if sp.issparse(source):
        parts = [vars(source).get(name, ()) for name in ("indptr", "indices")]
    elif isinstance(source, tuple) and len(source) in (2, 3):
        parts = source[1] if len(source) == 2 else source[1:]
    for part in parts if isinstance(parts, tuple | list) or np.ndim(parts) == 2 else ():
        array = np.asarray(part)
        if array.ndim == 1 and array.size and array.dtype.kind not in "iu":
            raise StructureError(f"indices must be integers, got {array.dtype}: convert them with astype(numpy.int32)")


def parse_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the argument `dtype` of a constructor as a checked dtype in native byte order; None for None."""
    if dtype is None:
        return None
    try:
        parsed: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise DtypeError(f"dtype must name a dtype of NumPy, such as 'float64', got {dtype!r}: {error}") from error
    check_dtype(parsed)
    return parsed


def check_shape(shape: Any) -> None:
    """Raise ShapeError if a length is not an integer. SciPy checks the rest of a shape."""
    lengths = shape if isinstance(shape, tuple | list | np.ndarray) else (() if shape is None else (shape,))
    try:
        for length in lengths:
            index(length)
    except TypeError:
        raise ShapeError(f"shape must be two integers, or one for a sparse vector, got {shape!r}") from None


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise DtypeError for dtypes that SciPy's sparse arrays do not support: objects, strings, half precision."""
    if dtype.kind not in "biufc" or dtype == np.float16:
        raise DtypeError(f"a sparse matrix does not support dtype {dtype}: convert with astype(float)")


def on_host(device: Device, csr: Csr) -> sp.csr_array:
    """Copy a CSR matrix to the host. Synchronizes."""
    parts = (device.download(part) for part in (csr.data, csr.indices, csr.indptr))
    return sp.csr_array(tuple(parts), shape=csr.shape)
