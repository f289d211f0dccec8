"""Rows of a file's matrix, read without holding the rest of it: SciPy's ``.npz`` and Matrix Market."""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from operator import index
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.errors import FileFormatError, StructureError
from gsparse.files import matrix_market, npz
from gsparse.files.checks import as_csr, check_values, reading
from gsparse.writing import part_of

__all__ = ["CHECKPOINT", "FIRST_ROW", "PERMUTATION", "Reader", "checkpoint_part", "open_file", "open_files"]

# What an .npz calls the numbers that its rows had before they were moved, and the first one's number since
# (`DistributedMatrix.checkpoint`).
PERMUTATION, FIRST_ROW = "permutation", "first_row"
# And the id of the checkpoint that the file is of.
CHECKPOINT = "checkpoint_id"
_ID = re.compile(r"[0-9a-f]{32}")

# Bytes read at once.
_CHUNK = 1 << 23
_BLANK_LINES = re.compile(rb"\n\s*\n")


class Reader(Protocol):
    """What gives rows of a matrix; ``0 <= lo <= hi <= shape[0]`` is the caller's to see to."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Give that of the values, None where only rows tell."""
        ...

    @property
    def checkpoint(self) -> str | None:
        """Give the id of the checkpoint that the file is of, None where it is of none."""
        ...

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        """Give rows lo to hi, with checked indices."""
        ...

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        """Give how many entries each of the rows holds, None where that takes reading them."""
        ...

    def moved(self) -> tuple[int, npt.NDArray[np.int64]] | None:
        """Give the first row's number, and those that all had before they were moved; None where they were not."""
        ...


def open_files(paths: Sequence[Path]) -> tuple[Reader, ...]:
    """Read the headers of files that stand one below the other.

    The first file of a checkpoint in a folder says which checkpoint the folder holds. All others of that folder must be
    of the same one: either under their own names, or as part files that their ranks could not rename any more.

    Raises
    ------
    StructureError
        Where files of one folder are of different checkpoints.
    FileNotFoundError, FileFormatError, DeviceMemoryError
    """
    readers: list[Reader] = []
    firsts: dict[Path, Reader] = {}
    for path in paths:
        first = firsts.get(path.parent)
        reader = open_file(path, None if first is None else first.checkpoint)
        if reader.checkpoint is not None:
            first = firsts.setdefault(path.parent, reader)
            if first.checkpoint != reader.checkpoint:
                raise StructureError(
                    f"{paths[readers.index(first)].name} and {path.name} are of different checkpoints, and the files "
                    "of one folder must be of one checkpoint: give the list that checkpoint() has returned, in its "
                    "order, or make the checkpoint again"
                )
        readers.append(reader)
    return tuple(readers)


def checkpoint_part(path: Path, checkpoint: str) -> Path:
    """Give the name of a checkpoint's file until the whole checkpoint is on the disk."""
    return part_of(path, checkpoint)


def open_file(path: Path, checkpoint: str | None = None) -> Reader:
    """Read the header of a file.

    Parameters
    ----------
    path : Path
    checkpoint : str, optional
        The checkpoint that its folder holds, of which there may still be a part file.

    Raises
    ------
    FileNotFoundError, DeviceMemoryError
    FileFormatError
        Where the kind of file is unknown, or its header malformed.
    """
    found = next((reader for kind, reader in _KINDS.items() if path.name.lower().endswith(kind)), None)
    if found is None:
        raise FileFormatError(f"{path.name}: unknown kind of file, rows are read of {', '.join(_KINDS)}")
    with reading(_current(path, checkpoint), found.writer):
        return found.open(path, checkpoint)


def _current(path: Path, checkpoint: str | None) -> Path:
    """Give the file to read: the part file, as long as there is one of this checkpoint, and else the file itself."""
    part = None if checkpoint is None else checkpoint_part(path, checkpoint)
    return path if part is None or not part.exists() else part


# ------------------------------------------------------------------------- .npz


