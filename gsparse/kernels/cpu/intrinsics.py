"""What numba has no words for: atomic words of memory, sleeping on one, and calling compiled code by its address.

A word is an int64, named by its address. Every access is sequentially consistent: the protocol in `pool` then holds on
any processor, and it makes a handful of them a product.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import extending
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.core import imputils as numba_imputils

from gsparse.kernels.cpu.jit import piece

__all__ = [
    "FUTEX",
    "address_of",
    "call_part",
    "entry_of",
    "fetch_add",
    "fetch_and",
    "fetch_or",
    "load",
    "pause",
    "sleep_while",
    "store",
    "swap_if",
    "unpacked",
    "wake",
]

Emit = Callable[..., Any]

# Numba annotates some of it, and not all that it annotates fits.
types: Any = numba_types
cgutils: Any = numba_cgutils
imputils: Any = numba_imputils

# The number of Linux's futex call, or None where there is none that we know.
_NUMBERS = {"x86_64": 202, "aarch64": 98} if sys.platform == "linux" and sys.maxsize > 2**32 else {}
FUTEX = _NUMBERS.get(platform.machine())
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE, of threads of one process

# LLVM's name and arguments for the instruction that a spinning thread is to give.
_PAUSE: dict[str, tuple[str, list[Any]]] = {
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [ir.IntType(32)(1)]),
}

_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast("Callable[..., Any]", extending.intrinsic(function))


def _word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


def _fetch(operation: str) -> Callable[[int, int], int]:
    """Make a function ``(address, value)`` that changes a word and gives what it was."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw(operation, _word(builder, args[0]), args[1], "seq_cst")

    return _intrinsic(lambda typing, address, value: (types.int64(types.int64, types.int64), emit))


fetch_add, fetch_and, fetch_or = _fetch("add"), _fetch("and"), _fetch("or")


@_intrinsic
def load(typing: Any, address: Any) -> tuple[Any, Emit]:
    """Give a word."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), emit


@_intrinsic
def store(typing: Any, address: Any, value: Any) -> tuple[Any, Emit]:
    """Set a word."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _word(builder, args[0]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@_intrinsic
def swap_if(typing: Any, address: Any, expected: Any, value: Any) -> tuple[Any, Emit]:
    """Set a word where it is as expected, and tell whether it was."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, expected, value = args
        found = builder.cmpxchg(_word(builder, word), expected, value, "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@_intrinsic
def pause(typing: Any) -> tuple[Any, Emit]:
    """Tell the processor that this thread is spinning."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name, values = _PAUSE[platform.machine()]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)
        return context.get_dummy_value()

    return types.void(), emit


@piece
def sleep_while(word: int, value: int) -> None:
    """Sleep until woken, unless the word is not `value`; returns without a reason too.

    The system looks at 32 bits: those that the address of a little-endian word is the address of.
    """
    _syscall(FUTEX, word, _WAIT, value, 0, 0, 0)


@piece
def wake(word: int, sleepers: int) -> None:
    """Wake so many of those that sleep on the word."""
    _syscall(FUTEX, word, _WAKE, sleepers, 0, 0, 0)


@_intrinsic
def address_of(typing: Any, value: Any) -> tuple[Any, Emit]:
    """Give the address of a copy on the stack of the function that asks, valid until that returns."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), ir.IntType(64))

    return types.int64(value), emit


@_intrinsic
def unpacked(typing: Any, packed: Any) -> tuple[Any, Emit]:
    """Give the value whose address is the pointer `packed`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.return_type
        value = builder.load(builder.bitcast(args[0], context.get_value_type(kind).as_pointer()))
        return imputils.impl_ret_borrowed(context, builder, kind, value)

    return packed.dtype(packed), emit


@_intrinsic
def entry_of(typing: Any, function: Any, args: Any) -> tuple[Any, Emit]:
    """Give the address of ``function(part, num_parts, pointer to args)``, compiled: what `call_part` calls."""
    called = function.get_call_type(typing, (types.int64, types.int64, types.CPointer(args)), {})

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        result = function.dispatcher.get_compile_result(called)
        context.active_code_library.add_linking_library(result.library)
        return builder.ptrtoint(context.declare_function(builder.module, result.fndesc), ir.IntType(64))

    return types.int64(function, args), emit


@_intrinsic
def call_part(typing: Any, entry: Any, part: Any, num_parts: Any, packed: Any) -> tuple[Any, Emit]:
    """Call what `entry_of` gave, and tell whether it raised."""
    called = types.void(types.int64, types.int64, types.voidptr)

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.call_conv.get_function_type(called.return_type, called.args)
        entry = builder.inttoptr(values[0], kind.as_pointer())
        args = [values[1], values[2], builder.inttoptr(values[3], context.get_value_type(types.voidptr))]
        status, _ = context.call_conv.call_function(builder, entry, called.return_type, called.args, args)
        return status.is_error

    return types.boolean(types.int64, types.int64, types.int64, types.int64), emit
