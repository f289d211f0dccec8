"""SciPy's `test_lobpcg` with matrices converted first."""

from tests.scipy_suite import load_test_module, suite_of
from tests.scipy_suite.solvers import CONVERTING

globals().update(suite_of(load_test_module("scipy.sparse.linalg._eigen.lobpcg.tests.test_lobpcg", CONVERTING)))
