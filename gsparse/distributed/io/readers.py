"""Readers that read some rows of a matrix in a file: SciPy's ``.npz`` format and Matrix Market."""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from operator import index
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.errors import FileFormatError
from gsparse.files import matrix_market, npz
from gsparse.files.checks import as_csr, check_values, reading

# Names of two arrays in the .npz files of `DistributedMatrix.checkpoint`. PERMUTATION has the original number of each
# row of the file. FIRST_ROW has the number of the file's first row after the permutation.
PERMUTATION, FIRST_ROW = "permutation", "first_row"

# Number of bytes that are read at a time.
_CHUNK = 1 << 23
_BLANK_LINES = re.compile(rb"\n\s*\n")


class Reader(Protocol):
    """Reads ranges of rows of a matrix. The caller ensures that ``0 <= lo <= hi <= shape[0]``."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Return the dtype of the values; None if finding out needs reading rows."""
        ...

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        """Return the rows from lo up to, but not including, hi, after a check of their indices."""
        ...

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        """Return the number of entries in each row from `lo` up to `hi`; None if this needs reading the rows."""
        ...

    def permutation_part(self) -> tuple[int, npt.NDArray[np.int64]] | None:
        """Return the number of the file's first row after the permutation, and the original number of each row.

        Return None if rows were not permuted, or the file does not belong to a checkpoint.
        """
        ...


def open_file(path: Path) -> Reader:
    """Read the header of a file.

    Raises
    ------
    FileNotFoundError, DeviceMemoryError
    FileFormatError
        If the kind of file is unknown, or its header is malformed.
    """
    reader = next((reader for suffix, reader in _READERS.items() if path.name.lower().endswith(suffix)), None)
    if reader is None:
        raise FileFormatError(f"{path.name}: unknown kind of file, rows can be read from {', '.join(_READERS)}")
    with reading(path, reader.writer):
        return reader.open(path)


# ------------------------------------------------------------------------- .npz


@dataclass(frozen=True)
class _Npz:
    """A file of `scipy.sparse.save_npz`. Any format except CSR is loaded as a whole, and its rows are then selected."""

    writer: ClassVar = npz.WRITER

    path: Path
    shape: tuple[int, int]
    format: str
    dtype: np.dtype[Any]
    is_permuted: bool

    @classmethod
    def open(cls, path: Path) -> Self:
        with zipfile.ZipFile(path) as archive:
            headers = npz.headers(archive)
            shape, format_name = (_read_member(archive, name).tolist() for name in ("shape", "format"))
        num_rows, num_cols = map(index, shape)
        if num_rows < 0 or num_cols < 0:
            raise ValueError(f"its shape is {(num_rows, num_cols)}, and no length may be negative")
        format_name = format_name.decode() if isinstance(format_name, bytes) else str(format_name)
        if format_name == "csr":
            _check_lengths(headers, num_rows)
        dtype = headers["data"].dtype
        check_values(dtype)
        shape = num_rows, num_cols
        return cls(path, shape, format_name, dtype.newbyteorder("="), PERMUTATION in headers)

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        if self.format != "csr":
            with reading(self.path, self.writer):
                return npz.read(self.path, None)[lo:hi]
        with self._opened() as file:
            indptr = self._indptr(file, lo, hi)
            begin, end = int(indptr[0]), int(indptr[-1])
            data, indices = (_read_range(file, name, begin, end) for name in ("data", "indices"))
            rows = sp.csr_array((data, indices, indptr - begin), shape=(hi - lo, self.shape[1]))
            return as_csr(rows, os.fstat(file.fileno()).st_size)

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        if self.format != "csr":
            return None
        with self._opened() as file:
            return np.diff(self._indptr(file, lo, hi)).astype(np.int64)

    def permutation_part(self) -> tuple[int, npt.NDArray[np.int64]] | None:
        if not self.is_permuted:
            return None
        with self._opened() as file:
            (first,) = _read_range(file, FIRST_ROW, 0, 1)
            numbers = _read_range(file, PERMUTATION, 0, self.shape[0])
            if numbers.dtype.kind != "i":
                raise ValueError(f"{PERMUTATION} must be integers, got {numbers.dtype}")
            return int(first), numbers.astype(np.int64, copy=False)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        with reading(self.path, self.writer), self.path.open("rb") as file:
            yield file

    def _indptr(self, file: IO[bytes], lo: int, hi: int) -> npt.NDArray[Any]:
        indptr = _read_range(file, "indptr", lo, hi + 1)
        is_valid_start = indptr[0] == 0 if lo == 0 else indptr[0] >= 0
        if indptr.dtype.kind != "i" or not is_valid_start or (np.diff(indptr) < 0).any():
            raise ValueError("indptr must be integers that begin at 0 and never decrease")
        return indptr


