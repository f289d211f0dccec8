"""From what a caller has to CSR arrays on a device: the boundary where input is parsed."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import DtypeError, ShapeError, StructureError
from gsparse.files import read_file

__all__ = ["check_source", "device_arrays", "device_of_source", "is_spmatrix", "read_file"]


def check_source(source: Any) -> None:
    """Refuse what is taken for a matrix by mistake: a file's name, nothing, a sparse tensor."""
    if isinstance(source, str | PathLike):
        raise StructureError(f"a file name? use GpuSparseMatrix.from_file({fspath(source)!r})")
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


def device_of_source(source: Any) -> Device | None:
    """Give the GPU that a constructor's argument lives on; None for anything of the host."""
    parts = source if isinstance(source, tuple) else (source,)
    for part in parts:
        for item in part if isinstance(part, tuple) else (part,):
            found = device_of(item)
            if found is not None:  # on GPUs only
                return found
    return None


def is_spmatrix(source: Any) -> bool:
    """Tell whether ``*`` is a matrix product of the source: of SciPy's `spmatrix`, and of CuPy's sparse matrices."""
    return isinstance(source, sp.spmatrix) or (hasattr(source, "tocsr") and device_of(source) is not None)


def device_arrays(device: Device, source: Any, shape: Any, dtype: Any, copy: bool) -> tuple[Any, Array, Array, Array]:
    """Give shape, indptr, indices and data from device arrays, without a host copy.

    Parameters
    ----------
    source : CuPy sparse matrix, CuPy dense array, (data, (row, col)) or (data, indices, indptr)
    copy : bool
        Whether the result must not share memory with `source`.
    """
    xp = device.xp
    if not isinstance(source, tuple):
        if hasattr(source, "tocsr"):
            csr = source.tocsr()
            shape, source = shape or csr.shape, (csr.data, csr.indices, csr.indptr)
        else:
            shape, source = _shape_of(source.shape if shape is None else shape), _from_dense(xp, source, shape)
    elif len(source) == 2:
        shape, source = _from_coordinates(xp, source[0], source[1], shape)
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


def _from_dense(xp: Any, dense: Array, shape: Any) -> tuple[Array, Array, Array]:
    if dense.ndim != 2:
        raise ShapeError(f"a dense device array must have two dimensions, got shape {dense.shape}")
    if shape is not None and _shape_of(shape) != dense.shape:
        raise ShapeError(f"shape {shape} was given for a dense array of shape {dense.shape}: leave it out")
    rows, columns = xp.nonzero(dense)
    return dense[rows, columns], _narrow(columns, dense.shape[1]), _row_pointers(xp, rows, dense.shape[0])


def _from_coordinates(xp: Any, data: Array, coordinates: Any, shape: Any) -> tuple[Any, tuple[Array, Array, Array]]:
    """Sort coordinates by row, stably; duplicates stay and add up in products."""
    row, column = (xp.asarray(part) for part in coordinates)
    data = xp.asarray(data)
    if not row.shape == column.shape == data.shape or data.ndim != 1:
        shapes = f"{row.shape}, {column.shape}, {data.shape}"
        raise StructureError(f"row, col and data must be vectors of one length, got {shapes}")
    spans = [(int(part.min()), int(part.max())) if part.size else (0, -1) for part in (row, column)]  # synchronizes
    shape = tuple(high + 1 for _, high in spans) if shape is None else _shape_of(shape)
    for name, part, (low, high), size in zip(("row", "column"), (row, column), spans, shape, strict=True):
        if part.dtype.kind not in "iu":
            raise StructureError(f"{name} indices must be integers, got {part.dtype}: use astype(numpy.int32)")
        if low < 0 or high >= size:
            raise StructureError(f"{name} indices must lie in 0 to {size - 1}, they span {low} to {high}")
    order = xp.argsort(row, kind="stable")
    return shape, (data[order], _narrow(column[order], shape[1]), _row_pointers(xp, row, shape[0]))


def _row_pointers(xp: Any, rows: Array, num_rows: int) -> Array:
    indptr = xp.zeros(num_rows + 1, np.int64)
    xp.cumsum(xp.bincount(rows, minlength=num_rows), out=indptr[1:])  # synchronizes
    return _narrow(indptr, int(rows.size))


def _narrow(indices: Array, bound: int) -> Array:
    return indices.astype(np.int32 if bound <= np.iinfo(np.int32).max else np.int64)


def check_index_kinds(source: Any) -> None:
    """Refuse indices that are no integers, which SciPy casts without a word."""
    if not isinstance(source, tuple) or len(source) not in (2, 3):
        return
    parts = source[1] if len(source) == 2 else source[1:]
    for part in parts if isinstance(parts, tuple | list) else ():
        array = np.asarray(part)
        if array.ndim == 1 and array.size and array.dtype.kind not in "iu":
            raise StructureError(f"indices must be integers, got {array.dtype}: convert them with astype(numpy.int32)")


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Refuse values that no sparse array holds, as SciPy does: objects, strings, half precision."""
    if dtype.kind not in "biufc" or dtype == np.float16:
        raise DtypeError(f"a sparse matrix does not support dtype {dtype}: convert with astype(float)")
