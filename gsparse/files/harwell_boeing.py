"""Harwell–Boeing and Rutherford–Boeing: CSC as text in columns of fixed width, with SciPy's reader.

SciPy reads real and integer matrices without a symmetry, whose numbers are in Fortran's formats I and E. This module
changes the header of a symmetric matrix so that SciPy reads it, and then adds the other triangle. It also changes the
numbers of formats D, F and G, and exponents without a letter, to those that SciPy reads. SciPy needs blanks between
numbers; this module inserts them where the fields of a line touch.

In Fortran, the width of the format alone says where a number is. Lines with the right number of words are read from
blank to blank all the same, because the numbers that SciPy's writer writes are one character narrower than its header
says. This also makes negative numbers touch where no reader can know it, so this module writes files itself.

References
----------
I. S. Duff, R. G. Grimes, J. G. Lewis, "Users' guide for the Harwell-Boeing sparse matrix collection", 1992.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import scipy.io
import scipy.sparse as sp

from gsparse.files.checks import as_csr

__all__ = ["READ_ONLY", "SUFFIXES", "read", "writer_of"]

# The suffixes that collections use. Except for the first two, a suffix is the type of the matrix: its values (real,
# pattern …), its symmetry, and whether it is assembled.
_UNTYPED = (".hb", ".rb")
READ_ONLY = (".rsa", ".rra", ".rza", ".isa")
SUFFIXES = (*_UNTYPED, ".rua", ".iua", *READ_ONLY)

# The symmetry, which is the second letter of the type: the values of the other triangle as a function of the stored
# ones, and the letters of matrices without a symmetry (unsymmetric, rectangular).
_MIRRORED_VALUES: dict[str, Any] = {"S": np.positive, "Z": np.negative}
_NO_SYMMETRY = "UR"
# A format of Fortran: a scale factor, the numbers in a line, the kind of number, and the characters of a number.
_FORMAT = re.compile(r"\(\s*(?:(-?\d+)P\s*,?\s*)?(\d*)[IEFDG](\d+)[^()]*\)", re.IGNORECASE)
# What stands before the digits of an exponent: a letter of Fortran, or nothing before a sign (1.5-300).
_EXPONENT = re.compile(r"[DdEe]|(?<=[0-9.])(?=[+-])")
# Formats that SciPy reads, for whole numbers and for others. It takes numbers from blank to blank.
_WHOLE, _REAL = "(1I20)", "(1E25.16)"
# Text that NumPy reads as a wrong integer without an error: a sign alone as 0, and a number beyond int64 as the largest
# int64.
_SUSPECT_INTEGERS = re.compile(r"[+-](?=\s|$)|[+-]?\d{19,}")


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read a real or integer assembled matrix, symmetric, skew-symmetric or neither. Ignore its right-hand sides."""
    lines = path.read_text(encoding="latin-1").splitlines()
    if len(lines) < 4:
        raise ValueError(f"its header has four lines, it has {len(lines)}")
    symmetry = _simplify(lines)
    with warnings.catch_warnings():
        # NumPy warns of text that is not a number, and stops reading there. The count of entries shows that below.
        warnings.simplefilter("ignore", DeprecationWarning)
        stored = as_csr(scipy.io.hb_read(StringIO("\n".join(lines) + "\n"), spmatrix=False), path.stat().st_size)
    announced = int(lines[2][42:56])
    if stored.nnz != announced:
        raise ValueError(f"it says that it has {announced:,} entries, and has {stored.nnz:,}")
    return stored if symmetry in _NO_SYMMETRY else _add_other_triangle(stored, symmetry)


def _simplify(lines: list[str]) -> str:
    """Remove the symmetry and right-hand sides, which SciPy refuses, from a header. Return the symmetry's letter."""
    lines[0] = lines[0].ljust(80)
    kind = lines[2][:3].upper()
    if kind[1:2] not in (*_MIRRORED_VALUES, *_NO_SYMMETRY) or kind[:1] not in ("R", "I") or kind[2:] != "A":
        raise NotImplementedError(
            f"its type is {kind!r}; readable are real and integer assembled matrices: RUA, RSA, RZA, IUA …"
        )
    lines[2] = (f"{kind[0]}U{kind[2]}" + lines[2][3:]).ljust(70)
    if lines[1][56:70].strip() not in ("", "0"):
        del lines[4]
    lines[1] = lines[1][:56]
    _join_sections(lines)
    return kind[1]


