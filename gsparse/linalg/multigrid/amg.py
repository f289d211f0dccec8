"""Algebraic multigrid: a PyAMG hierarchy whose cycles run on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import get_device
from gsparse.errors import FactorizationError
from gsparse.kernels.calls import Call
from gsparse.linalg.multigrid.smoothers import SMOOTHERS, relaxation_like
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.base import Build, Passes, Preconditioner
from gsparse.linalg.preconditioners.relaxation import BoundRelaxation, Relaxation
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, on_host
from gsparse.linalg.registry import register
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

__all__ = ["amg"]

# Rows of the coarsest level at most: its inverse is dense. A product with one of 2 000 rows reads 32 MB.
_MAX_COARSE = 3000
# Rows at which PyAMG is asked to stop: an inverse of so many stays in a GPU's cache; another level costs six launches.
_COARSE = 300


@dataclass(frozen=True, eq=False)
class Level:
    """One level but the coarsest.

    Attributes
    ----------
    operator : MatrixOperator
    restriction, prolongation : MatrixOperator
    before, after : Relaxation
        The smoothers.
    """

    operator: MatrixOperator
    restriction: MatrixOperator
    prolongation: MatrixOperator
    before: Relaxation
    after: Relaxation

    @property
    def size(self) -> int:
        return self.operator.shape[0]


class BoundLevel:
    """A level bound to a kind of vectors: its room, and the calls of what is done on it."""

    def __init__(self, passes: Passes, level: Level, adjoint: bool) -> None:
        kind = (passes.device, passes.dtype, passes.columns)
        down, up = (level.prolongation, level.restriction) if adjoint else (level.restriction, level.prolongation)
        before, after = (level.after, level.before) if adjoint else (level.before, level.after)
        self.restrict = down.bind(*kind, adjoint=adjoint)
        self.prolong = up.bind(*kind, adjoint=adjoint, beta=1)
        self.before, self.after = (BoundRelaxation(passes, level.operator, r, adjoint) for r in (before, after))
        self.r = passes.vector(level.size)
        coarse = level.prolongation.shape[1]
        self.coarse_x, self.coarse_b = passes.vector(coarse), passes.vector(coarse)


class MultigridPreconditioner(Preconditioner):
    """A cycle from 0.

    Parameters
    ----------
    device : Device
    levels : sequence of Level
        The finest first.
    coarse : MatrixOperator
        Inverse of the coarsest level.
    visits : int
        Of a coarser level in a cycle: 1 for V, 2 for W.
    dtype : dtype or None
        Of the vectors inside; None for those of the solve.
    """

    def __init__(
        self, device: Device, levels: Sequence[Level], coarse: MatrixOperator, visits: int, dtype: npt.DTypeLike | None
    ) -> None:
        finest = levels[0].operator if levels else coarse
        super().__init__(device, finest.shape[0], finest.dtype, "amg")
        self.levels, self.coarse, self._visits = tuple(levels), coarse, visits
        self._inner = None if dtype is None else np.dtype(dtype)

    def __repr__(self) -> str:
        sizes = " → ".join(f"{n:,}" for n in (*(level.size for level in self.levels), self.coarse.shape[0]))
        smoothers = dict.fromkeys(str(s) for level in self.levels[:1] for s in (level.before, level.after))
        smoother = f"; smoother {' before, '.join(smoothers)}" if smoothers else ""
        return f"{super().__repr__()[:-1]}: rows {sizes}{smoother}{' after' if len(smoothers) > 1 else ''}>"

    def _prepare(self, passes: Passes, adjoint: bool) -> Build:
        inner = passes.dtype if self._inner is None else _inner_dtype(self._inner, passes.dtype)
        if inner == passes.dtype:
            return self._cycle(passes, adjoint)
        xp, narrow = passes.device.xp, Passes(passes.device, inner, passes.columns)
        x_inside, y_inside = narrow.vector(self.shape[0]), narrow.vector(self.shape[0])
        calls = self._cycle(narrow, adjoint)(x_inside, y_inside)
        return lambda x, y: [
            lambda: xp.copyto(x_inside, x, casting="same_kind"),
            *calls,
            lambda: xp.copyto(y, y_inside, casting="same_kind"),
        ]

    def _cycle(self, passes: Passes, adjoint: bool) -> Build:
        bound = [BoundLevel(passes, level, adjoint) for level in self.levels]
        invert = self.coarse.bind(passes.device, passes.dtype, passes.columns, adjoint=adjoint)

        def visit(depth: int, b: Array, x: Array, guess: bool) -> list[Call]:
            """Relax, correct from the coarser level, relax."""
            if depth == len(bound):
                return [lambda: invert(b, x)]
            level = bound[depth]
            correction: list[Call] = []
            visits = 1 if depth + 1 == len(bound) else self._visits
            for again in range(visits):
                correction += visit(depth + 1, level.coarse_b, level.coarse_x, again > 0)
            return [
                *level.before.calls(x, b, level.r, guess=guess, residual=True),
                lambda: level.restrict(level.r, level.coarse_b),
                *correction,
                lambda: level.prolong(level.coarse_x, x),
                *level.after.calls(x, b, level.r, guess=True, residual=False),
            ]

        return lambda x, y: visit(0, x, y, False)


def _inner_dtype(inner: np.dtype[Any], outer: np.dtype[Any]) -> np.dtype[Any]:
    """Give the dtype asked for, complex where vectors are."""
    return np.dtype(np.result_type(inner, np.complex64)) if outer.kind == "c" else inner


@register("preconditioner")
def amg(
    ml: Any,
    *,
    cycle: Literal["V", "W"] = "V",
    smoother: Literal["auto", "jacobi", "l1_jacobi", "chebyshev"] = "auto",
    sweeps: int | None = None,
    dtype: npt.DTypeLike | None = None,
    device: str | Device | None = None,
) -> Preconditioner:
    """Precondition with a cycle of algebraic multigrid: a PyAMG hierarchy, moved to the device.

    PyAMG sets it up on the host; here each level becomes a GpuSparseMatrix, the coarsest a dense (pseudo-)inverse, and
    a whole cycle queues kernels only, so it is part of the solver's CUDA graph.

    Parameters
    ----------
    ml : pyamg.MultilevelSolver, or sparse array, shape (N, N)
        From `pyamg.smoothed_aggregation_solver`, `pyamg.ruge_stuben_solver` and their siblings. For a matrix the first
        of them is called, for a Hermitian or for a nonsymmetric one as the matrix was declared (``symmetric=``) or is,
        but for rounding.
    cycle : {"V", "W"}, optional
    smoother : {"auto", "jacobi", "l1_jacobi", "chebyshev"}, optional
        "auto" does as the hierarchy does: jacobi, richardson, chebyshev and None are the same on the device. All others
        (gauss_seidel, the default of PyAMG, sor, schwarz …) go from row to row; a polynomial of Chebyshev of the same
        number of products stands for them where A is Hermitian with a positive diagonal, and l1-Jacobi elsewhere. (A
        hierarchy's own `symmetry` decides, as long as A agrees with it to half of its digits.) Both are symmetric: with
        the same before and after, M is Hermitian, as cg needs it.
    sweeps : int, optional
        Steps of a smoother that is not "auto", before and after: 2 by default.
    dtype : {float32, float64}, optional
        Of levels and vectors inside: float32 halves the traffic, and a preconditioner seldom needs more. That of the
        solve by default. (In float32, residuals below 1e-38 are 0.)
    device : optional
        For a hierarchy: where to, see `gsparse.device.get_device`. A matrix has its own.

    Returns
    -------
    Preconditioner
        For `M` of the solvers here, of SciPy and of CuPy. Its representation tells the levels' rows and the smoother.

    Raises
    ------
    ImportError
        Where a matrix is given and PyAMG is not installed.
    FactorizationError
        Where the coarsest level is too large for a dense inverse, a diagonal has a zero, or a value is not finite.
    ShapeError, TypeError, ValueError

    References
    ----------
    .. [1] N. Bell, L. N. Olson, J. Schroder, B. Southworth, "PyAMG: algebraic multigrid solvers in Python", J. Open
       Source Software 8(87), 2023.
    .. [2] M. Adams, M. Brezina, J. Hu, R. Tuminaro, "Parallel multigrid smoothing: polynomial versus Gauss–Seidel", J.
       Comput. Phys. 188, 2003.
    .. [3] A. H. Baker, R. D. Falgout, T. V. Kolev, U. M. Yang, "Multigrid smoothers for ultraparallel computing", SIAM
       J. Sci. Comput. 33(5), 2011.

    Examples
    --------
    >>> import numpy, pyamg
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import amg, cg
    >>> A = GpuSparseMatrix(pyamg.gallery.poisson((40, 40), format="csr"), device="cpu")
    >>> found = cg(A, numpy.ones(1600), M=amg(A), rtol=1e-8, full_output=True)
    >>> found.info, found.iterations < 15
    (0, True)
    """
    if cycle not in ("V", "W"):
        raise ValueError(f"cycle must be 'V' or 'W', got {cycle!r}")
    if smoother != "auto" and smoother not in SMOOTHERS:
        raise ValueError(f"smoother must be 'auto' or one of {', '.join(map(repr, SMOOTHERS))}, got {smoother!r}")
    if sweeps is not None and (sweeps < 1 or smoother == "auto"):
        raise ValueError(f"sweeps must be at least 1 and go with a smoother that is not 'auto', got {sweeps}")
    if dtype is not None and np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, got {np.dtype(dtype)}: it is complex where vectors are")
    hermitian = None
    if hasattr(ml, "levels"):
        home = get_device(device)
    else:
        ml, home, hermitian = _hierarchy_of(ml)
    make = relaxation_like if smoother == "auto" else _named(smoother, 2 if sweeps is None else sweeps)
    with home.active(), home.memory_guard():
        return _moved(ml, home, make, 1 if cycle == "V" else 2, dtype, hermitian)


def _named(smoother: str, sweeps: int) -> Callable[..., Relaxation]:
    return lambda matrix, _, hermitian: SMOOTHERS[smoother](matrix, sweeps)


def _hierarchy_of(A: Any) -> tuple[Any, Device, bool]:
    """Have PyAMG build a hierarchy of a matrix; return its device and whether it is Hermitian, too."""
    try:
        pyamg = import_module("pyamg")
    except ImportError as error:
        raise ImportError("amg(A) needs PyAMG to build the hierarchy: pip install pyamg") from error
    with SquareMatrix.of(A, "amg") as matrix:
        hermitian = matrix.is_hermitian()
        host = sp.csr_matrix(on_host(matrix.device, matrix.csr))
    symmetry = "hermitian" if hermitian else "nonsymmetric"
    return pyamg.smoothed_aggregation_solver(host, symmetry=symmetry, max_coarse=_COARSE), matrix.device, hermitian


def _is_hermitian(matrix: SquareMatrix, symmetry: str | None) -> bool:
    """Tell whether the finest matrix of a hierarchy is Hermitian, given what its maker called it. Synchronizes."""
    if symmetry == "hermitian" or (symmetry == "symmetric" and matrix.dtype.kind != "c"):
        return matrix.is_roughly_hermitian()  # (PyAMG's default: said also of matrices that clearly are not)
    return symmetry != "nonsymmetric" and matrix.is_hermitian()


def _moved(
    ml: Any, device: Device, make: Callable[..., Relaxation], visits: int, dtype: Any, hermitian: bool | None
) -> Preconditioner:
    levels, coarsest = [], ml.levels[-1].A
    if coarsest.shape[0] > _MAX_COARSE:
        raise FactorizationError(
            f"amg: the coarsest level has {coarsest.shape[0]} rows, a dense inverse is made of up to {_MAX_COARSE}: "
            "build the hierarchy with more levels (max_levels, max_coarse)"
        )
    for level in ml.levels[:-1]:
        operator = _operator(level.A, device, dtype)
        with SquareMatrix.of(operator, "amg") as matrix:
            # Coarser matrices are Hermitian but for rounding where the finest is.
            hermitian = _is_hermitian(matrix, getattr(level.A, "symmetry", None)) if hermitian is None else hermitian
            before, after = (make(matrix, s, hermitian=hermitian) for s in (level.presmoother, level.postsmoother))
        levels.append(
            Level(operator, _operator(level.R, device, dtype), _operator(level.P, device, dtype), before, after)
        )
    with SquareMatrix.of(_operator(coarsest, device, None), "amg"):  # (its values are checked)
        inverse = np.linalg.pinv(sp.csr_array(coarsest).toarray(), hermitian=bool(hermitian))
    return MultigridPreconditioner(device, levels, _operator(inverse, device, dtype), visits, dtype)


def _operator(matrix: Any, device: Device, dtype: Any) -> MatrixOperator:
    """Bring a matrix of the host to the device, in the precision asked for."""
    host = sp.csr_array(matrix)
    if not host.has_canonical_format:
        host = host.copy()  # (whose arrays may be PyAMG's)
        host.sum_duplicates()
    if dtype is not None:
        host = host.astype(_inner_dtype(np.dtype(dtype), host.dtype))
    return MatrixOperator(GpuSparseMatrix(host, device=device))
