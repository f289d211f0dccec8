"""SciPy's `test_minmax1d` against GpuSparseMatrix."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("minmax1d"))
