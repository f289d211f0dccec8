"""SciPy's `test_graph_laplacian` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("csgraph_graph_laplacian"))
