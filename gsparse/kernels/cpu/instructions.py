"""Operations that numba lacks: division as on a GPU, the lowest set bit, and prefetching.

A division by zero returns inf or NaN, as in NumPy; numba's own complex division would raise an error. Prefetching
requests an element in advance, so that a loop need not wait for the memory when it reads the element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import extending
from numba import types as numba_types
from numba.core import cgutils
from numba.extending import overload

from gsparse.kernels.cpu.jit import OPTIONS, intrinsic

types: Any = numba_types
_LINE_BYTES = 64


def divide(a: Any, b: Any) -> Any:
    """Return a / b in compiled code."""
    return a / b


def divide_scalars(a: Any, b: Any) -> Any:
    """Return a / b in compiled code. Use this if a loop multiplies elements by the quotient.

    LLVM may move a plain division into the loop. For beta = rho / rho_old, it would compute (rho·p) / rho_old for each
    element in place of beta·p, and rho·p may overflow.
    """
    return a / b


def _divide_complex(a: Any, b: Any) -> Any:
    return complex(a.real / b.real, a.imag / b.real) if b == 0 else a / b


def _divide_real(a: Any, b: Any) -> Any:
    return a / b


def _divide_real_scalars(a: Any, b: Any) -> Any:
    return b if np.isnan(b) else a / b  # The condition changes no result, but keeps LLVM from moving the division.


def _is_complex(a: Any, b: Any) -> bool:
    return isinstance(a, types.Complex) or isinstance(b, types.Complex)


@overload(divide, jit_options=OPTIONS)  # type: ignore[arg-type]
def _divide(a: Any, b: Any) -> Callable[[Any, Any], Any]:
    return _divide_complex if _is_complex(a, b) else _divide_real


@overload(divide_scalars, jit_options=OPTIONS)  # type: ignore[arg-type]
def _divide_scalars(a: Any, b: Any) -> Callable[[Any, Any], Any]:
    return _divide_complex if _is_complex(a, b) else _divide_real_scalars


@intrinsic
def num_trailing_zeros(typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the number of zero bits below the lowest set bit of a uint64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), emit


def _prefetch(typing: Any, array: Any, place: Any, count: Any) -> tuple[Any, Callable[..., Any]] | None:
    """Prefetch `count` elements of a one-dimensional array from index `place` (uint64) on.

    `count` must be a constant. The elements may be past the end of the array. If the array is None, do nothing.
    """
    if not isinstance(count, types.IntegerLiteral):
        return None  # numba tries again with a literal type

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
                builder.call(intrinsic, [address, number(0), number(3), number(1)])  # for a read, kept in all caches
        return context.get_dummy_value()

    return types.void(array, types.uint64, count), emit


prefetch = cast("Callable[[Any, Any, int], None]", extending.intrinsic(prefer_literal=True)(_prefetch))
