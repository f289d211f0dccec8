"""MATLAB's ``.mat`` files of versions 5 to 7.

A file is a sequence of *elements*. An element is a tag (a type and a number of bytes), followed by these bytes. The
element of a variable consists of further elements: flags, sizes, a name, and numbers or other variables. SciPy's reader
allocates as much memory as the tags say, so all of them are checked first.
"""

from __future__ import annotations

import math
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
from gsparse.files.checks import DEFLATE_RATIO, as_csr

__all__ = ["DEFAULT_NAME", "read", "write"]

DEFAULT_NAME = "A"

# The valid names of a variable in MATLAB. SciPy omits variables with some other names, with a warning, and writes the
# rest.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

# The name, the shape and the class of a variable.
_Variable = tuple[str, tuple[int, ...], str]

# The classes of variables in files of version 5, whose numbers begin with 1; those of matrices of numbers; and those of
# variables that contain variables.
_INTEGERS = [f"{u}int{n}" for n in (8, 16, 32, 64) for u in ("", "u")]
_CLASSES = ("", "cell", "struct", "object", "char", "sparse", "double", "single", *_INTEGERS, "function", "opaque")
_NUMBERS = ("sparse", "double", "single", *_INTEGERS)
_CONTAINERS = ("cell", "struct", "object", "function", "opaque")
# The bytes of the header, the last two of which are the byte order; the types of the element of a variable, plain and
# compressed.
_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
# The bytes of one number, by the type of the element.
_ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8, 16: 1, 17: 2, 18: 4}
# Largest number of bytes for the sizes of a variable: SciPy reads up to 32 dimensions.
_MAX_SIZES_BYTES = 4 * 32
# Largest number of bytes of a name. MATLAB's names have up to 63.
_MAX_NAME_BYTES = 1 << 10
# Bytes of the file that are read at once. At most 17 MB are then decompressed at once.
_PIECE = 1 << 14
# The major version that SciPy returns for files that its reader for version 5 reads.
_VERSION_5 = 1


def read(path: Path, name: str | None) -> sp.csr_array:
    """Read the variable with this name, or else the only sparse matrix, or the only matrix if all are full.

    `name` may also be a field of a structure, such as ``Problem.A`` in the files of the SuiteSparse collection. In
    these files, `name` can also be omitted.
    """
    with path.open("rb") as file:
        version, _ = scipy.io.matlab.matfile_version(file)
        if version != _VERSION_5:
            number = "7.3, which is HDF5" if version > _VERSION_5 else "4"
            raise NotImplementedError(
                f"MATLAB files of version 5 to 7 are read, this one is of {number}: save it with '-v7'"
            )
        num_bytes = path.stat().st_size
        path_to_matrix = _choose(path.name, _variables(file, num_bytes), name)
        variable, *fields = path_to_matrix.split(".")
        file.seek(0)
        matrix: Any = scipy.io.loadmat(file, variable_names=[variable], spmatrix=False)[variable]
        for field in fields:
            matrix = _field(path.name, matrix, field, path_to_matrix)
        if not (isinstance(matrix, np.ndarray) or sp.issparse(matrix)):  # SciPy returns "Read error: …" as a string.
            raise ValueError(f"{path_to_matrix}: {matrix!s:.200}")
        return as_csr(matrix, num_bytes)


def _field(file: str, structure: Any, field: str, path_to_field: str) -> Any:
    """Return a field of a structure.

    If there is none, the error is a FileFormatError already, because the file is valid, and `reading` must not call it
    malformed.
    """
    fields = getattr(structure, "dtype", np.dtype(float)).names
    if fields is None or structure.size != 1:
        raise FileFormatError(f"{file} holds no {path_to_field}: what should have {field!r} is not a single structure")
    if field not in fields:
        raise FileFormatError(f"{file} holds no {path_to_field}: the fields of the structure are {', '.join(fields)}")
    return structure[field].item()


def _variables(file: IO[bytes], num_bytes: int) -> list[_Variable]:
    """Return the variables that have a name. The function `scipy.io.whosmat` fails if one is an object of a class.

    Raises
    ------
    ValueError
        If an element has an impossible size or type, both of which SciPy would trust.
    """
    variables = []
    file.seek(_HEADER_BYTES - 2)
    order = "<" if file.read(2) == b"IM" else ">"
    while file.tell() < num_bytes:
        kind, count = struct.unpack(f"{order}II", file.read(8))
        begin = file.tell()
        if count > num_bytes - begin:
            raise ValueError(f"an element says that it has {count:,} bytes, {num_bytes - begin:,} are left")
        if kind == _COMPRESSED:
            inflated = _Stream(_inflated(_pieces(file, count)))
            for inner, size in _elements(inflated, DEFLATE_RATIO * count, order):
                variables.append(_variable(inflated, inner, size, order))
        else:
            variables.append(_variable(_Stream(_pieces(file, count)), kind, count, order))
        file.seek(begin + count)
    return [variable for variable in variables if variable[0]]


