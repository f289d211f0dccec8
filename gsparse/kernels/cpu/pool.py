"""Threads that run the parts of a product at the same time, and the atomic operations that synchronize them."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import threadpoolctl
from llvmlite import ir
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.core import imputils as numba_imputils

from gsparse._interrupt import uninterrupted
from gsparse.device.locks import make_lock
from gsparse.device.threads import get_num_threads, set_num_threads
from gsparse.kernels.cpu.jit import intrinsic, jitted, subroutine

Emit = Callable[..., Any]

# Numba's own type annotations are partly wrong, so treat these modules as untyped.
types: Any = numba_types
cgutils: Any = numba_cgutils
imputils: Any = numba_imputils

# The number of Linux's futex system call; None on other systems and processors.
_NUMBERS = {"x86_64": 202, "aarch64": 98} if sys.platform == "linux" and sys.maxsize > 2**32 else {}
FUTEX = _NUMBERS.get(platform.machine())
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE for threads of one process

# The signature of a function that `call_part` calls: part, number of parts, and address of the remaining arguments.
_PART = types.void(types.int64, types.int64, types.voidptr)

_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


def _word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@intrinsic
def add(typing: Any, address: Any, value: Any) -> tuple[Any, Emit]:
    """Add to a word atomically, and return its previous value."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@intrinsic
