"""The choice of a reader or writer from the name of a file, `read_file` and `write_file`."""

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


class _Kind(NamedTuple):
    """The functions that read and write files of one kind.

    `writer` is the name of a function that writes such files, for error messages. `has_names` says whether the matrices
    in such a file have names.
    """

    read: Callable[[Path, str | None], sp.csr_array]
    write: Callable[[IO[bytes], sp.csr_array, str | None], None]
    writer: str
    has_names: bool = False


_KINDS = {
    ".npz": _Kind(npz.read, npz.write, npz.WRITER),
    ".mtx": _Kind(matrix_market.read, matrix_market.write, matrix_market.WRITER),
    ".mtx.gz": _Kind(matrix_market.read, matrix_market.compressed_writer(".gz"), matrix_market.WRITER),
    ".mtx.bz2": _Kind(matrix_market.read, matrix_market.compressed_writer(".bz2"), matrix_market.WRITER),
    ".mat": _Kind(matlab.read, matlab.write, "scipy.io.savemat", has_names=True),
    **{
        ending: _Kind(harwell_boeing.read, harwell_boeing.writer_of(ending), "gsparse.files.write_file")
        for ending in harwell_boeing.SUFFIXES
    },
}

# The suffixes of files that can be read, and of files that can be written.
SUFFIXES = tuple(_KINDS)
WRITTEN = tuple(ending for ending in SUFFIXES if ending not in harwell_boeing.READ_ONLY)


def _kind_of(path: Path, name: str | None) -> _Kind:
    kind = next((_KINDS[ending] for ending in _KINDS if path.name.lower().endswith(ending)), None)
    if kind is None:
        raise FileFormatError(f"{path.name or path}: unknown kind of file, gsparse reads {', '.join(SUFFIXES)}")
    if name is not None and not kind.has_names:
        raise FileFormatError(f"{path.name}: its kind of file holds one matrix, without a name: leave {name!r} out")
    return kind


def read_file(path: str | PathLike[str], name: str | None = None) -> sp.csr_array:
    """Read a sparse matrix from a file.

    The sizes in its header are checked against the size of the file before memory is allocated for them, and every
    index is checked before it is used.

    Parameters
    ----------
    path : path-like
        Matrix Market (``.mtx``, ``.mtx.gz``, ``.mtx.bz2``), SciPy's ``.npz``, Harwell–Boeing (``.hb``, ``.rb``,
        ``.rua``, ``.rsa`` …) or MATLAB's ``.mat``.
    name : str, optional
        The name of a variable in a ``.mat`` file, or of a field of a structure, such as ``Problem.A``. By default, the
        only sparse matrix in the file; if there is none, the only full matrix; if there is no matrix, ``Problem.A``.
        Other kinds of file hold one matrix, without a name.

    Returns
    -------
    csr_array, shape (M, N)
        A matrix on the host, with the dtype of the values in the file.

    Raises
    ------
    FileNotFoundError, IsADirectoryError, PermissionError
    FileFormatError
        If the kind of file is unknown, if a name is passed for a kind without names, if a ``.mat`` file holds no such
        variable, or several matrices although no name is passed, or if the file is truncated or malformed.
    DeviceMemoryError
        If the memory of the host does not suffice.

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
    """Write a sparse matrix to a file. An older file of the same name is replaced only when the new one is complete.

    Parameters
    ----------
    path : path-like
        A name as in `read_file`. Harwell–Boeing files hold all entries, even if the matrix is symmetric, so their type
        is ``RUA`` for real values and ``IUA`` for integers. Suffixes of other types are refused.
    A : sparse array or matrix, shape (M, N)
        Duplicate entries are added. Only ``.npz`` keeps the dtype of the values. The other kinds of file hold the same
        values in a wider dtype, and round values of extended precision.
    name : str, optional
        The name of the variable in a ``.mat`` file, by default ``A``: a letter, followed by letters, digits and
        underscores, at most 63 characters in all.

    Raises
    ------
    FileFormatError
        If the kind of file is unknown, or cannot hold such a matrix or a variable of this name.
    OSError
        If no file can be created in the folder, or the disk is full.

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
