"""Matrix Market, the text format of NIST, plain or compressed."""

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

__all__ = ["WRITER", "Header", "compressed_writer", "opened", "parse", "read", "without_entries", "write"]

# Another function that writes such files, for error messages.
WRITER = "scipy.io.mmwrite"

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
# Largest compression ratio. A block of bzip2 can hold 900,000 bytes of text in about 40 bytes. Runs of a single byte
# can be even shorter, but are no valid entries.
_MAX_RATIOS = {".gz": DEFLATE_RATIO, ".bz2": 1 << 15}
# Bytes of the shortest line of an entry, "1 1\n", and of a value, "1\n".
_LINE_BYTES = {"coordinate": 4, "array": 2}
# Largest number of bytes that are read of a line of the header. The limit of NIST is 1024.
_HEADER_LINE = 1 << 16


class Header(NamedTuple):
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
        """The number of lines that must follow. Of a symmetric array, only the lower triangle is listed."""
        if self.layout == "coordinate" or self.symmetry == "general":
            return self.entries
        return self.num_rows * (self.num_rows + (-1 if self.symmetry == "skew-symmetric" else 1)) // 2


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read a matrix, or an array without its zeros."""
    num_bytes = path.stat().st_size
    with opened(path) as (header, stream):
        check_rows(header.shape, num_bytes)
        if header.num_lines == 0 and header.layout == "array":  # SciPy would divide by a size of 0.
            return _empty(header, stream)
        stream.seek(0)
        return as_csr(parse(stream), num_bytes)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Header, IO[bytes]]]:
    """Open a file, check its header against the size of the file, and yield it with the stream after the header.

    Raises
    ------
    ValueError, OSError
    """
    ending = path.suffix.lower()
    with _OPENERS.get(ending, open)(path, "rb") as stream:
        header = _read_header(stream)
        _check(header, path.stat().st_size * _MAX_RATIOS.get(ending, 1))
        yield header, stream


def parse(stream: IO[bytes]) -> Any:
    """Parse a file from its banner on with SciPy. Return COO, or a dense array.

    Raises
    ------
    ValueError, OverflowError
    """
    return scipy.io.mmread(_Text(stream), spmatrix=False)


def without_entries(header: Header) -> sp.coo_array:
    """Return a matrix without entries that has the shape and the dtype of a header."""
    head = f"%%MatrixMarket matrix coordinate {header.field} general\n{header.num_rows} {header.num_cols} 0\n"
    return cast("sp.coo_array", parse(BytesIO(head.encode())))


class _Text:
    """A stream that SciPy can parse safely.

    SciPy's parser crashes (SIGSEGV) at a null byte, and if the last line does not end with a newline. This stream
    refuses null bytes and appends a newline.
    """

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
    """Write a matrix, as float64 or complex128, so that every value is read back to the last bit."""
    if A.dtype.kind in "fc":
        A = A.astype(np.result_type(A.dtype, np.float64))
    # The namespace hides `seek`, which SciPy would call, and which a compressed file does not support.
    scipy.io.mmwrite(SimpleNamespace(write=file.write), A)


def compressed_writer(ending: str) -> Callable[[IO[bytes], sp.csr_array, str | None], None]:
    """Return `write` for a compressed file."""

    def write_compressed(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
        with _OPENERS[ending](file, "wb") as stream:
            write(stream, A, name)

    return write_compressed


def _read_header(stream: IO[bytes]) -> Header:
    """Read the lines up to the line of sizes, and return the header."""
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
    max_lines = text_bytes // _LINE_BYTES[header.layout] + 1
    if header.num_lines > max_lines:
        raise ValueError(
            f"Truncated file: it says that it has {header.num_lines:,} entries, and has {max_lines:,} at most"
        )


def _empty(header: Header, stream: IO[bytes]) -> sp.csr_array:
    """Return the matrix of an array without values."""
    if stream.read(_HEADER_LINE).strip():
        raise ValueError(f"Too many lines in file: an array of shape {header.shape} has no values")
    return sp.csr_array(without_entries(header))
