"""SciPy's `test_onenormest` with matrices converted first."""

from tests.scipy_suite import scipys_tests

globals().update(scipys_tests("onenormest"))
