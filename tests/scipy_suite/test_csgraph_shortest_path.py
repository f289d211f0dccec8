"""SciPy's `test_shortest_path` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("csgraph_shortest_path"))
