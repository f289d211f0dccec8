"""SciPy's `test_extract` against GpuSparseMatrix."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("extract"))
