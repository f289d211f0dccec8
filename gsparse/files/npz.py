"""SciPy's ``.npz`` files: archives of the arrays of CSR, CSC, BSR, DIA or COO."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gsparse.errors import FileFormatError
from gsparse.files.checks import DEFLATE_RATIO, as_csr, check_rows, scipy_matrices

# The name of another function that writes such files, for error messages.
WRITER = "scipy.sparse.save_npz"

# Number of bytes that a member of the archive may have beyond the limit by its compressed size.
_MEMBER_BYTES = 64
_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class ArrayHeader(NamedTuple):
    """The shape and dtype of an array, from its header."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read(path: Path, name: str | None) -> sp.csr_array:
    """Load a matrix of any of SciPy's formats."""
    # The file is opened here, because NumPy would leave it open if it is not an archive.
    with path.open("rb") as file:
        with zipfile.ZipFile(file) as archive:
            members = headers(archive)
        if "format" not in members:  # a valid archive, for example of numpy.savez
            names = ", ".join(members) or "nothing"
            raise FileFormatError(
                f"{path.name} does not contain a sparse matrix: it holds {names}; write it with {WRITER}"
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            if "shape" in arrays:  # SciPy allocates memory for this shape if the format is not CSR.
                check_rows(tuple(int(n) for n in arrays["shape"].ravel()), path.stat().st_size)
        file.seek(0)
        with scipy_matrices():
            return as_csr(sp.load_npz(file), path.stat().st_size)


def write(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
    """Save CSR arrays, compressed."""
    sp.save_npz(file, A)


def headers(archive: zipfile.ZipFile) -> dict[str, ArrayHeader]:
    """Return the header of each array in an archive.

    An error is raised if an array cannot be as large as its header says.

    Raises
    ------
    ValueError, zipfile.BadZipFile
    """
    return {member.filename.removesuffix(".npy"): _checked_header(archive, member) for member in archive.infolist()}


def array_header(stream: IO[bytes], name: str) -> ArrayHeader:
    """Read the header of an array, and leave the stream at the first byte of its numbers.

    Raises
    ------
    ValueError
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"{name} is of version {version} of NumPy's format")
    shape, _, dtype = _HEADERS[version](stream)
    return ArrayHeader(shape, dtype)


def _checked_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> ArrayHeader:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is compressed in a way that NumPy does not write")
    if member.file_size > DEFLATE_RATIO * member.compress_size + _MEMBER_BYTES:
        raise ValueError(f"{member.filename} cannot hold {member.file_size:,} bytes in {member.compress_size:,}")
    with archive.open(member) as stream:
        header = array_header(stream, member.filename)
        expected = stream.tell() + math.prod(header.shape) * header.dtype.itemsize
    if not header.dtype.hasobject and expected != member.file_size:
        raise ValueError(f"{member.filename} is {member.file_size:,} bytes long, its header makes it {expected:,}")
    return header
