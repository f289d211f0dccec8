"""The constructor of a matrix: check the options, parse the source, and bring the arrays to the device.

another device matrix     shares its device arrays, if it lives on the same device
arrays of the device      are taken as they are
anything else             is parsed by SciPy on the host and uploaded
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY
from gsparse.device.select import get_device
from gsparse.errors import DeviceError, FormatError, ShapeError
from gsparse.formats import Csr
from gsparse.formats.registry import name_of
from gsparse.matrix.arrays import MatrixArrays
from gsparse.matrix.matrix_like import MatrixLike, is_device_matrix, own
from gsparse.products.planning import MatrixOptions
from gsparse.profiling.recording import recorded_call
from gsparse.sparse.construction import (
    check_dtype,
    check_maxprint,
    check_shape,
    check_source,
    device_arrays,
    device_of_source,
    downloaded,
    is_spmatrix,
    parse_dtype,
    parse_host_source,
)


@recorded_call("set-up", "new matrix")
def construct(
    new: MatrixLike,
    source: Any,
    shape: tuple[int, ...] | None,
    dtype: Any,
    copy: bool,
    device: str | Device | None,
    options: dict[str, Any],
    maxprint: int | None,
) -> None:
    """Set the attributes of a new matrix; the arguments are those of `GpuSparseMatrix`.

    Raises
    ------
    StructureError, ShapeError, DtypeError
        If `source` is no matrix of this shape and dtype, or not square although it is declared symmetric.
    FormatError
        If an option is unknown, or cannot be met for this matrix.
    DeviceError, DeviceMemoryError
        If there is no such device, or it has too little memory.
    """
    check_source(source)
    other = source if is_device_matrix(source) else None
    inherited = (
        MatrixOptions(block_shape=_block_shape_of(source, new._by_columns)) if other is None else other._arrays.options
    )
    if other is not None and shape not in (None, other.shape):
        inherited = replace(inherited, symmetric=None)  # With another shape, the matrix need not be symmetric any more.
    matrix_options = _parse_options(options, inherited)
    check_maxprint(maxprint)
    check_shape(shape)
    home = device_of_source(source) if other is None else other.device
    target = get_device(device) if device is not None or home is None else home
    came_from_spmatrix = is_spmatrix(source) or (other is not None and other._came_from_spmatrix)
    dtype = parse_dtype(dtype)
    if other is not None and home is target and shape in (None, other.shape) and _can_share(other, new._by_columns):
        shared = other if dtype is None else source.astype(dtype, copy=False)
        arrays = _shared(shared, target, matrix_options, by_columns=new._by_columns)
        own(new, arrays, other.shape, came_from_spmatrix, maxprint)
    elif other is None and home is not None and home is target:
        shape, arrays = _of_device_source(target, matrix_options, source, shape, dtype, copy)
        own(new, arrays, shape, came_from_spmatrix, maxprint)
        arrays.current(new._stored_shape)
    else:
        host = downloaded(source) if other is None and home is not None else source
        attributes, arrays = _of_host_source(new._scipy_base, target, matrix_options, host, shape, dtype, copy)
        vars(new).update(attributes)
        own(new, arrays, attributes["_shape"], came_from_spmatrix, maxprint)
        if new.dtype.char not in HOST_ONLY:
            arrays.make_device_current()
            arrays.current(new._stored_shape)
    if new.ndim != 2 and isinstance(new, sp.spmatrix):
        raise ShapeError(f"a sparse matrix has two dimensions, got shape {new.shape}: use A.reshape(1, -1)")
    if matrix_options.symmetric and (new.ndim != 2 or new.shape[0] != new.shape[1]):
        raise ShapeError(f"symmetric={matrix_options.symmetric!r} takes a square matrix, got shape {new.shape}")
    if options["format"] is not None:
        _check_format(new, matrix_options.format)


def _parse_options(options: dict[str, Any], inherited: MatrixOptions) -> MatrixOptions:
    """Return the checked options. An option that is None has the value of `inherited`."""
    options = dict(options)
    schedule = options.pop("schedule")
    if schedule is not None:
        options["format"] = name_of(options["format"] or "auto", schedule)
    return replace(inherited, **{name: option for name, option in options.items() if option is not None})


def _block_shape_of(source: Any, by_columns: bool) -> tuple[int, int] | None:
    """Return the block size of a BSR matrix, in the order of the new CSR arrays; None for any other source."""
    if not isinstance(source, (sp.bsr_array, sp.bsr_matrix)):
        return None
    rows, columns = map(int, source.blocksize)
    return (columns, rows) if by_columns else (rows, columns)


def _can_share(other: MatrixLike, by_columns: bool) -> bool:
    """Return whether `_shared` can be called: no device can transpose values of extended precision."""
    return other.dtype.char not in HOST_ONLY or _has_same_arrays(other, by_columns)


def _has_same_arrays(other: MatrixLike, by_columns: bool) -> bool:
    """Return whether a new matrix can use the arrays of `other` without transposing them."""
    return other._by_columns is by_columns or other.ndim == 1


def _shared(other: MatrixLike, device: Device, matrix_options: MatrixOptions, *, by_columns: bool) -> MatrixArrays:
    """Return arrays that share another matrix's device arrays until one of the matrices is written."""
    if _has_same_arrays(other, by_columns):
        arrays = other._arrays.share()
        arrays.set_options(matrix_options)
        return arrays
    prepared, conjugated = other._prepared(transpose=by_columns)
    return MatrixArrays.of_device(device, matrix_options.transposed(), prepared.csr, conjugated=conjugated)


