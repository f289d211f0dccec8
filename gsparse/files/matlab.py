"""MATLAB's ``.mat`` files of versions 5 to 7.

A file is a sequence of *elements*. An element is a tag (a type and a number of bytes), followed by these bytes. The
element of a variable consists of further elements: flags, sizes, a name, and numbers or other variables. SciPy's reader
trusts the tags: it crashes if a type is unknown, and allocates as much memory as they say. So all tags are checked
first. This also lists the variables, which `scipy.io.whosmat` cannot do if one is an object of a class.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.io
import scipy.io.matlab
import scipy.sparse as sp

from gsparse.errors import FileFormatError
from gsparse.files.checks import as_csr

DEFAULT_NAME = "A"

# The valid names of MATLAB variables. SciPy omits variables with some of the other names, with a warning, and writes
# the rest.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

# The name, the shape and the class of a variable.
_Variable = tuple[str, tuple[int, ...], str]

# The classes of variables in files of version 5, in the order of their numbers (from 1); the classes of matrices of
# numbers; and the classes of variables that contain variables.
_INTEGERS = [f"{u}int{n}" for n in (8, 16, 32, 64) for u in ("", "u")]
_CLASSES = ("", "cell", "struct", "object", "char", "sparse", "double", "single", *_INTEGERS, "function", "opaque")
_NUMBERS = ("sparse", "double", "single", *_INTEGERS)
_CONTAINERS = ("cell", "struct", "object", "function", "opaque")
# The types of the element of a variable, plain and compressed.
_MATRIX, _COMPRESSED = 14, 15
# The bytes of one number, for each type of an element.
_ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8, 16: 1, 17: 2, 18: 4}
# Largest number of bytes of each of the first three elements of a variable: the flags, the sizes (SciPy reads up to 32)
# and the name (MATLAB: up to 63 characters).
_MAX_HEAD_BYTES = 1 << 10
# Number of bytes that are read at a time, compressed or not.
_PIECE = 1 << 14


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read the variable `name`; by default the only sparse matrix, or the only matrix if all are full."""
    with path.open("rb") as file:
        version, _ = scipy.io.matlab.matfile_version(file)
        if version != 1:
            number = "7.3, which is HDF5" if version > 1 else "4"
            raise NotImplementedError(
                f"MATLAB files of version 5 to 7 are read, this one is of {number}: save it with '-v7'"
            )
        num_bytes = path.stat().st_size
        path_to_matrix = _choose(path.name, _variables(file, num_bytes), name)
        variable, *fields = path_to_matrix.split(".")
        file.seek(0)
        matrix: Any = scipy.io.loadmat(file, variable_names=[variable], spmatrix=False)[variable]
        for field in fields:
            names = getattr(matrix, "dtype", np.dtype(float)).names
            if names is None or matrix.size != 1 or field not in names:
                about = f"the fields of the structure are {', '.join(names)}" if names else "it is in no structure"
                raise FileFormatError(f"{path.name} holds no {path_to_matrix}: {about}")
            matrix = matrix[field].item()
        if not (isinstance(matrix, np.ndarray) or sp.issparse(matrix)):  # SciPy returns "Read error: …" as a string.
            raise ValueError(f"{path_to_matrix}: {matrix!s:.200}")
        return as_csr(matrix, num_bytes)


def _variables(file: IO[bytes], num_bytes: int) -> list[_Variable]:
    """Return the name, shape and class of each variable that has a name.

    Raises
    ------
    ValueError
        If an element has an impossible size or type.
    """
    variables = []
    file.seek(126)  # the last two of the 128 bytes of the header
    order = "<" if file.read(2) == b"IM" else ">"
    while file.tell() < num_bytes:
        stream = file
        kind, count = struct.unpack(f"{order}II", _read(file, 8))
        end = file.tell() + count
        if end > num_bytes:
            raise ValueError(f"an element says that it has {count:,} bytes, {num_bytes - file.tell():,} are left")
        if kind == _COMPRESSED:
            stream = io.BufferedReader(_Inflated(file, count), _PIECE)
            kind, count = struct.unpack(f"{order}II", _read(stream, 8))
        if kind != _MATRIX:
            raise ValueError(f"a variable is of type {kind}, not {_MATRIX}")
        variables.append(_variable(stream, count, order))
        if stream is not file and stream.read(1):
            raise ValueError("a compressed variable has bytes behind its end")
        file.seek(end)
    return [variable for variable in variables if variable[0]]


