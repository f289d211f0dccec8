"""The checks that all readers share. A header is trusted only if the size of the file and SciPy's checks confirm it.

The checks are necessary because SciPy's conversions crash at an index out of range, and because SciPy's parsers
allocate as much memory as a header says.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.errors import DeviceMemoryError, FileFormatError

# Largest compression ratio of a deflate stream, according to the documentation of zlib.
DEFLATE_RATIO = 1032

# CSR has a pointer for each row, even for an empty one. Row pointers may take _FREE_POINTER_BYTES (33 million rows), or
# _POINTER_BYTES_PER_BYTE for each byte of the file if that is more.
_FREE_POINTER_BYTES = 1 << 28
_POINTER_BYTES_PER_BYTE = 64

# SciPy's conversion from DIA visits each diagonal in each row. The number of visits may be _FREE_VISITS (about a third
# of a second), or _VISITS_PER_VALUE for each stored value if that is more.
_FREE_VISITS = 1 << 28
_VISITS_PER_VALUE = 64


@contextmanager
def scipy_matrices() -> Iterator[None]:
    """Let SciPy make objects of its matrix classes without a DeprecationWarning.

    From SciPy 1.19 on, `spmatrix.__init__` warns that `csr_array` replaces `csr_matrix`. Users whose files or code need
    such a matrix would see warnings about lines of gsparse, which they cannot change.
    """
    if "__init__" not in vars(sp.spmatrix):  # SciPy before 1.19
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\w+_matrix is being replaced by \w+_array", DeprecationWarning)
        yield


@contextmanager
def reading(path: Path, writer: str) -> Iterator[None]:
    """Turn every error of a parser (zlib, zipfile, KeyError, ValueError, EOFError, …) into one error with a remedy.

    Pipes and devices are refused before they are opened: opening or reading them may never end, and they have no size
    with which a header could be checked.

    Parameters
    ----------
    path : Path
    writer : str
        The name of a function that writes such files, for the remedy.

    Raises
    ------
    FileFormatError
        If `path` is a pipe or a device, or for any error of the block that is not named below.
    DeviceMemoryError
        If the block raises MemoryError.
    FileNotFoundError, IsADirectoryError, PermissionError
    """
    if not path.exists():
        raise FileNotFoundError(f"no file at {path}")
    if not path.is_file() and not path.is_dir():
        raise FileFormatError(
            f"{path.name} must be a regular file, and is a pipe or a device: write its contents to a file first"
        )
    try:
        yield
    except (FileNotFoundError, PermissionError, IsADirectoryError, FileFormatError):
        raise
    except MemoryError as error:
        raise DeviceMemoryError(
            f"{path.name} does not fit in this machine's memory: {error}. Read fewer rows of it at once, as "
            "gsparse.distributed.from_loaders does on several workers (.npz, .mtx), or see whether it is as large as "
            "its header says"
        ) from error
    except NotImplementedError as error:
        message = str(error).rstrip(". ")
        raise FileFormatError(f"{path.name} cannot be read: {message}. {writer} writes files that can") from error
    except Exception as error:
        message = str(error).rstrip(". ")
        raise FileFormatError(
            f"{path.name} is truncated or malformed: {message}. Fetch it again, or write it with {writer}"
        ) from error


def as_csr(array: Any, num_bytes: int) -> sp.csr_array:
    """Check the result of a parser, before anything is computed with it, and return it as CSR.

    Parameters
    ----------
    array : sparse or dense array
    num_bytes : int
        Size of the file.

    Raises
    ------
    ValueError, TypeError
        From SciPy, or from a check of this function. `reading` adds the name of the file.
    """
    if array.ndim not in (1, 2):
        raise ValueError(f"a matrix has two dimensions, this has shape {array.shape}")
    check_values(array.dtype)
    check_rows(array.shape, num_bytes)
    native = array.dtype.newbyteorder("=")  # SciPy's loops refuse other byte orders.
    if not sp.issparse(array):
        return sp.csr_array(np.asarray(array, native))
    if array.format == "dia":
        _check_diagonals(array)
    if array.format in ("csr", "csc", "bsr"):
        array.check_format(full_check=True)
        if (np.diff(array.indptr) < 0).any():  # SciPy checks this only if the last pointer is not 0.
            raise ValueError("indptr must be a non-decreasing sequence")
    array.data = array.data.astype(native, copy=False)
    return sp.csr_array(array)


def check_values(dtype: np.dtype[Any]) -> None:
    """Raise ValueError if values of this dtype are not numbers that a sparse matrix can hold."""
    if dtype.kind not in "biufc" or dtype == np.float16:
        raise ValueError(f"values must be numbers that a sparse matrix can hold, they are {dtype}")


def check_rows(shape: tuple[int, ...], num_bytes: int) -> None:
    """Raise ValueError if the row pointers alone would take far more memory than the file has bytes."""
    num_rows = shape[0] if len(shape) == 2 else 1
    needed, allowed = 8 * (num_rows + 1), max(_FREE_POINTER_BYTES, _POINTER_BYTES_PER_BYTE * num_bytes)
    if needed > allowed:
        raise ValueError(
            f"it says that it has {num_rows:,} rows; CSR takes {needed / 2**30:,.1f} GiB for their pointers, and a "
            f"file of {num_bytes:,} bytes can fill few of them: leave empty rows out"
        )


def _check_diagonals(array: Any) -> None:
    """Raise ValueError if a DIA array is nearly empty: a conversion visits each row once for each diagonal."""
    num_rows, num_diagonals = array.shape[0], len(array.offsets)
    if num_rows * num_diagonals > max(_FREE_VISITS, _VISITS_PER_VALUE * array.data.size):
        raise ValueError(
            f"it says that it has {num_rows:,} rows and {num_diagonals:,} diagonals, and holds {array.data.size:,} "
            "values, so that nearly all of it is empty: convert it to COO or CSR before it is saved"
        )
