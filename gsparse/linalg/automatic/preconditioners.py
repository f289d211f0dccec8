"""Preconditioners by name, with a few that only the automatic solve makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.linalg.automatic.properties import MatrixProperties
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.diagonal import DiagonalPreconditioner, ProductPreconditioner
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, as_matrix
from gsparse.linalg.registry import find_method
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.sparse.construction import on_host

# Largest number of rows of a matrix whose rows are matched with columns, which is done on the host.
_MAX_MATCHED = 200_000
# Lower bounds of the entries that come to the diagonal, relative to the largest entry of their row. The first bound for
# which all rows can be matched is used.
_LEAST_SHARES = (0.5, 0.1, 0.01, 1e-4, 0.0)


def make_preconditioner(name: str, A: Any, properties: MatrixProperties) -> Any:
    """Return the preconditioner of this name for a matrix, with the options that its properties suggest. Synchronizes.

    Raises
    ------
    FactorizationError
        If the preconditioner does not exist for this matrix.
    """
    if name in _MAKERS:
        return _MAKERS[name](A)
    method = find_method(name, "preconditioner")
    options: dict[str, Any] = {}
    if properties.block_size > 1 and "block_size" in method.signature.parameters:
        options["block_size"] = properties.block_size
    if properties.dtype.char in "fF" and name == "amg":
        options["dtype"] = np.float32
    return method.function(A, **options)


def absolute_diagonal(A: Any) -> DiagonalPreconditioner:
    """Return the inverse of the magnitudes of the diagonal D, and of the diagonal of B·D⁻¹·Bᴴ where D is zero.

    For a saddle point [[D, Bᴴ], [B, 0]], this approximates the Schur complement. It is positive definite, as minres
    needs it (A. Wathen, "Preconditioning", Acta Numerica 24, 2015).
    """
    with SquareMatrix.of(A, "absolute_diagonal") as matrix:
        xp, magnitude = matrix.device.xp, matrix.device.xp.abs(matrix.diagonal)
        is_zero = magnitude == 0
        inverse = xp.where(is_zero, 0, 1 / xp.where(is_zero, 1, magnitude))
        squares = matrix.csr.with_data(xp.abs(matrix.csr.data) ** 2)
        schur, dtype = xp.empty_like(inverse), np.dtype(inverse.dtype)
        matrix.operator_of(squares, products=1).bind(matrix.device, dtype)(inverse, schur)
        inverse = xp.where(is_zero, xp.where(schur == 0, 1, 1 / xp.where(schur == 0, 1, schur)), inverse)
        return DiagonalPreconditioner(matrix.device, inverse.astype(matrix.dtype, copy=False))


def matched_ilu0(A: Any) -> ProductPreconditioner:
    """Return an incomplete factorization of the rows in another order, in which the diagonal is large. Synchronizes.

    The smallest entry of the diagonal, relative to its row, is about as large as possible (I. S. Duff, J. Koster, "On
    algorithms for permuting large entries to the diagonal of a sparse matrix", SIAM J. Matrix Anal. Appl. 22(4), 2001).
    """
    with SquareMatrix.of(A, "matched_ilu0") as matrix:
        if matrix.size > _MAX_MATCHED:
            raise FactorizationError(f"rows are exchanged in matrices of up to {_MAX_MATCHED} rows, got {matrix.size}")
        rows = _match_rows(on_host(matrix.device, matrix.csr))
        ones, indptr = np.ones(rows.size, matrix.dtype), np.arange(rows.size + 1)
        exchange = sp.csr_array((ones, rows, indptr), shape=(rows.size, rows.size))
        permutation = GpuSparseMatrix(exchange, device=matrix.device)
        factors: Any = find_method("ilu0", "preconditioner").function(permutation @ as_matrix(A, "matched_ilu0"))
        return ProductPreconditioner((MatrixOperator(permutation), False), (factors, False), kind="matched_ilu0")


def _match_rows(S: sp.csr_array) -> Array:
    """Return the row whose entry comes to the diagonal of each column: an entry that is large in its row."""
    largest = np.maximum(abs(S).max(axis=1).toarray().ravel(), np.finfo(np.float64).tiny)
    coo = S.tocoo()
    rows, columns = coo.coords
    shares = abs(coo.data) / largest[rows]
    for least in _LEAST_SHARES:
        is_large = shares > least
        pattern = sp.csr_array((np.ones(is_large.sum(), np.int8), (rows[is_large], columns[is_large])), shape=S.shape)
        matched: Array = maximum_bipartite_matching(pattern, perm_type="row")
        if (matched >= 0).all():
            return matched
    raise FactorizationError("structurally singular: no order of the rows fills the diagonal")


_MAKERS: dict[str, Callable[[Any], Any]] = {"absolute_diagonal": absolute_diagonal, "matched_ilu0": matched_ilu0}
