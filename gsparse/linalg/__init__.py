"""Krylov solvers whose vectors stay on the device, with SciPy's signatures, and preconditioners for them."""

from gsparse.linalg.accelerated import AcceleratedOperator
from gsparse.linalg.bicgstab import bicgstab
from gsparse.linalg.cg import cg
from gsparse.linalg.chebyshev import chebyshev
from gsparse.linalg.gmres import fgmres, gmres
from gsparse.linalg.lobpcg import lobpcg
from gsparse.linalg.lsmr import lsmr
from gsparse.linalg.lsqr import lsqr
from gsparse.linalg.minres import minres
from gsparse.linalg.preconditioners import amg, block_jacobi, chebyshev_polynomial, ic0, ilu0, isai, jacobi
from gsparse.linalg.result import SolveResult

__all__ = [
    "AcceleratedOperator",
    "SolveResult",
    "amg",
    "bicgstab",
    "block_jacobi",
    "cg",
    "chebyshev",
    "chebyshev_polynomial",
    "fgmres",
    "gmres",
    "ic0",
    "ilu0",
    "isai",
    "jacobi",
    "lobpcg",
    "lsmr",
    "lsqr",
    "minres",
]
