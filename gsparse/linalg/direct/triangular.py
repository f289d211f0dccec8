"""Solves with triangular matrices, on GPUs level by level."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.dtypes import Array
from gsparse.device.interchange import parse_dense
from gsparse.errors import FactorizationError, SingularMatrixError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.direct.factors import Transposition, solved
from gsparse.linalg.operators import solve_dtype
from gsparse.linalg.preconditioners.base import VectorPasses
from gsparse.linalg.preconditioners.ilu import FactoredPreconditioner
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.preconditioners.triangular import IncompleteFactors, UnitTriangularMatrix

# Number of right-hand sides that are solved at the same time. The buffers hold five vectors for each of them.
_MAX_COLUMNS = 128


class LevelSolves:
    """Solves with L·U = Pr·A·Pc, level by level.

    The rows of a level do not depend on each other. All right-hand sides of a block are solved in one pass over the
    factors, which reads each entry once per 32 right-hand sides.

    Parameters
    ----------
    matrix : SquareMatrix
        A. Its device holds the factors.
    L, U : sparse array, shape (N, N)
        The factors, on the host. L has a unit diagonal.
    perm_r, perm_c : ndarray, shape (N,)
        For each row and each column of A, its row and its column in Pr·A·Pc.
    """

    def __init__(
        self, matrix: SquareMatrix, L: Any, U: Any, perm_r: npt.NDArray[Any], perm_c: npt.NDArray[Any]
    ) -> None:
        self._device, self._size, self._dtype = matrix.device, matrix.size, matrix.dtype
        pivots = U.diagonal()
        above = sp.csr_array(sp.triu(U, 1, format="csr"))
        above.data /= np.repeat(pivots, np.diff(above.indptr))
        lower, upper = (
            UnitTriangularMatrix(matrix.device, matrix.size, self._uploaded(part), "levels", 0, upper=part is above)
            for part in (sp.csr_array(sp.tril(L, -1, format="csr")), above)
        )
        inverse = self._device.upload(1 / pivots)
        factors = IncompleteFactors((lower, False), inverse, (upper, False))
        self._factors = FactoredPreconditioner(matrix, "factors", lambda *_: factors)
        self._rows, self._columns = (self._device.upload(perm.astype(np.int64)) for perm in (perm_r, perm_c))
        self._row_order, self._column_order = (
            self._device.upload(np.argsort(perm).astype(np.int64)) for perm in (perm_r, perm_c)
        )

    def _uploaded(self, S: sp.csr_array) -> Csr:
        S.sort_indices()
        return Csr(S.shape, *(self._device.upload(part) for part in (S.indptr, S.indices, S.data)))

    def solve(self, b: Array, columns: int, trans: Transposition) -> Array:
        """Return the solutions for right-hand sides. Both are device arrays, which hold one column after the other."""
        xp = self._device.xp
        x = xp.empty((columns, self._size), self._dtype)
        rows = b.reshape(columns, self._size)
        for first in range(0, columns, _MAX_COLUMNS):
            part = slice(first, first + _MAX_COLUMNS)
            solution = self._solve_block(xp.conj(rows[part]) if trans == "T" else rows[part], trans != "N")
            x[part] = xp.conj(solution) if trans == "T" else solution
        return x.reshape(-1)

    def _solve_block(self, b: Array, adjoint: bool) -> Array:
        """Solve A·x = b, or Aᴴ·x = b with `adjoint`, for each row of b. Return the solutions as rows."""
        # Pr·A·Pc = L·U moves row i of A to row perm_r[i], so (Pr·b)[j] = b[row_order[j]], and
        # x[i] = (Pcᵀ·x)[perm_c[i]].
        before, after = (self._column_order, self._rows) if adjoint else (self._row_order, self._columns)
        x: Array = self._factors._product_of(self._device, b[:, before].reshape(-1), len(b), adjoint)
        return x.reshape(b.shape)[:, after]


def spsolve_triangular(
    A: Any,
    b: Any,
    lower: bool = True,
    overwrite_A: bool = False,
    overwrite_b: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """Solve A·x = b for a triangular A, with the signature of `scipy.sparse.linalg.spsolve_triangular`. Synchronizes.

    A GPU solves level by level: the rows of a level do not depend on each other, and each wide level is one launch for
    all right-hand sides. The levels are computed in each call. On a CPU, one thread processes the rows in order.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one. Entries on the other side of the diagonal
        must be zero.
    b : array_like, shape (N,) or (N, k)
        On the host or on the device of A.
    lower : bool, optional
        Whether A is lower triangular (the default) or upper triangular.
    overwrite_A, overwrite_b : bool, optional
        For compatibility with SciPy. Neither A nor b is overwritten.
    unit_diagonal : bool, optional
        Whether to treat the diagonal as a diagonal of ones, whatever its stored values are. False by default.

    Returns
    -------
    array, shape (N,) or (N, k)
        On the host or on the device, as b.

    Raises
    ------
    SingularMatrixError
        If an element of the diagonal is zero.
    FactorizationError
        If A is not triangular.
    ShapeError
        If A is not square, or b does not have a row for each row of A.
    DeviceError
        If b is on another GPU than A.
    TypeError
        If A is an operator whose entries cannot be read.
    DeviceMemoryError

    References
    ----------
    .. [1] E. Anderson, Y. Saad, "Solving sparse triangular linear systems on parallel computers", Int. J. High Speed
       Comput. 1(1), 1989.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import spsolve_triangular
    >>> S = scipy.sparse.diags_array([-1.0, 2.0], offsets=[-1, 0], shape=(3, 3))
    >>> spsolve_triangular(S, numpy.array([2.0, 0.0, 1.0]))
    array([1.  , 0.5 , 0.75])
    """
    right = parse_dense(b)
    with SquareMatrix.of(A, "spsolve_triangular", finite=False) as matrix:
        solve = partial(_solve, matrix, lower=lower, unit_diagonal=unit_diagonal)
        return solved(right, matrix.device, matrix.size, solve_dtype(matrix, right), solve)


def _solve(matrix: SquareMatrix, b: Array, columns: int, *, lower: bool, unit_diagonal: bool) -> Array:
    """Solve D·(I + N)·x = b, where N is strictly triangular. b and x hold one column after the other."""
    device, dtype = matrix.device, b.dtype
    strict = _strict_part(matrix, lower)
    if not unit_diagonal:
        pivots = matrix.stored_diagonal
        row = kernels_of(device).reductions.first_where(device, pivots, "zero")  # synchronizes
        if row is not None:
            raise SingularMatrixError(
                f"A is singular: zero entry on diagonal, in row {row}: pass unit_diagonal=True if it stands for a 1"
            )
        rows = kernels_of(device).sparse_rows.row_numbers(device, strict.indptr, strict.nnz)
        strict = strict.with_data(strict.data.astype(dtype, copy=False) / pivots[rows])
        b = (b.reshape(columns, -1) / pivots).reshape(-1).astype(dtype, copy=False)
    x = device.xp.empty_like(b)
    triangle = UnitTriangularMatrix(device, matrix.size, strict, "levels", 0, upper=not lower)
    for call in triangle.bind(VectorPasses(device, dtype, columns), adjoint=False)(b, x):
        call()
    return x


def _strict_part(matrix: SquareMatrix, lower: bool) -> Csr:
    """Return the entries strictly below (`lower`) or above the diagonal; raise an error for others. Synchronizes."""
    device, csr = matrix.device, matrix.csr
    kernels = kernels_of(device)
    is_wrong = csr.indices > matrix.rows if lower else csr.indices < matrix.rows
    entry = kernels.reductions.first_where(device, is_wrong & (csr.data != 0), "not zero")  # synchronizes
    if entry is not None:
        row, column = int(matrix.rows[entry]), int(csr.indices[entry])  # synchronizes
        side = "lower" if lower else "upper"
        raise FactorizationError(
            f"A is not {side} triangular: it has an entry at ({row}, {column}): pass lower={not lower}, or solve with "
            "spsolve"
        )
    strict: Csr = kernels.sparse_rows.keep_entries(
        device, csr, csr.indices < matrix.rows if lower else csr.indices > matrix.rows
    )
    return strict
