"""SciPy's `test_common1d` against GpuSparseMatrix."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("common1d"))
