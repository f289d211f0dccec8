"""The methods of `gsparse.linalg` by name: each solver and each preconditioner registers itself once.

Distributed matrices, the command line and `accelerated` use this registry to list methods or to find one by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Signature, signature
from typing import Any, Literal, TypeVar, cast

from gsparse.linalg.solver_arguments import checked, with_checked_integers
from gsparse.profiling import recording

Kind = Literal["solver", "preconditioner", "eigensolver"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Method:
    """A numerical method of `gsparse.linalg`: a function whose first argument is a matrix.

    Attributes
    ----------
    name : str
    kind : {"solver", "preconditioner", "eigensolver"}
    function : callable
        The function that users call.
    signature : Signature
        The arguments that the function accepts.
    hermitian : bool
        Whether a solver needs a matrix, and a preconditioner, that is Hermitian.
    least_squares : bool
        Whether a solver accepts rectangular matrices, and no preconditioner.
    spans_ranks : bool
        Whether ranks make the preconditioner of a distributed matrix together. Each rank makes all others of its own
        diagonal block.
    row_arguments : tuple of str
        The arguments of a preconditioner that are arrays with a row for each row of the matrix.
    vectors : tuple of int
        Positions of the distributed vectors in the tuple that a call returns, which for a solver begins with x.
    start : {"", "v0", "X"}
        The argument of an eigensolver that ranks can run: a start vector, or a block of them. Other eigensolvers run in
        the process of the user, also for a distributed matrix.
    """

    name: str
    kind: Kind
    function: Callable[..., Any]
    signature: Signature
    hermitian: bool = False
    least_squares: bool = False
    spans_ranks: bool = False
    row_arguments: tuple[str, ...] = ()
    vectors: tuple[int, ...] = (0,)
    start: str = ""

    def limits(self, iterations: int | None, cycle: int) -> dict[str, int | None]:
        """Return the arguments that limit the iterations of a solver; None stands for its own limit.

        A solver that restarts, whose own limit counts cycles, has cycles of at most `cycle` iterations.

        Examples
        --------
        >>> from gsparse.linalg.registry import find_method
        >>> find_method("gmres", "solver").limits(100, cycle=30)
        {'restart': 30, 'maxiter': 3}
        >>> find_method("lsqr", "solver").limits(100, cycle=30)
        {'iter_lim': 100}
        """
        accepted = self.signature.parameters
        if iterations is None or "restart" not in accepted:
            return {"iter_lim" if "iter_lim" in accepted else "maxiter": iterations}
        restart = min(cycle, max(iterations, 1))
        return {"restart": restart, "maxiter": iterations // restart}


# Every registered method by its name, in the order in which `gsparse.linalg` imports them.
METHODS: dict[str, Method] = {}


def register(kind: Kind, *, accepts: Callable[..., Any] | None = None, **attributes: Any) -> Callable[[F], F]:
    """Return a decorator that registers a function of `gsparse.linalg`.

    A matrix of another class, such as `DistributedMatrix`, may define ``__gsparse_call__(name, args, kwargs)``. It is
    then called instead of the function. If it returns NotImplemented, the function itself is called.

    Parameters
    ----------
    kind : {"solver", "preconditioner", "eigensolver"}
    accepts : callable, optional
        The function whose arguments are accepted, if the registered function passes its options on to it.
    **attributes
        Other attributes of `Method`.
    """

    def decorate(function: F) -> F:
        accepted = signature(accepts or function)

        @wraps(function)
        def call(A: Any, *args: Any, **kwargs: Any) -> Any:
            override = getattr(A, "__gsparse_call__", None)
            result = NotImplemented if override is None else override(function.__name__, args, kwargs)
            if result is not NotImplemented:
                return result
            if recording.recorder is None:
                return function(A, *args, **kwargs)
            with recording.span(kind, function.__name__):
                return function(A, *args, **kwargs)

        if kind == "solver":
            call = checked(call, accepted)
        elif kind == "preconditioner":
            call = with_checked_integers(call, accepted)
        METHODS[function.__name__] = Method(function.__name__, kind, call, accepted, **attributes)
        return cast(F, call)

    return decorate


def find_method(name: str, kind: Kind) -> Method:
    """Return a registered method by its name.

    Raises
    ------
    ValueError
        If there is no method of this name and kind. The message lists those that exist.
    """
    method = METHODS.get(name)
    if method is None or method.kind != kind:
        raise ValueError(f"there is no {kind} {name!r} in gsparse.linalg: use one of {', '.join(names_of(kind))}")
    return method


def names_of(kind: Kind, **attributes: Any) -> tuple[str, ...]:
    """Return the names of all registered methods of a kind that have the given attributes.

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
        if method.kind == kind and all(getattr(method, name) == value for name, value in attributes.items())
    )
