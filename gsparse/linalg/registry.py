"""The registry of the methods of `gsparse.linalg`: solvers, preconditioners and eigensolvers by name.

Distributed matrices, the command line and `accelerated` list methods here, or find one by its name. Registration also
adds a check of the arguments to a solver or preconditioner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from operator import index
from typing import Any, Literal, TypeVar, cast

import numpy as np

from gsparse.device.interchange import parse_dense
from gsparse.linalg.result import SolveResult
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
        Whether a solver requires the matrix and the preconditioner to be Hermitian.
    least_squares : bool
        Whether a solver solves least-squares problems: it accepts rectangular matrices, but no preconditioner.
    spans_ranks : bool
        For a preconditioner of a distributed matrix: whether all ranks build it together. Otherwise each rank builds
        one from its own diagonal block.
    row_arguments : tuple of str
        The names of a preconditioner's arguments that have one row for each row of the matrix. They are divided among
        the ranks like the matrix.
    vectors : tuple of int
        Positions of the distributed vectors in the returned tuple. A solver returns x at position 0.
    start : {"", "v0", "X"}
        For an eigensolver that ranks can run, the name of the argument for its start vector or block of start vectors.
        If empty, the eigensolver runs in the user's process even for a distributed matrix.
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
        """Return the keyword arguments that limit a solver to `iterations`; None keeps the solver's default limit.

        The limit of a solver with restarts counts cycles; each then has at most `cycle` iterations.

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


def ask_matrix(A: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a function for a matrix whose class defines ``__gsparse_call__``; else NotImplemented."""
    override = getattr(A, "__gsparse_call__", None)
    return NotImplemented if override is None else override(name, args, kwargs)


def register(kind: Kind, *, accepts: Callable[..., Any] | None = None, **attributes: Any) -> Callable[[F], F]:
    """Return a decorator that registers a function of `gsparse.linalg`.

    The class of the matrix, such as `DistributedMatrix`, may define ``__gsparse_call__(name, args, kwargs)``. Then this
    method is called first. If it returns NotImplemented, the function itself is called.

    Parameters
    ----------
    kind : {"solver", "preconditioner", "eigensolver"}
    accepts : callable, optional
        The function that defines the accepted arguments, if the registered function passes its options on to it.
    **attributes
        Other attributes of `Method`.
    """

    def decorate(function: F) -> F:
        accepted = signature(accepts or function)

        @wraps(function)
        def call(A: Any, *args: Any, **kwargs: Any) -> Any:
            result = ask_matrix(A, function.__name__, args, kwargs)
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
    ('lsqr', 'lsmr')
    """
    return tuple(
        method.name
        for method in METHODS.values()
        if method.kind == kind and all(getattr(method, name) == value for name, value in attributes.items())
    )


# Limits of iterations with their smallest values, and the names of tolerances, which must not be negative.
_COUNTS = {"maxiter": 0, "iter_lim": 0, "restart": 1}
_TOLERANCES = ("rtol", "atol", "btol", "conlim")
# Argument names of other libraries, each with the names of the same argument in gsparse.
_OTHER_NAMES = {
    "tol": ("rtol", "atol", "btol"),
    "rtol": ("atol", "btol"),
    "maxiter": ("iter_lim",),
    "iter_lim": ("maxiter",),
    "damping": ("damp",),
    "alpha": ("damp",),
}


def checked(solver: F, accepted: Signature | None = None) -> F:
    """Return a solver that checks its tolerances and limits first, and accepts a right-hand side of shape (n, 0).

    Parameters
    ----------
    solver : callable
        Its first two arguments are the matrix and the right-hand side.
    accepted : Signature, optional
        The arguments that the solver accepts; by default, those of its own signature.
    """
    parameters = (accepted or signature(solver)).parameters

    @wraps(solver)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = _by_name(parameters, args, kwargs)
        _check(solver.__name__, parameters, arguments)
        if _has_no_columns(arguments.get("b")):
            return _solve_no_columns(solver, arguments, len(args))
        return solver(*args, **kwargs)

    return cast(F, call)


def _check(name: str, parameters: Mapping[str, Parameter], arguments: dict[str, Any]) -> None:
    """Raise an error for invalid limits and tolerances. None is valid for an argument whose default is None."""
    for argument, value in arguments.items():
        names = [other for other in _OTHER_NAMES.get(argument, ()) if other in parameters]
        if names and argument not in parameters:
            raise TypeError(f"{name}() takes no argument {argument!r}, as in SciPy: use {' and '.join(names)} instead")
        if _is_left_out(parameters, argument, value):
            continue
        if argument in _COUNTS:
            if _parse_integer(argument, value) < _COUNTS[argument]:
                raise ValueError(f"{argument} must be at least {_COUNTS[argument]}, got {value!r}")
        elif argument in _TOLERANCES and not (isinstance(value, float | int | np.integer | np.floating) and value >= 0):
            raise ValueError(f"{argument} must be a real, non-negative number, got {value!r}")


def with_checked_integers(function: F, accepted: Signature) -> F:
    """Return a function that raises an error for a value that is not an integer if its annotation is ``int``."""
    parameters = accepted.parameters
    integers = {name for name, parameter in parameters.items() if parameter.annotation in ("int", "int | None")}

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in _by_name(parameters, args, kwargs).items():
            if name in integers and not _is_left_out(parameters, name, value):
                _parse_integer(name, value)
        return function(*args, **kwargs)

    return cast(F, call)


def _by_name(parameters: Iterable[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(parameters, args, strict=False)), **kwargs}


def _is_left_out(parameters: Mapping[str, Parameter], argument: str, value: Any) -> bool:
    """Return whether an argument is None and its default is None too."""
    return value is None and argument in parameters and parameters[argument].default is None


def _parse_integer(argument: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{argument} must be an integer, got {value!r}: convert it with int()") from None


def _has_no_columns(b: Any) -> bool:
    """Return whether a right-hand side has the shape (n, 0)."""
    shape = getattr(b, "shape", None)
    return shape is not None and len(shape) == 2 and shape[1] == 0


def _solve_no_columns(solver: Callable[..., Any], arguments: dict[str, Any], num_positional: int) -> Any:
    """Solve with two columns of zeros in place of a right-hand side of shape (n, 0); return the result without columns.

    Thus all other arguments are checked, and the result has the same dtype and library as that of any other solve.
    """
    b = parse_dense(arguments["b"])
    options = {**arguments, "b": b.returned(b.array.sum(axis=1, keepdims=True, dtype=b.dtype).repeat(2, axis=1))}
    if _has_no_columns(options.get("x0")):
        options["x0"] = None
    positional = [options.pop(name) for name in list(arguments)[:num_positional]]
    result = solver(*positional, **options)
    if not isinstance(result, SolveResult):
        return tuple(map(_without_columns, result))
    return dataclasses.replace(
        result,
        x=_without_columns(result.x),
        residuals=np.empty((len(result.residuals), 0)),
        relative_residual=np.empty(0),
        normal_residuals=np.empty((len(result.normal_residuals), 0)),
        statistics=tuple(map(_without_columns, result.statistics)),
    )


def _without_columns(values: Any) -> Any:
    """Return an array with its columns removed. Return a number, such as `info`, unchanged."""
    return values[..., :0] if np.ndim(values) else values
