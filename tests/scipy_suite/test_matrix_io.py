"""SciPy's `test_matrix_io` against GpuSparseMatrix."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("matrix_io"))
