"""Helper threads that run parts of products. They stay in compiled code until they end, so they never need the GIL.

The work of one product is a *job*. The thread that multiplies (the *caller* below) shares it with the helpers in five
steps:

    caller    write the job into a free entry of the job table (if none is free, run the work itself, as one part)
              increment POSTED, which idle helpers watch, and wake helpers that sleep
    all       run parts: those of the own share first, then those that are left in other shares
    caller    close the job, so that no more helpers join
              wait for the helpers that are still running a part; free the entry of the table

So the caller never waits for a part that no thread has begun. A share is a range of consecutive parts; there is one for
each thread.

The memory of the pool, in words of eight bytes. Each row begins a cache line:

    | POSTED                                                            |   number of jobs posted so far
    | SPINNING | SPINS | ALIVE | LIMIT                                  |   spinning helpers; reads of POSTED before a
    |                                                                   |   helper sleeps; helpers; the most helpers
    | TAKEN | STATE | NUM_PARTS | ENTRY | ARGS | FAILED | NUM_SHARES    |   job 0: whether the entry is in use, ...
    | SHARES: the next part of share 0 | of share 1 | ...               |
    | TAKEN | STATE | ...                                               |   job 1
    ...

STATE is one word, so that joining, leaving and closing a job are one atomic step each:

    bit        30        29 ... 15         14 ... 0
            | WAITING |  free seats  | helpers in the job |       WAITING: the caller sleeps until the last one leaves

A helper accesses the other words of a job only between joining and leaving it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse.device.locks import make_lock
from gsparse.device.threads import available_cpus, get_num_threads
from gsparse.kernels.cpu.intrinsics import (
    address_of,
    call_part,
    fetch_add,
    fetch_and,
    fetch_or,
    load,
    part_caller,
    pause,
    sleep_while,
    store,
    swap_if,
    wake,
)
from gsparse.kernels.cpu.jit import jitted, subroutine

_WORD, _LINE = 8, 64  # bytes
_NUM_JOBS = 8  # products that have helpers at the same time; any further product runs on its own thread only
_MAX_SHARES = 64  # with more threads, several begin with the same share
_POSTED, _SPINNING, _SPINS, _ALIVE, _LIMIT = 0, _LINE, _LINE + _WORD, _LINE + 2 * _WORD, _LINE + 3 * _WORD
_TAKEN, _STATE, _NUM_PARTS, _ENTRY, _ARGS, _FAILED, _NUM_SHARES = range(0, 7 * _WORD, _WORD)
_SHARES = _LINE
_JOB_SIZE = _LINE + _MAX_SHARES * _WORD
_FIRST_JOB = 2 * _LINE
_SIZE = _FIRST_JOB + _NUM_JOBS * _JOB_SIZE

# The bits of STATE; a futex sees 32 of them.
_SEAT, _WAITING = 1 << 15, 1 << 30
_HELPERS, _SEATS = _SEAT - 1, _WAITING - _SEAT

# Seconds that a helper without work, and a product that waits for its helpers, spin before they sleep. The helpers are
# then still awake when one product follows another, because Python needs about 10 us between them. With 200 us they
# would also stay awake while other work of 100 us is done, but a helper that spins slows the other thread of its core
# down: iterations of CG with 22 500 to 90 000 rows took 10 to 20 % longer on two CPUs of a virtual machine.
_SPIN_SECONDS = 50e-6

# Helpers that a thread wakes before it takes parts. Each costs it about 10 us on a virtual machine, where one CPU
# interrupts another through the host, so a tree of threads wakes all of them sooner than one thread could.
_WAKES = 2

# Seconds that the end of the process waits for helpers; they end late only if a product is still running.
_MAX_GOODBYE = 5.0


# ------------------------------------------------------------------------------------------------- compiled: products
@jitted
def post(pool: int, helpers: int, num_parts: int, entry: int, args: int) -> None:
    """Run the parts of a job on this thread and on helpers that join, and return when all parts are done."""
    job = _claim(pool)
    if job == 0:
        failed = call_part(entry, 0, 1, args)
    else:
        _describe(job, min(helpers + 1, _MAX_SHARES), num_parts, entry, args)
        store(job + _STATE, helpers * _SEAT)  # from now on helpers may join
        fetch_add(pool + _POSTED, 1)
        _wake_some(pool, helpers)
        _take_parts(job, 0)
        _close(pool, job)
        failed = load(job + _FAILED) != 0
        store(job + _TAKEN, 0)
    if failed:
        raise MemoryError("a part of a product found no memory for its sums: free some")


@subroutine
def _claim(pool: int) -> int:
    """Return the address of a free entry of the table, or 0 if there is none."""
    for job in range(pool + _FIRST_JOB, pool + _SIZE, _JOB_SIZE):
        if load(job + _TAKEN) == 0 and swap_if(job + _TAKEN, 0, 1):
            return job
    return 0


@subroutine
def _describe(job: int, num_shares: int, num_parts: int, entry: int, args: int) -> None:
    store(job + _NUM_PARTS, num_parts)
    store(job + _ENTRY, entry)
    store(job + _ARGS, args)
    store(job + _FAILED, 0)
    store(job + _NUM_SHARES, num_shares)
    for share in range(num_shares):
        store(job + _SHARES + share * _WORD, share * num_parts // num_shares)


@subroutine
def _wake_some(pool: int, helpers: int) -> None:
    """Wake helpers that sleep, in a tree: at most `_WAKES` from here, and each of those wakes more.

    The caller has incremented POSTED before. A helper that is about to sleep compares that word, and stays awake.
    """
    asleep = helpers - load(pool + _SPINNING)
    if asleep > 0:
        wake(pool + _POSTED, min(asleep, _WAKES))


@subroutine
def _take_parts(job: int, number: int) -> None:
    """Run the parts of one share, then the parts that are left of the others.

    A thread begins with the same share in each product, because its cache may still hold those rows.
    """
    num_parts, num_shares = load(job + _NUM_PARTS), load(job + _NUM_SHARES)
    entry, args = load(job + _ENTRY), load(job + _ARGS)
    for step in range(num_shares):
        share = (number + step) % num_shares
        following, end = job + _SHARES + share * _WORD, (share + 1) * num_parts // num_shares
        while load(following) < end:
            part = fetch_add(following, 1)
            if part < end and call_part(entry, part, num_parts, args):
                store(job + _FAILED, 1)


@subroutine
def _close(pool: int, job: int) -> None:
    """Let no more helpers join, and wait for those that have joined."""
    fetch_and(job + _STATE, _HELPERS)
    for _ in range(load(pool + _SPINS)):
        if load(job + _STATE) == 0:
            return
        pause()
    state = fetch_or(job + _STATE, _WAITING) | _WAITING
    while state != _WAITING:
        sleep_while(job + _STATE, state)
        state = load(job + _STATE)


# -------------------------------------------------------------------------------------------------- compiled: helpers
@jitted
def _enter(pool: int) -> None:
    """Serve as one more helper, unless there are LIMIT of them already.

    The thread itself increments ALIVE. If the code that starts threads did it, an interruption (Ctrl-C) before the
    start would leave a count without a thread.
    """
    alive: int = load(pool + _ALIVE)
    while alive < load(pool + _LIMIT):
        if swap_if(pool + _ALIVE, alive, alive + 1):
            _serve(pool, alive + 1)
            return
        alive = load(pool + _ALIVE)


@jitted
def _serve(pool: int, number: int) -> None:
    """Help with jobs until there are more helpers than LIMIT; `number` is the share with which to begin."""
    while True:
        posted = load(pool + _POSTED)
        if _help(pool, number):
            continue
        alive = load(pool + _ALIVE)
        if alive <= load(pool + _LIMIT):
            _watch(pool, posted)
        elif swap_if(pool + _ALIVE, alive, alive - 1):
            return


@subroutine
def _help(pool: int, number: int) -> bool:
    """Help with one job, and return whether there was one."""
    for job in range(pool + _FIRST_JOB, pool + _SIZE, _JOB_SIZE):
        if _join(job):
            _wake_some(pool, (load(job + _STATE) & _SEATS) // _SEAT)
            _take_parts(job, number)
            fetch_and(job + _STATE, ~_SEATS)  # no part is left for helpers that come later
            if fetch_add(job + _STATE, -1) == _WAITING + 1:
                wake(job + _STATE, 1)
            return True
    return False


@subroutine
def _join(job: int) -> bool:
    state = load(job + _STATE)
    while state & _SEATS:
        if swap_if(job + _STATE, state, state - _SEAT + 1):
            return True
        state = load(job + _STATE)
    return False


@subroutine
def _watch(pool: int, posted: int) -> None:
    """Return when another job is posted."""
    fetch_add(pool + _SPINNING, 1)
    spins = load(pool + _SPINS)
    while spins > 0 and load(pool + _POSTED) == posted:
        pause()
        spins -= 1
    fetch_add(pool + _SPINNING, -1)
    if load(pool + _POSTED) == posted:
        sleep_while(pool + _POSTED, posted)


# -------------------------------------------------------------------------------------- compiled: called from Python
@jitted
def _count_missing(pool: int) -> int:
    """Return how many helpers must be started."""
    missing: int = load(pool + _LIMIT) - load(pool + _ALIVE)
    return missing


@jitted
def _set_limit(pool: int, helpers: int, spins: int) -> None:
    """Set how many helpers there may be and how long they spin, and wake them so that surplus ones end."""
    store(pool + _LIMIT, helpers)
    store(pool + _SPINS, spins)
    fetch_add(pool + _POSTED, 1)
    wake(pool + _POSTED, _HELPERS)


@jitted
def _spin(spins: int) -> None:
    for _ in range(spins):
        pause()


@jitted
def _try(pool: int) -> None:
    """Post a job that does nothing, then serve as a surplus helper, which ends at once."""
    post(pool, 1, 2, part_caller(_nothing, ()), address_of(0))
    fetch_add(pool + _ALIVE, 1)
    _serve(pool, 1)


@subroutine
def _nothing(part: int, num_parts: int) -> None:
    pass


# ------------------------------------------------------------------------------------------------------------- Python
class _Pool:
    """The helpers: threads that run `_serve` until they end."""

    def __init__(self) -> None:
        memory = np.zeros(_SIZE + _LINE, np.uint8)
        first = -memory.ctypes.data % _LINE
        self.memory = memory[first : first + _SIZE]
        self.address: int = self.memory.ctypes.data
        self.spinning = self.memory[_SPINNING : _SPINNING + _WORD].view(np.int64)
        self.spins: int | None = None  # number that takes `_SPIN_SECONDS`; measured when the pool is started
        self.usable = True
        self.ended = False
        self.forget_threads()

    def forget_threads(self) -> None:
        """Reset a forked child, where the parent's threads do not exist and its locks may be held forever."""
        self.memory[:] = 0
        self.lock = make_lock()  # guards the attributes below
        self.threads: list[threading.Thread] = []
        self.size = 0

    def resize(self, size: int) -> None:
        """Change the number of helpers to `size`, or to the number that can be started."""
        with self.lock:
            if self.spins is None:
                self.start()
            if self.spins is None or self.ended:
                return
            # With more threads than CPUs, a spinning thread would keep another one from its work.
            _set_limit(self.address, size, self.spins if size < available_cpus() else 0)
            self.threads = [thread for thread in self.threads if thread.is_alive()]
            for _ in range(_count_missing(self.address)):
                thread = threading.Thread(target=_enter, args=(self.address,), name="gsparse-cpu-native", daemon=True)
                self.threads.append(thread)
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started, or the interpreter is ending
                    break
            # Set last: if an interruption has prevented the start of a thread, the next product starts it.
            self.size = size

    def start(self) -> None:
        """Compile and try the code of helpers.

        If that fails, as with an unknown numba, the threads of `gsparse.device.threads` run the parts instead.
        """
        try:
            _try(self.address)
            _enter(self.address)  # only compiles it, because no helper is wanted yet
            self.spins = _count_spins()
        except Exception as error:
            self.usable = False
            what = "the threads of products start more slowly, through Python, because compiled threads failed"
            warnings.warn(f"{what}: {error!r}", RuntimeWarning, 2)

    def end(self) -> None:
        """End all helpers before the interpreter frees the compiled code."""
        with self.lock:
            self.ended = True
            if self.spins is not None:
                _set_limit(self.address, 0, 0)
        deadline = time.monotonic() + _MAX_GOODBYE
        for thread in filter(threading.Thread.is_alive, self.threads):
            thread.join(max(deadline - time.monotonic(), 0))


def _count_spins() -> int:
    """Return the number of spins that take `_SPIN_SECONDS`, from the fastest try, which was not interrupted."""
    tried, times = 1000, []
    for _ in range(5):
        begin = time.perf_counter()
        _spin(tried)
        times.append(time.perf_counter() - begin)
    return int(tried * _SPIN_SECONDS / min(times))


_pool = _Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget_threads)
atexit.register(_pool.end)


def count_awake() -> int:
    """Return the number of helpers that watch for the next job and do not sleep."""
    return int(_pool.spinning[0])


def hand_out(in_parts: Callable[..., None], helpers: int, num_parts: int, args: tuple[Any, ...]) -> bool:
    """Run ``in_parts(pool, helpers, num_parts, *args)``, or return False if the pool cannot be used."""
    size = min(max(helpers, _pool.size), get_num_threads() - 1, _HELPERS)
    if _pool.usable and size != _pool.size:
        _pool.resize(size)
    if _pool.usable:
        in_parts(_pool.address, min(helpers, _HELPERS), num_parts, *args)
    return _pool.usable