def _join_sections(lines: list[str]) -> None:
    """Check the number and the lengths of the lines of each section, and join them to one line.

    SciPy reads the last line of a section up to its end, but for each line before it the number of characters that the
    format says. This number may exceed the size of the file by far. A section of one line has no line before it.
    """
    entries, begin, sections = int(lines[2][42:56]), 4, []
    are_whole = True, True, lines[2][0] == "I"
    counts = int(lines[2][28:42]) + 1, entries, entries
    for section, (format, numbers) in enumerate(zip(_formats(lines[3]), counts, strict=True)):
        announced, count = int(lines[1][14 * section + 14 : 14 * section + 28]), -(-numbers // max(format.repeat, 1))
        if announced != count or not 0 <= count <= len(lines) - begin:
            raise ValueError(f"{numbers} numbers of {format.text} take {count} lines, it announces {announced}")
        for number in range(begin, begin + count):
            lines[number] = lines[number].rstrip()
            if len(lines[number]) > format.repeat * format.width:
                raise ValueError(f"line {number + 1} is longer than {format.text}: {len(lines[number])} characters")
            left = numbers - format.repeat * (number - begin)
            lines[number] = _separate(lines[number], min(format.repeat, left), format)
            lines[number] = _plain_numbers(lines[number], format, are_whole[section])
        sections.append(" ".join(lines[begin : begin + count]))
        begin += count
    lines[1] = f"{len(sections):14d}" + f"{1:14d}" * len(sections)
    lines[3] = " ".join(_WHOLE if is_whole else _REAL for is_whole in are_whole)
    lines[4:] = sections


class _Format(NamedTuple):
    """A format of Fortran: the numbers in a line, the characters of a number, and the power of 10 in its scale."""

    text: str
    repeat: int
    width: int
    scale: int


def _formats(line: str) -> list[_Format]:
    """Return the formats of the pointers, of the rows and of the values.

    Raises
    ------
    NotImplementedError
        If a format is not one that is read.
    """
    formats = []
    for text in re.findall(r"\([^)]*\)*", line)[:3]:
        match = _FORMAT.fullmatch(text)
        if match is None:
            raise NotImplementedError(
                f"its format {text} is not supported: it needs one I, E, D, F or G, as in (10I8) or (1P,4D20.12)"
            )
        formats.append(_Format(text, int(match[2] or 1), int(match[3]), int(match[1] or 0)))
    return formats


def _plain_numbers(line: str, format: _Format, are_whole: bool) -> str:
    """Return the numbers of a line as SciPy reads them."""
    if are_whole:
        _check_whole_numbers(line)
        return line
    line = _EXPONENT.sub("E", line)
    if format.scale and line.count("E") != len(line.split()):  # Fortran divides such numbers by a power of 10.
        raise NotImplementedError(f"its format {format.text} has a scale factor, and numbers without an exponent")
    return line


def _separate(line: str, count: int, format: _Format) -> str:
    """Insert blanks between the `count` fields of a line if they touch."""
    if len(line.split()) == count:
        return line
    fields = [line[k : k + format.width] for k in range(0, len(line), format.width)]
    for field in fields:
        if len(field.split()) != 1:
            raise ValueError(f"{field!r} is not one number in the {format.width} characters of {format.text}")
    return " ".join(fields)


def _check_whole_numbers(line: str) -> None:
    for text in _SUSPECT_INTEGERS.findall(line):
        if text in ("+", "-") or not -(2**63) <= int(text) < 2**63:
            raise ValueError(f"{text} is not a 64-bit integer")


def _add_other_triangle(lower: sp.csr_array, symmetry: str) -> sp.csr_array:
    if lower.shape[0] != lower.shape[1]:
        raise ValueError(f"its type says that it is symmetric, but its shape {lower.shape} is not square")
    entries = lower.tocoo()
    off = entries.row != entries.col
    row, col = np.concatenate([entries.row, entries.col[off]]), np.concatenate([entries.col, entries.row[off]])
    values = np.concatenate([entries.data, _MIRRORED_VALUES[symmetry](entries.data[off])])
    return sp.csr_array((values, (row, col)), shape=lower.shape)


def writer_of(ending: str) -> Callable[[IO[bytes], sp.csr_array, str | None], None]:
    """Return the function that writes matrices to files with this suffix."""
    return partial(_write, ending)


def _write(ending: str, file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
    if A.dtype.kind not in "iuf":
        raise ValueError(f"Harwell-Boeing files hold real and integer matrices, this is {A.dtype}: write a .mtx file")
    if A.nnz == 0:
        raise ValueError("Harwell-Boeing files hold matrices with entries, this one has none: write a .mtx file")
    typed = ".rua" if A.dtype.kind == "f" else ".iua"  # SciPy writes all entries, even if the matrix is symmetric.
    if ending not in (*_UNTYPED, typed):
        raise ValueError(
            f"a matrix of {A.dtype} is written with all its entries, type {typed[1:].upper()}: name it {typed}"
        )
    C, one = A.tocsc(), np.int64(1)
    sections = C.indptr + one, C.indices + one, C.data.astype(np.float64) if typed == ".rua" else C.data
    formats = [_format_for(numbers) for numbers in sections]
    counts = [-(-numbers.size // format.repeat) for numbers, format in zip(sections, formats, strict=True)]
    pointers, rows, values = (format.text for format in formats)
    text = TextIOWrapper(file, encoding="ascii", newline="\n")
    try:
        text.write(f"{'Written by gsparse':80}\n" + "".join(f"{n:14d}" for n in (sum(counts), *counts)) + "\n")
        text.write(f"{typed[1:].upper():14}" + "".join(f"{n:14d}" for n in (*C.shape, C.nnz, 0)) + "\n")
        text.write(f"{pointers:16}{rows:16}{values:20}\n")
        for numbers, format in zip(sections, formats, strict=True):
            how = f"{format.width}.16E" if numbers.dtype.kind == "f" else f"{format.width}d"
            for begin in range(0, numbers.size, format.repeat):
                line = numbers[begin : begin + format.repeat].tolist()
                text.write("".join(f"{number:{how}}" for number in line) + "\n")
    finally:
        text.detach()  # This flushes the text, and leaves the file open for the caller.


def _format_for(numbers: Any) -> _Format:
    """Return a format whose fields hold each of these numbers and, for readers that split at blanks, one blank."""
    if numbers.dtype.kind == "f":
        return _Format("(3E25.16)", 3, 25, 0)  # 17 digits determine a float64; the longest is -1.2345678901234567E-300
    width = 1 + max(len(str(numbers.min())), len(str(numbers.max())))
    return _Format(f"({80 // width}I{width})", 80 // width, width, 0)
