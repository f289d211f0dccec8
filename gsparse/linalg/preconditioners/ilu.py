"""Incomplete factorisations without fill-in: A ≈ (I + L)·D·(I + U), where L and U are strictly triangular."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.calls import Call
from gsparse.kernels.relaxation import FROM_ZERO
from gsparse.linalg.preconditioners.base import CallBuilder, Preconditioner, VectorPasses
from gsparse.linalg.preconditioners.block_ilu import (
    BlockUnitTriangularMatrix,
    are_positive_definite,
    factorize_blocks,
)
from gsparse.linalg.preconditioners.diagonal_blocks import BlockStep, num_block_entries
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.linalg.preconditioners.triangular import SOLVES, Solve, UnitTriangularMatrix, levels_of
from gsparse.linalg.registry import register

__all__ = ["ic0", "ilu0"]

SolveKind = Literal["levels", "jacobi"]


class FactoredPreconditioner(Preconditioner):
    """Solves with I + L, D and I + U, one after the other.

    Parameters
    ----------
    device : Device
    lower, upper : (UnitTriangularMatrix, bool)
        The factors, and whether to use the adjoint of each.
    inverse_diagonal : array, shape (N,) or (number of blocks, size, size)
        The inverse of D, which is a diagonal or consists of dense blocks.
    kind : str
        See `Preconditioner`.
    size : int
        N.
    """

    def __init__(
        self,
        device: Device,
        lower: tuple[UnitTriangularMatrix, bool],
        inverse_diagonal: Array,
        upper: tuple[UnitTriangularMatrix, bool],
        kind: str,
        size: int,
    ) -> None:
        num_entries = num_block_entries(inverse_diagonal, size) if inverse_diagonal.ndim > 1 else size
        num_entries += sum(triangle.nnz for triangle in {lower[0], upper[0]})
        super().__init__(device, size, inverse_diagonal.dtype, kind, num_entries)
        self._lower, self._upper, self._inverse_diagonal = lower, upper, inverse_diagonal

    def _prepare(self, passes: VectorPasses, adjoint: bool) -> CallBuilder:
        first, last = (self._upper, self._lower) if adjoint else (self._lower, self._upper)
        solve_first, solve_last = (t.bind(passes, adjoint=is_adjoint != adjoint) for t, is_adjoint in (first, last))
        solved, scaled = passes.vector(self.shape[0]), passes.vector(self.shape[0])
        if self._inverse_diagonal.ndim > 1:
            step = BlockStep(passes, self._inverse_diagonal, adjoint)
            scale = step.bind(1.0, solved, scaled, scaled, start=FROM_ZERO)
        else:
            scale = passes.bind("scale", d=passes.diagonal(self._inverse_diagonal, adjoint=adjoint), b=solved, x=scaled)

        def build(x: Array, y: Array) -> list[Call]:
            solves: tuple[Solve, Solve] = solve_first, solve_last
            return [*solves[0](x, solved), scale, *solves[1](scaled, y)]

        return build


@register("preconditioner")
def ilu0(
    A: Any, *, solve: SolveKind | None = None, sweeps: int = 3, shift: float = 0.0, block_size: int = 1
) -> Preconditioner:
    """Precondition with incomplete LU factors that have entries only where A has: ILU(0), for gmres and bicgstab.

    L·U equals A wherever A has entries. The factors are computed on the device level by level; the rows of a level do
    not depend on each other. They are the same in every run.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    solve : {"jacobi", "levels"}, optional
        How to solve with the factors. "levels" solves exactly, level by level. On a GPU each wide level is a kernel
        launch, so this is fast only for few levels. On the CPU it is the default and processes the rows in order, on
        one thread. "jacobi" is a fixed number of Jacobi sweeps, which are products with all rows at once: the default
        on a GPU. It is an approximation, but a fixed linear map. The factors should not be far from diagonally
        dominant.
    sweeps : int, optional
        Number of Jacobi sweeps for each factor, 3 by default. About as many sweeps as there are levels make
        the solve exact.
    shift : float, optional
        Manteuffel's shift: this multiple of the sum of magnitudes of each row is added to its diagonal element first.
        Try 0.001 to 0.1 if the factors break down, or if they slow convergence.
    block_size : int, optional
        Number of consecutive rows that make a node, such as the unknowns of a grid point, at most 32. The factors are
        then those of the graph of nodes, whose entries are dense blocks: a block in which A has an entry is stored
        whole, and pivots are the inverses of dense blocks. There are fewer levels than by rows, and a row of blocks
        reads each index once. The last node may have fewer rows.

    Returns
    -------
    Preconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy.

    Raises
    ------
    FactorizationError
        If a pivot is zero, or with blocks singular, or if a value is not finite.
    ShapeError, TypeError, ValueError

    References
    ----------
    .. [1] J. A. Meijerink, H. A. van der Vorst, "An iterative solution method for linear systems of which the
       coefficient matrix is a symmetric M-matrix", Math. Comp. 31(137), 1977.
    .. [2] H. Anzt, E. Chow, J. Dongarra, "Iterative sparse triangular solves for preconditioning", Euro-Par 2015.
    .. [3] T. A. Manteuffel, "An incomplete factorization technique for positive definite linear systems", Math. Comp.
       34(150), 1980.
    .. [4] P. Concus, G. H. Golub, G. Meurant, "Block preconditioning for the conjugate gradient method", SIAM J. Sci.
       Stat. Comput. 6(1), 1985.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import ilu0
    >>> S = scipy.sparse.diags_array([-1.0, 3.0, -1.5], offsets=[-1, 0, 1], shape=(100, 100), format="csr")
    >>> x, info = scipy.sparse.linalg.gmres(S, numpy.ones(100), M=ilu0(S), rtol=1e-10)
    >>> info, bool(numpy.allclose(S @ x, 1))
    (0, True)
    """
    method = _parse_options(solve, sweeps, shift, block_size)
    with SquareMatrix.of(A, "ilu0") as matrix:
        kind = method or _default_solve(matrix.device)
        device = matrix.device
        if block_size > 1:
            blocks = factorize_blocks(matrix, _shifted_diagonal(matrix, shift), block_size, "ilu0")
            _check_blocks(matrix, blocks.is_regular, block_size, "ilu0", "is singular")
            first, last = (
                BlockUnitTriangularMatrix(matrix, part, kind, sweeps, upper=part is blocks.upper)
                for part in (blocks.lower, blocks.upper)
            )
            return FactoredPreconditioner(device, (first, False), blocks.inverses, (last, False), "ilu0", matrix.size)
        factors, rows, pivots = _factorize(matrix, shift)
        broken = kernels_of(device).first_where(device, pivots, "zero", "not finite")
        if broken is not None:
            raise FactorizationError(f"ilu0: zero pivot in row {broken}: try ilu0(A, shift=0.01), or reorder the rows")
        below = kernels_of(device).keep_entries(device, factors, factors.indices < rows)
        above = kernels_of(device).keep_entries(
            device, factors.with_data(factors.data / pivots[rows]), factors.indices > rows
        )
        lower, upper = (
            UnitTriangularMatrix(matrix, part, kind, sweeps, upper=part is above) for part in (below, above)
        )
        return FactoredPreconditioner(device, (lower, False), 1 / pivots, (upper, False), "ilu0", matrix.size)


@register("preconditioner")
def ic0(
    A: Any, *, solve: SolveKind | None = None, sweeps: int = 3, shift: float = 0.0, block_size: int = 1
) -> Preconditioner:
    """Precondition with incomplete Cholesky factors that have entries only where A has: IC(0), for cg and minres.

    The factors have the form L·D·Lᴴ, to which ILU(0) reduces for a Hermitian A. The second solve is the adjoint of the
    first one, including the Jacobi sweeps, so M is Hermitian and positive definite for any number of sweeps.

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
    Preconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy.

    Raises
    ------
    FactorizationError
        If less than half of the digits of A and its conjugate transpose agree, unless A was declared Hermitian
        (``symmetric=``). If a pivot is not positive, which can happen for a positive definite A too; a shift is the
        usual remedy.
    ShapeError, TypeError, ValueError

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
    method = _parse_options(solve, sweeps, shift, block_size)
    with SquareMatrix.of(A, "ic0") as matrix:
        if not matrix.is_roughly_hermitian():
            raise FactorizationError(
                "ic0 needs a symmetric (complex: Hermitian) matrix, this one is not: use ilu0(A) with gmres or "
                "bicgstab; where A is one triangle of a symmetric matrix, add the other one first"
            )
        kind = method or _default_solve(matrix.device)
        device = matrix.device
        if block_size > 1:
            blocks = factorize_blocks(matrix, _shifted_diagonal(matrix, shift), block_size, "ic0")
            inverses = (blocks.inverses + device.xp.conj(blocks.inverses.swapaxes(1, 2))) / 2
            are_positive = are_positive_definite(device, inverses) & (blocks.is_regular != 0)
            _check_blocks(matrix, are_positive, block_size, "ic0", "is not positive definite")
            factor = BlockUnitTriangularMatrix(matrix, blocks.lower, kind, sweeps, upper=False)
            return FactoredPreconditioner(device, (factor, False), inverses, (factor, True), "ic0", matrix.size)
        factors, rows, pivots = _factorize(matrix, shift)
        broken = kernels_of(device).first_where(device, pivots, "not positive", "not finite")
        if broken is not None:
            raise FactorizationError(
                f"ic0: the pivot in row {broken} is not positive: try ic0(A, shift=0.01); for an indefinite A use "
                "ilu0(A) with gmres"
            )
        below = kernels_of(device).keep_entries(device, factors, factors.indices < rows)
        triangle = UnitTriangularMatrix(matrix, below, kind, sweeps, upper=False)
        inverse_diagonal = (1 / pivots.real).astype(matrix.dtype)
        return FactoredPreconditioner(device, (triangle, False), inverse_diagonal, (triangle, True), "ic0", matrix.size)