def _variable(stream: _Stream, element: int, count: int, order: str) -> _Variable:
    """Check the elements of a variable: flags, sizes, a name, and then numbers, or variables in a container."""
    if element != _MATRIX:
        raise ValueError(f"a variable is of type {element}, not {_MATRIX}")
    allowed, matlab_class = set(_ITEM_BYTES), ""
    sizes: tuple[int, ...] = ()
    name = ""
    for place, (kind, size) in enumerate(_elements(stream, stream.position + count, order)):
        if place == 0 and size >= 4:
            number = stream.read(4)[0 if order == "<" else 3]
            matlab_class = _CLASSES[number] if number < len(_CLASSES) else ""
            allowed |= {_MATRIX} if matlab_class in _CONTAINERS else set()
        if kind not in allowed:
            raise ValueError(f"an element of a variable is of type {kind}, but can only be one of {sorted(allowed)}")
        if place == (1 if matlab_class == "opaque" else 2) and size <= _MAX_NAME_BYTES:  # An object has no sizes.
            name = stream.read(size).decode("latin-1")
        elif place == 1 and size <= _MAX_SIZES_BYTES:
            sizes = struct.unpack(f"{order}{size // 4}i", stream.read(size // 4 * 4))
        if kind == _MATRIX:
            _variable(stream, kind, size, order)
        elif not _fits(matlab_class, place, sizes, size // _ITEM_BYTES[kind]):
            raise ValueError(f"an element of a variable of shape {sizes} says that it has {size:,} bytes")
    return name, sizes, matlab_class


def _fits(matlab_class: str, place: int, sizes: tuple[int, ...], count: int) -> bool:
    """Return whether a full matrix may have `count` values, or a sparse matrix `count` column pointers."""
    if matlab_class == "sparse":
        return place != 4 or (len(sizes) == 2 and count == sizes[1] + 1)
    return matlab_class not in _NUMBERS or place not in (3, 4) or count == math.prod(sizes)


def _elements(stream: _Stream, end: int, order: str) -> Iterator[tuple[int, int]]:
    """Yield the type and the number of bytes of each element. Its bytes come next in the stream."""
    begin = stream.position
    while stream.position < end and not stream.is_at_end():
        (kind,) = struct.unpack(f"{order}I", stream.read(4))
        if kind >> 16:  # A small element is stored within its tag.
            kind, count, available = kind & 0xFFFF, kind >> 16, 4
        else:
            (count,) = struct.unpack(f"{order}I", stream.read(4))
            available = end - stream.position
        if count > available:
            raise ValueError(f"an element says that it has {count:,} bytes, {available:,} are left")
        last = stream.position + count
        yield kind, count
        padded = begin + -(-(last - begin) // 8) * 8
        stream.skip(last - stream.position)
        stream.skip(min(padded, end) - last, may_end=True)


class _Stream:
    """A sequential stream of bytes, of which only one piece is in memory at a time.

    Parameters
    ----------
    pieces : iterator of bytes

    Attributes
    ----------
    position : int
        Number of bytes that have been read or skipped.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece, self.position = pieces, memoryview(b""), 0

    def is_at_end(self) -> bool:
        """Return whether no byte is left."""
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self._piece = memoryview(piece)
        return False

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes. Raise ValueError if there are fewer."""
        return b"".join(self._parts(count, may_end=False))

    def skip(self, count: int, *, may_end: bool = False) -> None:
        """Skip the next `count` bytes. Raise ValueError if there are fewer, unless the stream `may_end` there."""
        for _ in self._parts(count, may_end):
            pass

    def _parts(self, count: int, may_end: bool) -> Iterator[memoryview]:
        while count:
            if self.is_at_end():
                if may_end:
                    return
                raise ValueError(f"it ends {count:,} bytes before the end of an element")
            part, self._piece = self._piece[:count], self._piece[count:]
            count -= len(part)
            self.position += len(part)
            yield part


def _pieces(file: IO[bytes], count: int) -> Iterator[bytes]:
    while count:
        piece = file.read(min(count, _PIECE))
        if not piece:
            return
        count -= len(piece)
        yield piece


def _inflated(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress one piece at a time."""
    inflate = zlib.decompressobj()
    for piece in pieces:
        yield inflate.decompress(piece)
        if inflate.eof:
            return
    raise ValueError("its compressed bytes end early")


def _choose(file: str, variables: list[_Variable], name: str | None) -> str:
    """Return the name of the matrix to read, with the names of fields after dots.

    An error is a FileFormatError already, because the file is valid, and `reading` must not call it malformed.
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
    """Return the names of variables with their shapes, and with their classes if these are not numbers."""
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
        If a double cannot hold an integer of A exactly, or `name` is no name of a variable.
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
