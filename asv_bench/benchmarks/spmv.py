"""Products, conversions and calls, on the GPU where there is one, else on the CPU: ``asv run -E existing --quick``."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

import gsparse


def laplacian(n: int) -> sp.csr_array:
    return sp.csr_array(scipy.sparse.linalg.LaplacianNd((n,) * 3, dtype=np.float64).tosparse())


class Product:
    params = (gsparse.FORMATS[1:], ("float32", "float64", "complex128"))
    param_names = ("format", "dtype")

    def setup(self, format, dtype):
        self.A = gsparse.GpuSparseMatrix(laplacian(64), dtype=dtype, format=format)
        self.device = self.A.device
        self.x = self.device.xp.ones(self.A.shape[1], dtype)
        self.y = self.device.xp.empty(self.A.shape[0], dtype)
        self.A.matvec(self.x, out=self.y)

    def time_matvec(self, format, dtype):
        self.A.matvec(self.x, out=self.y)
        self.device.synchronize()


class Conversion:
    params = gsparse.FORMATS[1:]
    param_names = ("format",)

    def setup(self, format):
        self.A = gsparse.GpuSparseMatrix(laplacian(64), format=format)
        self.x = self.A.device.xp.ones(self.A.shape[1])
        self.A @ self.x

    def time_first_product(self, format):
        self.A.release()
        self.A @ self.x
        self.A.device.synchronize()


class Call:
    """A thousand rows: what is left is the call."""

    def setup(self):
        self.A = gsparse.GpuSparseMatrix(laplacian(10))
        self.x = self.A.device.xp.ones(1000)
        self.A @ self.x

    def time_call(self):
        self.A @ self.x


def timeraw_import():
    return "import gsparse"
