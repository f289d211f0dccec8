"""SciPy's `test_csr` against GpuSparseMatrix."""

from gsparse import GpuSparseMatrix
from tests.scipy_suite import load_test_module, suite_of

globals().update(suite_of(load_test_module("scipy.sparse.tests.test_csr", {"scipy.sparse.csr_array": GpuSparseMatrix})))
