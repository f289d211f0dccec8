"""Products in every format, and the call around them."""

from __future__ import annotations

import scipy.sparse as sp

import gsparse

from .common import FORMATS, MATRICES, matrix, vector


class Product:
    """Format × matrix × type, into a vector that is kept."""

    params = (FORMATS, MATRICES, ("float32", "float64"))
    param_names = ("format", "matrix", "dtype")

    def setup(self, format, name, dtype):
        self.A = matrix(name, dtype, format=format)
        self.x, self.y = vector(self.A.shape[1], dtype), vector(self.A.shape[0], dtype)
        self.A.matvec(self.x, out=self.y)
        self.A.device.synchronize()

    def time_matvec(self, format, name, dtype):
        self.A.matvec(self.x, out=self.y)
        self.A.device.synchronize()


class Choice:
    """What a user gets who asks for nothing."""

    params = (("7-point 40^3 constant", "few dense rows", *MATRICES), ("float64", "complex128"))
    param_names = ("matrix", "dtype")

    def setup(self, name, dtype):
        self.A = matrix(name, dtype)
        self.x = vector(self.A.shape[1], dtype)
        self.A @ self.x
        self.A.T @ vector(self.A.shape[0], dtype)

    def time_product(self, name, dtype):
        self.A @ self.x
        self.A.device.synchronize()

    def track_bytes(self, name, dtype):
        """Give the bytes that one product reads of the matrix."""
        return self.A.stored.nbytes

    track_bytes.unit = "bytes"

    def time_transposed(self, name, dtype):
        self.A.T @ self.x
        self.A.device.synchronize()


class Columns:
    """Several right-hand sides."""

    params = (MATRICES, (4, 32))
    param_names = ("matrix", "columns")

    def setup(self, name, columns):
        self.A = matrix(name)
        self.X = vector((self.A.shape[1], columns))
        self.A @ self.X

    def time_matmat(self, name, columns):
        self.A @ self.X
        self.A.device.synchronize()


class Call:
    """A thousand rows: what is left is the call."""

    def setup(self):
        self.A = gsparse.GpuSparseMatrix(sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(1000, 1000)))
        self.x, self.y = vector(1000), vector(1000)
        self.A @ self.x

    def time_call(self):
        self.A @ self.x

    def time_call_into_a_vector(self):
        self.A.matvec(self.x, out=self.y)
