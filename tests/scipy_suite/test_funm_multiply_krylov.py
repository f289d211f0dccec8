"""SciPy's `test_funm_multiply_krylov` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("funm_multiply_krylov"))
