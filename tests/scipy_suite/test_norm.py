"""SciPy's `test_norm` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("norm"))