def _parse_options(solve: str | None, sweeps: int, shift: float, block_size: int) -> SolveKind | None:
    if solve is not None and solve not in SOLVES:
        raise ValueError(f"solve must be one of {', '.join(map(repr, SOLVES))}, got {solve!r}")
    if sweeps < 1:
        raise ValueError(f"sweeps must be at least 1, got {sweeps}")
    if not shift >= 0:
        raise ValueError(f"shift must not be negative, got {shift}")
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    return solve  # type: ignore[return-value]


def _default_solve(device: Device) -> SolveKind:
    return "jacobi" if kernels_of(device).NEEDS_LEVELS else "levels"


def _factorize(matrix: SquareMatrix, shift: float) -> tuple[Csr, Array, Array]:
    """Return both factors in one matrix, the row of each entry, and the pivots on the diagonal. Synchronizes."""
    device = matrix.device
    csr, rows, diagonal = _shift_diagonal(matrix, shift)
    levels: Levels | None = None
    if kernels_of(device).NEEDS_LEVELS:
        levels = levels_of(device, kernels_of(device).keep_entries(device, csr, csr.indices < rows), upper=False)
    kernels_of(device).factorize_ilu0(device, csr, diagonal, levels)
    return csr, rows, csr.data[diagonal]


def _shift_diagonal(matrix: SquareMatrix, shift: float) -> tuple[Csr, Array, Array]:
    """Return a copy of the matrix with a full, shifted diagonal, the row of each entry, and the diagonal's indices."""
    xp, csr, rows = matrix.device.xp, matrix.csr, matrix.rows
    diagonal = _shifted_diagonal(matrix, shift)
    is_off_diagonal = csr.indices != rows
    all_rows = xp.arange(matrix.size, dtype=rows.dtype)
    rows = xp.concatenate([rows[is_off_diagonal], all_rows])
    columns = xp.concatenate([csr.indices[is_off_diagonal], all_rows])
    data = xp.concatenate([csr.data[is_off_diagonal], diagonal])
    order = xp.argsort(rows.astype(np.int64) * matrix.size + columns)
    rows, columns, data = rows[order], columns[order], data[order]
    indptr = xp.searchsorted(rows, xp.arange(matrix.size + 1)).astype(csr.indptr.dtype)
    return Csr(csr.shape, indptr, columns, data), rows, xp.flatnonzero(rows == columns).astype(columns.dtype)


def _shifted_diagonal(matrix: SquareMatrix, shift: float) -> Array:
    """Return the diagonal, each element farther from 0 by `shift` times the sum of magnitudes of its row."""
    xp, diagonal = matrix.device.xp, matrix.diagonal
    if not shift:
        return diagonal
    phases = xp.where(diagonal == 0, 1, diagonal / xp.where(diagonal == 0, 1, xp.abs(diagonal)))
    return (diagonal + shift * matrix.row_sums() * phases).astype(matrix.dtype)


def _check_blocks(matrix: SquareMatrix, are_good: Array, size: int, name: str, fault: str) -> None:
    """Raise an error if there is a node whose diagonal block has a fault. Synchronizes."""
    node = kernels_of(matrix.device).first_where(matrix.device, are_good, "zero")
    if node is None:
        return
    last = min((node + 1) * size, matrix.size) - 1
    raise FactorizationError(
        f"{name}: the diagonal block of node {node} (rows {node * size} to {last}) {fault}: try {name}(A, "
        f"block_size={size}, shift=0.01), or another block_size"
    )
