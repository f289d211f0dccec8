"""Writing files so that the older one of the same name survives a full disk, an error and a crash.

Everything in gsparse that writes a file writes it through this module.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["new_file", "part_of", "rename", "replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that takes the place of `path` when the block ends without an error.

    Until then, the bytes are in a part file in the same folder. It is removed where the block fails, and the older file
    stays as it was. A symbolic link is followed, and permissions of the older file are kept. A device or a pipe is
    written directly, since there is nothing to replace.

    Parameters
    ----------
    path : Path

    Yields
    ------
    binary file

    Raises
    ------
    OSError
        Where the folder takes no new file, or the disk is full.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gsparse.writing import replacing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "greeting") as file:
    ...         _ = file.write(b"hello")
    ...     [found.read_bytes() for found in Path(folder).iterdir()]
    [b'hello']
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = part_of(path, uuid.uuid4().hex)
    with new_file(part) as file:
        yield file
        if path.exists():
            shutil.copymode(path, part)
    try:
        rename(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Create a file that is complete on the disk when the block ends, and absent where the block fails.

    Raises
    ------
    FileExistsError, OSError
    """
    file = path.open("x+b")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _write_folder(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def rename(part: Path, path: Path) -> None:
    """Let a complete part file take the place of `path`, also after a power failure."""
    part.replace(path)
    _write_folder(path.parent)


def part_of(path: Path, mark: str) -> Path:
    """Give the name of a part file of `path`: hidden, in the same folder, different for each mark."""
    return path.with_name(f".{path.name}.{mark}.part")


def _write_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk: names are not part of what `fsync` writes for a file."""
    with suppress(OSError):  # (some file systems, and Windows, refuse this for folders)
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
