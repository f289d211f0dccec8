"""SciPy's `test_lgmres` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("lgmres"))
