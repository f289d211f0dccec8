"""Requests for elements that a loop needs later, so that it does not wait for the memory then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import extending
from numba import types as numba_types
from numba.core import cgutils

__all__ = ["prefetch"]

types: Any = numba_types


def _prefetch(typing: Any, array: Any, place: Any) -> tuple[Any, Callable[..., Any]]:
    """Ask for the element of a one-dimensional array at a uint64 place, which may be beyond its end."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        bytes_ = ir.PointerType(ir.IntType(8))
        address = builder.bitcast(builder.gep(data, [args[1]]), bytes_)
        number = ir.IntType(32)
        intrinsic = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(ir.VoidType(), [bytes_, number, number, number]), "llvm.prefetch.p0i8"
        )
        builder.call(intrinsic, [address, number(0), number(3), number(1)])  # a read, of data that is used soon
        return context.get_dummy_value()

    return types.void(array, types.uint64), emit


prefetch = cast("Callable[[Any, Any], None]", extending.intrinsic(_prefetch))
