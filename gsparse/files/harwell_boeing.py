"""Harwell–Boeing and Rutherford–Boeing: CSC in columns of text, by SciPy's reader and writer.

SciPy reads real and integer matrices whose formats are Fortran's I and E, without a symmetry. A symmetry is read here
as if there were none, and then the other triangle is added.

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
from typing import IO, Any

import numpy as np
import scipy.io
import scipy.sparse as sp

from gsparse.files.checks import as_csr

__all__ = ["READ_ONLY", "SUFFIXES", "read", "writer"]

# As collections name such files: by the values (real, pattern …), the symmetry, and whether they are assembled.
_UNTYPED = (".hb", ".rb")
READ_ONLY = (".rsa", ".rra", ".rza", ".isa")
SUFFIXES = (*_UNTYPED, ".rua", ".iua", *READ_ONLY)

# What the second letter of the type says of the other triangle.
_MIRRORS: dict[str, Any] = {"S": np.positive, "Z": np.negative}
_WITHOUT = "UR"
# Fortran's: numbers of a line, and characters of a number.
_FORMAT = re.compile(r"\((\d*)([IEFDG])(\d+)", re.IGNORECASE)
# What NumPy reads as another whole number without a word: a sign alone as 0, one beyond int64 as the largest there is.
_DOUBTFUL = re.compile(r"[+-](?=\s|$)|[+-]?\d{19,}")


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read an assembled matrix, of any symmetry; right-hand sides in the file are left out."""
    lines = path.read_text(encoding="latin-1").splitlines()
    if len(lines) < 4:
        raise ValueError(f"its header has four lines, it has {len(lines)}")
    symmetry = _simplify(lines)
    with warnings.catch_warnings():
        # (NumPy's, of text that is no number: whatever is missing then is noticed by its count)
        warnings.simplefilter("ignore", DeprecationWarning)
        found = as_csr(scipy.io.hb_read(StringIO("\n".join(lines) + "\n"), spmatrix=False), path.stat().st_size)
    announced = int(lines[2][42:56])
    if found.nnz != announced:
        raise ValueError(f"it says that it has {announced:,} entries, and has {found.nnz:,}")
    return found if symmetry in _WITHOUT else _mirrored(found, symmetry)


def _simplify(lines: list[str]) -> str:
    """Take the symmetry and right-hand sides out of a header, which SciPy refuses, and give the symmetry's letter."""
    lines[0] = lines[0].ljust(80)
    kind = lines[2][:3].upper()
    if kind[1:2] not in (*_MIRRORS, *_WITHOUT) or kind[:1] not in ("R", "I") or kind[2:] != "A":
        raise ValueError(
            f"its type is {kind!r}, readable are real and integer assembled matrices: RUA, RSA, RZA, IUA …"
        )
    lines[2] = (f"{kind[0]}U{kind[2]}" + lines[2][3:]).ljust(70)
    if lines[1][56:70].strip() not in ("", "0"):
        del lines[4]
    lines[1] = lines[1][:56]
    lines[3] = " ".join(lines[3].split()[:3])
    _join_sections(lines)
    return kind[1]


def _join_sections(lines: list[str]) -> None:
    """Put each section on one line, after the number of its lines and their lengths have been checked.

    SciPy reads the last line of a section up to its end, and all lines before it by the length that their format says,
    which may be far longer than the file.
    """
    entries, begin, sections = int(lines[2][42:56]), 4, []
    for section, (format, numbers) in enumerate(
        zip(lines[3].split(), (int(lines[2][28:42]) + 1, entries, entries), strict=True)
    ):
        found = _FORMAT.match(format)
        if found is None:
            raise ValueError(f"{format} is no format of whole numbers or of numbers with an exponent")
        repeat, width = int(found[1] or 1), int(found[3])
        says, count = int(lines[1][14 * section + 14 : 14 * section + 28]), -(-numbers // max(repeat, 1))
        if says != count or not 0 <= count <= len(lines) - begin:
            raise ValueError(f"{numbers} numbers of {format} take {count} lines, it announces {says}")
        for number in range(begin, begin + count):
            lines[number] = lines[number].rstrip()
            if len(lines[number]) > repeat * width:
                raise ValueError(f"line {number + 1} is longer than {format}: {len(lines[number])} characters")
            if found[2] in "Ii":
                _check_whole_numbers(lines[number])
        sections.append(" ".join(lines[begin : begin + count]))
        begin += count
    lines[1] = f"{len(sections):14d}" + f"{1:14d}" * len(sections)
    lines[4:] = sections


def _check_whole_numbers(line: str) -> None:
    for text in _DOUBTFUL.findall(line):
        if text in ("+", "-") or not -(2**63) <= int(text) < 2**63:
            raise ValueError(f"{text} is no whole number of 64 bits")


def _mirrored(lower: sp.csr_array, symmetry: str) -> sp.csr_array:
    if lower.shape[0] != lower.shape[1]:
        raise ValueError(f"its type says that it is symmetric, its shape is {lower.shape}")
    entries = lower.tocoo()
    off = entries.row != entries.col
    row, col = np.concatenate([entries.row, entries.col[off]]), np.concatenate([entries.col, entries.row[off]])
    values = np.concatenate([entries.data, _MIRRORS[symmetry](entries.data[off])])
    return sp.csr_array((values, (row, col)), shape=lower.shape)


def writer(ending: str) -> Callable[[IO[bytes], sp.csr_array, str | None], None]:
    """Give what writes real or integer matrices that have entries to files of that suffix."""
    return partial(_write, ending)


def _write(ending: str, file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
    if A.dtype.kind not in "iuf":
        raise ValueError(f"Harwell-Boeing files are written of real and integer matrices, this one is {A.dtype}")
    if A.nnz == 0:
        raise ValueError("Harwell-Boeing files are written of matrices with entries, this one has none")
    own = ".rua" if A.dtype.kind == "f" else ".iua"  # (SciPy's: all entries, whatever their symmetry)
    if ending not in (*_UNTYPED, own):
        raise ValueError(
            f"a matrix of {A.dtype} is written with all its entries, type {own[1:].upper()}: name it {own}"
        )
    text = TextIOWrapper(file, encoding="ascii", newline="\n")
    try:
        scipy.io.hb_write(text, A)
    finally:
        text.detach()  # (which flushes, and leaves the file to who opened it)
