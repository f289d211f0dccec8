"""Krylov solvers whose vectors stay on the device, with SciPy's signatures, and preconditioners for them."""

from gsparse.linalg.accelerated import AcceleratedOperator
from gsparse.linalg.eigen.lobpcg import lobpcg
from gsparse.linalg.krylov.bicgstab import bicgstab
from gsparse.linalg.krylov.cg import cg
from gsparse.linalg.krylov.chebyshev import chebyshev
from gsparse.linalg.krylov.gmres import fgmres, gmres
from gsparse.linalg.krylov.lsmr import lsmr
from gsparse.linalg.krylov.lsqr import lsqr
from gsparse.linalg.krylov.minres import minres
from gsparse.linalg.multigrid.amg import amg
from gsparse.linalg.preconditioners.diagonal import block_jacobi, jacobi
from gsparse.linalg.preconditioners.ilu import ic0, ilu0
from gsparse.linalg.preconditioners.isai import isai
from gsparse.linalg.preconditioners.polynomial import chebyshev_polynomial
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
