"""The matrices that the benchmarks share, which are made once per run, and the number of samples."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.bench.problems import MODEL_PROBLEMS, rmat, stencil, uniform
from gsparse.device.select import get_device
from gsparse.errors import FormatError

if find_spec("cupy"):
    import cupy  # noqa: F401  (asv's server forks after this import, which does not initialize CUDA)

# One matrix for each pattern that is hard for some format. They have millions of entries, so that neither the launch of
# a kernel nor the CPU's caches dominate the time of a product.
MATRICES = {
    "7-point": lambda: stencil(100, 7, variable=True),
    "uniform": lambda: uniform(300_000, 24),
    "R-MAT": lambda: rmat(18, 16),
    "long rows": lambda: MODEL_PROBLEMS["few dense rows"](np),
}

# A format with a greater padding ratio is skipped.
MAX_PADDING = 20.0


class Prepared:
    """Base of the benchmarks, which prepares each parameter once per process.

    asv calls `setup` before every sample, and a sample is one call. Here only the first `setup` prepares, so that later
    samples find everything compiled and are cheap enough to take many. Increase `version` if the measured work changes.
    """

    version = "1"
    rounds = 1
    repeat = (5, 100, 0.5)
    timeout = 600  # The first product on a GPU compiles its kernels.
    ready = False

    def setup(self, *params):
        if not self.ready:
            self.prepare(*params)
            self.ready = True


class WithMatrices(Prepared):
    """Base of the benchmarks that load the files of `setup_cache`, which asv calls once, in the working folder."""

    def setup_cache(self):
        for name, make in MATRICES.items():
            data, indices, indptr, shape = make()
            sp.save_npz(f"{name}.npz", sp.csr_array((data, indices, indptr), shape=shape), compressed=False)

    setup_cache.timeout = 600


def host_matrix(name, dtype="float64"):
    return sp.load_npz(f"{name}.npz").astype(dtype)


def matrix(name, dtype="float64", **options):
    """Return a matrix on the device. Raise NotImplementedError, which means "skipped" in asv, if no format fits."""
    try:
        A = gsparse.GpuSparseMatrix(host_matrix(name, dtype), **options)
        padding = next(c.padding_ratio for c in A.plan.candidates if c.format == A.plan.format)
    except FormatError as error:
        raise NotImplementedError(str(error)) from error
    if padding > MAX_PADDING:
        raise NotImplementedError(f"padding ratio {padding:.0f}")
    return A


def vector(size, dtype="float64"):
    return get_device().xp.ones(size, dtype)