def _of_device_source(
    device: Device, matrix_options: MatrixOptions, source: Any, shape: Any, dtype: Any, copy: bool
) -> tuple[tuple[int, ...], MatrixArrays]:
    """Take arrays of this device, which do not pass through the host. Return the shape and the arrays."""
    with device.active(), device.memory_guard():
        shape, *parts = device_arrays(device, source, shape, dtype, copy)
    check_dtype(parts[-1].dtype)
    return shape, MatrixArrays.of_device(device, matrix_options, Csr(cast(tuple[int, int], shape), *parts))


def _of_host_source(
    scipy_base: Any, device: Device, matrix_options: MatrixOptions, source: Any, shape: Any, dtype: Any, copy: bool
) -> tuple[dict[str, Any], MatrixArrays]:
    """Let SciPy parse a source of the host. Return the attributes that it sets, and the arrays.

    After the return, the arrays count as on loan only if the caller of the constructor refers to their memory.
    """
    attributes, arrays = parse_host_source(scipy_base, source, shape, dtype, copy)
    check_dtype(arrays[-1].dtype)
    return attributes, MatrixArrays.of_host(device, matrix_options, *arrays)


def _check_format(new: MatrixLike, format: str) -> None:
    """Refuse a format that the user named and in which this matrix cannot be stored."""
    if new._by_columns or format == "auto":
        return
    if new.dtype.char in HOST_ONLY:
        if format != "csr":
            raise FormatError(
                f"format={format!r} takes values that devices compute with, got {new.dtype}: convert with "
                "astype(float), or leave the format at 'auto'"
            )
        return
    refusal = new._arrays.current(new._stored_shape).refusal()
    if refusal is not None:
        raise refusal


def rebuild(
    cls: type[Any],
    arrays: Any,
    shape: Any,
    kind: str,
    matrix_options: MatrixOptions,
    came_from_spmatrix: bool,
    maxprint: int,
) -> Any:
    """Unpickle a matrix, on a device of the same kind if there is one, else on the CPU."""
    try:
        device = get_device(kind)
    except DeviceError:
        device = get_device("cpu")
    new = cls(arrays, shape=shape, device=device, maxprint=maxprint)
    # The constructor would refuse a format that does not fit, but the result of an operation may have inherited it.
    prepared = new._arrays.prepared
    new._arrays.set_options(matrix_options)
    if prepared is not None:
        new._arrays.prepared = prepared.with_data(prepared.source[2], matrix_options)
    new._came_from_spmatrix = came_from_spmatrix
    return new
