"""A hierarchy that PyAMG has set up on the host, copied to a device with its smoothers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import getclosurevars
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.errors import FactorizationError, SmootherWarning
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.multigrid.cycle import Level, MultigridPreconditioner, check_cycle, inner_dtype
from gsparse.linalg.multigrid.level_setup import MAX_INVERTED, MakeSmoothers
from gsparse.linalg.multigrid.smoothers import SMOOTHERS, chebyshev, parallel_smoother
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.diagonal import BlockRelaxation
from gsparse.linalg.preconditioners.gauss_seidel import directions_of, make_gauss_seidel
from gsparse.linalg.preconditioners.normal_equations import jacobi_ne, projections
from gsparse.linalg.preconditioners.relaxation import Relaxation, Smoother, in_leja_order
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.matrix.arrays import frames_to_the_caller
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

# From the name of a smoother to the smoothers that it replaces without a warning, because solves take about as many
# iterations with it.
EQUIVALENTS: dict[str, tuple[str, ...]] = {"chebyshev": ("gauss_seidel", "sor")}


# The options that PyAMG passed to a smoother.
Options = dict[str, Any]


def _jacobi(matrix: SquareMatrix, options: Options, hermitian: bool) -> Smoother:
    if options.get("blocksize", 1) > 1:
        inverses = matrix.device.upload(np.asarray(options["Dinv"], matrix.dtype))
        steps = options["iterations"] * ((_real(options["omega"]), inverses),)
        return BlockRelaxation(f"block_jacobi({inverses.shape[1]})", steps)
    inverse = matrix.inverse_diagonal("the smoother jacobi")
    omegas = options["iterations"] * (_real(options["omega"]),)
    return Relaxation.scaled(matrix.device, omegas, inverse, "jacobi")


def _chebyshev(matrix: SquareMatrix, options: Options, hermitian: bool) -> Smoother:
    roots = np.roots([*(-np.asarray(options["coefficients"])), 1.0])  # of the error polynomial
    omegas = (1 / in_leja_order(roots.real)).tolist()
    return Relaxation("chebyshev", options["iterations"] * tuple((omega, None) for omega in omegas))


def _gauss_seidel(matrix: SquareMatrix, options: Options, hermitian: bool, *, name: str = "gauss_seidel") -> Smoother:
    """Return Gauss-Seidel sweeps, or on a GPU a Chebyshev polynomial if A is Hermitian with a positive diagonal.

    With the polynomial, a solver takes about as many iterations but fewer launches, and products read less than sweeps.
    """
    directions = directions_of(options["sweep"], options["iterations"])
    if options.get("blocksize", 1) > 1:
        inverses = matrix.device.upload(np.asarray(options["Dinv"], matrix.dtype))
        return make_gauss_seidel(matrix, directions, inverses=inverses)
    if hermitian and kernels_of(matrix.device).triangular.NEEDS_LEVELS and matrix.has_positive_diagonal():
        return replace(chebyshev(matrix, max(2, len(directions))), replaces=name)
    return make_gauss_seidel(matrix, directions, omega=_real(options.get("omega", 1.0)))


def _subset_jacobi(matrix: SquareMatrix, options: Options, hermitian: bool, *, name: str, fine_first: bool) -> Smoother:
    """Return Jacobi steps for the fine and then the coarse points of an AIR hierarchy, or in the opposite order."""
    xp, size = matrix.device.xp, int(options.get("blocksize", 1))
    points = {}
    for part in ("F", "C"):
        mask = np.zeros(matrix.size // size, bool)
        mask[options[f"{part}pts"]] = True
        points[part] = options[f"{part.lower()}_iterations"] * (matrix.device.upload(mask),)
    both = [points["F"], points["C"]] if fine_first else [points["C"], points["F"]]
    subsets, omega = options["iterations"] * (both[0] + both[1]), _real(options["omega"])
    if size > 1:
        inverses = matrix.device.upload(np.asarray(options["Dinv"], matrix.dtype))
        weights = {id(subset): inverses * subset[:, None, None] for subset in subsets}
        return BlockRelaxation(f"{name}({size})", tuple((omega, weights[id(subset)]) for subset in subsets))
    inverse = matrix.inverse_diagonal(f"the smoother {name}")
    weights = {id(subset): xp.where(subset, inverse, 0) for subset in subsets}
    return Relaxation(name, tuple((omega, weights[id(subset)]) for subset in subsets))


def _projections(matrix: SquareMatrix, options: Options, hermitian: bool, *, of_residual: bool) -> Smoother:
    directions = directions_of(options["sweep"], options["iterations"])
    return projections(matrix, directions, of_residual=of_residual, omega=_real(options["omega"]))


def _replaced(matrix: SquareMatrix, options: Options, hermitian: bool, *, name: str) -> Smoother:
    """Return a replacement, with about as much work, for a smoother that no device supports."""
    sweeps = 2 if options.get("sweep") == "symmetric" else 1
    iterations: Any = options.get("maxiter") or options["iterations"]
    count = max(1, sweeps * int(iterations) // 2)
    if name in ("cgnr", "cgne"):
        smoother = projections(matrix, directions_of("symmetric", count), of_residual=name == "cgnr")
    else:
        smoother = parallel_smoother(matrix, count, hermitian=hermitian)
    replaced: Smoother = replace(smoother, replaces=name)  # type: ignore[type-var]  # every smoother is a dataclass
    return replaced


_PYAMG: dict[str, Callable[[SquareMatrix, Options, bool], Smoother]] = {
    "none": lambda matrix, options, _: Relaxation("none", ()),
    "jacobi": _jacobi,
    "block_jacobi": _jacobi,
    "richardson": lambda matrix, options, _: Relaxation(
        "richardson", options["iterations"] * ((_real(options["omega"]), None),)
    ),
    "chebyshev": _chebyshev,
    "gauss_seidel": _gauss_seidel,
    "block_gauss_seidel": _gauss_seidel,
    "sor": partial(_gauss_seidel, name="sor"),
    **{
        f"{order}_{kind}": partial(_subset_jacobi, name=f"{order}_{kind}", fine_first=order == "fc")
        for order in ("cf", "fc")
        for kind in ("jacobi", "block_jacobi")
    },
    "jacobi_ne": lambda matrix, options, _: jacobi_ne(matrix, options["iterations"], _real(options["omega"])),
    "gauss_seidel_ne": partial(_projections, of_residual=False),
    "gauss_seidel_nr": partial(_projections, of_residual=True),
}


def relaxation_for(matrix: SquareMatrix, smoother: Any, *, hermitian: bool) -> Smoother:
    """Return a smoother of a PyAMG hierarchy for use on a device, or its replacement.

    Parameters
    ----------
    matrix : SquareMatrix
        The matrix of the level.
    smoother : callable
        ``levels[i].presmoother`` or ``postsmoother``.
    hermitian : bool
        Whether the matrix is Hermitian.
    """
    options = smoother.keywords if isinstance(smoother, partial) else getclosurevars(smoother).nonlocals
    options = {"iterations": 1, "sweep": "forward", "omega": 1.0, **options}
    name = getattr(smoother, "__name__", type(smoother).__name__)
    make = _PYAMG.get(name)
    return make(matrix, options, hermitian) if make else _replaced(matrix, options, hermitian, name=name)


def _real(value: Any) -> float:
    """Return a weight as a real number; PyAMG may have made it complex."""
    return float(np.real(value))


def _warn_of_replacements(levels: Sequence[Level]) -> None:
    """Issue one warning for each kind of smoother that was replaced, unless the replacement is equivalent."""
    replaced = {s.replaces: s.name for level in levels for s in (level.presmoother, level.postsmoother)}
    for name, replacement in replaced.items():
        if name not in ("", *EQUIVALENTS.get(replacement, ())):
            warnings.warn(
                f"amg: the smoother {name} of the hierarchy is replaced by {replacement}, because no device runs it, "
                f"or only slowly for this matrix; to choose another one, pass smoother= one of "
                f"{', '.join(map(repr, SMOOTHERS))}",
                SmootherWarning,
                stacklevel=frames_to_the_caller(),
            )


def _is_hermitian(matrix: SquareMatrix, symmetry: str | None) -> bool:
    """Return whether the finest matrix is Hermitian; `symmetry` is PyAMG's declaration. Synchronizes."""
    if symmetry == "hermitian" or (symmetry == "symmetric" and matrix.dtype.kind != "c"):
        return matrix.is_roughly_hermitian()  # this is PyAMG's default, so the values must be tested
    return symmetry != "nonsymmetric" and matrix.is_hermitian()


