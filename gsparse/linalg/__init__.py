"""Krylov solvers whose vectors stay on the device, with SciPy's signatures, and preconditioners for them."""

from gsparse.linalg.cg import cg
from gsparse.linalg.result import SolveResult

__all__ = ["SolveResult", "cg"]