def _read_member(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """Read a whole array of an archive."""
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _check_lengths(headers: dict[str, npz.ArrayHeader], num_rows: int) -> None:
    """Raise an error if the lengths of the three arrays of CSR do not match."""
    shapes = [headers[name].shape if name in headers else () for name in ("indptr", "indices", "data")]
    if shapes[0] != (num_rows + 1,) or shapes[1] != shapes[2] or len(shapes[1]) != 1:
        got = ", ".join(map(str, shapes))
        raise ValueError(
            f"indptr must be a vector of {num_rows + 1}, indices and data must be vectors of one length, their shapes "
            f"are {got}"
        )


def _read_range(file: IO[bytes], name: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Read the elements from `start` up to `stop` of the array `name`. Skip earlier elements if possible."""
    with _member(file, f"{name}.npy") as stream:
        shape, dtype = npz.array_header(stream, name)
        if len(shape) != 1 or stop > shape[0]:
            raise ValueError(f"{name} must be a vector of {stop} numbers or more, got {dtype} of shape {shape}")
        stream.seek(start * dtype.itemsize, os.SEEK_CUR)
        values = np.empty(stop - start, dtype)
        target, filled = values.view(np.uint8), 0
        while filled < target.size:
            piece = np.frombuffer(stream.read(min(_CHUNK, target.size - filled)), np.uint8)
            if not piece.size:
                raise EOFError(f"{name} ends early")
            target[filled : filled + piece.size] = piece
            filled += piece.size
    return values


@contextmanager
def _member(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """Open a member of an archive at its first byte."""
    with zipfile.ZipFile(file) as archive:
        info = archive.getinfo(name)
        if info.compress_type == zipfile.ZIP_STORED:  # not compressed: seeking in the file itself reads nothing
            file.seek(info.header_offset + 26)
            name_and_extra = struct.unpack("<HH", file.read(4))
            file.seek(sum(name_and_extra), os.SEEK_CUR)
            yield file
        else:
            with archive.open(info) as member:
                yield member


# ---------------------------------------------------------------- Matrix Market


@dataclass(frozen=True)
class _MatrixMarket:
    """A Matrix Market file. Entries may have any order, so the whole file is read for each range of rows.

    The file is read in chunks of lines. SciPy parses each chunk like a complete file. A dense array is read as a whole.
    """

    writer: ClassVar = matrix_market.WRITER

    path: Path
    header: matrix_market.MatrixMarketHeader
    dtype: np.dtype[Any]

    @classmethod
    def open(cls, path: Path) -> Self:
        with matrix_market.opened(path) as (header, _):
            return cls(path, header, matrix_market.without_entries(header).dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.header.shape

    def row_lengths(self, lo: int, hi: int) -> None:
        return None

    def permutation_part(self) -> None:
        return None

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        with reading(self.path, self.writer):
            if self.header.layout == "array":
                return matrix_market.read(self.path, None)[lo:hi]
            parts = [self._select_rows(part, lo, hi) for part in self._parts(empty=lo == hi)]
            row, col, data = (np.concatenate(vectors) for vectors in zip(*parts, strict=True))
            rows = sp.coo_array((data, (row, col)), shape=(hi - lo, self.shape[1]))
            return as_csr(rows, self.path.stat().st_size)

    @staticmethod
    def _select_rows(part: sp.coo_array, lo: int, hi: int) -> tuple[npt.NDArray[Any], ...]:
        is_selected = (part.row >= lo) & (part.row < hi)
        return part.row[is_selected] - lo, part.col[is_selected], part.data[is_selected]

    def _parts(self, empty: bool) -> Iterator[sp.coo_array]:
        """Yield matrices whose sum is the matrix. The first one has the dtype of the matrix, but no entries."""
        yield matrix_market.without_entries(self.header)
        if empty:
            return
        num_read = 0
        with matrix_market.opened(self.path) as (_, stream):
            while chunk := stream.read(_CHUNK):
                lines = _BLANK_LINES.sub(b"\n", (chunk + matrix_market.rest_of_line(stream)).strip())
                count = lines.count(b"\n") + 1 if lines else 0
                if num_read + count > self.header.num_lines:
                    raise ValueError(f"it holds more than the {self.header.num_lines:,} entries it announces")
                if count:
                    yield self._parse(num_read, count, lines)
                num_read += count
        if num_read != self.header.num_lines:
            raise ValueError(f"it holds {num_read:,} entries of {self.header.num_lines:,}")

    def _parse(self, first: int, count: int, lines: bytes) -> Any:
        """Parse lines like a complete file. Their first entry is entry number `first` of the file."""
        (num_rows, num_cols), field, symmetry = self.shape, self.header.field, self.header.symmetry
        header = f"%%MatrixMarket matrix coordinate {field} {symmetry}\n{num_rows} {num_cols} {count}\n"
        try:
            return matrix_market.parse(BytesIO(header.encode() + lines))
        except (ValueError, OverflowError) as error:
            # SciPy's message counts lines from the beginning of the chunk, whose header has two lines.
            text = re.sub(r"Line (\d+)", lambda match: f"entry {first + int(match[1]) - 2}", str(error))
            raise ValueError(text) from error


# The readers, by the suffix of the file name.
_READERS: dict[str, type[_Npz | _MatrixMarket]] = {
    ".npz": _Npz,
    **dict.fromkeys((".mtx", ".mtx.gz", ".mtx.bz2"), _MatrixMarket),
}
