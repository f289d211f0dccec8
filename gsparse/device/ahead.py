"""Compiled kernels of a GPU, and their compilation ahead, by several threads at once.

A kernel takes 0.1 to 0.3 s to compile, and a routine launches up to a hundred kernels, one after the other. The first
run of a routine would take as long as all of its compilations together. So a routine names its kernels when it begins,
and threads compile them meanwhile:

    routine    begin [a b c d]    get a    ...    get b    ...    get c
    thread 1        a ~~~~~|~~~ c ~~~~~
    thread 2        b ~~~~~~~~|~~~ d ~~~~

``first_calls.json``, in the folder of the CUDA sources, lists the kernels of each routine. It is written by
``python asv_bench/measure_first_calls.py --record``. A kernel that is missing there is compiled when it is needed, and
one that turns out not to be needed does no harm.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np

from gsparse.device.compilation import SOURCE_FOLDER
from gsparse.device.locks import make_lock
from gsparse.device.threads import available_cpus
from gsparse.profiling import recording

Key = tuple[str, str]  # source and name expression
Kernel = Callable[..., None]

# Threads that compile. One core is left to the routine.
_MOST_THREADS = 8


class KernelStore:
    """The compiled kernels of a device.

    Parameters
    ----------
    compile_kernel : callable
        ``compile_kernel(source, expression)`` returns a kernel. It releases the GIL for most of its time.
    num_threads : int, optional
        Threads that compile ahead; by default one less than the process has cores, and eight at most. With 0, `begin`
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
        # Kernels in the queue that nobody has begun to compile, and for each one that a thread here has begun, an event
        # that is set at the end. The lock guards both, and the number of threads.
        self._waiting: set[Key] = set()
        self._begun: dict[Key, threading.Event] = {}
        self._lock, self._num_started = make_lock(), 0

    def get(self, source: str, expression: str) -> Kernel:
        """Return a kernel, after it has been compiled."""
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
        """Begin to compile the kernels that have not been compiled yet, in this order, and return at once."""
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
            # A process that ends does not wait for kernels that nobody needs any more.
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
    """Return the kernels that a routine launches for values and indices of these dtypes, as far as recorded.

    Kernels for int64 indices are not recorded.
    """
    if index_dtype != np.int32:
        return ()
    by_source = _recording().get(dtype.name, {}).get(routine, {})
    return tuple((source, expression) for source, names in by_source.items() for expression in names)


@cache
def _recording() -> dict[str, dict[str, dict[str, list[str]]]]:
    path = SOURCE_FOLDER / "first_calls.json"
    recording: dict[str, dict[str, dict[str, list[str]]]] = (
        json.loads(path.read_text("utf-8")) if path.is_file() else {}
    )
    return recording
