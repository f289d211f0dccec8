"""Write files so that an older file of the same name survives a full disk, an error and a crash.

All code of gsparse that writes a file uses this module.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that replaces `path` when the block ends without an error.

    Until then, the bytes are in a part file in the same folder. If the block fails, the part file is removed and the
    older file stays unchanged. A symbolic link is followed, and the new file gets the permissions of the older one. A
    device or a pipe is written directly, because there is nothing to replace.

    Parameters
    ----------
    path : Path

    Yields
    ------
    binary file

    Raises
    ------
    OSError
        If no file can be created in the folder, or the disk is full.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from gsparse.writing import replacing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "greeting") as file:
    ...         _ = file.write(b"hello")
    ...     [path.read_bytes() for path in Path(folder).iterdir()]
    [b'hello']
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    with new_file(part) as file:
        if path.exists():
            shutil.copymode(path, part)  # before any data are written, which others may not be allowed to read
        yield file
    try:
        rename(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Create a file that is complete on the disk when the block ends, and is removed if the block fails.

    Raises
    ------
    FileExistsError
        If there is a file of this name already.
    OSError
        If the file cannot be created, or the disk is full.
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
    """Replace `path` by a complete file or link, so that the replacement also survives a power failure."""
    part.replace(path)
    _write_folder(path.parent)


def _write_folder(folder: Path) -> None:
    """Write the list of files of a folder to the disk: `fsync` of a file writes its contents, but not its name."""
    with suppress(OSError):  # Some file systems, and Windows, refuse `fsync` for folders.
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
