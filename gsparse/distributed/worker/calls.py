"""Calls of a client that come over its own connection to a rank, and not through dask's scheduler.

A task of dask takes some 15 ms from its submission to its result, a call less than one. Both ends of the connection
have proved that they know the secret of the matrix. So what the client sends is unpickled, as dask does it with tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from distributed.protocol import pickle
from tblib import pickling_support

# The names of the calls that run in this process.
_running: list[str] = []


def pickled_call(name: str, function: Callable[..., Any], *args: Any) -> bytes:
    """Return a call in the form that `served_calls` takes.

    Parameters
    ----------
    name : str
        Names the call for others that wait for the worker.
    function : callable
        Called with the arguments, and with a function that returns whether the client still waits for the result.
    *args
    """
    call: bytes = pickle.dumps((name, function, args))
    return call


def unpickled_outcome(outcome: bytes) -> tuple[Any, BaseException | None]:
    """Return what a call has returned, and None; or None, and the error that it has raised."""
    result, error = pickle.loads(outcome)
    return result, error


def served_calls() -> Callable[[bytes, Callable[[], bool]], bytes]:
    """Return a function that runs calls as if they were parts of the current task, so that they find its worker."""
    context = copy_context()
    return lambda call, is_awaited: context.copy().run(_outcome, call, is_awaited)


def _outcome(call: bytes, is_awaited: Callable[[], bool]) -> bytes:
    """Run a call, and return its pickled result or error."""
    try:
        name, function, args = pickle.loads(call)
        _running.append(name)
        try:
            return bytes(pickle.dumps((function(*args, is_awaited), None)))
        finally:
            _running.remove(name)
    except Exception as error:
        return _pickled_error(error)


def _pickled_error(error: Exception) -> bytes:
    """Return an error with its traceback as an outcome. One that cannot be pickled is replaced by its text."""
    pickling_support.install(error)
    with suppress(Exception):
        pickled: bytes = pickle.dumps((None, error))
        pickle.loads(pickled)
        return pickled
    return bytes(pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}"))))


def running_calls() -> list[str]:
    """Return the names of the calls that run in this process."""
    return list(_running)
