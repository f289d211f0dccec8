"""SciPy's `test_arithmetic1d` against GpuSparseMatrix."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("arithmetic1d"))
