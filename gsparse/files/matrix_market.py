"""Matrix Market, the text format of NIST, plain or compressed."""

from __future__ import annotations

import bz2
import gzip
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NamedTuple, cast

import numpy as np
import scipy.io
import scipy.sparse as sp

from gsparse.files.checks import DEFLATE_RATIO, as_csr, check_rows

# The name of another function that writes such files, for error messages.
WRITER = "scipy.io.mmwrite"

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
# Largest compression ratio. A block of bzip2 can hold 900,000 bytes of text in about 40 bytes. Runs of a single byte
# can be compressed further, but they are not valid entries.
_MAX_RATIOS = {".gz": DEFLATE_RATIO, ".bz2": 1 << 15}
# Bytes of the shortest possible line: an entry "1 1\n", or a value "1\n".
_LINE_BYTES = {"coordinate": 4, "array": 2}
# Largest number of bytes of a line. NIST's limit is 1024.
_LINE = 1 << 16
# Largest number of bytes of the header. A compressed file could repeat comments millions of times. Comments in the
# SuiteSparse collection take some kilobytes.
_HEADER = 1 << 20
# Number of bytes that the parser receives at a time. Files of 30 MB were read fastest with about half a megabyte.
_CHUNK = 1 << 19

# Patterns of whole numbers and numbers. Exponents may be Fortran's (1.0D3). SciPy reads no plus sign before a number.
# Possessive quantifiers (`++`, `?+`) never backtrack, which makes the search twice as fast.
_WHOLE = rb"-?+[0-9]++"
_EXPONENT = rb"(?:[eEdD][+-]?+[0-9]++)?+"
_REAL = rb"-?+(?:[0-9]++\.?+[0-9]*+%b|\.[0-9]++%b|[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?+)" % (
    _EXPONENT,
    _EXPONENT,
)
# For each field, the patterns of the numbers after the position in a line, and a text for error messages.
_VALUES: dict[str, tuple[list[bytes], str]] = {
    "pattern": ([], "nothing else"),
    "integer": ([_WHOLE], "a whole number"),
    "unsigned-integer": ([_WHOLE], "a whole number"),
    "real": ([_REAL], "a number"),
    "double": ([_REAL], "a number"),
    "complex": ([_REAL, _REAL], "two numbers"),
}
# For each layout, the patterns of the position at the beginning of a line, and a text for error messages.
_POSITION = {"coordinate": ([_WHOLE, _WHOLE], "a row, a column and "), "array": ([], "")}
_D_TO_E = bytes.maketrans(b"dD", b"eE")
# A plus sign before a number, at the beginning or after a blank.
_PLUS = re.compile(rb"(?<!\S)\+(?=[.0-9iInN])")


