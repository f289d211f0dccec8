"""Locks that are released even if Ctrl-C interrupts the code that acquires them."""

from __future__ import annotations

import sys
import threading
from typing import Any

__all__ = ["make_lock"]

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


# Return a reentrant lock for ``with`` statements that Ctrl-C may interrupt. It is no function that calls another one,
# because each matrix makes several locks.
make_lock: Any = _InterruptibleLock if sys.version_info[:2] == (3, 14) else threading.RLock