@dataclass(frozen=True)
class _Npz:
    """A file of `scipy.sparse.save_npz`: of CSR only the rows are read, other formats are loaded whole and sliced."""

    writer: ClassVar = npz.WRITER

    path: Path
    shape: tuple[int, int]
    format: str
    dtype: np.dtype[Any]
    was_moved: bool
    checkpoint: str | None

    @classmethod
    def open(cls, path: Path, checkpoint: str | None) -> Self:
        with zipfile.ZipFile(_current(path, checkpoint)) as archive:
            headers = npz.headers(archive)
            own_checkpoint = _checkpoint_of(archive)
            shape, kind = (_whole(archive, name).tolist() for name in ("shape", "format"))
        num_rows, num_cols = map(index, shape)
        if num_rows < 0 or num_cols < 0:
            raise ValueError(f"its shape is {(num_rows, num_cols)}, which falls below 0")
        layout = kind.decode() if isinstance(kind, bytes) else str(kind)
        if layout == "csr":
            _check_lengths(headers, num_rows)
        dtype = headers["data"].dtype
        check_values(dtype)
        shape = num_rows, num_cols
        return cls(path, shape, layout, dtype.newbyteorder("="), PERMUTATION in headers, own_checkpoint)

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        if self.format != "csr":
            with reading(self.path, self.writer):
                return npz.read(self.path, None)[lo:hi]
        with self._opened() as file:
            indptr = self._indptr(file, lo, hi)
            begin, end = int(indptr[0]), int(indptr[-1])
            data, indices = (_part(file, name, begin, end) for name in ("data", "indices"))
            found = sp.csr_array((data, indices, indptr - begin), shape=(hi - lo, self.shape[1]))
            return as_csr(found, os.fstat(file.fileno()).st_size)

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        if self.format != "csr":
            return None
        with self._opened() as file:
            return np.diff(self._indptr(file, lo, hi)).astype(np.int64)

    def moved(self) -> tuple[int, npt.NDArray[np.int64]] | None:
        if not self.was_moved:
            return None
        with self._opened() as file:
            (first,) = _part(file, FIRST_ROW, 0, 1)
            found = _part(file, PERMUTATION, 0, self.shape[0])
            if found.dtype.kind != "i":
                raise ValueError(f"{PERMUTATION} must be integers, got {found.dtype}")
            return int(first), found.astype(np.int64, copy=False)

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        """Open the file, which stays the same while it is open, also where another one takes its place."""
        path = _current(self.path, self.checkpoint)
        with reading(path, self.writer), path.open("rb") as file:
            with zipfile.ZipFile(file) as archive:
                is_another = _checkpoint_of(archive) != self.checkpoint
            if not is_another:
                yield file
        if is_another:
            raise StructureError(
                f"{self.path.name} has been replaced by a file of another checkpoint since its header was read: call "
                "from_loaders(files, shape) again"
            )

    def _indptr(self, file: IO[bytes], lo: int, hi: int) -> npt.NDArray[Any]:
        indptr = _part(file, "indptr", lo, hi + 1)
        begins = indptr[0] == 0 if lo == 0 else indptr[0] >= 0
        if indptr.dtype.kind != "i" or not begins or (np.diff(indptr) < 0).any():
            raise ValueError("indptr must be integers from 0 on that never fall")
        return indptr


