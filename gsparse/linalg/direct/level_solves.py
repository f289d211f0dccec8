"""Solves on the device with the factors that a library has computed on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.dtypes import Array
from gsparse.formats import Csr
from gsparse.linalg.direct.factors import Transposition
from gsparse.linalg.operators import Apply
from gsparse.linalg.preconditioners.factors import IncompleteFactors
from gsparse.linalg.preconditioners.ilu import FactoredPreconditioner
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.preconditioners.triangular import UnitTriangularMatrix

# Right-hand sides that are solved at the same time. The buffers hold five vectors for each of them.
_MAX_COLUMNS = 128


class LevelSolves:
    """Solves with L·U = Pr·A·Pc, level by level.

    The rows of a level do not depend on each other. All right-hand sides of a block are solved in one pass over the
    factors, which reads each entry once for 32 of them.

    Parameters
    ----------
    matrix : SquareMatrix
        A. Its device holds the factors.
    L, U : sparse array, shape (N, N)
        On the host. L has a diagonal of ones.
    perm_r, perm_c : ndarray, shape (N,)
        The row and the column of Pr·A·Pc in which each row and column of A is.
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
        self._factors = FactoredPreconditioner(matrix, lambda _: factors, "factors")
        self._rows, self._columns = (self._device.upload(perm.astype(np.int64)) for perm in (perm_r, perm_c))
        self._row_order, self._column_order = (
            self._device.upload(np.argsort(perm).astype(np.int64)) for perm in (perm_r, perm_c)
        )
        # The latest number of columns and transposition, the solve that is bound to them, and its buffers.
        self._latest: tuple[tuple[int, bool], Apply, Array, Array] | None = None

    def _uploaded(self, S: sp.csr_array) -> Csr:
        S.sort_indices()
        return Csr(S.shape, *(self._device.upload(part) for part in (S.indptr, S.indices, S.data)))

    def solve(self, b: Array, columns: int, trans: Transposition) -> Array:
        """Return the solutions for contiguous right-hand sides, one column after the other."""
        xp = self._device.xp
        x = xp.empty((columns, self._size), self._dtype)
        rows = b.reshape(columns, self._size)
        for first in range(0, columns, _MAX_COLUMNS):
            part = slice(first, first + _MAX_COLUMNS)
            solution = self._solve_block(xp.conj(rows[part]) if trans == "T" else rows[part], trans != "N")
            x[part] = xp.conj(solution) if trans == "T" else solution
        return x.reshape(-1)

    def _solve_block(self, b: Array, adjoint: bool) -> Array:
        """Solve A·x = b, or Aᴴ·x = b, for the rows of b."""
        apply, source, target = self._bound(len(b), adjoint)
        # Pr·A·Pc = L·U moves row i of A to row perm_r[i], so (Pr·b)[j] = b[row_order[j]], and
        # x[i] = (Pcᵀ·x)[perm_c[i]].
        before, after = (self._column_order, self._rows) if adjoint else (self._row_order, self._columns)
        source[...] = b[:, before].reshape(-1)
        apply(source, target)
        return target.reshape(b.shape)[:, after]

    def _bound(self, columns: int, adjoint: bool) -> tuple[Apply, Array, Array]:
        key = columns, adjoint
        if self._latest is None or self._latest[0] != key:
            self._latest = None  # frees the buffers first
            source, target = (self._device.empty(columns * self._size, self._dtype) for _ in range(2))
            apply = self._factors.bind(self._device, self._dtype, columns, adjoint=adjoint)
            self._latest = key, apply, source, target
        return self._latest[1:]
