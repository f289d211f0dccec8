"""SciPy's `test_linsolve` with the functions of `gsparse.linalg` in place of SciPy's."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("our_linsolve"))
