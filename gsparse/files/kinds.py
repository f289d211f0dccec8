"""Which kind of file a name means, and the way in and out."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import scipy.sparse as sp

from gsparse.errors import FileFormatError
from gsparse.files import harwell_boeing, matlab, matrix_market, npz
from gsparse.files.checks import reading
from gsparse.writing import replacing

__all__ = ["SUFFIXES", "WRITTEN", "read_file", "write_file"]


class _Kind(NamedTuple):
    """How files of one kind are read and written, what else writes them, and whether their matrices have names."""

    read: Callable[[Path, str | None], sp.csr_array]
    write: Callable[[IO[bytes], sp.csr_array, str | None], None]
    writer: str
    named: bool = False


_KINDS = {
    ".npz": _Kind(npz.read, npz.write, npz.WRITER),
    ".mtx": _Kind(matrix_market.read, matrix_market.write, matrix_market.WRITER),
    ".mtx.gz": _Kind(matrix_market.read, matrix_market.compressed(".gz"), matrix_market.WRITER),
    ".mtx.bz2": _Kind(matrix_market.read, matrix_market.compressed(".bz2"), matrix_market.WRITER),
    ".mat": _Kind(matlab.read, matlab.write, "scipy.io.savemat", named=True),
    **{
        ending: _Kind(harwell_boeing.read, harwell_boeing.writer(ending), "scipy.io.hb_write")
        for ending in harwell_boeing.SUFFIXES
    },
}

SUFFIXES = tuple(_KINDS)
WRITTEN = tuple(ending for ending in SUFFIXES if ending not in harwell_boeing.READ_ONLY)


def _kind_of(path: Path, name: str | None) -> _Kind:
    found = next((_KINDS[ending] for ending in _KINDS if path.name.lower().endswith(ending)), None)
    if found is None:
        raise FileFormatError(f"{path.name or path}: unknown kind of file, gsparse reads {', '.join(SUFFIXES)}")
    if name is not None and not found.named:
        raise FileFormatError(f"{path.name}: its kind of file holds one matrix, without a name: leave {name!r} out")
    return found


def read_file(path: str | PathLike[str], name: str | None = None) -> sp.csr_array:
    """Read a sparse matrix from a file.

    Nothing is allocated that the file could not fill, and no index is used before it has been checked.

    Parameters
    ----------
    path : path-like
        Matrix Market (``.mtx``, ``.mtx.gz``, ``.mtx.bz2``), SciPy's ``.npz``, Harwell–Boeing (``.hb``, ``.rb``,
        ``.rua``, ``.rsa`` …) or MATLAB's ``.mat``.
    name : str, optional
        The variable of a ``.mat`` file that holds several; other kinds hold one matrix, without a name.

    Returns
    -------
    csr_array, shape (M, N)
        On the host, with the values' own dtype.

    Raises
    ------
    FileNotFoundError
    FileFormatError
        Where the kind of file is unknown or holds no names, or the file is truncated or malformed.
    DeviceMemoryError
        Where the host has no room for it.

    Examples
    --------
    >>> import tempfile, scipy.sparse
    >>> from gsparse.files import read_file, write_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(f"{folder}/A.mtx.gz", scipy.sparse.eye_array(3))
    ...     read_file(f"{folder}/A.mtx.gz").nnz
    3
    """
    path = Path(path)
    kind = _kind_of(path, name)
    with reading(path, kind.writer):
        return kind.read(path, name)


def write_file(path: str | PathLike[str], A: Any, name: str | None = None) -> None:
    """Write a sparse matrix to a file, whole or not at all: what was there before stays until then.

    Parameters
    ----------
    path : path-like
        As in `read_file`; a suffix that says another type than Harwell–Boeing files are written of (``RUA`` of real
        values, ``IUA`` of integers: all entries, whatever the symmetry) is refused.
    A : sparse array or matrix, shape (M, N)
        Entries that are stored twice are added up.
    name : str, optional
        Of the variable in a ``.mat`` file, ``A`` by default: a letter, then letters, digits and underscores, at most
        63 characters.

    Raises
    ------
    FileFormatError
        Where the kind of file is unknown, or cannot hold such a matrix or a variable of that name.
    OSError

    Examples
    --------
    >>> import tempfile, scipy.sparse
    >>> from gsparse.files import write_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(f"{folder}/A.mat", scipy.sparse.eye_array(3), name="identity")
    """
    path = Path(path)
    kind = _kind_of(path, name)
    csr = sp.csr_array(A, copy=True)
    csr.sum_duplicates()
    try:
        with replacing(path) as file:
            kind.write(file, csr, name)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise FileFormatError(f"{path.name} cannot be written: {error}") from error