def convert_hierarchy(
    ml: Any, device: Device, make: MakeSmoothers | None, cycle_index: int, dtype: Any
) -> MultigridPreconditioner:
    """Copy a hierarchy of PyAMG to a device.

    Parameters
    ----------
    ml : pyamg.MultilevelSolver
    device : Device
        It must be the active one.
    make : callable or None
        Function that returns the smoothers of a level; None to use those of the hierarchy, or equivalents.
    cycle_index : int
        Number of visits to the next coarser level.
    dtype : dtype or None
        The dtype of the levels; None for that of the hierarchy.

    Raises
    ------
    FactorizationError
        If the coarsest matrix has more than `MAX_INVERTED` rows, a smoother divides by a diagonal that has a zero or
        diverges, or a value is not finite.

    Warns
    -----
    SmootherWarning
        If a smoother is replaced by one that is not equivalent, or diverges.
    """
    hermitian: bool | None = None
    levels, coarsest = [], ml.levels[-1].A
    if coarsest.shape[0] > MAX_INVERTED:
        raise FactorizationError(
            f"amg: the coarsest level has {coarsest.shape[0]} rows, and a dense inverse is computed for at most "
            f"{MAX_INVERTED}: build the hierarchy with more levels (max_levels, max_coarse)"
        )
    for level in ml.levels[:-1]:
        operator = _operator(level.A, device, dtype)
        with SquareMatrix.of(operator, "amg") as matrix:
            # Only the finest matrix is tested: if it is Hermitian, the coarser ones are Hermitian up to rounding.
            hermitian = _is_hermitian(matrix, getattr(level.A, "symmetry", None)) if hermitian is None else hermitian
            if make is None:
                both = (level.presmoother, level.postsmoother)
                smoothers = tuple(relaxation_for(matrix, smoother, hermitian=hermitian) for smoother in both)
            else:
                smoothers = make(matrix, hermitian)
        levels.append(Level(operator, _operator(level.R, device, dtype), _operator(level.P, device, dtype), *smoothers))
    with SquareMatrix.of(_operator(coarsest, device, None), "amg"):  # raises if a value is not finite
        inverse = np.linalg.pinv(sp.csr_array(coarsest).toarray(), hermitian=bool(hermitian))
    _warn_of_replacements(levels)
    coarse = _operator(inverse, device, dtype)
    M = MultigridPreconditioner(device, levels, coarse, cycle_index, dtype, int(coarsest.nnz))
    check_cycle(M, levels[0].operator if levels else coarse)
    return M


def _operator(matrix: Any, device: Device, dtype: Any) -> MatrixOperator:
    """Copy a host matrix to the device, in the requested precision."""
    host = sp.csr_array(matrix)
    if not host.has_canonical_format:
        host = host.copy()  # do not change the arrays of PyAMG's hierarchy
        host.sum_duplicates()
    if dtype is not None:
        host = host.astype(inner_dtype(np.dtype(dtype), host.dtype))
    return MatrixOperator(GpuSparseMatrix(host, device=device))
