"""SciPy's `test_connected_components` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("csgraph_connected_components"))
