"""SciPy's `test_traversal` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("csgraph_traversal"))
