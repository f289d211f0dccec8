"""Integer constants that the CUDA sources define: the host reads them there, so that each is written once.

Examples
--------
>>> constant("sort.cu", "GS_DIGITS") == 1 << constant("sort.cu", "GS_DIGIT_BITS")
True
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from functools import cache

from gsparse.device.compilation import SOURCE_FOLDER

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
