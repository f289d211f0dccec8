"""Bits of words and of numbers, for which numba has no function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import extending
from numba import types as numba_types

types: Any = numba_types


def _num_trailing_zeros(typing: Any, word: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the number of zeros below the lowest bit of a uint64 that is set."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), emit


num_trailing_zeros = cast("Callable[..., Any]", extending.intrinsic(_num_trailing_zeros))


def _bits_of(typing: Any, number: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the bits of a float64 as a uint64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), emit


def _from_bits(typing: Any, bits: Any) -> tuple[Any, Callable[..., Any]]:
    """Return the float64 that has the bits of a uint64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), emit


bits_of = cast("Callable[..., Any]", extending.intrinsic(_bits_of))
from_bits = cast("Callable[..., Any]", extending.intrinsic(_from_bits))
