"""SciPy's `test_minres` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("minres"))
