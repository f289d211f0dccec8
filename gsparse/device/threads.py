"""Threads of our own, which take the parts of a product; compiled loops run in them without the GIL.

The kernels of `gsparse.kernels.cpu` bring threads that never need the GIL (`gsparse.kernels.cpu.pool`). Those here are
for functions of Python, and for kernels where the others do not work. Both stand in for numba's own layers, of which
`workqueue` aborts the process when two threads enter it, and `omp` when a forked child does.

The thread that calls a product runs parts itself until none is left, and then waits only for parts that another thread
has begun. It never waits for work that nobody has taken, so a product ends however busy the threads are: called by
many threads at once, by a part of another product, or where no thread can be started.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable
from math import isqrt
from queue import SimpleQueue
from typing import Any

from gsparse.device.locks import make_lock

__all__ = ["available_cpus", "get_num_threads", "run_parts", "set_num_threads"]

# Entries plus rows that are worth a thread of a kernel's own. One thread / two, on two of a virtual machine, us, where
# one product follows the other and the helper is awake, and where it sleeps and is woken first:
#   cost             8 000      40 000     96 000    160 000    256 000    870 912
#   awake        4.6 / 4.8   16 / 12.9    36 / 25    59 / 34    93 / 51  313 / 159
#   asleep        5.2 / 14     17 / 31    37 / 45    60 / 61
# An awake helper pays from 10 000 on, a sleeping one from 160 000 on, for one CPU has to interrupt the other. Two
# begin where one case gains what the other loses. More threads need only as much each: those woken wake the rest.
_SHARE_COST = 40_000

# Entries plus rows that one thread does in the time it takes to wake another of the threads here: about 40 us, one
# after the other, since each takes the GIL when it wakes (looking instead of sleeping is no way out: time.sleep(0),
# which lets go of the GIL, takes 70 us). With h helpers a product of cost w takes w / (h + 1) + h * wake, which is
# least at sqrt(w / wake) threads.
_WAKE_COST = 60_000

# Parts a thread, so that one which comes late, or has the slower rows, leaves some of its share to the others.
_PARTS_PER_THREAD = 4

# Read in this order; the first that is set counts.
_ENVIRONMENT = ("GSPARSE_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")


class _Job:
    """The parts of one product, taken from a list by whichever thread comes next."""

    __slots__ = ("active", "args", "closed", "error", "finished", "function", "lock", "num_parts", "parts")

    def __init__(self, function: Callable[..., None], num_parts: int, args: tuple[Any, ...]) -> None:
        self.function, self.num_parts, self.args = function, num_parts, args
        self.parts = list(range(num_parts))
        self.lock = make_lock()  # guards `active` and `closed`
        self.active = 0  # threads that help
        self.closed = False
        self.finished = threading.Lock()
        self.finished.acquire()  # released by the last thread that helped
        self.error: BaseException | None = None

    def take_parts(self) -> None:
        while self.parts:
            try:
                part = self.parts.pop()
            except IndexError:  # another thread took the last one
                return
            self.function(part, self.num_parts, *self.args)

    def help(self) -> None:
        """Take parts on a thread of the pool, unless the product is already over."""
        with self.lock:
            if self.closed:
                return
            self.active += 1
        try:
            self.take_parts()
        except BaseException as error:  # raised where the product was called
            self.error = error
            self.parts.clear()
        with self.lock:
            self.active -= 1
            if self.closed and not self.active:
                self.finished.release()

    def run(self) -> None:
        """Take parts on the calling thread, then wait for those that others took."""
        try:
            self.take_parts()
        finally:
            self.parts.clear()  # some are left where a part raised
            with self.lock:
                self.closed = True
                waiting = self.active > 0
            if waiting:
                self.finished.acquire()
            self.args = ()  # the queue may still hold this job: let go of the arrays
        if self.error is not None:
            raise self.error


class _Pool:
    """Threads that wait for jobs; made when first needed."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads  # that a product may use, its caller's included
        self.forget_threads()

    def forget_threads(self) -> None:
        """Start anew in a forked child, where the parent's threads do not exist and its locks may be held for ever."""
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.lock = make_lock()  # guards `size`
        self.size = 0

    def resize(self, size: int, *, grow: bool) -> None:
        """Have `size` threads, or at most that many where `grow` is false."""
        with self.lock:
            while self.size > size:
                self.jobs.put(None)
                self.size -= 1
            while grow and self.size < size:
                try:
                    threading.Thread(target=_serve, args=(self.jobs,), name="gsparse-cpu", daemon=True).start()
                except RuntimeError:  # no more threads, or the interpreter is ending: the caller does the work
                    return
                self.size += 1

    def offer(self, job: _Job, helpers: int) -> None:
        if self.size < helpers:
            self.resize(helpers, grow=True)
        for _ in range(helpers):
            self.jobs.put(job)


