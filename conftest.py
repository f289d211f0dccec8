"""Register the pytest plugins that add the project's command-line options, for the tests of every folder."""

import os
import signal
from importlib.util import find_spec

# A shell starts commands in the background with interrupts ignored, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.failures", "tests.library_warnings", "tests.sample", "tests.seeds", "tests.untraced"]

# The examples in the docstrings of these packages run where their library is installed.
collect_ignore = [f"gsparse/{library}" for library in ("torch", "jax") if find_spec(library) is None]
if not os.environ.get("GSPARSE_TEST_IN_MPIEXEC"):  # set by tests/ranks/test_mpi.py
    collect_ignore.append("tests/ranks/in_mpiexec.py")
