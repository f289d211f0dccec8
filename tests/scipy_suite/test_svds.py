"""SciPy's `test_svds` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("svds"))
