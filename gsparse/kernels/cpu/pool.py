"""Helper threads that run parts of products. They stay in compiled code until they end, so they never need the GIL.

The thread that multiplies (the *caller* below) shares the work with the helpers:

    caller    describe the work in the words below (if another product has helpers, run the work alone, as one part)
              open it: STATE = 0; increment POSTED, which idle helpers watch, and wake helpers that sleep
    all       run parts: those of the own share first, then those that are left in other shares
    caller    when STATE is 0, close: STATE = -1

So the caller never waits for a part that no thread has begun. A share is a range of consecutive parts; there is one for
each thread. STATE is the number of helpers at work, or negative while nobody may join. A helper reads the other words
only while it is counted in STATE. A helper takes one of SEATS to have parts; there are as many as the product has
helpers.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from gsparse._interrupt import uninterrupted
from gsparse.device.locks import make_lock
from gsparse.device.threads import get_num_threads
from gsparse.kernels.cpu.intrinsics import add, call_part, load, sleep_while, swap_if, wake, yield_cpu
from gsparse.kernels.cpu.jit import jitted, subroutine

_WORD = 8  # bytes
_MAX_SHARES = 64  # with more threads, several begin with the same share
# POSTED, STATE and the others are in cache lines of their own, and the next parts of the shares come last.
_POSTED, _WATCHING, _STATE = 0, _WORD, 8 * _WORD
_BUSY, _SEATS, _NUM_PARTS, _ENTRY, _ARGS, _FAILED, _NUM_SHARES, _ENDED = range(16 * _WORD, 24 * _WORD, _WORD)
_SHARES = 24 * _WORD
_SIZE = _SHARES + _MAX_SHARES * _WORD

# How often a thread that waits looks at a word before it sleeps: for about 75 µs. Helpers are then still awake when one
# product or sum follows another, because Python needs 10 to 50 µs between them. With 200 µs they would also stay awake
# while other work of 100 µs is done, but a helper that watches slows the other thread of its core down: iterations of
# CG with 22 500 to 90 000 rows took 10 to 20 % longer on two CPUs of a virtual machine.
_LOOKS = 150

# Helpers that a thread wakes before it takes parts. Each costs it about 10 µs on a virtual machine, where one CPU
# interrupts another through the host, so a tree of threads wakes all of them sooner than one thread could.
_WAKES = 2


@subroutine
def _set(word: int, value: int) -> None:
    add(word, value - load(word))


# ------------------------------------------------------------------------------------------------- compiled: products
@jitted
def post(pool: int, helpers: int, num_parts: int, entry: int, args: int) -> None:
    """Run the parts of a product on this thread and on helpers that join, and return when all parts are done."""
    if swap_if(pool + _BUSY, 0, 1):
        _describe(pool, min(helpers + 1, _MAX_SHARES), num_parts, entry, args)
        _set(pool + _SEATS, helpers)
        _set(pool + _STATE, 0)  # from now on helpers may join
        add(pool + _POSTED, 1)
        _wake_some(pool, helpers)
        _take_parts(pool, 0)
        _close(pool)
        failed = load(pool + _FAILED) != 0
        _set(pool + _BUSY, 0)
    else:
        failed = call_part(entry, 0, 1, args)
    if failed:
        raise MemoryError("a part of a product found no memory for its sums: free some")


@subroutine
def _describe(pool: int, num_shares: int, num_parts: int, entry: int, args: int) -> None:
    _set(pool + _NUM_PARTS, num_parts)
    _set(pool + _ENTRY, entry)
    _set(pool + _ARGS, args)
    _set(pool + _FAILED, 0)
    _set(pool + _NUM_SHARES, num_shares)
    for share in range(num_shares):
        _set(pool + _SHARES + share * _WORD, share * num_parts // num_shares)


@subroutine
def _wake_some(pool: int, helpers: int) -> None:
    """Wake helpers that sleep, in a tree: at most `_WAKES` from here, and each of those wakes more.

    The caller has incremented POSTED before. A helper that is about to sleep compares that word, and stays awake.
    """
    asleep = helpers - load(pool + _WATCHING)
    if asleep > 0:
        wake(pool + _POSTED, min(asleep, _WAKES))


@subroutine
def _take_parts(pool: int, number: int) -> None:
    """Run the parts of one share, then the parts that are left of the others.

    A thread begins with the same share in each product, because its cache may still hold those rows.
    """
    num_parts, num_shares = load(pool + _NUM_PARTS), load(pool + _NUM_SHARES)
    for step in range(num_shares):
        share = (number + step) % num_shares
        following, end = pool + _SHARES + share * _WORD, (share + 1) * num_parts // num_shares
        while load(following) < end:
            part = add(following, 1)
            if part < end and call_part(load(pool + _ENTRY), part, num_parts, load(pool + _ARGS)):
                add(pool + _FAILED, 1)


@subroutine
def _close(pool: int) -> None:
    """Wait for the helpers that have joined, and let no more join."""
    looks = _LOOKS
    while not swap_if(pool + _STATE, 0, -1):
        state = load(pool + _STATE)
        if looks > 0:
            yield_cpu()
            looks -= 1
        elif state > 0:
            sleep_while(pool + _STATE, state)


# -------------------------------------------------------------------------------------------------- compiled: helpers
@jitted
def _serve(pool: int, number: int) -> None:
    """Help with products until the process ends; `number` is the share with which to begin."""
    while load(pool + _ENDED) == 0:
        posted = load(pool + _POSTED)
        if not _help(pool, number):
            _await_post(pool, posted)


@subroutine
def _help(pool: int, number: int) -> bool:
    """Help with the product that is open, and return whether there was a seat."""
    state = load(pool + _STATE)
    while state >= 0:
        if swap_if(pool + _STATE, state, state + 1):
            seats: int = add(pool + _SEATS, -1)
            if seats > 0:
                _wake_some(pool, seats - 1)
                _take_parts(pool, number)
            if add(pool + _STATE, -1) == 1:
                wake(pool + _STATE, 1)
            return seats > 0
        state = load(pool + _STATE)
    return False


@subroutine
def _await_post(pool: int, posted: int) -> None:
    """Return when another product is posted."""
    add(pool + _WATCHING, 1)
    looks = _LOOKS
    while looks > 0 and load(pool + _POSTED) == posted:
        yield_cpu()
        looks -= 1
    add(pool + _WATCHING, -1)
    sleep_while(pool + _POSTED, posted)


@jitted
def _end(pool: int) -> None:
    add(pool + _ENDED, 1)
    add(pool + _POSTED, 1)
    wake(pool + _POSTED, 1 << 15)


# ------------------------------------------------------------------------------------------------------------- Python
class _Pool:
    """The helpers: threads that run `_serve` until the process ends."""

    def __init__(self) -> None:
        self.words = np.zeros(_SIZE // _WORD, np.int64)
        self.address: int = self.words.ctypes.data
        self.forget_threads()

    def forget_threads(self) -> None:
        """Reset a forked child, where the parent's threads do not exist and its locks may be held forever."""
        self.words[:] = 0
        self.words[_STATE // _WORD] = -1
        self.lock = make_lock()  # guards the list
        self.threads: list[threading.Thread] = []

    def start(self, size: int) -> None:
        """Start threads until there are `size`, or as many as can be started."""
        with self.lock:
            if not self.threads:
                with uninterrupted():
                    _serve.compile("void(int64, int64)")  # type: ignore[attr-defined]
                    _end.compile("void(int64)")  # type: ignore[attr-defined]
            while len(self.threads) < size and not self.words[_ENDED // _WORD]:
                number = len(self.threads) + 1
                thread = threading.Thread(
                    target=_serve, args=(self.address, number), name="gsparse-cpu-native", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started, or the interpreter is ending
                    return
                # Appended last: if an interruption has prevented the start, the next product starts the thread.
                self.threads.append(thread)

    def end(self) -> None:
        """End all helpers before the interpreter frees the compiled code. They end late if a product is running."""
        if self.threads:
            _end(self.address)
        for thread in self.threads:
            thread.join(5.0)


_pool = _Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget_threads)
atexit.register(_pool.end)


def hand_out(in_parts: Callable[..., None], helpers: int, num_parts: int, args: tuple[Any, ...]) -> None:
    """Run ``in_parts(pool, helpers, num_parts, *args)`` with helpers that have been started."""
    if len(_pool.threads) < helpers:
        _pool.start(min(helpers, get_num_threads() - 1))
    in_parts(_pool.address, helpers, num_parts, *args)
