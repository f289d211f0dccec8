"""Decorators of functions that an open profile records."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from gsparse.profiling import recording
from gsparse.profiling.recording import Function, span


def recorded_copy(name: str) -> Callable[[Function], Function]:
    """Return a decorator for methods of a device, ``method(self, array)``, that copy an array."""

    def decorate(method: Function) -> Function:
        @wraps(method)
        def copy(self: Any, array: Any) -> Any:
            if recording.recorder is None:
                return method(self, array)
            with span("copy", name, self, None, int(array.nbytes)):
                return method(self, array)

        return cast(Function, copy)

    return decorate


def recorded_call(kind: str, name: str) -> Callable[[Function], Function]:
    """Return a decorator for functions of the host, such as operations that SciPy computes.

    Fields of `name`, such as ``{0}``, are replaced by positional arguments of the call.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if recording.recorder is None:
                return function(*args, **options)
            with span(kind, name.format(*args)):
                return function(*args, **options)

        return cast(Function, call)

    return decorate
