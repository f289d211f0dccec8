"""SciPy's `test_expm_multiply` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("expm_multiply"))
