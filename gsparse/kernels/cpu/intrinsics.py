"""What numba does not offer: atomic words of memory, sleeping on a word, and calling compiled code by its address.

A word is an int64 in memory, passed as its address. Every access is sequentially consistent, so that the protocol of
`gsparse.kernels.cpu.pool` is correct on any processor; a product makes only a few such accesses.
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

from gsparse.kernels.cpu.jit import subroutine

Emit = Callable[..., Any]

# Numba has type annotations for some of its functions, and not all of them are right.
types: Any = numba_types
cgutils: Any = numba_cgutils
imputils: Any = numba_imputils

# The number of Linux's futex system call, or None on other systems and processors.
_NUMBERS = {"x86_64": 202, "aarch64": 98} if sys.platform == "linux" and sys.maxsize > 2**32 else {}
FUTEX = _NUMBERS.get(platform.machine())
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE, of threads of one process

# The signature of a function that `call_part` calls: part, number of parts, address of the other arguments.
_PART = types.void(types.int64, types.int64, types.voidptr)

_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast("Callable[..., Any]", extending.intrinsic(function))


def _word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(64).as_pointer())


@_intrinsic
def add(typing: Any, address: Any, value: Any) -> tuple[Any, Emit]:
    """Add to a word, and return its previous value."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), emit


@_intrinsic
def load(typing: Any, address: Any) -> tuple[Any, Emit]:
    """Return the value of a word."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(builder, args[0]), "seq_cst", 8)

    return types.int64(types.int64), emit


@_intrinsic
def swap_if(typing: Any, address: Any, expected: Any, value: Any) -> tuple[Any, Emit]:
    """Set a word if it has the expected value, and return whether it had."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, expected, value = args
        exchange = builder.cmpxchg(_word(builder, word), expected, value, "seq_cst", "seq_cst")
        return builder.extract_value(exchange, 1)

    return types.boolean(types.int64, types.int64, types.int64), emit


@subroutine
def yield_cpu() -> None:
    """Let other threads of this CPU run. If there are none, this takes about half a microsecond."""
    _sched_yield()


@subroutine
def sleep_while(word: int, value: int) -> None:
    """Sleep until woken, or return at once if the word differs from `value`; may also return for no reason.

    The system compares 32 bits, the lower half of the word: on a little-endian processor it has the word's address.
    """
    _syscall(FUTEX, word, _WAIT, value, 0, 0, 0)


@subroutine
def wake(word: int, sleepers: int) -> None:
    """Wake at most `sleepers` threads that sleep on the word."""
    _syscall(FUTEX, word, _WAKE, sleepers, 0, 0, 0)


@_intrinsic
def address_of(typing: Any, value: Any) -> tuple[Any, Emit]:
    """Return the address of a copy of `value` on the stack of the calling function, valid until that returns."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(cgutils.alloca_once_value(builder, args[0]), ir.IntType(64))

    return types.int64(value), emit


@_intrinsic
def part_caller(typing: Any, kernel: Any, args: Any) -> tuple[Any, Emit]:
    """Return the address of a function that `call_part` calls: it calls ``kernel(part, num_parts, *args)``.

    The function takes `args` from the address that `call_part` passes. It is put together here and not compiled by
    numba from Python, because that would optimize each kernel once more: 0.15 s of compile time for each.
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


@_intrinsic
def call_part(typing: Any, caller: Any, part: Any, num_parts: Any, args: Any) -> tuple[Any, Emit]:
    """Call the function at the address `caller`, made by `part_caller`, and return whether it raised."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = context.call_conv.get_function_type(_PART.return_type, _PART.args)
        function = builder.inttoptr(values[0], kind.as_pointer())
        passed = [values[1], values[2], builder.inttoptr(values[3], context.get_value_type(types.voidptr))]
        status, _ = context.call_conv.call_function(builder, function, _PART.return_type, _PART.args, passed)
        return status.is_error

    return types.boolean(types.int64, types.int64, types.int64, types.int64), emit
