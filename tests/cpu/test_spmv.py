"""The CPU's products in every format have the same bits on any number of threads, and those of SciPy where it adds.

Here all calls run as later calls do. tests/test_products.py, tests/test_encodings.py and tests/test_columns.py check
structures, encodings and dtypes, with first calls.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse.device import threads
from tests.encodings import patterned
from tests.support import assert_product, from_lengths

# Formats that add the entries of a row in their order, as SciPy does.
IN_ORDER = ("csr_scalar", "ellpack", "blocked_ellpack", "row_pattern")


def matrix_for(format: str, rng: np.random.Generator) -> sp.csr_array:
    """Return a matrix that is large enough for 16 threads, with rows longer than the share of a thread."""
    if format == "row_pattern":
        return patterned(rng, 200_000, 40)
    lengths = rng.integers(0, 14, 120_000)
    if format != "ellpack":
        lengths[[0, 70_000, 119_999]] = 200_000, 30_000, 2000
    return from_lengths(lengths, 5000, rng)


@pytest.mark.parametrize("format", gsparse.FORMATS[1:])
def test_bits_do_not_depend_on_the_number_of_threads(format: str, rng: np.random.Generator) -> None:
    S = matrix_for(format, rng)
    A, x = gsparse.GpuSparseMatrix(S, device="cpu", format=format), rng.standard_normal(S.shape[1])
    results = []
    for num_threads in (1, 2, 16):
        threads.set_num_threads(num_threads)
        results.append(A @ x)
    assert_product(results[0], S, x)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("format", IN_ORDER)
def test_rows_that_are_summed_in_order_have_the_same_bits_as_scipys(format: str, rng: np.random.Generator) -> None:
    S = from_lengths(np.tile([0, 3, 1, 0, 8, 9, 7, 2, 0, 0, 5, 15, 1], 8), 40, rng)
    A, X = gsparse.GpuSparseMatrix(S, device="cpu", format=format), rng.standard_normal((40, 19))
    together = A @ X
    for column, x in enumerate(X.T.copy()):
        np.testing.assert_array_equal(A @ x, S @ x)
        np.testing.assert_array_equal(together[:, column], S @ x)
