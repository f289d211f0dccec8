"""SciPy's `test_indexing1d` against GpuSparseMatrix."""

from gsparse import GpuSparseMatrix
from tests.scipy_suite import load_test_module, suite_of

globals().update(
    suite_of(load_test_module("scipy.sparse.tests.test_indexing1d", {"scipy.sparse.csr_array": GpuSparseMatrix}))
)
