"""Ctrl-C while the command line imports its modules, which takes a second or two.

In that time, Python would print a traceback of the module that is being imported. `gsparse/__init__.py` imports this
module first. If the process is the command ``gsparse`` or ``python -m gsparse``, Ctrl-C then ends it at once, as it
ends a program written in C. `gsparse.cli` returns to Python's own handling when all modules have been imported. A
process that only imports gsparse, such as a user's program or a worker of dask, is left as it is.
"""

import signal
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

__all__ = ["is_command", "restore"]


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
    """Raise KeyboardInterrupt on Ctrl-C again, unless the process ignores it."""
    if _is_changed:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Python's handler is missing where the process ignores Ctrl-C, such as in the background of a script.
_is_changed = (
    is_command(sys.orig_argv, next(iter(sys.argv), ""))
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if _is_changed:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
