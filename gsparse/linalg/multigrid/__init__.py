"""Algebraic multigrid."""
