"""Locks that are released even if Ctrl-C interrupts the code that acquires them, and that a forked child can acquire.

If a process is forked while another thread holds a lock, the child has the lock, but not the thread that would release
the lock. So the child resets all locks of this module. This is safe because an object that is made under a lock is
stored only when the object is complete: the child repeats the work that another thread of the parent had begun.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Generic, TypeVar, cast
from weakref import ref

_Value = TypeVar("_Value")
_RLock: Any = type(threading.RLock())


class _InterruptibleLock(_RLock):  # type: ignore[misc]
    """A reentrant lock for Python 3.14, where Ctrl-C can leave any other lock locked for ever.

    In Python 3.14, ``with lock:`` calls ``__enter__`` by the instruction CALL, which handles signals after the call has
    returned. A KeyboardInterrupt that is raised at this point skips ``__exit__`` [1]_. This class acquires the lock in
    the instruction that unpacks an iterator. Neither that instruction nor those that follow it handle signals.
    ``__exit__`` is inherited. It is written in C, and releases the lock before signals are handled.

    References
    ----------
    .. [1] CPython, issue 148874, "`with lock`: can skip `__exit__` when a signal handler raises right after
       `__enter__`".
    """

    def __enter__(self) -> bool:
        acquired: bool
        (acquired,) = map(self.acquire, (True,))
        return acquired


_Lock: Any = _InterruptibleLock if sys.version_info[:2] == (3, 14) else threading.RLock
_locks: set[ref[Any]] = set()


def make_lock() -> Any:
    """Return a reentrant lock for ``with`` statements that Ctrl-C may interrupt."""
    lock = _Lock()
    _locks.add(ref(lock, _locks.discard))
    return lock


# A thread holds this lock for the microseconds in which it makes a value of `made_once`.
_making = make_lock()


class made_once(Generic[_Value]):  # noqa: N801  (a decorator, like `cached_property`)
    """A property that is computed at its first use.

    All threads get the same object, even if they use it at the same time.
    """

    def __init__(self, make: Callable[[Any], _Value]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._second_name = name, f"{name}_made_once"

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        if instance is None:  # Access through the class returns the property itself, as with `property`.
            return cast("_Value", self)
        with _making:
            # Another thread may have made the value since Python looked for it in the instance, so look under the
            # second name. `instance.__dict__` would make every later access to an attribute of the instance slower.
            made: _Value | None = getattr(instance, self._second_name, None)
            if made is None:
                made = self._make(instance)
                setattr(instance, self._second_name, made)
                setattr(instance, self._name, made)  # From now on, Python finds the value without calling this method.
        return made


def lock_of_instance() -> made_once[Any]:
    """Return a property that gives each instance of a class its own lock.

    The lock is made when it is first needed, because making it takes 1 µs, and most matrices never need it.
    """
    return made_once(lambda instance: make_lock())


def _locks_of_properties() -> Iterator[Any]:
    """Return the locks of all cached properties of this package.

    Python 3.11 holds such a lock while it computes the value.
    """
    package = __name__.partition(".")[0]
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == package]
    classes = {item for module in modules for item in vars(module).values() if isinstance(item, type)}
    attributes = (attribute for cls in classes for attribute in vars(cls).values())
    return (attribute.lock for attribute in attributes if isinstance(attribute, cached_property))  # type: ignore[attr-defined]


def _renew_locks() -> None:
    """Reset the locks that other threads of the parent held. Locks of the thread that forked stay locked."""
    locks = [reference() for reference in list(_locks)]
    if sys.version_info < (3, 12):
        locks += _locks_of_properties()
    for lock in locks:
        if lock is not None and not lock._is_owned():
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
