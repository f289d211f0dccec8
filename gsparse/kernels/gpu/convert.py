"""CSR to ELLPACK and blocked ELLPACK on the device: count, scan, fill (kernels: `src/convert.cu`)."""

from __future__ import annotations

import numpy as np

from gsparse.device import Device
from gsparse.formats import BlockedEllpack, Csr, Ellpack
from gsparse.kernels import Launch
from gsparse.kernels.gpu.catalogue import expression
from gsparse.kernels.gpu.launch import launch_rows

__all__ = ["csr_to_blocked_ellpack", "csr_to_ellpack", "csr_transpose"]

_THREADS = Launch().threads_per_block


def csr_to_ellpack(device: Device, csr: Csr, width: int) -> Ellpack:
    """Pad every row to `width`, the length of the longest (`RowStats.max_length`)."""
    size = width * csr.num_rows
    indices, data = device.empty(size, csr.indices.dtype), device.empty(size, csr.dtype)
    name = expression("fill_ellpack", csr.dtype, csr.indices.dtype)
    args = (np.int64(csr.num_rows), np.int32(width), csr.indptr, csr.indices, csr.data, indices, data)
    launch_rows(device, "convert.cu", name, csr.num_rows, _THREADS, args)
    return Ellpack(csr.shape, csr.nnz, width, csr.indptr, indices, data)


def csr_to_blocked_ellpack(device: Device, csr: Csr, slice_size: int) -> BlockedEllpack:
    """Pad every row to the longest of its slice; `slice_size` is the lanes of a warp here."""
    if slice_size != device.lanes:
        raise ValueError(f"slices must be a warp high, {device.lanes} rows here, got {slice_size}")
    num_slices = -(-csr.num_rows // slice_size)
    rows = num_slices * slice_size
    slice_offsets = device.xp.zeros(num_slices + 1, np.int64)
    count = (np.int64(csr.num_rows), np.int64(num_slices), csr.indptr, slice_offsets[1:])
    launch_rows(device, "convert.cu", expression("slice_sizes", csr.indptr.dtype), rows, _THREADS, count)
    device.xp.cumsum(slice_offsets, out=slice_offsets)
    size = int(slice_offsets[-1])  # synchronizes
    indices, data = device.empty(size, csr.indices.dtype), device.empty(size, csr.dtype)
    arrays = (slice_offsets, csr.indptr, csr.indices, csr.data, indices, data)
    name = expression("fill_blocked_ellpack", csr.dtype, csr.indices.dtype)
    launch_rows(device, "convert.cu", name, rows, _THREADS, (*count[:2], *arrays))
    return BlockedEllpack(csr.shape, csr.nnz, slice_size, slice_offsets, csr.indptr, indices, data)


def csr_transpose(device: Device, csr: Csr) -> Csr:
    """Transpose: a stable sort by column keeps the rows in order, so columns of the result rise. Synchronizes.

    The sort is CuPy's; NumPy's in the emulator.
    """
    xp = device.xp
    order = xp.argsort(csr.indices, kind="stable")
    rows = xp.searchsorted(csr.indptr[1:], order, side="right").astype(csr.indices.dtype)
    indptr = xp.zeros(csr.num_cols + 1, csr.indptr.dtype)
    xp.cumsum(xp.bincount(csr.indices, minlength=csr.num_cols), out=indptr[1:])  # synchronizes
    return Csr(csr.shape[::-1], indptr, rows, csr.data[order])
