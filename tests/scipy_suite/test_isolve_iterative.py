"""SciPy's `test_iterative` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("isolve_iterative"))
