"""Harwell–Boeing and Rutherford–Boeing: CSC as text in columns of fixed width.

SciPy's reader serves few of these files (no symmetry, formats I and E only), so this module reads them itself: real
and integer assembled matrices, whose numbers are in Fortran's formats I, E, D, F or G.

In Fortran, only the width in the format says where a number is. But SciPy's writer writes numbers that are one
character narrower than its header says. So a line with the right number of words is split at blanks instead. In SciPy's
files, a negative number may even touch the number before it, and no reader can separate the two. Therefore this module
also writes files itself.

References
----------
I. S. Duff, R. G. Grimes, J. G. Lewis, "Users' guide for the Harwell-Boeing sparse matrix collection", 1992.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.files.checks import as_csr

# The suffixes that collections use. The suffixes after the first two name the type of the matrix: its values (real,
# integer …), its symmetry, and "a" for assembled.
_UNTYPED = (".hb", ".rb")
READ_ONLY = (".rsa", ".rra", ".rza", ".isa")
SUFFIXES = (*_UNTYPED, ".rua", ".iua", *READ_ONLY)

# The second letter of the type is the symmetry. For each symmetry, the function that maps the stored values to those of
# the other triangle; then the letters for no symmetry (unsymmetric, rectangular).
_MIRRORED_VALUES: dict[str, Any] = {"S": np.positive, "Z": np.negative}
_NO_SYMMETRY = "UR"
# A format of Fortran: a scale factor, the numbers per line, the letter of the kind of number, and the characters per
# number.
_FORMAT = re.compile(r"\(\s*(?:(-?\d+)P\s*,?\s*)?(\d*)[IEFDG](\d+)[^()]*\)", re.IGNORECASE)
# The start of an exponent: a letter, or in Fortran also a sign without a letter (1.5-300).
_EXPONENT = re.compile(r"[DdEe]|(?<=[0-9.])(?=[+-])")


class _Format(NamedTuple):
    """A format of Fortran: its text, the numbers per line, the characters per number, and the scale factor."""

    text: str
    repeat: int
    width: int
    scale: int = 0


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read a real or integer assembled matrix, perhaps symmetric or skew-symmetric. Ignore right-hand sides."""
    lines = path.read_text(encoding="latin-1").splitlines()
    if len(lines) < 4:
        raise ValueError(f"its header has four lines, it has {len(lines)}")
    kind = lines[2][:3].upper()
    if kind[1:2] not in (*_MIRRORED_VALUES, *_NO_SYMMETRY) or kind[:1] not in ("R", "I") or kind[2:] != "A":
        raise NotImplementedError(
            f"its type is {kind!r}; readable are real and integer assembled matrices: RUA, RSA, RZA, IUA …"
        )
    num_rows, num_cols, entries = (int(lines[2][begin : begin + 14]) for begin in (14, 28, 42))
    begin = 4 if lines[1][56:70].strip() in ("", "0") else 5  # a line about right-hand sides
    sections = []
    dtypes = np.int64, np.int64, np.int64 if kind[0] == "I" else np.float64
    for k, (format, size) in enumerate(zip(_formats(lines[3]), (num_cols + 1, entries, entries), strict=True), 1):
        announced, count = int(lines[1][14 * k : 14 * k + 14]), -(-size // max(format.repeat, 1))
        if announced != count or not 0 <= count <= len(lines) - begin:
            raise ValueError(f"{size} numbers of {format.text} take {count} lines, it announces {announced}")
        sections.append(_numbers(lines, begin, begin + count, size, format, dtypes[k - 1]))
        begin += count
    pointers, rows, values = sections
    if pointers[-1] - 1 != entries:
        raise ValueError(f"it says that it has {entries:,} entries, and its pointers end at {pointers[-1]:,}")
    stored = as_csr(sp.csc_array((values, rows - 1, pointers - 1), shape=(num_rows, num_cols)), path.stat().st_size)
    return stored if kind[1] in _NO_SYMMETRY else _add_other_triangle(stored, kind[1])


def _formats(line: str) -> list[_Format]:
    """Return the formats of the pointers, of the rows and of the values.

    Raises
    ------
    NotImplementedError
        If a format is not supported.
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


def _numbers(lines: list[str], begin: int, end: int, size: int, format: _Format, dtype: Any) -> npt.NDArray[Any]:
    """Return the `size` numbers of a section, line by line."""
    parts = []
    for number, padded_line in enumerate(lines[begin:end]):
        line = padded_line.rstrip()
        if len(line) > format.repeat * format.width:
            raise ValueError(f"line {begin + number + 1} is longer than {format.text}: {len(line)} characters")
        words, left = line.split(), size - format.repeat * number
        if len(words) != min(format.repeat, left):
            words = [line[k : k + format.width] for k in range(0, len(line), format.width)]
        if dtype is np.float64:
            words = [_EXPONENT.sub("E", word.strip()) for word in words]
            if format.scale and not all("E" in word for word in words):  # Fortran divides them by a power of 10.
                raise NotImplementedError(
                    f"its format {format.text} has a scale factor, and numbers without an exponent"
                )
        try:
            parts.append(np.array(words, str).astype(dtype))
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"line {begin + number + 1} must hold numbers of {format.text}, not {line!r:.99}"
            ) from error
    numbers = np.concatenate(parts) if parts else np.empty(0, dtype)
    if numbers.size != size:
        raise ValueError(f"it has {numbers.size} of {size} numbers of {format.text}")
    return numbers


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
    typed = ".rua" if A.dtype.kind == "f" else ".iua"  # All entries are written, even if the matrix is symmetric.
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
    """Return a format whose fields hold each of these numbers and a blank, for readers that split at blanks."""
    if numbers.dtype.kind == "f":
        return _Format("(3E25.16)", 3, 25)  # 17 digits determine a float64; the longest is -1.2345678901234567E-300
    width = 1 + max(len(str(numbers.min())), len(str(numbers.max())))
    return _Format(f"({80 // width}I{width})", 80 // width, width)
