"""Requests for elements that a loop needs later, so that it does not wait for the memory then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import extending
from numba import types as numba_types
from numba.core import cgutils

types: Any = numba_types
_LINE_BYTES = 64


def _prefetch(typing: Any, array: Any, place: Any, count: Any) -> tuple[Any, Callable[..., Any]] | None:
    """Ask for `count` elements of a one-dimensional array from a uint64 place on; they may be beyond its end.

    `count` is a constant. The array may be None, for which nothing is done.
    """
    if not isinstance(count, types.IntegerLiteral):
        return None  # numba asks again, with a literal type

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not isinstance(array, types.NoneType):
            data = context.make_array(array)(context, builder, args[0]).data
            bytes_ = ir.PointerType(ir.IntType(8))
            first = builder.bitcast(builder.gep(data, [args[1]]), bytes_)
            number = ir.IntType(32)
            intrinsic = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
                builder.module, ir.FunctionType(ir.VoidType(), [bytes_, number, number, number]), "llvm.prefetch.p0i8"
            )
            size = context.get_abi_sizeof(context.get_data_type(array.dtype))
            for offset in range(0, count.literal_value * size, _LINE_BYTES):
                address = builder.gep(first, [ir.IntType(64)(offset)])
                builder.call(intrinsic, [address, number(0), number(3), number(1)])  # a read, of data used soon
        return context.get_dummy_value()

    return types.void(array, types.uint64, count), emit


prefetch = cast("Callable[[Any, Any, int], None]", extending.intrinsic(prefer_literal=True)(_prefetch))
