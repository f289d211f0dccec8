"""Eigenvalue solvers."""