def load(typing: Any, address: Any) -> tuple[Any, Emit]:
    """Return the value of a word, read atomically."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), emit


@intrinsic
def swap_if(typing: Any, address: Any, expected: Any, value: Any) -> tuple[Any, Emit]:
    """Set a word to `value` if it is `expected`, in one atomic operation. Return whether it was `expected`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, expected, value = args
        exchange = builder.cmpxchg(_word(builder, word), expected, value, "seq_cst", "seq_cst")
        return builder.extract_value(exchange, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@subroutine
def yield_cpu() -> None:
    """Let other threads run on this CPU. If no other thread is ready, this takes about half a microsecond."""
    _sched_yield()


@subroutine
def sleep_while(word: int, value: int) -> None:
    """If the word is `value`, sleep until `wake` is called for the word. The thread may also wake without a reason.

    The system compares the lower 32 bits of the word. On a little-endian processor, they are at the word's address.
    """
    _syscall(FUTEX, word, _WAIT, value, 0, 0, 0)


@subroutine
def wake(word: int, sleepers: int) -> None:
    """Wake at most `sleepers` threads that sleep on the word."""
    _syscall(FUTEX, word, _WAKE, sleepers, 0, 0, 0)


@intrinsic
def address_of(typing: Any, value: Any) -> tuple[Any, Emit]:
    """Return the address of a copy of `value` on the caller's stack, which is valid until the caller returns."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), ir.IntType(64))

    return types.int64(value), emit


@intrinsic
def part_caller(typing: Any, kernel: Any, args: Any) -> tuple[Any, Emit]:
    """Return the address of a function that calls ``kernel(part, num_parts, *args)``, for `call_part`.

    The function loads `args` from the address that `call_part` passes. It is written in LLVM code, because a function
    in Python would make numba optimize each kernel again, which takes 0.15 s per kernel.
    """
    called = kernel.get_call_type(typing, (types.int64, types.int64, *args), {})

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        result = kernel.dispatcher.get_compile_result(called)
        context.active_code_library.add_linking_library(result.library)
        kind = context.call_conv.get_function_type(_PART.return_type, _PART.args)
        caller = ir.Function(builder.module, kind, f"call.{result.fndesc.mangled_name}")
        caller.linkage = "internal"
        inner = ir.IRBuilder(caller.append_basic_block())
        part, num_parts, address = context.call_conv.decode_arguments(inner, _PART.args, caller)
        packed = inner.load(inner.bitcast(address, context.get_value_type(args).as_pointer()))
        unpacked = [inner.extract_value(packed, i) for i in range(len(args))]
        context.call_internal(inner, result.fndesc, called, [part, num_parts, *unpacked])
        context.call_conv.return_value(inner, context.get_dummy_value())
        return builder.ptrtoint(caller, ir.IntType(64))

    return types.int64(kernel, args), emit


@intrinsic
def call_part(typing: Any, caller: Any, part: Any, num_parts: Any, args: Any) -> tuple[Any, Emit]:
    """Call the function at the address `caller`, from `part_caller`. Return whether the function raised an error."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.call_conv.get_function_type(_PART.return_type, _PART.args)
        function = builder.inttoptr(values[0], kind.as_pointer())
        passed = [values[1], values[2], builder.inttoptr(values[3], context.get_value_type(types.voidptr))]
        status, _ = context.call_conv.call_function(builder, function, _PART.return_type, _PART.args, passed)
        return status.is_error

    return types.boolean(types.int64, types.int64, types.int64, types.int64), emit


_WORD = 8  # bytes
_MAX_SHARES = 64  # If there are more threads, some of them begin with the same share.
# Offsets of the pool's words, in bytes. POSTED and STATE are in separate cache lines. The last words hold, for each
# share, the number of its first part that no thread has begun.
_POSTED, _WATCHING, _STATE = 0, _WORD, 8 * _WORD
_BUSY, _SEATS, _NUM_PARTS, _ENTRY, _ARGS, _FAILED, _NUM_SHARES, _ENDED = range(16 * _WORD, 24 * _WORD, _WORD)
_SHARES = 24 * _WORD
_SIZE = _SHARES + _MAX_SHARES * _WORD

# Number of times that a waiting thread looks at a word before it sleeps, which takes about 75 µs. So helpers are still
# awake for the following product, which Python begins 10 to 50 µs later. Longer waits made iterations of CG up to 20 %
# slower, because a helper that watches slows down the other thread of its core.
_LOOKS = 150

# Number of helpers that a thread wakes before it takes parts. Each helper wakes further helpers, so that all helpers
# are awake sooner than if one thread woke them. On a virtual machine, waking a helper takes about 10 µs.
_WAKES = 2


@subroutine
def _set(word: int, value: int) -> None:
    add(word, value - load(word))


# ------------------------------------------------------------------------------------------------- compiled: products
@jitted
def post(pool: int, helpers: int, num_parts: int, entry: int, args: int) -> None:
    """Run the parts of a product on this thread and on helpers. Return when all parts are done."""
    if swap_if(pool + _BUSY, 0, 1):
        _describe(pool, min(helpers + 1, _MAX_SHARES), num_parts, entry, args)
        _set(pool + _SEATS, helpers)
        _set(pool + _STATE, 0)  # from here on, helpers may join
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
    """Wake sleeping helpers in a tree. This call wakes at most `_WAKES` helpers, and each of these wakes more.

    The caller has incremented POSTED. A helper that is about to sleep sees the new value, and stays awake.
    """
    asleep = helpers - load(pool + _WATCHING)
    if asleep > 0:
        wake(pool + _POSTED, min(asleep, _WAKES))


@subroutine
def _take_parts(pool: int, number: int) -> None:
    """Run the parts of share `number`, and then the remaining parts of the other shares.

    A thread begins with the same share in each product, because this share's data may still be in the CPU's cache.
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
    """Wait for the helpers that have joined the product, and prevent further helpers from joining."""
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
    """Run parts of products until the process ends. `number` is the share with which this thread begins."""
    while load(pool + _ENDED) == 0:
        posted = load(pool + _POSTED)
        if not _help(pool, number):
            _await_post(pool, posted)


@subroutine
def _help(pool: int, number: int) -> bool:
    """Run parts of the current product. Return whether the product needed this helper."""
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
    """Return when another product has been posted."""
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
    """The helpers, which are threads that run `_serve` until the process ends. The pool starts and ends them."""

    def __init__(self) -> None:
        self.words = np.zeros(_SIZE // _WORD, np.int64)
        self.address: int = self.words.ctypes.data
        self.forget_threads()

    def forget_threads(self) -> None:
        """Reset the pool in a forked child, which has no helpers, and in which the parent's locks stay locked."""
        self.words[:] = 0
        self.words[_STATE // _WORD] = -1
        self.lock = make_lock()  # guards `threads`
        self.threads: list[threading.Thread] = []

    def start(self, size: int) -> None:
        """Start threads until the pool has `size` threads, or no further thread can be started."""
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
                except RuntimeError:  # no further thread can be started, or the interpreter is ending
                    return
                # Append only after the start: if Ctrl-C comes before, the following product starts this thread.
                self.threads.append(thread)

    def end(self) -> None:
        """End all helpers before the interpreter frees the compiled code. A running product is finished first."""
        if self.threads:
            _end(self.address)
        for thread in self.threads:
            thread.join(5.0)


_pool = _Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget_threads)
atexit.register(_pool.end)


def hand_out(in_parts: Callable[..., None], helpers: int, num_parts: int, args: tuple[Any, ...]) -> None:
    """Run ``in_parts(pool, helpers, num_parts, *args)``. If the pool has too few helpers, start helpers first."""
    if len(_pool.threads) < helpers:
        _pool.start(min(helpers, get_num_threads() - 1))
    in_parts(_pool.address, helpers, num_parts, *args)


class GsparseController(threadpoolctl.LibController):  # type: ignore[misc, unused-ignore]
    """Lets `threadpoolctl` read and set the number of threads of this backend.

    `threadpoolctl` identifies a thread pool by its shared library, but this pool has no library. LLVM's library stands
    for the pool, because it is loaded whenever loops have been compiled.
    """

    user_api = "gsparse"
    internal_api = "gsparse"
    filename_prefixes = ("libllvmlite", "llvmlite")

    def get_num_threads(self) -> int:
        return get_num_threads()

    def set_num_threads(self, num_threads: Any) -> None:
        set_num_threads(num_threads)

    def get_version(self) -> None:
        return None


# With this, `threadpoolctl.threadpool_limits` limits the threads of this backend like those of BLAS libraries.
threadpoolctl.register(GsparseController)
