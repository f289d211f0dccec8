"""SciPy's `test_indexing1d` against GpuSparseMatrix."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("indexing1d"))