def _serve(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.help()


def _parse_num_threads(num_threads: Any) -> int:
    try:
        parsed = operator.index(num_threads)
    except TypeError:
        came = type(num_threads).__name__
        raise TypeError(f"num_threads must be an integer, got {came}: pass 1 or more") from None
    if isinstance(num_threads, bool) or parsed < 1:
        raise ValueError(f"num_threads must be at least 1, got {num_threads!r}: 1 runs all on the calling thread")
    return parsed


def _default_num_threads() -> int:
    """Give the threads that the environment allows, else one a CPU that this process may run on."""
    for name in _ENVIRONMENT:
        text = os.environ.get(name, "").split(",")[0].strip()  # OpenMP allows a list, one number a level
        if text.isdecimal() and int(text) > 0:
            return int(text)
        if text and name == _ENVIRONMENT[0]:
            raise ValueError(f"{name} must be an integer of at least 1, got {text!r}: correct or unset it")
    return available_cpus()


def available_cpus() -> int:
    """Give the number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_pool = _Pool(_default_num_threads())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget_threads)


def get_num_threads() -> int:
    """Give the number of threads that one product may use, the calling thread included.

    Returns
    -------
    int
        At first ``GSPARSE_NUM_THREADS``, else ``NUMBA_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the number of CPUs
        that the process may run on.

    Examples
    --------
    >>> import gsparse
    >>> gsparse.get_num_threads() >= 1
    True
    """
    return _pool.num_threads


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads that one product may use, in the whole process.

    Results do not depend on it, to the last bit. `threadpoolctl.threadpool_limits` sets it too.

    Parameters
    ----------
    num_threads : int
        At least 1, the calling thread included.

    Raises
    ------
    TypeError, ValueError
        If `num_threads` is no integer, or less than 1.

    Examples
    --------
    >>> import gsparse
    >>> before = gsparse.get_num_threads()
    >>> gsparse.set_num_threads(2)
    >>> gsparse.get_num_threads()
    2
    >>> gsparse.set_num_threads(before)
    """
    _pool.num_threads = _parse_num_threads(num_threads)
    _pool.resize(_pool.num_threads - 1, grow=False)


def run_parts(function: Callable[..., None], cost: int, *args: Any) -> None:
    """Call ``function(part, num_parts, *args)`` for each part of a product, and return when all are done.

    Parameters
    ----------
    function : callable
        A loop that releases the GIL. Parts run at the same time and in any order. Where it has an attribute `hand_out`,
        ``hand_out(helpers, num_parts, args)`` runs them all on threads of its own, or gives False and has run none.
    cost : int
        Entries plus rows: how many parts the work is worth.
    *args
        Passed on.

    Raises
    ------
    BaseException
        What a part raised; parts not begun by then may be left out.
    """
    hand_out = getattr(function, "hand_out", None)
    worth = isqrt(cost // _WAKE_COST) if hand_out is None else cost // _SHARE_COST
    num_threads = min(_pool.num_threads, worth)
    if num_threads < 2:
        function(0, 1, *args)
        return
    num_parts = num_threads * _PARTS_PER_THREAD
    if hand_out is None or not hand_out(num_threads - 1, num_parts, args):
        job = _Job(function, num_parts, args)
        _pool.offer(job, num_threads - 1)
        job.run()
