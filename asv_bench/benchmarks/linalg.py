"""Solvers whose vectors stay on the device: an iteration, a whole solve, and SciPy's own with `A.accelerated()`."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse.linalg

import gsparse
from gsparse.bench.problems import stencil
from gsparse.linalg import bicgstab, cg, gmres, lobpcg, minres

from .common import vector

SOLVERS = {"bicgstab": bicgstab, "cg": cg, "gmres": gmres, "minres": minres}
SIZES = (20, 48)


def poisson(n, **options):
    data, indices, indptr, shape = stencil(n, 7)
    return gsparse.GpuSparseMatrix((data, indices, indptr), shape=shape, symmetric=True, **options)


class Solve:
    """A whole solve to 1e-8, set-up included."""

    params = (tuple(SOLVERS), SIZES)
    param_names = ("method", "n")

    def setup(self, method, n):
        self.A, self.b = poisson(n), vector(n**3)
        self.solve = SOLVERS[method]
        self.time_solve(method, n)

    def time_solve(self, method, n):
        self.solve(self.A, self.b, rtol=1e-8)
        self.A.device.synchronize()

    def track_iterations(self, method, n):
        return self.solve(self.A, self.b, rtol=1e-8, full_output=True).iterations

    track_iterations.unit = "iterations"


class Narrow:
    """Mixed precision beside the plain solve."""

    params = ((None, "float32"), SIZES)
    param_names = ("inner_dtype", "n")

    def setup(self, inner, n):
        self.A, self.b = poisson(n), vector(n**3)
        self.time_cg(inner, n)

    def time_cg(self, inner, n):
        cg(self.A, self.b, rtol=1e-10, inner_dtype=inner)
        self.A.device.synchronize()


class Accelerated:
    """SciPy's solvers, unmodified."""

    params = ("cg", "bicgstab", "lgmres")
    param_names = ("method",)

    def setup(self, method):
        self.A, self.b = poisson(48).accelerated(), np.ones(48**3)
        self.solve = getattr(scipy.sparse.linalg, method)
        self.time_scipy(method)

    def time_scipy(self, method):
        self.solve(self.A, self.b)


class Eigenvalues:
    """A block of six, ten iterations."""

    def setup(self):
        warnings.simplefilter("ignore")  # (ten iterations reach no tolerance)
        self.A = poisson(32)
        self.X = self.A.device.xp.asarray(np.random.default_rng(0).standard_normal((32**3, 6)))
        self.time_lobpcg()

    def time_lobpcg(self):
        lobpcg(self.A, self.X, tol=1e-9, maxiter=10)
        self.A.device.synchronize()
