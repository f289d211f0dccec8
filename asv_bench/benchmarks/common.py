"""Matrices that the benchmarks share: small enough for a run of minutes, and one of each kind that hurts."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.bench.problems import MODEL_PROBLEMS
from gsparse.device import get_device
from gsparse.errors import FormatError

FORMATS = tuple(name for name in gsparse.FORMATS if name != "auto")
# Each case is a process of its own, of a second or two.
MATRICES = ("7-point 40^3 variable", "uniform 20k x 24", "R-MAT 15")

# Beyond this a format does not fit.
MAX_PADDING = 20.0


def host_matrix(name, dtype="float64"):
    data, indices, indptr, shape = MODEL_PROBLEMS[name](np)
    return sp.csr_array((data.astype(dtype), indices, indptr), shape=shape)


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
