"""The Gauss-Seidel method and successive over-relaxation (SOR), by rows or by blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, Self

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.relaxation import EVERY_GROUP, FROM_ZERO, NOT_THE_FIRST
from gsparse.kernels.steps import Call
from gsparse.linalg.preconditioners.base import MatrixPreconditioner
from gsparse.linalg.preconditioners.diagonal import inverse_blocks
from gsparse.linalg.preconditioners.relaxation import BoundSmoother, Relax, Smoother, SmootherPreconditioner
from gsparse.linalg.preconditioners.row_order import (
    OrderedMatrix,
    Ordering,
    check_ordering,
    ordered_matrix,
    shared_order,
)
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, reciprocals
from gsparse.linalg.registry import register

# True for a backward sweep, False for a forward one.
Direction = bool

# From the name of a sweep to the directions of its sweeps in one iteration.
SWEEPS: dict[str, tuple[Direction, ...]] = {"symmetric": (False, True), "forward": (False,), "backward": (True,)}


def directions_of(sweep: str, iterations: int) -> tuple[Direction, ...]:
    """Return the direction of each sweep. A symmetric sweep is a forward and a backward sweep.

    Raises
    ------
    ValueError
        If `sweep` is not a key of `SWEEPS`.
    """
    if sweep not in SWEEPS:
        raise ValueError(f"sweep must be one of {', '.join(map(repr, SWEEPS))}, got {sweep!r}")
    return iterations * SWEEPS[sweep]


def describe_sweeps(directions: tuple[Direction, ...]) -> str:
    """Return a description such as "2 forward sweeps".

    Examples
    --------
    >>> describe_sweeps((False, True)), describe_sweeps((True, True))
    ('1 symmetric sweep', '2 backward sweeps')
    """
    if directions == directions_of("symmetric", len(directions) // 2):
        count, kind = len(directions) // 2, "symmetric"
    else:
        count, kind = len(directions), "backward" if directions[0] else "forward"
    return f"{count} {kind} sweep{'s' if count != 1 else ''}"


@dataclass(frozen=True, eq=False)
class Sweeps(Smoother):
    """Base class of sweeps over the rows of a matrix, in which each row uses the newest values.

    Attributes
    ----------
    matrix : OrderedMatrix
    weights : array
        The weights of the rows, or of the blocks of rows.
    directions : tuple of bool
        For each sweep, whether it is a backward one.
    name, replaces : str
        As in `Smoother`.
    """

    matrix: OrderedMatrix
    weights: Array
    directions: tuple[Direction, ...]
    name: str
    replaces: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.matrix.ordering}), {describe_sweeps(self.directions)}"

    def mirrored(self) -> Self:
        return replace(self, directions=reversed_directions(self.directions))

    def directions_of(self, bound: BoundSmoother) -> tuple[Direction, ...]:
        """Return the directions of the sweeps of the smoother, or of its adjoint."""
        return reversed_directions(self.directions) if bound.adjoint else self.directions


@dataclass(frozen=True, eq=False, kw_only=True)
class GaussSeidel(Sweeps):
    """Sweeps x_i += ω·W_i·(b_i − (A·x)_i), each with the newest x, where W_i is the inverse of a diagonal block.

    Attributes
    ----------
    weights : array, shape (num_blocks, size, size)
        ω·W_i. If a diagonal block has no inverse, W_i is zero, so that sweeps do not change these elements of x.
    is_exact : bool
        Whether ω is 1. Then visiting a row twice in succession changes nothing the second time.
    """

    is_exact: bool

    def relaxation(self, bound: BoundSmoother) -> Relax:
        passes, xp = bound.passes, bound.passes.device.xp
        weights = xp.conj(self.weights.swapaxes(1, 2)) if bound.adjoint else self.weights
        rows, levels = self.matrix.rows(passes.dtype, adjoint=bound.adjoint), self.matrix.levels
        # A sweep reads the CSR arrays of A, x, b and the weights, and writes x.
        bind = partial(
            kernels_of(passes.device).relaxation.bind_sweep,
            passes.device, rows, levels, self.matrix.items(weights, passes.dtype), passes.columns,
        )  # fmt: skip
        sweep, directions = cache(bind), self.directions_of(bound)

        def relax(x: Array, b: Array, r: Array, guess: bool, residual: bool) -> list[Call]:
            calls: list[Call] = []
            for number, backward in enumerate(directions):
                turns = number > 0 and backward != directions[number - 1]
                start = NOT_THE_FIRST if turns and self.is_exact else EVERY_GROUP
                start = FROM_ZERO if number == 0 and not guess else start
                calls.append(partial(sweep(backward, start), x, b))
            return calls

        return relax


def reversed_directions(directions: tuple[Direction, ...]) -> tuple[Direction, ...]:
    """Return the directions of the adjoint sweeps: in reverse order, and each sweep in the opposite direction."""
    return tuple(not backward for backward in directions[::-1])


def make_gauss_seidel(
    matrix: SquareMatrix,
    directions: tuple[Direction, ...],
    *,
    omega: float = 1.0,
    ordering: str = "auto",
    inverses: Array | None = None,
) -> GaussSeidel:
    """Return sweeps of the Gauss-Seidel method, of SOR if ω is not 1, or of their block forms. Synchronizes.

    Parameters
    ----------
    matrix : SquareMatrix
    directions : tuple of bool
        For each sweep, whether it is a backward one.
    omega : float
    ordering : {"auto", "natural", "wavefront", "multicolor"}
        See `gauss_seidel`.
    inverses : array, shape (num_blocks, size, size), optional
        The inverses of the diagonal blocks. By default the reciprocals of the diagonal, or zero where it is zero.
    """
    if inverses is None:
        inverses = reciprocals(matrix.device.xp, matrix.diagonal).reshape(-1, 1, 1)
    size = int(inverses.shape[1])
    name = "gauss_seidel" if omega == 1 else f"sor({omega:g})"
    return GaussSeidel(
        ordered_matrix(matrix, ordering, size),
        (inverses * matrix.dtype.type(omega)).astype(matrix.dtype, copy=False),
        directions,
        name if size == 1 else f"block_{name}({size})",
        is_exact=omega == 1,
    )


@register("preconditioner")
def gauss_seidel(
    A: Any,
    *,
    sweep: Literal["symmetric", "forward", "backward"] = "symmetric",
    iterations: int = 1,
    ordering: Ordering = "auto",
    block_size: int = 1,
) -> MatrixPreconditioner:
    """Precondition with sweeps of the Gauss-Seidel method, which begin with x = 0.

    Each row is solved for its own unknown with the newest values of the others. Rows are visited in groups. The rows of
    a group do not depend on each other, so they are visited at the same time. On a GPU, a large group is one kernel
    launch, and several small groups share a launch.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    sweep : {"symmetric", "forward", "backward"}, optional
        The order of the rows. A symmetric sweep is a forward and a backward one. For a Hermitian A it makes M
        Hermitian, as `cg` requires.
    iterations : int, optional
        Number of sweeps; a symmetric one counts once.
    ordering : {"auto", "natural", "wavefront", "multicolor"}, optional
        "natural" visits the rows by their number. On a CPU, one thread visits row after row. On a GPU, there are as
        many groups as the longest chain of dependent rows has rows. "multicolor" gives each row a colour that none of
        its neighbours has, and visits colour by colour; a mesh has four to twenty colours. "wavefront" is nearly the
        natural order, in at most 256 groups of rows (more if a row has very many neighbours). For problems with
        convection, it converges nearly as fast as the natural order, with fewer groups. "auto" is "natural" on a CPU,
        and on a GPU "multicolor" if the magnitudes in A are symmetric, and "wavefront" if not. The colours and
        wavefronts are the same on all devices.
    block_size : int, optional
        Number of consecutive rows that are solved together, such as the unknowns of one node. The last block may be
        smaller.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy. It stores a copy of A in CSR with the rows in
        this order. It is part of a solver's CUDA graph, and gives the same bits in each run.

    Raises
    ------
    FactorizationError
        If the diagonal has a zero, a block is singular, or a value is not finite.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.
    ValueError
        If `iterations` or `block_size` is less than 1, or there is no such `sweep` or `ordering`.

    References
    ----------
    .. [1] Y. Saad, "Iterative Methods for Sparse Linear Systems", 2nd edition, SIAM, 2003, chapters 4, 10 and 12.
    .. [2] M. T. Jones, P. E. Plassmann, "A parallel graph coloring heuristic", SIAM J. Sci. Comput. 14(3), 1993.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import cg, gauss_seidel
    >>> S = scipy.sparse.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(400, 400))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> result = cg(A, numpy.ones(400), M=gauss_seidel(A, ordering="multicolor"), rtol=1e-8, full_output=True)
    >>> result.info, result.iterations < 40
    (0, True)
    """
    return _precondition(A, "gauss_seidel", 1.0, sweep, iterations, ordering, block_size)


@register("preconditioner")
def sor(
    A: Any,
    omega: float = 1.0,
    *,
    sweep: Literal["symmetric", "forward", "backward"] = "symmetric",
    iterations: int = 1,
    ordering: Ordering = "auto",
    block_size: int = 1,
) -> MatrixPreconditioner:
    """Precondition with sweeps of successive over-relaxation (SSOR if they are symmetric), which begin with x = 0.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    omega : float, optional
        The relaxation factor, between 0 and 2. For 1, this is `gauss_seidel`.
    sweep, iterations, ordering, block_size : optional
        See `gauss_seidel`.

    Returns
    -------
    MatrixPreconditioner
        To be passed as `M` to solvers of `gsparse.linalg`, SciPy or CuPy. See `gauss_seidel`.

    Raises
    ------
    FactorizationError
        If the diagonal has a zero, a block is singular, or a value is not finite.
    ShapeError, TypeError
        As for `gauss_seidel`.
    ValueError
        As for `gauss_seidel`, or if `omega` is not a number between 0 and 2.

    References
    ----------
    .. [1] D. M. Young, "Iterative Solution of Large Linear Systems", Academic Press, 1971.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import sor
    >>> S = scipy.sparse.csr_array([[2.0, 0.0], [1.0, 4.0]])
    >>> (sor(S, 0.5, sweep="forward") @ numpy.ones(2)).tolist()
    [0.25, 0.09375]
    """
    if np.ndim(omega) or np.asarray(omega).dtype.kind not in "biuf" or not 0 < omega < 2:
        raise ValueError(f"omega must be a number between 0 and 2, got {omega!r}")
    return _precondition(A, "sor", float(omega), sweep, iterations, ordering, block_size)


def _precondition(
    A: Any, kind: str, omega: float, sweep: str, iterations: int, ordering: str, block_size: int
) -> MatrixPreconditioner:
    check_ordering(ordering)
    if iterations < 1 or block_size < 1:
        raise ValueError(f"iterations and block_size must be at least 1, got {iterations} and {block_size}")
    directions = directions_of(sweep, iterations)

    def make(matrix: SquareMatrix, latest: GaussSeidel | None) -> GaussSeidel:
        if block_size > 1:
            inverses = inverse_blocks(matrix, block_size, kind)
        else:
            inverses = matrix.inverse_diagonal(kind).reshape(-1, 1, 1)
        if latest is not None:
            matrix.shared[shared_order(ordering, block_size)] = latest.matrix.with_csr(matrix.csr)
        return make_gauss_seidel(matrix, directions, omega=omega, ordering=ordering, inverses=inverses)

    with SquareMatrix.of(A, kind, keep=True) as matrix:
        return SmootherPreconditioner(matrix, kind, make)