def _variable(stream: IO[bytes], left: int, order: str) -> _Variable:
    """Check the elements of a variable: flags, sizes, a name, then numbers, or in a container further variables."""
    allowed, matlab_class = set(_ITEM_BYTES), ""
    sizes: tuple[int, ...] = ()
    name, place = "", 0
    while left > 0:
        kind, size, body = _read_tag(stream, left, order)
        left -= 8
        padding = 0 if body is not None else min(-size % 8, left - size)
        if kind not in allowed:
            raise ValueError(f"an element of a variable is of type {kind}, but can only be one of {sorted(allowed)}")
        if kind == _MATRIX:
            _variable(stream, size, order)
        elif place > 2:
            if not _fits(matlab_class, place, sizes, size // _ITEM_BYTES[kind]):
                raise ValueError(f"an element of a variable of shape {sizes} says that it has {size:,} bytes")
            for begin in range(0, size if body is None else 0, _PIECE):
                _read(stream, min(size - begin, _PIECE))
        else:
            if size > _MAX_HEAD_BYTES:
                raise ValueError(f"the flags, the sizes or the name of a variable say that they have {size:,} bytes")
            head = _read(stream, size) if body is None else body
            if place == 0 and size >= 4:
                matlab_class = dict(enumerate(_CLASSES)).get(head[0 if order == "<" else 3], "")
                allowed |= {_MATRIX} if matlab_class in _CONTAINERS else set()
            elif place == (1 if matlab_class == "opaque" else 2):  # An object has no sizes.
                name = head.decode("latin-1")
            elif place == 1:
                sizes = struct.unpack(f"{order}{size // 4}i", head[: size // 4 * 4])
        stream.read(padding)
        left -= 0 if body is not None else size + padding
        place += 1
    return name, sizes, matlab_class


def _read_tag(stream: IO[bytes], left: int, order: str) -> tuple[int, int, bytes | None]:
    """Return the type and the size of an element, and its bytes if the tag contains them, else None."""
    tag, available, body = _read(stream, 8), left - 8, None
    kind, size = struct.unpack(f"{order}II", tag)
    if kind >> 16:
        kind, size, available = kind & 0xFFFF, kind >> 16, 4
        body = tag[4 : 4 + size]
    if size > available:
        raise ValueError(f"an element says that it has {size:,} bytes, {available:,} are left")
    return kind, size, body


def _fits(matlab_class: str, place: int, sizes: tuple[int, ...], count: int) -> bool:
    """Return whether a variable of these sizes may have `count` numbers in its element number `place`.

    A full matrix must have as many values as elements. A sparse matrix must have one more column pointer than columns.
    """
    if matlab_class == "sparse":
        return place != 4 or (len(sizes) == 2 and count == sizes[1] + 1)
    return matlab_class not in _NUMBERS or place not in (3, 4) or count == math.prod(sizes)


def _read(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise ValueError(f"it ends {count - len(content):,} bytes before the end of an element")
    return content


class _Inflated(io.RawIOBase):
    """A stream of the decompressed bytes of an element. Only the bytes of the current read are in memory."""

    def __init__(self, file: IO[bytes], count: int) -> None:
        self._file, self._left, self._inflate = file, count, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        inflated = b""
        while not inflated and not self._inflate.eof:
            compressed = self._inflate.unconsumed_tail
            if not compressed:
                compressed = self._file.read(min(self._left, _PIECE))
                self._left -= len(compressed)
            if not compressed:
                break
            inflated = self._inflate.decompress(compressed, len(buffer))
        buffer[: len(inflated)] = inflated
        return len(inflated)


def _choose(file: str, variables: list[_Variable], name: str | None) -> str:
    """Return the name of the matrix to read, followed by the names of fields after dots.

    Errors are FileFormatErrors already: the file is valid, so `reading` must not call it malformed.
    """
    if name is not None:
        if name.partition(".")[0] not in [n for n, _, _ in variables]:
            raise FileFormatError(f"{file} holds no {name}: it holds {_describe(variables)}")
        if name in [n for n, _, kind in variables if kind not in _NUMBERS]:
            raise FileFormatError(f"{file}: {name} is no matrix: it holds {_describe(variables)}")
        return name
    matrices = [variable for variable in variables if variable[2] in _NUMBERS and len(variable[1]) == 2]
    sparse = [variable for variable in matrices if variable[2] == "sparse"]
    for candidates in (sparse, matrices):
        if len(candidates) == 1:
            return candidates[0][0]
    if matrices:
        raise FileFormatError(f"{file} holds several matrices, {_describe(matrices)}: choose one with name= (--name)")
    if ("Problem", (1, 1), "struct") in variables:
        return "Problem.A"
    raise FileFormatError(f"{file} holds no matrix: it holds {_describe(variables)}; write it with scipy.io.savemat")


def _describe(variables: list[_Variable]) -> str:
    """Return the names and shapes of variables, and the classes of variables that are not matrices of numbers."""
    described = []
    for name, shape, kind in variables:
        words = "×".join(map(str, shape)), "" if kind in _NUMBERS else kind
        described.append(f"{name} ({' '.join(filter(None, words))})")
    return ", ".join(described) or "nothing"


def write(file: IO[bytes], A: sp.csr_array, name: str | None) -> None:
    """Write a compressed variable of doubles, complex numbers or logical values.

    Raises
    ------
    ValueError
        If a double cannot hold an integer of A exactly, or `name` is not a valid name of a variable.
    """
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
