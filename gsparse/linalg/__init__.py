"""Krylov solvers whose vectors stay on the device, preconditioners, eigensolvers, direct solves, and norms."""

from gsparse.linalg.accelerated import AcceleratedOperator
from gsparse.linalg.automatic.solver import solve
from gsparse.linalg.direct.factorization import Factorization
from gsparse.linalg.direct.functions import cholesky, factorized, splu, spsolve
from gsparse.linalg.direct.triangular import spsolve_triangular
from gsparse.linalg.eigen.eigs import eigs
from gsparse.linalg.eigen.eigsh import eigsh
from gsparse.linalg.eigen.lobpcg import lobpcg
from gsparse.linalg.eigen.problem import EigenResult
from gsparse.linalg.eigen.svds import svds
from gsparse.linalg.functions.expm_multiply import expm_multiply
from gsparse.linalg.functions.onenormest import onenormest
from gsparse.linalg.krylov.bicgstab import bicgstab
from gsparse.linalg.krylov.cg import cg
from gsparse.linalg.krylov.chebyshev import chebyshev
from gsparse.linalg.krylov.gmres import fgmres, gmres
from gsparse.linalg.krylov.lsmr import lsmr
from gsparse.linalg.krylov.lsqr import lsqr
from gsparse.linalg.krylov.minres import minres
from gsparse.linalg.multigrid.amg import amg
from gsparse.linalg.multigrid.options import rigid_body_modes
from gsparse.linalg.multigrid.smoothed_aggregation import SmoothedAggregation
from gsparse.linalg.norms import norm, spectral_radius
from gsparse.linalg.preconditioners.base import MatrixPreconditioner
from gsparse.linalg.preconditioners.diagonal import block_jacobi, jacobi
from gsparse.linalg.preconditioners.fieldsplit import fieldsplit
from gsparse.linalg.preconditioners.gauss_seidel import gauss_seidel, sor
from gsparse.linalg.preconditioners.ilu import ic0, ilu0
from gsparse.linalg.preconditioners.isai import isai
from gsparse.linalg.preconditioners.polynomial import chebyshev_polynomial
from gsparse.linalg.result import SolveAttempt, SolveResult

__all__ = [
    "AcceleratedOperator",
    "EigenResult",
    "Factorization",
    "MatrixPreconditioner",
    "SmoothedAggregation",
    "SolveAttempt",
    "SolveResult",
    "amg",
    "bicgstab",
    "block_jacobi",
    "cg",
    "chebyshev",
    "chebyshev_polynomial",
    "cholesky",
    "eigs",
    "eigsh",
    "expm_multiply",
    "factorized",
    "fgmres",
    "fieldsplit",
    "gauss_seidel",
    "gmres",
    "ic0",
    "ilu0",
    "isai",
    "jacobi",
    "lobpcg",
    "lsmr",
    "lsqr",
    "minres",
    "norm",
    "onenormest",
    "rigid_body_modes",
    "solve",
    "sor",
    "spectral_radius",
    "splu",
    "spsolve",
    "spsolve_triangular",
    "svds",
]
