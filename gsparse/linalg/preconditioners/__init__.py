"""Preconditioners: approximate inverses that stay on the device, for `M` of the solvers of gsparse, SciPy and CuPy."""
