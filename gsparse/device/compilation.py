"""CUDA sources, and their compilation at run time by NVRTC or hipRTC, which several threads can begin ahead of time."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from gsparse._interrupt import uninterrupted
from gsparse.device.cache import warn_unwritable
from gsparse.device.locks import make_lock
from gsparse.device.threads import available_cpus
from gsparse.profiling import recording

QUIET_VARIABLE = "GSPARSE_QUIET"
MESSAGE = (
    "gsparse: compiling kernels, once for this machine. To compile ahead, run: gsparse warmup. "
    f"{QUIET_VARIABLE}=1 hides this line."
)

# The line is printed after this number of seconds of compiling in a process.
_DELAY = 1.0


class CompileNotice:
    """Prints `MESSAGE` to stderr once, when this process has compiled for a second in all and is still compiling.

    Attributes
    ----------
    compilations : int
        Number of kernels that this process has compiled. A compilation that begins during another one does not count.
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
        recording.end("compilation")  # The span may have been recorded, although the profile has been closed since.
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
        # The carriage return overwrites a progress bar that may be on this line.
        print(f"\r{MESSAGE}", file=sys.stderr, flush=True)


def _is_wanted() -> bool:
    return not os.environ.get(QUIET_VARIABLE) and sys.stderr is not None and sys.stderr.isatty()


COMPILE_NOTICE = CompileNotice()


SOURCE_FOLDER = Path(__file__).parent.parent / "kernels" / "gpu" / "src"


@cache
def kernel_source(name: str) -> str:
    """Return a CUDA source with its headers inlined. `name` is a file, or the text of a source made at run time.

    The keys of CuPy's disk cache contain the source and the options, but not the headers that the compiler includes.
    Because headers are inlined, a change in a header changes the source.
    """
    included: set[str] = set()

    def expand(file: str) -> str:
        included.add(file)
        lines = []
        for line in (_read(file) if file.endswith((".cu", ".cuh", ".h")) else file).splitlines():
            header = line.removeprefix('#include "').removesuffix('"') if line.startswith('#include "') else ""
            if not header or not (SOURCE_FOLDER / header).is_file():
                lines.append("" if line == "#pragma once" else line)
            elif header not in included:
                lines.append(expand(header))
        return "\n".join(lines)

    return expand(name)


@cache
def _read(file: str) -> str:
    return (SOURCE_FOLDER / file).read_text("utf-8")


def compile_options(lanes: int) -> tuple[str, ...]:
    """Return the compiler options of all kernels."""
    return ("-std=c++17", f"-DGS_WARP={lanes}")


def runs_together(source: str) -> bool:
    """Return whether the kernels of a source need all of their blocks to run at the same time."""
    return "GS_KERNEL_TOGETHER" in source


def compile_kernel(cupy: Any, lanes: int, source: str, expression: str) -> Callable[..., None]:
    """Compile one instantiation of a kernel for the current device. CuPy stores the result on disk if possible."""
    module = cupy.RawModule(
        code=kernel_source(source),
        options=compile_options(lanes),
        name_expressions=[expression],
        enable_cooperative_groups=runs_together(source),
    )
    with uninterrupted(), COMPILE_NOTICE:
        try:
            kernel: Callable[..., None] = module.get_function(expression)
        except OSError as error:
            # From now on, CuPy stores no kernels in this process, not even its own.
            os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
            warn_unwritable(error, "CUPY_CACHE_DIR")
            kernel = module.get_function(expression)
    return kernel


Key = tuple[str, str]  # source and name expression
Kernel = Callable[..., None]

# Largest number of compiling threads. One core is left to the caller.
_MOST_THREADS = 8


class KernelStore:
    """The compiled kernels of a device.

    Parameters
    ----------
    compile_kernel : callable
        ``compile_kernel(source, expression)`` returns a kernel. It releases the GIL for most of its time.
    num_threads : int, optional
        Number of threads that compile ahead; by default the number of cores minus one, at most eight. With 0, `begin`
        does nothing.

    Attributes
    ----------
    compiled : dict
        The kernels, by source and name expression.
    """

    def __init__(self, compile_kernel: Callable[[str, str], Kernel], num_threads: int | None = None) -> None:
        self.compiled: dict[Key, Kernel] = {}
        self._compile = compile_kernel
        self._num_threads = min(available_cpus() - 1, _MOST_THREADS) if num_threads is None else num_threads
        self._queue: SimpleQueue[Key] = SimpleQueue()
        # `_waiting` has the queued kernels that no thread has begun. `_begun` has an event for each kernel that a
        # thread has begun, which is set when it is done. The lock guards both, and the number of threads.
        self._waiting: set[Key] = set()
        self._begun: dict[Key, threading.Event] = {}
        self._lock, self._num_started = make_lock(), 0

    def get(self, source: str, expression: str) -> Kernel:
        """Return a kernel. Compile it first, or wait for the thread that compiles it, if necessary."""
        key = source, expression
        kernel = self.compiled.get(key)
        if kernel is not None:
            return kernel
        with self._lock:
            self._waiting.discard(key)
            end = self._begun.get(key)
        if end is not None:
            if recording.recorder is None:
                end.wait()
            else:
                with recording.span("compilation", "wait for another thread"):
                    end.wait()
        # If the compilation failed on another thread, it is repeated here, so that the caller gets the error.
        return self.compiled.get(key) or self._compile_here(key)

    def begin(self, keys: Iterable[Key]) -> None:
        """Queue kernels for compilation on other threads, in this order, unless they are compiled or queued already."""
        if self._num_threads < 1:
            return
        with self._lock:
            known = self.compiled.keys() | self._waiting | self._begun.keys()
            new = [key for key in dict.fromkeys(keys) if key not in known]
            self._waiting.update(new)
            num_wanted = min(self._num_threads, self._num_started + len(new))
            num_new, self._num_started = num_wanted - self._num_started, num_wanted
        for key in new:
            self._queue.put(key)
        for _ in range(num_new):
            # When the process ends, it does not wait for these threads.
            threading.Thread(target=self._work, name="gsparse-compiler", daemon=True).start()

    def _work(self) -> None:
        while True:
            key = self._queue.get()
            with self._lock:
                if key not in self._waiting:  # a caller compiles this kernel itself
                    continue
                self._waiting.remove(key)
                end = self._begun[key] = threading.Event()
            try:
                # If the compilation fails, the caller that needs this kernel will compile it again, and get the error.
                with suppress(Exception):
                    self._compile_here(key)
            finally:
                end.set()

    def _compile_here(self, key: Key) -> Kernel:
        kernel = self.compiled[key] = self._compile(*key)
        return kernel


@cache
def recorded_kernels(routine: str, dtype: np.dtype[Any], index_dtype: np.dtype[Any]) -> tuple[Key, ...]:
    """Return the kernels that have been recorded for a routine with values and indices of these dtypes.

    No kernels are recorded for int64 indices.
    """
    if index_dtype != np.int32:
        return ()
    by_source = _recording().get(dtype.name, {}).get(routine, {})
    return tuple((source, expression) for source, names in by_source.items() for expression in names)


@cache
def _recording() -> dict[str, dict[str, dict[str, list[str]]]]:
    path = SOURCE_FOLDER / "first_calls.json"
    recorded: dict[str, dict[str, dict[str, list[str]]]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return recorded
