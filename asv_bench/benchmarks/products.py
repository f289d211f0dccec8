"""Products in every format, and the overhead of a call."""

from __future__ import annotations

import scipy.sparse as sp

import gsparse

from .common import MATRICES, Prepared, WithMatrices, matrix, vector

# Calls that are timed together, because a single one takes hardly longer than reading the clock.
CALLS = 100
# Products before the first sample. The transpose is stored only when a matrix has been multiplied this often.
FIRST = 10


class Formats(WithMatrices):
    """Products in each format and in the one that the plan chooses, into an existing vector."""

    params = (gsparse.FORMATS, tuple(MATRICES))
    param_names = ("format", "matrix")

    def prepare(self, format, name):
        self.A = matrix(name, format=format)
        self.x, self.y = vector(self.A.shape[1]), vector(self.A.shape[0])
        self.time_product(format, name)

    def time_product(self, format, name):
        self.A.matvec(self.x, out=self.y)
        self.A.device.synchronize()


class Types(WithMatrices):
    """Products and transposed products with default options, for each dtype."""

    params = (("float32", "float64", "complex64", "complex128"), ("7-point", "R-MAT"))
    param_names = ("dtype", "matrix")

    def prepare(self, dtype, name):
        self.A = matrix(name, dtype)
        self.x, self.y = vector(self.A.shape[1], dtype), vector(self.A.shape[0], dtype)
        for _ in range(FIRST):
            self.time_product(dtype, name)
            self.time_transposed_product(dtype, name)

    def time_product(self, dtype, name):
        self.A @ self.x
        self.A.device.synchronize()

    def time_transposed_product(self, dtype, name):
        self.A.T @ self.y
        self.A.device.synchronize()


class Columns(WithMatrices):
    """Products with a row-major X of several columns."""

    params = ((2, 8, 32), ("7-point", "uniform", "R-MAT"))
    param_names = ("columns", "matrix")

    def prepare(self, columns, name):
        self.A = matrix(name)
        self.X, self.Y = (vector((size, columns)) for size in self.A.shape[::-1])
        self.time_product(columns, name)

    def time_product(self, columns, name):
        self.A.matmat(self.X, out=self.Y)
        self.A.device.synchronize()


class SmallColumns(Prepared):
    """Repeated products of a matrix with a thousand rows and an X of a few columns, as in `Call`."""

    params = (1, 4, 16)
    param_names = ("columns",)

    def prepare(self, columns):
        self.A = gsparse.GpuSparseMatrix(sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(1000, 1000)))
        self.X = vector((1000, columns))
        self.time_hundred_products(columns)

    def time_hundred_products(self, columns):
        for _ in range(CALLS):
            self.A @ self.X
        self.A.device.synchronize()


class Call(Prepared):
    """Repeated products of a matrix with a thousand rows, whose time is the overhead of the call."""

    def prepare(self):
        self.A = gsparse.GpuSparseMatrix(sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(1000, 1000)))
        self.x, self.y = vector(1000), vector(1000)
        self.time_hundred_products()

    def time_hundred_products(self):
        for _ in range(CALLS):
            self.A @ self.x
        self.A.device.synchronize()

    def time_hundred_products_into_a_vector(self):
        for _ in range(CALLS):
            self.A.matvec(self.x, out=self.y)
        self.A.device.synchronize()
