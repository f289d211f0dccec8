"""SciPy's `test_expm_multiply` with matrices converted first."""

from tests.scipy_suite import load_test_module, suite_of
from tests.scipy_suite.solvers import CONVERTING

globals().update(suite_of(load_test_module("scipy.sparse.linalg.tests.test_expm_multiply", CONVERTING)))
