"""What comes before the first product: importing, making, planning, converting, and the memory it takes."""

from __future__ import annotations

import gsparse

from .common import FORMATS, MATRICES, host_matrix, matrix, vector


def timeraw_import():
    return "import gsparse"


class Conversion:
    """From CSR on the device to what the first product reads, that product included."""

    params = (FORMATS, MATRICES)
    param_names = ("format", "matrix")

    def setup(self, format, name):
        self.A = matrix(name, format=format)
        self.x = vector(self.A.shape[1])
        self.A @ self.x

    def time_first_product(self, format, name):
        self.A.release()
        self.A @ self.x
        self.A.device.synchronize()


class Making:
    """From SciPy's matrix to a plan."""

    params = MATRICES
    param_names = ("matrix",)

    def setup(self, name):
        self.S = host_matrix(name)
        self.plan = gsparse.GpuSparseMatrix(self.S).plan  # compiles

    def time_plan(self, name):
        return gsparse.GpuSparseMatrix(self.S).plan

    def peakmem_first_product(self, name):
        A = gsparse.GpuSparseMatrix(self.S)
        return A @ vector(A.shape[1])
