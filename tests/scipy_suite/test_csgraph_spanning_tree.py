"""SciPy's `test_spanning_tree` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("csgraph_spanning_tree"))
