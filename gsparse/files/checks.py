"""What every reader needs: a header is believed only as far as the file's size and SciPy's checks bear it out.

SciPy's conversions trust indices (one out of range is a segmentation fault), and its parsers allocate what headers say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.errors import DeviceMemoryError, FileFormatError

__all__ = ["DEFLATE_RATIO", "as_csr", "check_rows", "check_values", "reading"]

# Bytes that one byte of a deflate stream stands for, at most (zlib's own documentation).
DEFLATE_RATIO = 1032

# CSR keeps a pointer for each row, whether it has entries or not: bytes of them that a file may ask for however short
# it is (33 million rows), and beyond that a byte of the file.
_FREE_POINTER_BYTES = 1 << 28
_POINTER_BYTES_A_BYTE = 64


@contextmanager
def reading(path: Path, writer: str) -> Iterator[None]:
    """Turn whatever a parser meets (zlib, zipfile, KeyError, ValueError, EOFError, …) into one error with a remedy.

    Pipes and devices are refused before they are opened: opening or reading them may never end, and they have no size
    by which a header could be checked.

    Parameters
    ----------
    path : Path
    writer : str
        What writes such files, for the remedy.

    Raises
    ------
    FileFormatError, DeviceMemoryError, FileNotFoundError, IsADirectoryError
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
    except Exception as error:
        said = str(error).rstrip(". ")
        raise FileFormatError(
            f"{path.name} is truncated or malformed: {said}. Fetch it again, or write it with {writer}"
        ) from error


def as_csr(found: Any, num_bytes: int) -> sp.csr_array:
    """Check what a parser made of a file, before anything is computed with it, and give it as CSR.

    Parameters
    ----------
    found : sparse or dense array
    num_bytes : int
        Size of the file.

    Raises
    ------
    ValueError, TypeError
        Of SciPy, or our own; `reading` makes an error with the file's name of it.
    """
    if found.ndim not in (1, 2):
        raise ValueError(f"a matrix has two dimensions, this has shape {found.shape}")
    check_values(found.dtype)
    check_rows(found.shape, num_bytes)
    if not sp.issparse(found):
        return sp.csr_array(found)
    if found.format in ("csr", "csc", "bsr"):
        found.check_format(full_check=True)
        if (np.diff(found.indptr) < 0).any():  # (which SciPy looks for only where the last of them is not 0)
            raise ValueError("indptr must be a non-decreasing sequence")
    if not found.data.dtype.isnative:  # (which SciPy's loops refuse)
        found.data = found.data.astype(found.dtype.newbyteorder("="))
    return sp.csr_array(found)


def check_values(dtype: np.dtype[Any]) -> None:
    """Refuse values that are no numbers."""
    if dtype.kind not in "biufc" or dtype == np.float16:
        raise ValueError(f"values must be numbers that a sparse matrix can hold, they are {dtype}")


def check_rows(shape: tuple[int, ...], num_bytes: int) -> None:
    """Refuse rows whose pointers alone outweigh the file by far."""
    num_rows = shape[0] if len(shape) == 2 else 1
    needed, allowed = 8 * (num_rows + 1), max(_FREE_POINTER_BYTES, _POINTER_BYTES_A_BYTE * num_bytes)
    if needed > allowed:
        raise ValueError(
            f"it says that it has {num_rows:,} rows; CSR takes {needed / 2**30:,.1f} GiB for their pointers, and a "
            f"file of {num_bytes:,} bytes can fill few of them: leave empty rows out"
        )
