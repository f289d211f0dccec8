"""The compilation of this backend's loops: kernels, which Python calls, and subroutines, which kernels call.

A kernel is a function ``(part, num_parts, ...)`` that computes one part of a product or of another loop. The docstring
of each module says what a part is. A small product is one call of the kernel, with one part. A large product calls the
kernel's `hand_out`, which runs the parts on several threads (`gsparse.kernels.cpu.pool`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast
from zlib import crc32

import numba

from gsparse.kernels.cpu import pool
from gsparse.kernels.cpu.jit import SUBROUTINE_OPTIONS, jitted
from gsparse.kernels.cpu.pool import FUTEX, address_of, hand_out, part_caller, post

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R], *, allocates: bool = False, **options: Any) -> Callable[P, R]:
    """Compile a kernel ``function(part, num_parts, ...)``. The keyword arguments are those of `jitted`.

    `gsparse.device.threads.run_parts` calls the kernel, or its `hand_out`, which runs the parts on threads without the
    GIL.

    Arguments that belong together form a named tuple in the source of a kernel. But Python passes a plain tuple, and
    the kernel begins with ``entries = Entries(*entries)``. The reason is that numba takes a microsecond, as long as a
    small product, to find the type of a named tuple that Python passes.
    """
    compiled_kernel: Any = jitted(function, allocates=allocates, **options)
    if FUTEX is not None:
        compiled_kernel.hand_out = HandOut(_in_parts(compiled_kernel, function))
    return cast("Callable[P, R]", compiled_kernel)


class HandOut:
    """The `hand_out` of a kernel: compiled code that runs the kernel's parts on threads without the GIL.

    Compiling a `hand_out` takes a third of a second, and saves a few microseconds per call. So a `hand_out` refuses its
    first calls, and Python runs the parts on threads instead. Most kernels of a set-up are called only this few times.

    Parameters
    ----------
    in_parts : callable
        The result of `_in_parts`, which is compiled at its first call.

    Attributes
    ----------
    num_first : int
        The number of first calls that each `hand_out` refuses. It is the same for all kernels of the process.
    """

    num_first = 100

    def __init__(self, in_parts: Callable[..., None]) -> None:
        self.in_parts = in_parts
        self._num_refused = 0

    def __call__(self, helpers: int, num_parts: int, args: tuple[Any, ...]) -> bool:
        if self._num_refused < self.num_first:
            self._num_refused += 1
            return False
        hand_out(self.in_parts, helpers, num_parts, args)
        return True


def compiled_loosely(function: Callable[P, R], *, allocates: bool = False) -> Callable[P, R]:
    """Compile a kernel in which LLVM may reorder sums to vectorize them. All runs use the same order."""
    return compiled(function, allocates=allocates, fastmath={"reassoc", "contract", "nsz"})


def specialized(function: Callable[P, None]) -> Callable[[Callable[..., Any]], Callable[P, None]]:
    """Return a function that compiles a variant of a kernel for each function that the kernel calls as ``combined``.

    Returns
    -------
    callable
        ``kernel_of(combined)`` returns the kernel that calls the function `combined`. The kernel is compiled at its
        first call.
    """

    @cache
    def kernel_of(combined: Any) -> Callable[P, None]:
        # For numba's cache, `combined` is a global variable of a copy of the kernel, and the copy has its own name.
        copy = FunctionType(function.__code__, {**function.__globals__, "combined": combined})
        copy.__module__ = function.__module__
        copy.__qualname__ = f"{function.__qualname__}{combined.py_func.__name__}"
        return compiled(cast("Callable[P, None]", copy))

    return kernel_of


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a subroutine into each kernel that uses it, without a call.

    With calls, a product took up to 1.5 times as long (7-point 100**3), because calls counted references to arrays with
    atomic instructions.
    """
    return cast("Callable[P, R]", numba.njit(forceinline=True, **SUBROUTINE_OPTIONS)(function))


_STAMP = f"{crc32(Path(pool.__file__).read_bytes()):x}"

kernel: Any = None  # a global variable of each copy of `_post_parts`


def _in_parts(compiled_kernel: Any, function: Callable[..., Any]) -> Callable[..., None]:
    """Compile `_post_parts` for a kernel.

    Numba finds cached code on disk by a function's file, line, name and bytecode, and by its closure variables. A
    kernel in a closure variable would differ between processes, so the kernel is a global variable of a copy of
    `_post_parts` instead. The copy has the kernel's file and line, so it is compiled again when the kernel's file
    changes. The copy's name ends with a checksum of `pool.py`, because all code that uses the pool's memory must agree
    on the memory's layout.
    """
    source: Any = function.__code__
    code = _post_parts.__code__.replace(co_filename=source.co_filename, co_firstlineno=source.co_firstlineno)
    in_parts = FunctionType(code, {**globals(), "kernel": compiled_kernel})
    in_parts.__module__, in_parts.__qualname__ = function.__module__, f"{function.__qualname__}_in_parts_{_STAMP}"
    return jitted(in_parts)


def _post_parts(memory: int, helpers: int, num_parts: int, *args: Any) -> None:
    """Run a kernel's parts on this thread and on helpers. `args` stay on this thread's stack until this returns."""
    post(memory, helpers, num_parts, part_caller(kernel, args), address_of(args))
