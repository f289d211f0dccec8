"""Sparse matrix-vector products: types bound and launched (contract: `gsparse.kernels`; kernels: `src/spmv_*.cu`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.device import Device
from gsparse.formats import BlockedEllpack, Csr, Ellpack
from gsparse.kernels import Launch
from gsparse.kernels.gpu.catalogue import expression
from gsparse.kernels.gpu.launch import launch_rows

__all__ = ["blocked_ellpack", "csr_scalar", "csr_vector", "ellpack"]


def _tail(x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool) -> tuple[Any, ...]:
    """Give the arguments that end every product's list: vectors, scalars, and whether y is read at all."""
    return x, y, alpha, beta, np.int32(beta != 0), np.int32(conjugate)


def csr_scalar(
    device: Device, matrix: Csr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """Multiply with one thread a row."""
    name = expression("csr_scalar", matrix.dtype, x.dtype, matrix.indices.dtype)
    args = (np.int64(matrix.num_rows), matrix.indptr, matrix.indices, matrix.data, *_tail(x, y, alpha, beta, conjugate))
    launch_rows(device, "spmv_csr.cu", name, matrix.num_rows, launch.threads_per_block, args)


def csr_vector(
    device: Device, matrix: Csr, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """Multiply with `launch.threads_per_row` lanes a row."""
    name = expression("csr_vector", matrix.dtype, x.dtype, matrix.indices.dtype, launch.threads_per_row)
    args = (np.int64(matrix.num_rows), matrix.indptr, matrix.indices, matrix.data, *_tail(x, y, alpha, beta, conjugate))
    threads = matrix.num_rows * launch.threads_per_row
    launch_rows(device, "spmv_csr.cu", name, threads, launch.threads_per_block, args)


def ellpack(
    device: Device, matrix: Ellpack, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """Multiply with one thread a row of a column-major, padded matrix."""
    name = expression("ellpack", matrix.dtype, x.dtype, matrix.indices.dtype)
    arrays = (matrix.indptr, matrix.indices, matrix.data)
    args = (np.int64(matrix.num_rows), np.int32(matrix.width), *arrays, *_tail(x, y, alpha, beta, conjugate))
    launch_rows(device, "spmv_ellpack.cu", name, matrix.num_rows, launch.threads_per_block, args)


def blocked_ellpack(
    device: Device, matrix: BlockedEllpack, x: Array, y: Array, alpha: Any, beta: Any, conjugate: bool, launch: Launch
) -> None:
    """Multiply with one thread a row, a warp a slice."""
    name = expression("blocked_ellpack", matrix.dtype, x.dtype, matrix.indices.dtype)
    arrays = (matrix.slice_offsets, matrix.indptr, matrix.indices, matrix.data)
    args = (np.int64(matrix.num_rows), *arrays, *_tail(x, y, alpha, beta, conjugate))
    launch_rows(device, "spmv_ellpack.cu", name, matrix.num_rows, launch.threads_per_block, args)
