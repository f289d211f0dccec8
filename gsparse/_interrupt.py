"""Delay Ctrl-C, or let it end the process immediately, where Python or a library cannot handle it.

*Imports of the command line* take a second or two, in which Python would print a traceback of the module that is being
imported. So `gsparse/__init__.py` imports this module first. If the process is the command ``gsparse`` or ``python -m
gsparse``, Ctrl-C then ends the process immediately, like a program written in C. When all modules have been imported,
`gsparse.cli` returns to Python's own handling. In other processes that import gsparse, such as workers of dask, Ctrl-C
works as without gsparse.

*Compilation of kernels*: a KeyboardInterrupt within numba or llvmlite can crash the process, or break numba until the
process ends: LLVM calls Python functions that cannot pass an exception on, and numba's registries may be left half
filled, and modules half imported. `uninterrupted` delays the signal until numba and llvmlite have finished.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

_SIGNALS = signal.valid_signals()


def is_command(arguments: Sequence[str], script: str) -> bool:
    """Return whether a process was started as the command line of gsparse.

    Parameters
    ----------
    arguments : sequence of str
        `sys.orig_argv`. Processes that the command starts, such as dask's workers, have other arguments.
    script : str
        `sys.argv[0]`: the path of the script, or "-m" while Python looks for a module that runs as a script.
    """
    if script == "-m":
        return ("-m", "gsparse") in pairwise(arguments)
    return script in arguments and Path(script).stem == "gsparse"


def restore() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, unless the process ignores it."""
    if _is_changed:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _InterruptHandler:
    """A signal handler that replaces another one. It delays a signal, and calls the other handler later."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler
        self.arguments: tuple[int, FrameType | None] | None = None
        self.delays = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.delays:
            self.arguments = number, frame
        else:
            self.handler(number, frame)

    def end(self) -> None:
        """Call the replaced handler if a signal has come, and stop delaying signals."""
        self.delays = False
        if self.arguments:
            self.handler(*self.arguments)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C, and other signals whose handlers are written in Python, until the block ends.

    Such a handler may raise an exception. It is called once when the block has ended, however often the signal came.
    On threads other than the main one the block does nothing, because Python runs handlers on the main thread only.
    Blocking the signal with `signal.pthread_sigmask` would not do: another thread would receive it then, and Python
    would still call the handler on the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    delayed: dict[int, _InterruptHandler] = {}
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # The handler of an outer block delays the signal already.
            if callable(handler) and not isinstance(handler, _InterruptHandler):
                delayed[number] = _InterruptHandler(handler)
                signal.signal(number, delayed[number])
        yield
    finally:
        _restore(delayed)


def _restore(delayed: dict[int, _InterruptHandler]) -> None:
    """Restore the replaced handlers, unless the program has set others, and call those whose signals have come.

    If a handler raises an exception, the remaining handlers are still restored and called.
    """
    if not delayed:
        return
    number, pending = delayed.popitem()
    handler = pending.handler
    try:
        try:
            if signal.getsignal(number) is pending:
                signal.signal(number, handler)
        finally:
            pending.end()
    finally:
        _restore(delayed)


# Python's handler is missing where the process ignores Ctrl-C, such as in the background of a script.
_is_changed = (
    is_command(sys.orig_argv, next(iter(sys.argv), ""))
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _is_changed:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
