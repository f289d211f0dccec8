"""The work before the first product: import, plan and conversion, and the memory that they need."""

from __future__ import annotations

import gsparse
from gsparse.device.select import get_device

from .common import MATRICES, WithMatrices, host_matrix, matrix, vector


def timeraw_import():
    return "import gsparse"


timeraw_import.version = "1"
timeraw_import.rounds = 1


class Conversion(WithMatrices):
    """Conversion from CSR on the device into a format, including the first product."""

    params = (tuple(name for name in gsparse.FORMATS if name != "auto"), ("7-point", "uniform", "R-MAT"))
    param_names = ("format", "matrix")

    def prepare(self, format, name):
        self.A = matrix(name, format=format)
        self.x = vector(self.A.shape[1])
        self.time_first_product(format, name)  # Compiles the kernels.

    def time_first_product(self, format, name):
        self.A.release()
        self.A @ self.x
        self.A.device.synchronize()


def first_product(S):
    A = gsparse.GpuSparseMatrix(S)
    A @ vector(A.shape[1])
    A.device.synchronize()
    return A


class Start(WithMatrices):
    """From SciPy's matrix to the first product, in the format that the plan chooses."""

    params = tuple(MATRICES)
    param_names = ("matrix",)

    def prepare(self, name):
        self.S = host_matrix(name)
        first_product(self.S)  # Compiles the kernels.

    def time_first_product(self, name):
        first_product(self.S)

    def peakmem_first_product(self, name):
        first_product(self.S)

    def track_bytes_of_a_product(self, name):
        """Return the bytes of the matrix that one product reads."""
        return first_product(self.S).stored.nbytes

    track_bytes_of_a_product.unit = "bytes"


class GpuMemory(WithMatrices):
    """GPU memory that CuPy's pool has allocated up to the first product. The pool does not free memory by itself."""

    params = tuple(MATRICES)
    param_names = ("matrix",)

    def prepare(self, name):
        if get_device().kind != "gpu":
            raise NotImplementedError("no GPU")
        self.S = host_matrix(name)

    def track_peak_of_first_product(self, name):
        return first_product(self.S).device.xp.get_default_memory_pool().total_bytes()

    track_peak_of_first_product.unit = "bytes"
