"""The inverse of the coarsest matrix of a hierarchy: dense, and computed on the host if it is small."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.formats import Csr
from gsparse.linalg.small_matrices import with_one_blas_thread
from gsparse.sparse.reshaping import dense_of

# Matrices with at most this number of rows are inverted on the host. On a GPU the inverse of one with 100 rows takes 1
# to 2 ms, and up to a second the first time, because CuPy loads cuSOLVER then. On the host it takes 0.5 ms.
_HOST_ROWS = 256
# A matrix is inverted as it is if the condition number, in the 1-norm, is at most this part of 1/eps. Otherwise it
# counts as singular, and gets a pseudo-inverse.
_REGULAR = 1e-3
# Eigenvalues and singular values below this multiple of eps·√n times the largest one count as zero.
_NOISE = 4.0


def dense_inverse(device: Device, csr: Csr, hermitian: bool) -> Csr:
    """Return the inverse, or the pseudo-inverse of a singular matrix, with an entry everywhere. Synchronizes.

    Parameters
    ----------
    device : Device
        The device of the arrays. It must be the active one.
    csr : Csr
        A square matrix in canonical form. Singular matrices belong to problems without boundary conditions, whose
        solutions are only determined up to a constant.
    hermitian : bool
        Whether the matrix is Hermitian up to rounding.

    Raises
    ------
    FactorizationError
        If a value is not finite.
    """
    size, dtype = csr.num_rows, np.result_type(csr.dtype, np.float64)
    dense, xp, is_small = dense_of(device, csr).astype(dtype), device.xp, size <= _HOST_ROWS
    if is_small:
        dense, xp = device.download(dense), np  # synchronizes
    if hermitian:
        dense = (dense + dense.conj().T) / 2
    inverse = _inverse(xp, dense, float(np.finfo(csr.dtype).eps), hermitian) if size else dense
    indptr = xp.arange(0, size * size + 1, max(size, 1), dtype=csr.indptr.dtype)[: size + 1]
    columns = xp.tile(xp.arange(size, dtype=csr.indices.dtype), size)
    values = xp.ascontiguousarray(inverse).reshape(-1).astype(csr.dtype)
    if is_small:
        indptr, columns, values = (device.upload(part) for part in (indptr, columns, values))
    return Csr(csr.shape, indptr, columns, values, True)


@with_one_blas_thread
def _inverse(xp: Any, dense: Array, eps: float, hermitian: bool) -> Array:
    try:
        inverse = xp.linalg.inv(dense)
    except np.linalg.LinAlgError:  # NumPy raises it if a pivot is exactly zero
        return _pseudo_inverse(xp, dense, eps, hermitian)
    norms = xp.abs(dense).sum(axis=0).max() * xp.abs(inverse).sum(axis=0).max()
    condition = float(norms)  # synchronizes
    if np.isfinite(condition) and condition <= _REGULAR / eps:
        return (inverse + inverse.conj().T) / 2 if hermitian else inverse
    return _pseudo_inverse(xp, dense, eps, hermitian)


def _pseudo_inverse(xp: Any, dense: Array, eps: float, hermitian: bool) -> Array:
    if not xp.isfinite(dense).all():  # synchronizes
        raise FactorizationError(
            "amg: the coarsest matrix has a value that is not finite, because the values of A are too large for their "
            "dtype, or because A has not the symmetry that was declared: scale A, or leave symmetry= out"
        )
    noise = _NOISE * eps * dense.shape[0] ** 0.5
    if hermitian:
        values, left = xp.linalg.eigh(dense)
        right = left
    else:
        left, values, adjoint = xp.linalg.svd(dense)
        right = adjoint.conj().T
    sizes = xp.abs(values)
    is_noise = sizes <= noise * sizes.max()
    inverses = xp.where(is_noise, 0, 1 / xp.where(is_noise, 1, values))
    return (right * inverses) @ left.conj().T
