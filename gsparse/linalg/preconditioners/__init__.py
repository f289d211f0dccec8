"""Preconditioners: approximate inverses that stay on the device, for `M` of the solvers here, of SciPy and of CuPy."""

from gsparse.linalg.multigrid.amg import amg
from gsparse.linalg.preconditioners.diagonal import block_jacobi, jacobi
from gsparse.linalg.preconditioners.ilu import ic0, ilu0
from gsparse.linalg.preconditioners.isai import isai
from gsparse.linalg.preconditioners.polynomial import chebyshev_polynomial

__all__ = ["amg", "block_jacobi", "chebyshev_polynomial", "ic0", "ilu0", "isai", "jacobi"]
