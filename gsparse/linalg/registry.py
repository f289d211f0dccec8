"""The functions of `gsparse.linalg`, by name: each solver and each preconditioner registers itself once.

Whatever has to list them or find one by name (distributed matrices, the command line, `accelerated`) looks here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from typing import Any, Literal, TypeVar, cast

__all__ = ["METHODS", "Kind", "Method", "find_method", "names_of", "register"]

Kind = Literal["solver", "preconditioner", "eigensolver"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Method:
    """A function of `gsparse.linalg` whose first argument is a matrix.

    Attributes
    ----------
    name : str
    kind : {"solver", "preconditioner", "eigensolver"}
    function : callable
        As users call it.
    signature : Signature
        Of the arguments that it accepts.
    least_squares : bool
        Whether a solver takes rectangular matrices and no preconditioner.
    relative_to_matrix : bool
        Whether a solver stops, as SciPy's does, by the residual relative to the norms of A and x, not to that of b.
    vectors : tuple of int
        Positions of distributed vectors in the tuple that a call returns, where it returns no `SolveResult`.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    signature: Signature
    least_squares: bool = False
    relative_to_matrix: bool = False
    vectors: tuple[int, ...] = ()


# Every registered function by its name, in the order in which `gsparse.linalg` imports them.
METHODS: dict[str, Method] = {}


def register(kind: Kind, *, accepts: Callable[..., Any] | None = None, **facts: Any) -> Callable[[F], F]:
    """Return a decorator that registers a function of `gsparse.linalg`.

    A matrix that lives elsewhere may have a method ``__gsparse_call__(name, args, kwargs)``, which then runs instead.
    Where that returns NotImplemented, the function itself is called.

    Parameters
    ----------
    kind : {"solver", "preconditioner", "eigensolver"}
    accepts : callable, optional
        A function with the same arguments, for one that passes its options on.
    **facts
        Other attributes of `Method`.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def call(A: Any, *args: Any, **kwargs: Any) -> Any:
            elsewhere = getattr(A, "__gsparse_call__", None)
            result = NotImplemented if elsewhere is None else elsewhere(function.__name__, args, kwargs)
            return function(A, *args, **kwargs) if result is NotImplemented else result

        METHODS[function.__name__] = Method(function.__name__, kind, call, signature(accepts or function), **facts)
        return cast(F, call)

    return decorate


def find_method(name: str, kind: Kind) -> Method:
    """Return a registered function by its name.

    Raises
    ------
    ValueError
        Where there is none of this name and kind; the message lists those that there are.
    """
    found = METHODS.get(name)
    if found is None or found.kind != kind:
        raise ValueError(f"there is no {kind} {name!r} in gsparse.linalg: use one of {', '.join(names_of(kind))}")
    return found


def names_of(kind: Kind, **facts: Any) -> tuple[str, ...]:
    """Return the names of all registered functions of a kind, those with the given attributes alone.

    Examples
    --------
    >>> import gsparse.linalg
    >>> from gsparse.linalg.registry import names_of
    >>> names_of("solver", least_squares=True)
    ('lsmr', 'lsqr')
    """
    return tuple(
        method.name
        for method in METHODS.values()
        if method.kind == kind and all(getattr(method, name) == value for name, value in facts.items())
    )
