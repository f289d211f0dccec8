"""Preconditioners: approximate inverses that stay on the device, for `M` of the solvers here, of SciPy and of CuPy."""
