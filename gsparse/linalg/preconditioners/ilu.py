"""Incomplete factorizations without fill-in: A ≈ (I + L)·D·(I + U), where L and U are strictly triangular."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.relaxation import FROM_ZERO
from gsparse.linalg.preconditioners.base import CallBuilder, MatrixPreconditioner, VectorPasses
from gsparse.linalg.preconditioners.diagonal import BlockStep
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.preconditioners.triangular import (
    SOLVES,
    BlockFactorization,
    IncompleteFactorization,
    IncompleteFactors,
    UnitTriangularMatrix,
    levels_of,
)
from gsparse.linalg.registry import register

SolveKind = Literal["levels", "jacobi"]


@dataclass(frozen=True, eq=False)
class RowStructure:
    """The structure of incomplete factors by rows: the positions of entries and the order of the rows.

    Attributes
    ----------
    device : Device
    pattern : Csr
        The structure of the matrix with a full diagonal. Its values are positions in the data of the matrix; for
        diagonal elements that the matrix does not store, a position past the end.
    is_full : bool
        Whether the matrix stores all elements of its diagonal.
    diagonal : array, shape (N,)
        The positions of the diagonal in `pattern`.
    lower, upper : Csr
        The entries below and above the diagonal, with their positions in `pattern` as values.
    """

    device: Device
    pattern: Csr
    is_full: bool
    diagonal: Array
    lower: Csr
    upper: Csr

    @classmethod
    def of(cls, matrix: SquareMatrix) -> RowStructure:
        """Return the structure for a matrix: complete its diagonal, and find its triangles. Synchronizes."""
        device, kernels, xp = matrix.device, kernels_of(matrix.device), matrix.device.xp
        pattern, every = matrix.csr.with_data(xp.arange(matrix.csr.nnz)), xp.arange(matrix.size, dtype=np.int64)
        diagonal, num_missing, _ = kernels.edits.find_entries(device, pattern, every, every, True)  # synchronizes
        if num_missing:
            rows = xp.flatnonzero(diagonal < 0).astype(np.int64)
            past_the_end = xp.full(rows.size, pattern.nnz, pattern.dtype)
            pattern = kernels.edits.insert_entries(device, pattern, rows, rows, past_the_end, True)
            diagonal, _, _ = kernels.edits.find_entries(device, pattern, every, every, True)  # synchronizes
        places = pattern.with_data(xp.arange(pattern.nnz))
        lower, upper = (
            kernels.sparse_rows.triangle(device, places, *side) for side in ((-1, False), (1, True))
        )  # synchronizes
        return cls(device, pattern, not num_missing, diagonal.astype(pattern.indices.dtype), lower, upper)

    @cached_property
    def levels(self) -> Levels | None:
        """The levels of `lower`; None if one thread visits all rows. Synchronizes the first time."""
        return levels_of(self.device, self.lower, upper=False)

    def fill(self, matrix: SquareMatrix, diagonal: Array) -> Csr:
        """Return `pattern` with the values of a matrix of this structure, whose diagonal is replaced by `diagonal`."""
        xp, values = matrix.device.xp, matrix.csr.data
        zero = xp.zeros(1, values.dtype)
        data = values.copy() if self.is_full else xp.concatenate([values, zero])[self.pattern.data]
        data[self.diagonal] = diagonal
        return self.pattern.with_data(data)


class RowFactorization(IncompleteFactorization):
    """Computes incomplete factors row by row; see `IncompleteFactorization`."""

    _structure: RowStructure | None = None

    def _factorize(self, matrix: SquareMatrix) -> IncompleteFactors:
        device = matrix.device
        structure = self._structure or RowStructure.of(matrix)
        filled = structure.fill(matrix, self._shifted_diagonal(matrix))
        kernels_of(device).triangular.factorize_ilu0(device, filled, structure.diagonal, structure.levels)
        factors = filled.data
        pivots, hermitian = factors[structure.diagonal], self.name == "ic0"
        self._check(matrix, pivots, hermitian)
        self._structure = structure
        below, above = structure.lower, structure.upper
        lower = self._triangle(UnitTriangularMatrix, matrix, below.with_data(factors[below.data]), upper=False)
        if hermitian:
            return IncompleteFactors((lower, False), (1 / pivots.real).astype(matrix.dtype), (lower, True))
        rows = kernels_of(device).sparse_rows.row_numbers(device, above.indptr, above.nnz)
        scaled = above.with_data(factors[above.data] / pivots[rows])
        upper = self._triangle(UnitTriangularMatrix, matrix, scaled, upper=True)
        return IncompleteFactors((lower, False), 1 / pivots, (upper, False))

    def _check(self, matrix: SquareMatrix, pivots: Array, hermitian: bool) -> None:
        """Raise an error if a pivot is zero or not finite, or not positive if `hermitian`. Synchronizes."""
        test = "not positive" if hermitian else "zero"
        row = kernels_of(matrix.device).reductions.first_where(matrix.device, pivots, test, "not finite")
        if row is None:
            return
        if hermitian:
            fault = f"ic0: the pivot in row {row} is not positive: try ic0(A, shift=0.01); for an indefinite A use "
            fault += "ilu0(A) with gmres"
        else:
            fault = f"ilu0: the pivot in row {row} is zero or not finite: try ilu0(A, shift=0.01), or reorder the rows"
        raise matrix.error_of_row(row, self.name, fault)


class FactoredPreconditioner(MatrixPreconditioner):
    """Solves with I + L, D and I + U, one after the other. Its `compute` returns `IncompleteFactors`."""

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        lower, inverse_diagonal, upper = self._values
        first, last = (upper, lower) if adjoint else (lower, upper)
        solve_first, solve_last = (t.bind(passes, adjoint=is_adjoint != adjoint) for t, is_adjoint in (first, last))
        solved, scaled = passes.vector(self.shape[0]), passes.vector(self.shape[0])
        if inverse_diagonal.ndim > 1:
            step = BlockStep(passes, inverse_diagonal, adjoint)
            scale = step.bind(1.0, solved, scaled, scaled, start=FROM_ZERO)
        else:
            scale = passes.bind("scale", d=passes.diagonal(inverse_diagonal, adjoint=adjoint), b=solved, x=scaled)

        return lambda x, y: [*solve_first(x, solved), scale, *solve_last(scaled, y)]


@register("preconditioner")
def ilu0(
    A: Any,
    *,
    solve: SolveKind | None = None,
    sweeps: int = 3,
    shift: float = 0.0,
    block_size: int = 1,
) -> MatrixPreconditioner:
    """Precondition with incomplete LU factors that have entries only where A has: ILU(0), for gmres and bicgstab.

    L·U equals A at the entries of A. The factors are computed on the device level by level; the rows of a level do
    not depend on each other. The factors are the same in every run.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    solve : {"jacobi", "levels"}, optional
        How to solve with the factors. "levels" solves exactly, level by level. On a GPU each wide level is a kernel
        launch, so this is fast only for few levels. On the CPU, "levels" is the default and processes the rows in
        order, on one thread. "jacobi", the default on a GPU, is a fixed number of Jacobi sweeps, each of which is a
        product with a whole factor. The result is an approximation, but a fixed linear map. The factors should not be
        far from diagonally dominant.
    sweeps : int, optional
        Number of sweeps for each factor with ``solve="jacobi"``. About as many sweeps as there are levels make the
        solve exact.
    shift : float, optional
        Manteuffel's shift: the magnitude of each diagonal element is first increased by this multiple of the sum of
        magnitudes of its row. Try 0.001 to 0.1 if the factors break down, or if they slow convergence.
    block_size : int, optional
        Number of consecutive rows that form a node, such as the unknowns of a grid point; at most 32. The factors then
        consist of dense blocks: each block in which A has an entry is stored completely, and pivots are inverses of
        dense blocks. There are fewer levels than with single rows, and each column index is read once per block. The
        last node may have fewer rows.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy.

    Raises
    ------
    FactorizationError
        If a pivot is zero (with blocks: singular), or if a value is not finite.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.
    ValueError
        If an option is out of range.

    References
    ----------
    .. [1] J. A. Meijerink, H. A. van der Vorst, "An iterative solution method for linear systems of which the
       coefficient matrix is a symmetric M-matrix", Math. Comp. 31(137), 1977.
    .. [2] H. Anzt, E. Chow, J. Dongarra, "Iterative sparse triangular solves for preconditioning", Euro-Par 2015.
    .. [3] T. A. Manteuffel, "An incomplete factorization technique for positive definite linear systems", Math. Comp.
       34(150), 1980.
    .. [4] P. Concus, G. H. Golub, G. Meurant, "Block preconditioning for the conjugate gradient method", SIAM J. Sci.
       Stat. Comput. 6(1), 1985.
    .. [5] E. Chow, A. Patel, "Fine-grained parallel incomplete LU factorization", SIAM J. Sci. Comput. 37(2), 2015.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import ilu0
    >>> S = scipy.sparse.diags_array([-1.0, 3.0, -1.5], offsets=[-1, 0, 1], shape=(100, 100), format="csr")
    >>> x, info = scipy.sparse.linalg.gmres(S, numpy.ones(100), M=ilu0(S), rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    return _precondition(A, "ilu0", solve, sweeps, shift, block_size)


@register("preconditioner")
def ic0(
    A: Any,
    *,
    solve: SolveKind | None = None,
    sweeps: int = 3,
    shift: float = 0.0,
    block_size: int = 1,
) -> MatrixPreconditioner:
    """Precondition with incomplete Cholesky factors that have entries only where A has: IC(0), for cg and minres.

    The factorization is L·D·Lᴴ, which is ILU(0) of a Hermitian A. The solve with Lᴴ is the adjoint of the solve with L,
    including the Jacobi sweeps, so M is Hermitian and positive definite for any number of sweeps.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        Hermitian and positive definite. A GpuSparseMatrix, or a sparse array that can be converted to one.
    solve : {"jacobi", "levels"}, optional
        As for `ilu0`.
    sweeps : int, optional
        As for `ilu0`.
    shift : float, optional
        As for `ilu0`.
    block_size : int, optional
        As for `ilu0`.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy.

    Raises
    ------
    FactorizationError
        If A and its conjugate transpose agree in less than half of their digits, unless A was declared Hermitian
        (``symmetric=``). If a pivot is not positive, which can happen for a positive definite A too; a shift is the
        usual remedy. If a value is not finite.
    ShapeError, TypeError, ValueError
        As for `ilu0`.

    References
    ----------
    .. [1] J. A. Meijerink, H. A. van der Vorst, "An iterative solution method for linear systems of which the
       coefficient matrix is a symmetric M-matrix", Math. Comp. 31(137), 1977.
    .. [2] H. Anzt, E. Chow, J. Dongarra, "Iterative sparse triangular solves for preconditioning", Euro-Par 2015.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg, ic0
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> cg(A, numpy.ones(100), M=ic0(A), full_output=True).iterations  # exact: this A has no fill-in
    1
    """
    return _precondition(A, "ic0", solve, sweeps, shift, block_size)


def _precondition(
    A: Any, name: str, solve: str | None, sweeps: int, shift: float, block_size: int
) -> MatrixPreconditioner:
    """Check the options, and return the preconditioner."""
    if solve is not None and solve not in SOLVES:
        raise ValueError(f"solve must be one of {', '.join(map(repr, SOLVES))}, got {solve!r}")
    if sweeps < 1:
        raise ValueError(f"sweeps must be at least 1, got {sweeps}")
    if not shift >= 0:
        raise ValueError(f"shift must not be negative, got {shift}")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    factorization: IncompleteFactorization = RowFactorization(name, solve, sweeps, shift)
    if block_size > 1:
        factorization = BlockFactorization(name, solve, sweeps, shift, block_size)
    with SquareMatrix.of(A, name) as matrix:
        return FactoredPreconditioner(matrix, name, factorization)