class MatrixMarketHeader(NamedTuple):
    """The header of a file, as `scipy.io.mminfo` returns it."""

    num_rows: int
    num_cols: int
    entries: int
    layout: str
    field: str
    symmetry: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.num_cols

    @property
    def num_lines(self) -> int:
        """The number of lines that must follow. A symmetric array lists only its lower triangle."""
        if self.layout == "coordinate" or self.symmetry == "general":
            return self.entries
        return self.num_rows * (self.num_rows + (-1 if self.symmetry == "skew-symmetric" else 1)) // 2


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read a matrix. An array becomes a matrix without its zeros."""
    num_bytes = path.stat().st_size
    with opened(path) as (header, stream):
        check_rows(header.shape, num_bytes)
        if header.num_lines == 0 and header.layout == "array":  # SciPy would divide by a size of 0.
            return _empty(header, stream)
        stream.seek(0)
        return as_csr(parse(stream), num_bytes)


@contextmanager
def opened(path: Path) -> Iterator[tuple[MatrixMarketHeader, IO[bytes]]]:
    """Open a file, check its header against the size of the file, and yield the header and the open file.

    Raises
    ------
    ValueError
        If the header is malformed, or says that the file has more lines than it can have.
    NotImplementedError
        If the file holds a vector.
    OSError
    """
    ending = path.suffix.lower()
    most = path.stat().st_size * _MAX_RATIOS.get(ending, 1)
    with _OPENERS.get(ending, open)(path, "rb") as file:
        header = _read_header(file)
        _check(header, most)
        yield header, cast("IO[bytes]", _Stream(file, most))


def parse(stream: IO[bytes]) -> Any:
    """Parse a file from its first byte with SciPy. Return a COO array or a dense array.

    Raises
    ------
    ValueError, OverflowError
    NotImplementedError
        If the file holds a vector.
    """
    header = _read_header(stream)
    num_bytes = stream.tell()
    stream.seek(0)
    return scipy.io.mmread(_Text(stream, header, num_bytes), spmatrix=False)


def rest_of_line(stream: IO[bytes]) -> bytes:
    """Read up to the end of a line.

    Raises
    ------
    ValueError
        If the line is so long that the file cannot hold a matrix. Reading it whole might take all memory.
    """
    rest = stream.readline(_LINE)
    if len(rest) == _LINE and not rest.endswith(b"\n"):
        raise ValueError(f"it has a line of more than {_LINE:,} bytes")
    return rest


def without_entries(header: MatrixMarketHeader) -> sp.coo_array:
    """Return a matrix without entries that has the shape and the dtype of a header."""
    head = f"%%MatrixMarket matrix coordinate {header.field} general\n{header.num_rows} {header.num_cols} 0\n"
    return cast("sp.coo_array", parse(BytesIO(head.encode())))


class _Stream:
    """A file open for reading. Reading raises an error when more than about `most` bytes of text have been read."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._most = file, most

    def read(self, size: int) -> bytes:
        if self._file.tell() > self._most:
            raise ValueError(
                f"its text is longer than {self._most:,} bytes, which entries cannot fill: take blanks out"
            )
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Text:
    """A stream that SciPy can parse safely.

    SciPy's parser reads a number up to the first character that does not belong to it, and skips the rest: it reads 1
    from ``1.0D3`` and from ``1,5``. It crashes (SIGSEGV) at a null byte, and if the last line does not end with a
    newline. This stream refuses lines that SciPy would not read to the end, writes Fortran's exponents with an E, drops
    plus signs before numbers, and appends a newline.

    Parameters
    ----------
    stream : file, at its first byte
    header : MatrixMarketHeader
    header_bytes : int
        The number of bytes of the header.
    """

    def __init__(self, stream: IO[bytes], header: MatrixMarketHeader, header_bytes: int) -> None:
        self._stream, self._header, self._header_bytes = stream, header, header_bytes
        self._line = 0
        numbers = rb"[ \t]++".join(_POSITION[header.layout][0] + _VALUES[header.field][0])
        self._valid = re.compile(rb"(?:[ \t\r]*+(?:%b[ \t\r]*+)?+\n)*+" % numbers)

    def read(self, size: int) -> bytes:
        """Return the header first, then about `_CHUNK` bytes at a time up to the end of a line. `size` is ignored."""
        is_header = self._line == 0
        text = self._stream.read(self._header_bytes if is_header else _CHUNK)
        if not is_header:
            text += rest_of_line(self._stream)
        if b"\0" in text:
            raise ValueError("it is no text: it has null bytes")
        if text and not text.endswith(b"\n"):
            text += b"\n"
        if text and not is_header:
            text = self._checked(text)
        self._line += text.count(b"\n")
        return text

    def _checked(self, text: bytes) -> bytes:
        end = self._end_of_valid(text)
        if end < len(text):  # Plus signs are rare, so they are removed only if a line is invalid.
            text = _PLUS.sub(b"", text)
            end = self._end_of_valid(text)
        if end < len(text):
            line = text[end : text.index(b"\n", end)].decode("latin-1")
            words = _POSITION[self._header.layout][1] + _VALUES[self._header.field][1]
            number = self._line + text.count(b"\n", 0, end) + 1
            raise ValueError(f"Line {number}: it must hold {words}, got {line!r:.60}")
        return text.translate(_D_TO_E) if b"D" in text or b"d" in text else text

    def _end_of_valid(self, text: bytes) -> int:
        match = self._valid.match(text)
        return match.end() if match else 0


def write(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
    """Write a matrix. Values of up to double precision are read back with the same bits."""
    if A.dtype.kind in "fc":
        A = A.astype(np.result_type(A.dtype, np.float64))
    # The namespace hides `seek`, which SciPy would call, and which a compressed file does not support.
    scipy.io.mmwrite(SimpleNamespace(write=file.write), A)


def compressed_writer(ending: str) -> Callable[[IO[bytes], sp.csr_array, str | None], None]:
    """Return a function that writes compressed files with this suffix."""

    def write_compressed(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
        with _OPENERS[ending](file, "wb") as stream:
            write(stream, A, name)

    return write_compressed


def _read_header(stream: IO[bytes]) -> MatrixMarketHeader:
    """Read the lines up to and including the line of sizes, and return the header."""
    line = stream.readline(_LINE)
    if line.lower().split()[1:2] == [b"vector"]:
        raise NotImplementedError("it holds a vector, no matrix")
    text = bytearray(line)
    while line.isspace() or line.lstrip().startswith(b"%"):
        line = stream.readline(_LINE)
        text += line
        if len(text) > _HEADER:
            raise ValueError(f"its header is longer than {_HEADER:,} bytes: take comments out of it")
    return MatrixMarketHeader(*scipy.io.mminfo(BytesIO(text)))


def _check(header: MatrixMarketHeader, text_bytes: int) -> None:
    if header.symmetry != "general" and header.num_rows != header.num_cols:
        raise ValueError(f"it says that it is {header.symmetry}, but its shape {header.shape} is not square")
    if header.layout == "array" and header.field == "pattern":
        raise ValueError("an array cannot be a pattern")
    max_lines = text_bytes // _LINE_BYTES[header.layout] + 1
    if header.num_lines > max_lines:
        raise ValueError(
            f"it says that it has {header.num_lines:,} entries, and is too short for more than {max_lines:,}"
        )


def _empty(header: MatrixMarketHeader, stream: IO[bytes]) -> sp.csr_array:
    """Return the matrix of an array that has no values."""
    if stream.read(_LINE).strip():
        raise ValueError(f"Too many lines in file: an array of shape {header.shape} has no values")
    return sp.csr_array(without_entries(header))
