"""MATLAB's ``.mat`` files of version 5 to 7."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.io
import scipy.io.matlab
import scipy.sparse as sp

from gsparse.errors import FileFormatError
from gsparse.files.checks import as_csr

__all__ = ["DEFAULT_NAME", "read", "write"]

DEFAULT_NAME = "A"

# What MATLAB takes for the name of a variable; SciPy leaves some others out with a warning, and writes the rest.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

# Name, shape and class.
_Variable = tuple[str, tuple[int, ...], str]

# Classes that a matrix can be of.
_NUMBERS = ("sparse", "logical", "double", "single", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)))
# Of version 5: bytes of the header, which end with the byte order; types of elements; classes that hold variables.
_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
_NUMERIC = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 16, 17, 18}
_CONTAINERS = (1, 2, 3, 16, 17)  # cell, structure, object, function, opaque
# The first part of the version, of files that SciPy's reader for version 5 takes.
_VERSION_5 = 1


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read a variable, sparse or full: the one asked for, else the only one.

    `name` may be a field of a structure: ``Problem.A`` in the SuiteSparse collection, which is found without it too.
    """
    with path.open("rb") as file:
        version, _ = scipy.io.matlab.matfile_version(file)
        if version != _VERSION_5:
            which = "7.3, which is HDF5" if version > _VERSION_5 else "4"
            raise ValueError(f"MATLAB files of version 5 to 7 are read, this one is of {which}: save it with '-v7'")
        num_bytes = path.stat().st_size
        _check_file(file, num_bytes)
        file.seek(0)
        wanted = _chosen(path.name, [(n, shape, kind) for n, shape, kind in scipy.io.whosmat(file)], name)
        variable, *fields = wanted.split(".")
        file.seek(0)
        found: Any = scipy.io.loadmat(file, variable_names=[variable], spmatrix=False)[variable]
        for field in fields:
            found = found[field].item()
        if not (isinstance(found, np.ndarray) or sp.issparse(found)):  # (SciPy's "Read error: …")
            raise ValueError(f"{wanted}: {found!s:.200}")
        return as_csr(found, num_bytes)


def _check_file(file: IO[bytes], num_bytes: int) -> None:
    """Refuse elements of a size or a type that cannot be: SciPy allocates by the one and follows the other."""
    file.seek(_HEADER_BYTES - 2)
    order = "<" if file.read(2) == b"IM" else ">"
    while file.tell() < num_bytes:
        kind, count = struct.unpack(f"{order}II", file.read(8))
        if count > num_bytes - file.tell():
            raise ValueError(f"an element says that it has {count:,} bytes, {num_bytes - file.tell():,} are left")
        body = memoryview(file.read(count))
        inside = _elements(memoryview(zlib.decompress(body)), order) if kind == _COMPRESSED else [(kind, body)]
        for inner, matrix in inside:
            if inner != _MATRIX:
                raise ValueError(f"a variable is of type {inner}, not {_MATRIX}")
            _check_matrix(matrix, order)


def _check_matrix(body: memoryview, order: str) -> None:
    """Check what a variable consists of: flags, sizes, a name, and then numbers, or variables in a container."""
    allowed = _NUMERIC
    for place, (kind, part) in enumerate(_elements(body, order)):
        if place == 0 and part[0 if order == "<" else 3] in _CONTAINERS:
            allowed = {*_NUMERIC, _MATRIX}
        if kind not in allowed:
            raise ValueError(f"an element of a variable is of type {kind}, there are {sorted(allowed)}")
        if kind == _MATRIX:
            _check_matrix(part, order)


def _elements(body: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Give the type and the bytes of each element."""
    begin = 0
    while begin < len(body):
        kind, count = struct.unpack_from(f"{order}II", body, begin)
        begin += 8
        if kind >> 16:  # a small one is all in its tag
            kind, count, begin = kind & 0xFFFF, kind >> 16, begin - 4
        if count > len(body) - begin or (begin % 8 and count > 4):
            raise ValueError(f"an element says that it has {count:,} bytes, {len(body) - begin:,} are left")
        yield kind, body[begin : begin + count]
        begin += -(-(begin + count) // 8) * 8 - begin


def _chosen(file: str, variables: list[_Variable], name: str | None) -> str:
    """Give the name of what is to be read; the file is sound where there is none, so the error is of the choice."""
    if name is not None:
        if name.partition(".")[0] not in [n for n, _, _ in variables]:
            raise FileFormatError(f"{file} holds no {name}: it holds {_listed(variables)}")
        return name
    matrices = [variable for variable in variables if variable[2] in _NUMBERS and len(variable[1]) == 2]
    sparse = [variable for variable in matrices if variable[2] == "sparse"]
    for candidates in (sparse, matrices):
        if len(candidates) == 1:
            return candidates[0][0]
    if matrices:
        raise FileFormatError(f"{file} holds several matrices, {_listed(matrices)}: choose one with name= (--name)")
    if ("Problem", (1, 1), "struct") in variables:
        return "Problem.A"
    raise FileFormatError(f"{file} holds no matrix: it holds {_listed(variables)}; write it with scipy.io.savemat")


def _listed(variables: list[_Variable]) -> str:
    """Name variables with their shapes, and what they are where that is no matrix of numbers."""
    return ", ".join(
        f"{name} ({'×'.join(map(str, shape))}{'' if kind in _NUMBERS else f' {kind}'})"
        for name, shape, kind in variables
    ) or "nothing"  # fmt: skip


def write(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
    """Write a variable, compressed; MATLAB's sparse matrices are double, complex or logical."""
    name = DEFAULT_NAME if name is None else name
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name of a MATLAB variable: a letter, then letters, digits, underscores, at most 63 in all"
        )
    if A.dtype.kind != "b":
        wide = A.astype(np.complex128 if A.dtype.kind == "c" else np.float64)
        if A.dtype.kind in "iu" and not np.array_equal(wide.data.astype(A.dtype), A.data):
            raise ValueError(f"MATLAB's sparse matrices are of doubles, which do not hold every {A.dtype} of this one")
        A = wide
    scipy.io.savemat(file, {name: sp.csc_array(A)}, do_compression=True)
