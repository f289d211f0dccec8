"""SciPy's `.npz`: an archive of the arrays of CSR, CSC, BSR, DIA or COO."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse as sp

from gsparse.files.checks import DEFLATE_RATIO, as_csr, check_rows

__all__ = ["read", "write"]

# Bytes of an empty member, compressed or not.
_MEMBER_BYTES = 64
_HEADERS: dict[tuple[int, int], Any] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read(path: Path, name: str | None) -> sp.csr_array:
    """Load a matrix of any of SciPy's formats."""
    with path.open("rb") as file:  # which NumPy leaves open where it is no archive
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                _check_member(archive, member)
        file.seek(0)
        with np.load(file, allow_pickle=False) as arrays:
            if "format" not in arrays:
                raise ValueError("it does not contain a sparse array or matrix")
            if "shape" in arrays:  # (formats other than CSR allocate by it)
                check_rows(tuple(int(n) for n in arrays["shape"].ravel()), path.stat().st_size)
        file.seek(0)
        return as_csr(sp.load_npz(file), path.stat().st_size)


def write(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
    """Save CSR arrays, compressed."""
    sp.save_npz(file, A)


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Refuse a member that cannot be as large as it says."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is compressed in a way that NumPy does not write")
    if member.file_size > DEFLATE_RATIO * member.compress_size + _MEMBER_BYTES:
        raise ValueError(f"{member.filename} cannot hold {member.file_size:,} bytes in {member.compress_size:,}")
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"{member.filename} is of version {version} of NumPy's format")
        shape, _, dtype = _HEADERS[version](stream)
        says = stream.tell() + math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and says != member.file_size:
        raise ValueError(f"{member.filename} is {member.file_size:,} bytes long, its header makes it {says:,}")
