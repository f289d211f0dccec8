"""Measure coverage without tracing most compilations of numba, which a tracer slows down by half."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

__all__ = ["compile_untraced"]


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


def _call_something() -> None:
    """Do nothing. A call of any Python function makes coverage's tracer install itself for all frames again."""
