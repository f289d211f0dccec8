"""How this backend's loops are compiled: kernels, called from Python, and the pieces inlined into them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast
from zlib import crc32

import numba

from gsparse.kernels.cpu import intrinsics, pool
from gsparse.kernels.cpu.intrinsics import FUTEX, address_of, entry_of, unpacked
from gsparse.kernels.cpu.jit import PIECE_OPTIONS, jitted, piece
from gsparse.kernels.cpu.pool import hand_out, post

__all__ = ["compiled", "compiled_loosely", "inlined"]

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """Compile a kernel as `jitted` does; `gsparse.device.threads.run_parts` hands out its parts without the GIL."""
    kernel: Any = jitted(function, **options)
    if FUTEX is not None:
        kernel.hand_out = partial(hand_out, _in_parts(kernel, function))
    return cast("Callable[P, R]", kernel)


def compiled_loosely(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel whose sums LLVM may add up in another order, the same each time: in vectors."""
    return compiled(function, fastmath={"reassoc", "contract", "nsz"})


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a piece of kernels into each of them.

    A call would count references to every array with atomic instructions, which costs more than a short row (7-point
    100**3, eight rows at a time: 8.6 ms called, 5.9 ms inlined).
    """
    return cast("Callable[P, R]", numba.njit(forceinline=True, **PIECE_OPTIONS)(function))


_STAMP = f"{crc32(b''.join(Path(file).read_bytes() for file in (intrinsics.__file__, pool.__file__))):x}"

run_part: Any = None  # each copy of `_post_parts` has a global of its own


def _in_parts(kernel: Any, function: Callable[..., Any]) -> Callable[..., None]:
    """Compile `_post_parts` for a kernel.

    Numba finds code on disk by the file, line, name and bytecode of a function, and by the variables it closes over,
    where a compiled function differs in every process. So the kernel is a global of the copy made here, which goes by
    the kernel's file and line, and is compiled again when that file changes. What it takes from the pool is in its
    name, because all that share the pool's memory must agree on it.
    """

    @piece
    def run_part(part: int, num_parts: int, packed: Any) -> None:
        kernel(part, num_parts, *unpacked(packed))

    source: Any = function.__code__
    code = _post_parts.__code__.replace(co_filename=source.co_filename, co_firstlineno=source.co_firstlineno)
    in_parts = FunctionType(code, {**globals(), "run_part": run_part})
    in_parts.__module__, in_parts.__qualname__ = function.__module__, f"{function.__qualname__}_in_parts_{_STAMP}"
    return jitted(in_parts)


def _post_parts(memory: int, helpers: int, num_parts: int, *args: Any) -> None:
    """Run a kernel's parts on this thread and those that help; the arguments stay on its stack meanwhile."""
    post(memory, helpers, num_parts, entry_of(run_part, args), address_of(args))
