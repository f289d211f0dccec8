"""One line on a terminal when kernels are compiled for longer than a second: the wait is no hang."""

from __future__ import annotations

import os
import sys
import threading
import time

from gsparse.device.locks import make_lock
from gsparse.profiling import recording

QUIET_VARIABLE = "GSPARSE_QUIET"
MESSAGE = (
    "gsparse: compiling kernels, once for this machine. To compile ahead, run: gsparse warmup. "
    f"{QUIET_VARIABLE}=1 hides this line."
)

# Seconds of compiling in a process after which the line is printed.
_DELAY = 1.0


class CompileNotice:
    """Prints `MESSAGE` to stderr once, when this process has compiled for a second in all and goes on.

    It prints nothing if stderr is not a terminal, or if the environment variable `GSPARSE_QUIET` is set.

    Attributes
    ----------
    compilations : int
        How many kernels this process has begun to compile. One that begins while another is being compiled, within it
        or on another thread, does not count.
    """

    def __init__(self) -> None:
        self.compilations = 0
        self._lock = make_lock()
        self._depth, self._spent, self._began = 0, 0.0, 0.0
        self._was_printed = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        """Begin to compile. Compilations may be nested, and several threads may compile at the same time."""
        if recording.recorder is not None:
            recording.begin("compilation", "kernels")
        with self._lock:
            self._depth += 1
            self.compilations += self._depth == 1
            if self._depth == 1 and not self._was_printed and _is_wanted():
                self._began = time.perf_counter()
                self._timer = threading.Timer(max(_DELAY - self._spent, 0.0), self._print)
                self._timer.daemon = True
                self._timer.start()

    def __exit__(self, *error: object) -> None:
        recording.end("compilation")  # It may have begun to be recorded, although no profile is open any more.
        with self._lock:
            self._depth -= 1
            if self._depth == 0 and self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._spent += time.perf_counter() - self._began

    def _print(self) -> None:
        with self._lock:
            if self._depth == 0 or self._was_printed:
                return
            self._was_printed = True
        # The carriage return overwrites a progress bar, which may stand in this line.
        print(f"\r{MESSAGE}", file=sys.stderr, flush=True)


def _is_wanted() -> bool:
    return not os.environ.get(QUIET_VARIABLE) and sys.stderr is not None and sys.stderr.isatty()


COMPILE_NOTICE = CompileNotice()
