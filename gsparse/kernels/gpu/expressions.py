"""C++ name expressions of kernel instantiations, and integer constants that the CUDA sources define."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from gsparse.device.compilation import SOURCE_FOLDER
from gsparse.device.dtypes import COMPUTE_DTYPES, storage_dtype
from gsparse.formats.launch import LANE_BYTES

_COMMENT = re.compile(r"//[^\n]*")
# What is looked for begins with plain characters, for which regular expressions search fast.
_HEADER = re.compile(r'#include "(\w+\.cuh)"')
# The body of an enumeration without a name, a constant of a 64-bit integer, and a macro of a number.
_ENUMERATION = re.compile(r"enum \{([^}]*)\}")
_CONSTANT = re.compile(r"\nconst long long (GS_\w+) = ([^;]+);")
_MACRO = re.compile(r"\n#define (GS_\w+) (\d+)(?=\n)")
_LONG_SUFFIX = re.compile(r"(?<=\d)ll\b")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.LShift: operator.lshift,
}


def constant(source: str, name: str) -> int:
    """Return the value of a constant that a source, or a header that it includes, defines.

    Parameters
    ----------
    source : str
        A file of the folder `src`.
    name : str
        The name of an enumerator, of a ``const long long``, or of a macro.

    Raises
    ------
    KeyError
        If no such constant is defined, or if it depends on the number of lanes of a warp (GS_WARP).
    """
    return _value(defined_constants(source), name)


@cache
def defined_constants(source: str) -> dict[str, str]:
    """Return the expressions of all constants of a source and its headers, by name.

    The constants of templates, which depend on a type, have names that do not begin with GS_, and are left out.
    """
    text = (SOURCE_FOLDER / source).read_text("utf-8")
    found: dict[str, str] = {}
    for header in _HEADER.findall(text):
        found.update(defined_constants(header))
    found.update(_CONSTANT.findall(text))
    found.update(_MACRO.findall(text))
    for body in _ENUMERATION.findall(text):
        before = "-1"
        for enumerator in filter(None, map(str.strip, _COMMENT.sub("", body).split(","))):
            name, _, expression = map(str.strip, enumerator.partition("="))
            before = expression or f"{before} + 1"
            found[name] = before
            before = name
    return {name: expression for name, expression in found.items() if name.startswith("GS_")}


def _value(expressions: dict[str, str], name: str) -> int:
    def of(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=other):
                return _value(expressions, other)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -of(operand)
            case ast.BinOp(left=left, op=sign, right=right):
                return _OPERATORS[type(sign)](of(left), of(right))
        raise KeyError(f"{name} = {expressions[name]}: only sums, products and shifts of integers can be read")

    return of(ast.parse(_LONG_SUFFIX.sub("", expressions[name]), mode="eval").body)


CPP_TYPES: dict[np.dtype[Any], str] = {
    np.dtype(np.uint8): "unsigned char",
    np.dtype(np.uint16): "unsigned short",
    np.dtype(np.int32): "int",
    np.dtype(np.uint32): "unsigned int",
    np.dtype(np.int64): "long long",
    np.dtype(np.uint64): "unsigned long long",
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.complex64): "Complex<float>",
    np.dtype(np.complex128): "Complex<double>",
}

# The dtypes of codes: columns relative to a base, places in a table of values, numbers of row patterns.
NARROW = (np.dtype(np.uint8), np.dtype(np.uint16))

# The type that items of each size are copied as, by the number of bytes.
ITEM_TYPES = {np.dtype(name).itemsize: np.dtype(name) for name in ("uint8", "uint16", "int32", "int64", "complex128")}

# The last template argument of a product with a vector: whether it also leaves partial sums of conj(x)·y (sums.cuh).
NO_DOTS, BLOCK_DOTS = "NoDots", "BlockDots"

# csr_spmm: bytes of neighbouring columns that one access takes.
_PACK_BYTES = 16


@cache
def expression(name: str, *arguments: np.dtype[Any] | int | str) -> str:
    """Write the C++ name expression of one instantiation.

    Examples
    --------
    >>> expression("csr_vector", np.dtype("float32"), np.dtype("int32"), np.dtype("float64"), np.dtype("int32"), 8)
    'csr_vector<float, int, double, int, 8>'
    """
    return f"{name}<{', '.join(CPP_TYPES[a] if isinstance(a, np.dtype) else str(a) for a in arguments)}>"


def leaves_dots(expression: str) -> bool:
    """Return whether a kernel is a product that leaves partial sums of conj(x)·y.

    Examples
    --------
    >>> leaves_dots("ellpack<float, int, float, BlockDots>")
    True
    """
    return expression.endswith(f", {BLOCK_DOTS}>")


def plain_types() -> list[tuple[Any, np.dtype[Any]]]:
    """List each dtype that values may be stored in with each dtype that products of them compute in."""
    return [(s, c) for s, c in product(COMPUTE_DTYPES, COMPUTE_DTYPES) if storage_dtype(s, c) == s]


def packs(itemsize: int) -> tuple[int, ...]:
    """Return the numbers of elements of this size that one access can take, from the largest on, without 1.

    Examples
    --------
    >>> [packs(itemsize) for itemsize in (4, 8, 16)]
    [(4, 2), (2,), ()]
    """
    return tuple(n for n in (4, 2) if n * itemsize <= _PACK_BYTES)


def loads_choices(itemsize: int, columns_per_load: int) -> tuple[int, ...]:
    """Return the numbers of accesses, of `columns_per_load` columns each, that a lane may make for one entry.

    Examples
    --------
    >>> loads_choices(8, 2), loads_choices(8, 1)
    ((1, 2), (1, 2, 4))
    """
    return tuple(n for n in (1, 2, 4) if n * columns_per_load * itemsize <= LANE_BYTES)
