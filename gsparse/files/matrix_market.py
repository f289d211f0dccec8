"""NIST's text format, Matrix Market, plain or compressed."""

from __future__ import annotations

import bz2
import gzip
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

__all__ = ["WRITER", "Header", "compressed", "opened", "parse", "read", "without_entries", "write"]

# What else writes such files.
WRITER = "scipy.io.mmwrite"

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
# Bytes of text that a byte of the file stands for, at most. (Of bzip2: 900,000 in a block of some 40; runs of one byte
# are shorter still, and no entries.)
_RATIOS = {".gz": DEFLATE_RATIO, ".bz2": 1 << 15}
# Bytes of the shortest line of an entry, "1 1\n", and of a value, "1\n".
_LINE_BYTES = {"coordinate": 4, "array": 2}
# Bytes of a line of the header: NIST's limit is 1024.
_HEADER_LINE = 1 << 16


class Header(NamedTuple):
    """As `scipy.io.mminfo` gives it."""

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
        """Lines that have to follow: of an array with a symmetry, only the lower triangle is listed."""
        if self.layout == "coordinate" or self.symmetry == "general":
            return self.entries
        return self.num_rows * (self.num_rows + (-1 if self.symmetry == "skew-symmetric" else 1)) // 2


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read a matrix, or an array, of which zeros are left out."""
    num_bytes = path.stat().st_size
    with opened(path) as (header, stream):
        check_rows(header.shape, num_bytes)
        if header.num_lines == 0 and header.layout == "array":  # by whose shape SciPy divides
            return _empty(header, stream)
        stream.seek(0)
        return as_csr(parse(stream), num_bytes)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Header, IO[bytes]]]:
    """Open a file behind its header, which is believed as far as the file's size bears it out.

    Raises
    ------
    ValueError, OSError
    """
    ending = path.suffix.lower()
    with _OPENERS.get(ending, open)(path, "rb") as stream:
        header = _read_header(stream)
        _check(header, path.stat().st_size * _RATIOS.get(ending, 1))
        yield header, stream


def parse(stream: IO[bytes]) -> Any:
    """Let SciPy parse a file from its banner on: to COO, or to a dense array.

    Raises
    ------
    ValueError, OverflowError
    """
    return scipy.io.mmread(_Text(stream), spmatrix=False)


def without_entries(header: Header) -> sp.coo_array:
    """Give an empty matrix of the shape and the dtype that a header says."""
    head = f"%%MatrixMarket matrix coordinate {header.field} general\n{header.num_rows} {header.num_cols} 0\n"
    return cast("sp.coo_array", parse(BytesIO(head.encode())))


class _Text:
    """What SciPy may parse: it follows a null pointer (SIGSEGV) at a null byte, and where the last line has no end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._ended = stream, False

    def read(self, size: int) -> bytes:
        text = self._stream.read(size)
        if b"\0" in text:
            raise ValueError("it is no text: it has null bytes")
        if not text and not self._ended:
            self._ended, text = True, b"\n"
        return text


def write(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
    """Write a matrix so that every value is read back to the last bit, which is as float64 or complex128."""
    if A.dtype.kind in "fc":
        A = A.astype(np.result_type(A.dtype, np.float64))
    scipy.io.mmwrite(SimpleNamespace(write=file.write), A)  # (which would ask a compressed file to seek)


def compressed(ending: str) -> Callable[[IO[bytes], sp.csr_array, str | None], None]:
    """Give `write` for a compressed file."""

    def write_compressed(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
        with _OPENERS[ending](file, "wb") as stream:
            write(stream, A, name)

    return write_compressed


def _read_header(stream: IO[bytes]) -> Header:
    """Read up to the line of sizes."""
    lines = [stream.readline(_HEADER_LINE)]
    if lines[0].lower().split()[1:2] == [b"vector"]:
        raise ValueError("it holds a vector, no matrix")
    while lines[-1].startswith(b"%") or lines[-1].isspace():
        lines.append(stream.readline(_HEADER_LINE))
    return Header(*scipy.io.mminfo(BytesIO(b"".join(lines))))


def _check(header: Header, text_bytes: int) -> None:
    if header.symmetry != "general" and header.num_rows != header.num_cols:
        raise ValueError(f"it says that it is {header.symmetry}, and of shape {header.shape}")
    if header.layout == "array" and header.field == "pattern":
        raise ValueError("an array cannot be a pattern")
    most = text_bytes // _LINE_BYTES[header.layout] + 1
    if header.num_lines > most:
        raise ValueError(f"Truncated file: it says that it has {header.num_lines:,} entries, and has {most:,} at most")


def _empty(header: Header, stream: IO[bytes]) -> sp.csr_array:
    """Give what an array without values says."""
    if stream.read(_HEADER_LINE).strip():
        raise ValueError(f"Too many lines in file: an array of shape {header.shape} has no values")
    return sp.csr_array(without_entries(header))
