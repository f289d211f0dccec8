"""CPUs whose instructions load the elements of all lanes at once, and CPUs that load them one by one."""

from __future__ import annotations

import pytest

from tests.support import run_python

# Rows of 0 to 40 entries; x[0] is inf, which reaches the rows that have column 0 and no others.
PRODUCTS = """
import hashlib
import numpy as np, scipy.sparse as sp
import gsparse
from gsparse.kernels.cpu.vectors import HAS_GATHERS
rng = np.random.default_rng(0)
lengths = rng.integers(0, 41, 300)
indptr = np.concatenate([[0], np.cumsum(lengths)])
indices = rng.integers(0, 500, indptr[-1])
digest = hashlib.sha256()
for dtype in ("float64", "float32"):
    values = (rng.standard_normal(indptr[-1]) * 100).astype(dtype)
    x = (rng.standard_normal(500) * 100).astype(dtype)
    x[0] = np.inf
    S = sp.csr_array((values, indices, indptr), shape=(300, 500))
    for format in ("csr_vector", "blocked_ellpack"):
        y = gsparse.GpuSparseMatrix(S, device="cpu", format=format) @ x
        assert (np.isfinite(y) == np.isfinite(S @ x)).all(), format
        digest.update(y[np.isfinite(y)].tobytes())
print(HAS_GATHERS, digest.hexdigest())
"""


@pytest.mark.whole
def test_a_cpu_that_loads_elements_one_by_one_gives_the_same_bits() -> None:
    _, here = run_python(PRODUCTS).split()
    has_gathers, generic = run_python(PRODUCTS, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="").split()
    assert has_gathers == "False"
    assert here == generic


# The codes end where the buffer has a number that leads far out of the table.
EMPTY = """
import numba, numpy as np
from gsparse.kernels.cpu.lanes import gather_first, keep_first, lane_sum
buffer = np.zeros(16, np.uint64)
buffer[8:] = 2**40
codes = buffer[:8]
@numba.njit
def nothing(table, codes):
    return lane_sum(keep_first(gather_first(table, codes, np.uint64(8), np.uint64(0), np.uint64(0)), np.uint64(0)))
for dtype in ("complex128", "float64", "int64"):
    assert nothing(np.ones(4, dtype), codes) == 0
print("done")
"""


def test_no_code_behind_the_end_is_read_for_no_lane() -> None:
    for environment in ({}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}):
        assert run_python(EMPTY, **environment).strip() == "done"
