"""Solvers whose vectors stay on the device, their preconditioners, and SciPy's own with `A.accelerated()`."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse.linalg

import gsparse
from gsparse import linalg
from gsparse.bench.problems import stencil

from .common import Prepared, vector

SOLVERS = ("bicgstab", "cg", "gmres", "minres")
PRECONDITIONERS = {"amg": "amg", "chebyshev": "chebyshev_polynomial", "ic0": "ic0", "jacobi": "jacobi"}

# Points along a side of the cube. Launches of kernels dominate the small problem, and memory the large one.
SIDES = {"small": 16, "large": 64}


def poisson(size):
    data, indices, indptr, shape = stencil(SIDES[size], 7)
    return gsparse.GpuSparseMatrix((data, indices, indptr), shape=shape, symmetric=True)


class Solves(Prepared):
    """Poisson's equation on a cube with one right-hand side. Three samples suffice, because one can take seconds."""

    repeat = (3, 20, 0.5)

    def prepare(self, method, size="large"):
        self.A = poisson(size)
        self.b = vector(self.A.shape[0])


class Solve(Solves):
    """A whole solve to 1e-8, including its set-up."""

    params = (SOLVERS, tuple(SIDES))
    param_names = ("method", "size")
    version = "2"

    def prepare(self, method, size):
        super().prepare(method, size)
        self.time_solve(method, size)

    def time_solve(self, method, size):
        getattr(linalg, method)(self.A, self.b, rtol=1e-8)
        self.A.device.synchronize()

    def track_iterations(self, method, size):
        return getattr(linalg, method)(self.A, self.b, rtol=1e-8, full_output=True).iterations

    track_iterations.unit = "iterations"


class Preconditioned(Solves):
    """CG to 1e-8 with a preconditioner, and the set-up of the preconditioner."""

    params = tuple(PRECONDITIONERS)
    param_names = ("preconditioner",)
    version = "2"

    def prepare(self, name):
        super().prepare(name)
        self.M = getattr(linalg, PRECONDITIONERS[name])(self.A)
        self.time_solve(name)

    def time_setup(self, name):
        getattr(linalg, PRECONDITIONERS[name])(self.A)
        self.A.device.synchronize()

    def time_solve(self, name):
        linalg.cg(self.A, self.b, rtol=1e-8, M=self.M)
        self.A.device.synchronize()

    def track_iterations(self, name):
        return linalg.cg(self.A, self.b, rtol=1e-8, M=self.M, full_output=True).iterations

    track_iterations.unit = "iterations"


class Narrow(Solves):
    """CG to 1e-10 that iterates in float32 and refines the solution, or iterates in the matrix's float64."""

    params = ("float64", "float32")
    param_names = ("products_in",)

    def time_cg(self, dtype):
        linalg.cg(self.A, self.b, rtol=1e-10, inner_dtype=None if dtype == "float64" else dtype)
        self.A.device.synchronize()


class Accelerated(Solves):
    """SciPy's unmodified solvers to 1e-5, with `A.accelerated()` and a right-hand side on the host."""

    params = ("cg", "bicgstab", "lgmres")
    param_names = ("method",)

    def prepare(self, method):
        self.A = poisson("large").accelerated()
        self.b = np.ones(self.A.shape[0])

    def time_scipy(self, method):
        getattr(scipy.sparse.linalg, method)(self.A, self.b)


class Eigenvalues(Solves):
    """Ten iterations of LOBPCG with a block of six vectors."""

    def prepare(self):
        warnings.simplefilter("ignore")  # LOBPCG warns because ten iterations do not reach the tolerance.
        self.A = poisson("large")
        self.X = self.A.device.xp.asarray(np.random.default_rng(0).standard_normal((self.A.shape[0], 6)))

    def time_lobpcg(self):
        linalg.lobpcg(self.A, self.X, tol=1e-9, maxiter=10)
        self.A.device.synchronize()
