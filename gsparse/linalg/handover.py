"""Functions of this package for matrices that live elsewhere: those take the call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

__all__ = ["handed_over"]

F = TypeVar("F", bound=Callable[..., Any])


def handed_over(function: F) -> F:
    """Let a function's first argument take the call where it has ``__gsparse_call__(name, args, kwargs)``.

    Where that gives NotImplemented, the function itself is called: with an operator, then.
    """

    @wraps(function)
    def call(A: Any, *args: Any, **kwargs: Any) -> Any:
        taker = getattr(A, "__gsparse_call__", None)
        found = NotImplemented if taker is None else taker(function.__name__, args, kwargs)
        return function(A, *args, **kwargs) if found is NotImplemented else found

    return cast(F, call)
