"""SciPy's `test_conversions` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("csgraph_conversions"))