def _whole(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _checkpoint_of(archive: zipfile.ZipFile) -> str | None:
    """Give the id of the checkpoint that a file is of, None where it is of none."""
    if f"{CHECKPOINT}.npy" not in archive.namelist():
        return None
    found = str(_whole(archive, CHECKPOINT))
    if not _ID.fullmatch(found):
        raise ValueError(f"{CHECKPOINT} must be 32 hexadecimal digits, it is {found!r:.99}")
    return found


def _check_lengths(headers: dict[str, npz.Header], num_rows: int) -> None:
    """Refuse vectors of CSR that do not fit to each other."""
    shapes = [headers[name].shape if name in headers else () for name in ("indptr", "indices", "data")]
    if shapes[0] != (num_rows + 1,) or shapes[1] != shapes[2] or len(shapes[1]) != 1:
        got = ", ".join(map(str, shapes))
        raise ValueError(
            f"indptr must be a vector of {num_rows + 1}, indices and data must be vectors of one length, their shapes "
            f"are {got}"
        )


def _part(file: IO[bytes], name: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Read part of a vector, of what stands before it as little as can be."""
    with _member(file, f"{name}.npy") as stream:
        shape, dtype = npz.array_header(stream, name)
        if len(shape) != 1 or stop > shape[0]:
            raise ValueError(f"{name} must be a vector of {stop} numbers or more, got {dtype} of shape {shape}")
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
def _member(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """Open a member of an archive at its first byte."""
    with zipfile.ZipFile(file) as archive:
        info = archive.getinfo(name)
        if info.compress_type == zipfile.ZIP_STORED:  # bytes of the file itself, where seeking reads nothing
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
    """A file in NIST's text format: entries come in any order, so each range of rows takes reading all of it.

    It is read a chunk of lines at a time, each of which SciPy parses as a file of its own.
    """

    writer: ClassVar = matrix_market.WRITER

    path: Path
    header: matrix_market.Header
    dtype: np.dtype[Any]
    checkpoint: ClassVar[None] = None

    @classmethod
    def open(cls, path: Path, checkpoint: str | None) -> Self:
        with matrix_market.opened(path) as (header, _):
            return cls(path, header, matrix_market.without_entries(header).dtype)

    @property
    def shape(self) -> tuple[int, int]:
        return self.header.shape

    def row_lengths(self, lo: int, hi: int) -> npt.NDArray[np.int64] | None:
        return None

    def moved(self) -> None:
        return None

    def rows(self, lo: int, hi: int) -> sp.csr_array:
        with reading(self.path, self.writer):
            parts = [self._kept(part, lo, hi) for part in self._parts(empty=lo == hi)]
            row, col, data = (np.concatenate(vectors) for vectors in zip(*parts, strict=True))
            found = sp.coo_array((data, (row, col)), shape=(hi - lo, self.shape[1]))
            return as_csr(found, self.path.stat().st_size)

    @staticmethod
    def _kept(part: sp.coo_array, lo: int, hi: int) -> tuple[npt.NDArray[Any], ...]:
        keep = (part.row >= lo) & (part.row < hi)
        return part.row[keep] - lo, part.col[keep], part.data[keep]

    def _parts(self, empty: bool) -> Iterator[sp.coo_array]:
        """Give the matrix as sums, first one without entries, which has its dtype."""
        yield matrix_market.without_entries(self.header)
        if empty:
            return
        read, done = self._entries if self.header.layout == "coordinate" else self._values, 0
        with matrix_market.opened(self.path) as (_, stream):
            for count, lines in _line_chunks(stream):
                if done + count > self.header.num_lines:
                    raise ValueError(f"it holds more than the {self.header.num_lines:,} entries it announces")
                yield read(done, count, lines)
                done += count
        if done != self.header.num_lines:
            raise ValueError(f"it holds {done:,} entries of {self.header.num_lines:,}")

    def _entries(self, first: int, count: int, lines: bytes) -> sp.coo_array:
        return self._parse(first, f"coordinate {self.header.field} {self.header.symmetry}", (*self.shape, count), lines)

    def _values(self, first: int, count: int, lines: bytes) -> sp.coo_array:
        """Place values that are listed column by column, and leave zeros out."""
        values = self._parse(first, f"array {self.header.field} general", (count, 1), lines)[:, 0]
        (num_rows, num_cols), symmetry = self.shape, self.header.symmetry
        heads = np.arange(num_cols) if symmetry in _MIRRORS else np.zeros(num_cols, np.int64)
        heads += symmetry == "skew-symmetric"  # whose diagonal is not listed
        starts = np.concatenate([[0], np.cumsum(num_rows - heads)])
        numbers = np.arange(first, first + count)[values != 0]
        values = values[values != 0]
        col = np.searchsorted(starts, numbers, side="right") - 1
        row = numbers - starts[col] + heads[col]
        if symmetry in _MIRRORS:
            off = row != col
            row, col = np.concatenate([row, col[off]]), np.concatenate([col, row[off]])
            values = np.concatenate([values, _MIRRORS[symmetry](values[off])])
        return sp.coo_array((values, (row, col)), shape=self.shape)

    def _parse(self, first: int, kind: str, sizes: tuple[int, ...], lines: bytes) -> Any:
        head = f"%%MatrixMarket matrix {kind}\n{' '.join(map(str, sizes))}\n"
        try:
            return matrix_market.parse(BytesIO(head.encode() + lines))
        except (ValueError, OverflowError) as error:  # counts the lines of the chunk
            said = re.sub(r"Line (\d+)", lambda found: f"entry {first + int(found[1]) - 2}", str(error))
            raise ValueError(said) from error


_MIRRORS: dict[str, Any] = {"symmetric": np.positive, "skew-symmetric": np.negative, "hermitian": np.conj}


def _line_chunks(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Give lines, and how many: blank ones, which parsers skip, are taken out first."""
    while chunk := stream.read(_CHUNK):
        lines = _BLANK_LINES.sub(b"\n", (chunk + stream.readline()).strip())
        if lines:
            yield lines.count(b"\n") + 1, lines


_KINDS: dict[str, type[_Npz | _MatrixMarket]] = {
    ".npz": _Npz,
    **dict.fromkeys((".mtx", ".mtx.gz", ".mtx.bz2"), _MatrixMarket),
}
