"""The smoothers of a PyAMG hierarchy, as smoothers that run on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import getclosurevars
from typing import Any

import numpy as np

from gsparse.kernels.backends import kernels_of
from gsparse.linalg.multigrid.smoothers import chebyshev, parallel_smoother
from gsparse.linalg.preconditioners.block_relaxation import BlockRelaxation
from gsparse.linalg.preconditioners.gauss_seidel import directions_of, make_gauss_seidel
from gsparse.linalg.preconditioners.normal_equations import jacobi_ne, projections
from gsparse.linalg.preconditioners.relaxation import Relaxation, Smoother, in_leja_order
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

# For a smoother, those that it replaces without a warning, because it takes about as many iterations as they do.
EQUIVALENTS: dict[str, tuple[str, ...]] = {"chebyshev": ("gauss_seidel", "sor")}


# The options that PyAMG gave to a smoother.
Options = dict[str, Any]


def _none(matrix: SquareMatrix, options: Options, hermitian: bool) -> Smoother:
    return Relaxation(())


def _jacobi(matrix: SquareMatrix, options: Options, hermitian: bool) -> Smoother:
    if options.get("blocksize", 1) > 1:
        inverses = matrix.device.upload(np.asarray(options["Dinv"], matrix.dtype))
        steps = options["iterations"] * ((_real(options["omega"]), inverses),)
        return BlockRelaxation(f"block_jacobi({inverses.shape[1]})", steps)
    inverse = matrix.inverse_diagonal("the smoother jacobi")
    omegas = options["iterations"] * (_real(options["omega"]),)
    return Relaxation.scaled(matrix.device, omegas, inverse, "jacobi")


def _richardson(matrix: SquareMatrix, options: Options, hermitian: bool) -> Smoother:
    return Relaxation(options["iterations"] * (_real(options["omega"]),), name="richardson")


def _chebyshev(matrix: SquareMatrix, options: Options, hermitian: bool) -> Smoother:
    roots = np.roots([*(-np.asarray(options["coefficients"])), 1.0])  # of the error polynomial
    return Relaxation(options["iterations"] * tuple((1 / in_leja_order(roots.real)).tolist()), name="chebyshev")


def _gauss_seidel(matrix: SquareMatrix, options: Options, hermitian: bool, *, name: str = "gauss_seidel") -> Smoother:
    """Return the same sweeps; on a GPU, a Chebyshev polynomial if the matrix is Hermitian with a positive diagonal.

    The polynomial takes about as many iterations and fewer launches, and its products read less than sweeps do.
    """
    directions = directions_of(options["sweep"], options["iterations"])
    if options.get("blocksize", 1) > 1:
        inverses = matrix.device.upload(np.asarray(options["Dinv"], matrix.dtype))
        return make_gauss_seidel(matrix, directions, inverses=inverses)
    if hermitian and kernels_of(matrix.device).triangular.NEEDS_LEVELS and matrix.has_positive_diagonal():
        return replace(chebyshev(matrix, max(2, len(directions))), replaces=name)
    return make_gauss_seidel(matrix, directions, omega=_real(options.get("omega", 1.0)))


def _subset_jacobi(matrix: SquareMatrix, options: Options, hermitian: bool, *, name: str, fine_first: bool) -> Smoother:
    """Return Jacobi's method for the fine and then the coarse points of an AIR hierarchy, or the other way round."""
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
    masked = {id(subset): xp.where(subset, inverse, 0) for subset in subsets}
    return Relaxation(len(subsets) * (omega,), name=name, subsets=tuple(masked[id(subset)] for subset in subsets))


def _projections(matrix: SquareMatrix, options: Options, hermitian: bool, *, of_residual: bool) -> Smoother:
    directions = directions_of(options["sweep"], options["iterations"])
    return projections(matrix, directions, of_residual=of_residual, omega=_real(options["omega"]))


def _jacobi_ne(matrix: SquareMatrix, options: Options, hermitian: bool) -> Smoother:
    return jacobi_ne(matrix, options["iterations"], _real(options["omega"]))


def _replaced(matrix: SquareMatrix, options: Options, hermitian: bool, *, name: str) -> Smoother:
    """Return a smoother of about as much work for one that no device runs."""
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
    "none": _none,
    "jacobi": _jacobi,
    "block_jacobi": _jacobi,
    "richardson": _richardson,
    "chebyshev": _chebyshev,
    "gauss_seidel": _gauss_seidel,
    "block_gauss_seidel": _gauss_seidel,
    "sor": partial(_gauss_seidel, name="sor"),
    **{
        f"{order}_{kind}": partial(_subset_jacobi, name=f"{order}_{kind}", fine_first=order == "fc")
        for order in ("cf", "fc")
        for kind in ("jacobi", "block_jacobi")
    },
    "jacobi_ne": _jacobi_ne,
    "gauss_seidel_ne": partial(_projections, of_residual=False),
    "gauss_seidel_nr": partial(_projections, of_residual=True),
}


def relaxation_for(matrix: SquareMatrix, smoother: Any, *, hermitian: bool) -> Smoother:
    """Return the smoother of a PyAMG hierarchy as one that runs on a device, or its replacement.

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
    """Return a weight as a number; PyAMG may have made it complex."""
    return float(np.real(value))
