"""Matrices that the benchmarks share, made once a run, and how often what is timed is repeated."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.bench.problems import MODEL_PROBLEMS, rmat, stencil, uniform
from gsparse.device.select import get_device
from gsparse.errors import FormatError

if find_spec("cupy"):
    import cupy  # noqa: F401  (before asv's server forks; nothing of CUDA is touched by an import)

# One of each kind that hurts. Millions of entries: more than a product's launch, and than a CPU's caches, hide.
MATRICES = {
    "7-point": lambda: stencil(100, 7, variable=True),
    "uniform": lambda: uniform(300_000, 24),
    "R-MAT": lambda: rmat(18, 16),
    "long rows": lambda: MODEL_PROBLEMS["few dense rows"](np),
}

# Beyond this a format does not fit.
MAX_PADDING = 20.0


class Prepared:
    """Benchmarks of which each parameter is prepared once a process.

    asv calls `setup` before every sample, and times one call a sample; so `setup` prepares but the first time, what
    `prepare` makes is warm, and samples are many. Raise `version` where what is measured changes.
    """

    version = "1"
    rounds = 1
    repeat = (5, 100, 0.5)
    timeout = 600  # (a GPU's first product compiles)
    ready = False

    def setup(self, *params):
        if not self.ready:
            self.prepare(*params)
            self.ready = True


class WithMatrices(Prepared):
    """Benchmarks that load what `setup_cache` has written; asv calls that once for all, and works in its folder."""

    def setup_cache(self):
        for name, make in MATRICES.items():
            data, indices, indptr, shape = make()
            sp.save_npz(f"{name}.npz", sp.csr_array((data, indices, indptr), shape=shape), compressed=False)

    setup_cache.timeout = 600


def host_matrix(name, dtype="float64"):
    return sp.load_npz(f"{name}.npz").astype(dtype)


def matrix(name, dtype="float64", **options):
    """Give a matrix on the device; NotImplementedError, asv's word for "skipped", where the format does not fit."""
    try:
        A = gsparse.GpuSparseMatrix(host_matrix(name, dtype), **options)
        padding = next(c.padding_ratio for c in A.plan.candidates if c.format == A.plan.format)
    except FormatError as error:
        raise NotImplementedError(str(error)) from error
    if padding > MAX_PADDING:
        raise NotImplementedError(f"padding {padding:.0f}")
    return A


def vector(size, dtype="float64"):
    return get_device().xp.ones(size, dtype)
