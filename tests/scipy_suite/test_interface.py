"""SciPy's `test_interface` against GpuSparseMatrix."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("interface"))
