"""Krylov solvers and the Chebyshev iteration: tables of fused steps over vectors that stay on the device."""
