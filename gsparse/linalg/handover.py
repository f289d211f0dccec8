"""Functions of this package for matrices that live elsewhere: those take the call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["handed_over"]

F = TypeVar("F", bound=Callable[..., Any])


def handed_over(function: F) -> F:
    """Let a function's first argument take the call where it has ``__gsparse_call__(name, args, kwargs)``."""

    @wraps(function)
    def call(A: Any, *args: Any, **kwargs: Any) -> Any:
        taker = getattr(A, "__gsparse_call__", None)
        return function(A, *args, **kwargs) if taker is None else taker(function.__name__, args, kwargs)

    return cast(F, call)
