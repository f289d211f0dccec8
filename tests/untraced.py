"""The tracer of coverage: off in most compilations, which it slows down by half, and on again after an error."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

__all__ = ["compile_untraced"]

# The tracer that measures the tests of this process; None without coverage.
_TRACER = sys.gettrace()


def compile_untraced() -> None:
    """Make numba compile a kernel without the tracer if it was already compiled for arrays of the same dtype kinds.

    The intrinsics of gsparse run during a compilation, and the first compilation of a kernel measures their coverage.
    Without a tracer, this function does nothing. Call it before the first kernel is compiled.
    """
    if sys.gettrace() is None:
        return
    from numba.core.dispatcher import Dispatcher

    plain, measured = Dispatcher._compile_for_args, set()

    def compile_for_args(dispatcher: Any, *args: Any, **options: Any) -> Any:
        tracer = sys.gettrace()
        kinds = {value.dtype.kind for value in args if isinstance(value, np.ndarray)}
        case = (dispatcher.py_func.__module__, dispatcher.py_func.__qualname__, *sorted(kinds))
        if tracer is None or case not in measured:
            measured.add(case)
            return plain(dispatcher, *args, **options)
        sys.settrace(None)
        try:
            return plain(dispatcher, *args, **options)
        finally:
            sys.settrace(tracer)
            _call_something()

    Dispatcher._compile_for_args = compile_for_args


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Trace again if a test has ended the tracer, and name the test.

    Python ends a tracer that raises an error. Ctrl-C raises one in the tracer if it comes just then.
    """
    if _TRACER is not None and sys.gettrace() is None:
        sys.settrace(_TRACER)
        _call_something()
        print(f"\nthe tracer of coverage ended in {item.nodeid}, and was started again", file=sys.__stderr__)


def _call_something() -> None:
    """Do nothing. A call of any Python function makes coverage's tracer install itself for all frames again."""
