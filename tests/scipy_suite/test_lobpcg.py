"""SciPy's `test_lobpcg` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("lobpcg"))
