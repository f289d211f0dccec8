"""Eigenpairs of matrices so small that they are solved as dense ones, on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.linalg.operators import DenseOperator, MatrixOperator, Operator

Host = npt.NDArray[Any]


def as_dense(operator: Operator, device: Device, dtype: np.dtype[Any]) -> Host:
    """Return the entries of an operator on the host, by products with the columns of the identity if need be."""
    if isinstance(operator, MatrixOperator):
        matrix: Any = operator.matrix
        return np.asarray(matrix.toarray()).astype(dtype, copy=False)
    if isinstance(operator, DenseOperator):
        array = operator.array
        return np.asarray(array if isinstance(array, np.ndarray) else device.download(array)).astype(dtype, copy=False)
    rows, columns = operator.shape
    product = operator.bind(device, dtype)
    y, identity = device.xp.zeros(rows, dtype), device.upload(np.eye(columns, dtype=dtype))
    result = np.empty((rows, columns), dtype)
    for column in range(columns):
        product(identity[column], y)
        result[:, column] = device.download(y)  # synchronizes
    return result


def hermitian_pairs(A: Host, M: Host | None) -> tuple[Host, Host]:
    """Return all eigenvalues of A·x = λ·M·x, ascending, and M-orthonormal eigenvectors, for Hermitian A and M.

    If M is only semidefinite, the finite eigenvalues are returned.
    """
    if M is None:
        values, vectors = np.linalg.eigh(np.asarray_chkfinite(A))
        return values, vectors
    try:
        return scipy.linalg.eigh(A, M)  # type: ignore[no-any-return]
    except scipy.linalg.LinAlgError:
        values, vectors = scipy.linalg.eig(A, M)
    is_finite = np.isfinite(values)
    values, vectors = values[is_finite].real, vectors[:, is_finite]
    order = np.argsort(values, kind="stable")
    values, vectors = values[order], vectors[:, order]
    norms = np.sqrt(np.maximum(np.einsum("ij,ij->j", vectors.conj(), M @ vectors).real, np.finfo(A.dtype).tiny))
    vectors = vectors / norms
    return values, vectors.real if A.dtype.kind != "c" and M.dtype.kind != "c" else vectors


def dense_pairs(A: Host, M: Host | None) -> tuple[Host, Host]:
    """Return the finite eigenvalues of A·x = λ·M·x, as complex numbers, and eigenvectors of norm 1."""
    values, vectors = scipy.linalg.eig(A, M)
    is_finite = np.isfinite(values)
    return values[is_finite], vectors[:, is_finite]


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which dense problems are solved."""
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def rows_of(vectors: Host, dtype: np.dtype[Any], device: Device) -> Array:
    """Return columns of a host array as rows of an array on the device."""
    return device.upload(np.ascontiguousarray(vectors.T).astype(dtype))
