"""Rows of a file's matrix, read without holding the rest of it: SciPy's `.npz` and Matrix Market."""

from __future__ import annotations

import gzip
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol, Self, cast

import numpy as np
import numpy.typing as npt
import scipy.io
import scipy.sparse as sp

from gsparse.errors import FileFormatError

__all__ = ["Reader", "open_file"]

# Bytes read at once.
_CHUNK = 1 << 23
_BLANK_LINES = re.compile(rb"\n\s*\n")
_ARRAY_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class Reader(Protocol):
    """What gives rows of a matrix; ``0 <= lo <= hi <= shape[0]`` is the caller's to see to."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Give that of the values, None where only rows tell."""
        ...

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        """Give rows lo to hi, with checked indices."""
        ...

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        """Give how many entries each of the rows holds, None where that takes reading them."""
        ...


def open_file(path: Path) -> Reader:
    """Read the header of a file.

    Raises
    ------
    FileNotFoundError
    FileFormatError
        Where the kind of file is unknown, or its header malformed.
    """
    kinds: dict[str, type[_Npz | _MatrixMarket]] = {".npz": _Npz, ".mtx": _MatrixMarket, ".mtx.gz": _MatrixMarket}
    found = next((kinds[kind] for kind in kinds if path.name.lower().endswith(kind)), None)
    if found is None:
        raise FileFormatError(f"{path.name}: unknown kind of file, rows are read of {', '.join(kinds)}")
    with _reading(path):
        return found.open(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn whatever a parser meets (zlib, zipfile, KeyError, ValueError, EOFError, ...) into one error."""
    try:
        yield
    except (MemoryError, FileNotFoundError, PermissionError, IsADirectoryError, FileFormatError):
        raise
    except Exception as error:
        raise FileFormatError(f"{path.name} is truncated or malformed: {error}") from error


# ------------------------------------------------------------------------- .npz


@dataclass(frozen=True)
class _Npz:
    """A file of `scipy.sparse.save_npz`: of CSR only the rows are read, other formats are loaded whole and sliced."""

    path: Path
    shape: tuple[int, int]
    format: str
    dtype: np.dtype[Any]

    @classmethod
    def open(cls, path: Path) -> Self:
        shape, kind = (_whole(path, name) for name in ("shape", "format"))
        num_rows, num_cols = map(int, shape.tolist())
        name = kind.item()
        with _member(path, "data.npy") as (stream, _):
            _, dtype = _array_header(stream)
        return cls(path, (num_rows, num_cols), name.decode() if isinstance(name, bytes) else str(name), dtype)

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        with _reading(self.path):
            if self.format != "csr":
                return self._loaded()[lo:hi]
            indptr = self._indptr(lo, hi)
            begin, end = int(indptr[0]), int(indptr[-1])
            data, indices = (_part(self.path, name, begin, end) for name in ("data", "indices"))
            found = sp.csr_array((data, indices, indptr - begin), shape=(hi - lo, self.shape[1]))
            found.check_format(full_check=True)
            return found

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        if self.format != "csr":
            return None
        with _reading(self.path):
            return np.diff(self._indptr(lo, hi)).astype(np.int64)

    def _indptr(self, lo: int, hi: int) -> npt.NDArray[Any]:
        indptr = _part(self.path, "indptr", lo, hi + 1)
        if indptr.dtype.kind != "i" or indptr[0] < 0 or (np.diff(indptr) < 0).any():
            raise ValueError("indptr must be integers from 0 on that never fall")
        return indptr

    def _loaded(self) -> sp.csr_array:
        with self.path.open("rb") as file:
            found = sp.load_npz(file)
        if found.format in ("csc", "bsr"):  # whose conversions trust their indices
            found.check_format(full_check=True)
        return sp.csr_array(found)


def _whole(path: Path, name: str) -> npt.NDArray[Any]:
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    shape, _, dtype = _ARRAY_HEADERS[np.lib.format.read_magic(stream)](stream)
    return shape, dtype


def _part(path: Path, name: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Read part of a vector, of what stands before it as little as can be."""
    with _member(path, f"{name}.npy") as (stream, size):
        begin = stream.tell()
        shape, dtype = _array_header(stream)
        if len(shape) != 1 or stop > shape[0] or dtype.hasobject:
            raise ValueError(f"{name} must be a vector of {stop} numbers or more, got {dtype} of shape {shape}")
        if stream.tell() - begin + shape[0] * dtype.itemsize != size:
            raise ValueError(f"{name} is not of the size that its header says")
        stream.seek(start * dtype.itemsize, os.SEEK_CUR)
        found = np.empty(stop - start, dtype)
        target, filled = found.view(np.uint8), 0
        while filled < target.size:
            piece = np.frombuffer(stream.read(min(_CHUNK, target.size - filled)), np.uint8)
            if not piece.size:
                raise EOFError(f"{name} ends early")
            target[filled : filled + piece.size] = piece
            filled += piece.size
    return found


@contextmanager
def _member(path: Path, name: str) -> Iterator[tuple[IO[bytes], int]]:
    """Open a member of an archive at its first byte; give its size too."""
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        info = archive.getinfo(name)
        if info.compress_type == zipfile.ZIP_STORED:  # bytes of the file itself, where seeking reads nothing
            file.seek(info.header_offset + 26)
            name_and_extra = struct.unpack("<HH", file.read(4))
            file.seek(sum(name_and_extra), os.SEEK_CUR)
            yield file, info.file_size
        else:
            with archive.open(info) as member:
                yield member, info.file_size


# ---------------------------------------------------------------- Matrix Market


@dataclass(frozen=True)
class _MatrixMarket:
    """A file in NIST's text format: entries come in any order, so each range of rows takes reading all of it.

    It is read a chunk of lines at a time, each of which SciPy parses as a file of its own.
    """

    path: Path
    shape: tuple[int, int]
    num_lines: int
    format: str
    field: str
    symmetry: str

    @classmethod
    def open(cls, path: Path) -> Self:
        with _open_text(path) as stream:
            banner, (num_rows, num_cols, count, layout, field, symmetry) = _header(stream)
        if banner.split()[1:2] != [b"matrix"]:
            raise FileFormatError(f"{path.name} is no matrix: its first line says {banner.decode(errors='replace')!r}")
        if symmetry != "general" and num_rows != num_cols:
            raise FileFormatError(f"{path.name} says it is {symmetry}, and that it is {num_rows} by {num_cols}")
        if layout == "array" and field == "pattern":
            raise FileFormatError(f"{path.name}: an array cannot be a pattern")
        if layout == "array" and symmetry != "general":  # packed: the lower triangle
            count = num_rows * (num_rows + (-1 if symmetry == "skew-symmetric" else 1)) // 2
        return cls(path, (num_rows, num_cols), count, layout, field, symmetry)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._entries(0, 0, b"").dtype  # type: ignore[no-any-return]

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        return None

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        with _reading(self.path):
            parts = [self._kept(part, lo, hi) for part in self._parts(empty=lo == hi)]
        row, col, data = (np.concatenate(vectors) for vectors in zip(*parts, strict=True))
        return sp.coo_array((data, (row, col)), shape=(hi - lo, self.shape[1])).tocsr()

    @staticmethod
    def _kept(part: sp.coo_array, lo: int, hi: int) -> tuple[npt.NDArray[Any], ...]:
        keep = (part.row >= lo) & (part.row < hi)
        return part.row[keep] - lo, part.col[keep], part.data[keep]

    def _parts(self, empty: bool) -> Iterator[sp.coo_array]:
        """Give the matrix as sums, first one without entries, which has its dtype."""
        yield self._entries(0, 0, b"")
        if empty:
            return
        read, done = self._entries if self.format == "coordinate" else self._values, 0
        with _open_text(self.path) as stream:
            _header(stream)
            for count, lines in _line_chunks(stream):
                if done + count > self.num_lines:
                    raise FileFormatError(f"{self.path.name} holds more than the {self.num_lines} entries it announces")
                yield read(done, count, lines)
                done += count
        if done != self.num_lines:
            raise FileFormatError(f"{self.path.name} is truncated: {done} entries of {self.num_lines}")

    def _entries(self, first: int, count: int, lines: bytes) -> sp.coo_array:
        return self._parse(first, f"coordinate {self.field} {self.symmetry}", (*self.shape, count), lines)

    def _values(self, first: int, count: int, lines: bytes) -> sp.coo_array:
        """Place values that are listed column by column, and leave zeros out."""
        values = self._parse(first, f"array {self.field} general", (count, 1), lines)[:, 0]
        num_rows, num_cols = self.shape
        heads = np.arange(num_cols) if self.symmetry in _MIRRORS else np.zeros(num_cols, np.int64)
        heads += self.symmetry == "skew-symmetric"  # whose diagonal is not listed
        starts = np.concatenate([[0], np.cumsum(num_rows - heads)])
        numbers = np.arange(first, first + count)[values != 0]
        values = values[values != 0]
        col = np.searchsorted(starts, numbers, side="right") - 1
        row = numbers - starts[col] + heads[col]
        if self.symmetry in _MIRRORS:
            off = row != col
            row, col = np.concatenate([row, col[off]]), np.concatenate([col, row[off]])
            values = np.concatenate([values, _MIRRORS[self.symmetry](values[off])])
        return sp.coo_array((values, (row, col)), shape=self.shape)

    def _parse(self, first: int, kind: str, sizes: tuple[int, ...], lines: bytes) -> Any:
        head = f"%%MatrixMarket matrix {kind}\n{' '.join(map(str, sizes))}\n"
        try:
            return scipy.io.mmread(BytesIO(head.encode() + lines), spmatrix=False)
        except (ValueError, OverflowError) as error:  # counts the lines of the chunk
            said = re.sub(r"Line (\d+)", lambda found: f"entry {first + int(found[1]) - 2}", str(error))
            raise ValueError(said) from error


_MIRRORS: dict[str, Any] = {"symmetric": np.positive, "skew-symmetric": np.negative, "hermitian": np.conj}


def _open_text(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def _header(stream: IO[bytes]) -> tuple[bytes, tuple[int, int, int, str, str, str]]:
    """Read up to the line of sizes; give the banner, and what SciPy makes of them."""
    lines = [stream.readline()]
    while lines[-1].startswith(b"%") or lines[-1].isspace():
        lines.append(stream.readline())
    return lines[0], scipy.io.mminfo(BytesIO(b"".join(lines)))


def _line_chunks(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Give lines, and how many: blank ones, which parsers skip, are taken out first."""
    while chunk := stream.read(_CHUNK):
        lines = _BLANK_LINES.sub(b"\n", (chunk + stream.readline()).strip())
        if lines:
            yield lines.count(b"\n") + 1, lines
