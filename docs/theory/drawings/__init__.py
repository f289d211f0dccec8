"""The drawings of the theory pages, in a module for each page."""

from drawings import cost_model, determinism, distributed, formats, multigrid, solvers
from drawings.sheet import DRAWINGS

__all__ = ["DRAWINGS", "cost_model", "determinism", "distributed", "formats", "multigrid", "solvers"]
