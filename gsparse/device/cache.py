"""The folders in which gsparse keeps files between processes, and the check that no other user can write to them."""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from functools import cache
from itertools import accumulate
from pathlib import Path

CACHE_VARIABLE = "GSPARSE_CACHE_DIR"
CPU_SOURCES = Path(__file__).parent.parent / "kernels" / "cpu"

_ROOT = 0  # The user ID of the superuser, who can write everywhere


class UntrustedFolderError(OSError):
    """Other users may have written code or results to a folder of the cache. A warning has been issued."""


def cache_folder() -> Path:
    """Return the cache folder: GSPARSE_CACHE_DIR, or a folder in the user's cache directory. It may not exist yet."""
    base = os.environ.get(CACHE_VARIABLE)
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or _home(CACHE_VARIABLE) / ".cache") / "gsparse"


def gpu_code_folder() -> Path:
    """Return the folder in which CuPy keeps compiled kernels of a GPU. It may not exist yet."""
    return Path(os.environ.get("CUPY_CACHE_DIR") or _home("CUPY_CACHE_DIR") / ".cupy" / "kernel_cache")


def _home(variable: str) -> Path:
    """Return the user's home directory. `variable` names the environment variable that would make it unnecessary."""
    try:
        return Path.home()
    except RuntimeError as error:  # HOME is not set, and the system does not know this user.
        raise FileNotFoundError(f"this user has no home directory: set {variable} to a folder") from error


def cpu_code_folder() -> Path:
    """Return the folder for compiled CPU kernels: NUMBA_CACHE_DIR, or a cache folder for the current sources.

    Each level of optimization (NUMBA_OPT, 3 by default) has its own folder.
    """
    level = os.environ.get("NUMBA_OPT") or "3"
    return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() / "cpu" / f"{_digest()}-O{level}")


def make_private(folder: Path) -> Path:
    """Create the cache folder, or a folder inside it, for this user alone, and return it.

    Code from the cache is executed. So neither the folder nor its parents within the cache may be writable by other
    users.

    Parameters
    ----------
    folder : Path
        `cache_folder()`, or a folder inside it.

    Raises
    ------
    UntrustedFolderError
        If a folder belongs to another user, or if others may write to it. The first time, a RuntimeWarning names the
        folder and the remedy.
    OSError
        If a folder cannot be created.
    """
    base = cache_folder()
    base.parent.mkdir(parents=True, exist_ok=True)
    for level in accumulate(folder.relative_to(base).parts, Path.joinpath, initial=base):
        level.mkdir(mode=stat.S_IRWXU, exist_ok=True)
        fault = fault_of(level)
        if fault:
            _warn_once(fault, f"gsparse does not use its cache, and compiles again in each process: {fault}")
            raise UntrustedFolderError(fault)
    return folder


def make_private_code_folder() -> Path:
    """Return `cpu_code_folder()`, created for this user alone. NUMBA_CACHE_DIR is neither created nor checked."""
    folder = cpu_code_folder()
    return folder if os.environ.get("NUMBA_CACHE_DIR") else make_private(folder)


def fault_of(folder: Path) -> str:
    """Return an error message if other users may have written to a folder, else an empty string."""
    if not hasattr(os, "geteuid"):  # Windows has access lists instead of modes.
        return ""
    status, user = folder.stat(), os.geteuid()
    if status.st_uid not in (user, _ROOT):
        return (
            f"the cache folder {folder} must belong to this user (ID {user}), but it belongs to the user with the ID "
            f"{status.st_uid}: set {CACHE_VARIABLE} to a folder of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return (
            f"the cache folder {folder} must be writable by its owner alone, but its mode is "
            f"{stat.S_IMODE(status.st_mode):04o}: remove it if you do not trust its contents, else run "
            f"'chmod -R go-w {folder}', or set {CACHE_VARIABLE} to a folder of your own"
        )
    return ""


def warn_unwritable(reason: object, variable: str = CACHE_VARIABLE) -> None:
    """Warn once in a process that a cache cannot be written, for example because its disk is full.

    Parameters
    ----------
    reason : object
        An error, or a text. For an `UntrustedFolderError` nothing is printed, because a warning has been issued
        already.
    variable : str
        The environment variable that names the folder of the cache.
    """
    if not isinstance(reason, UntrustedFolderError):
        remedy = f"free space on its disk, or set {variable} to a folder that can be written"
        message = f"compiled code cannot be stored, and is compiled again in each process ({reason}): {remedy}"
        _warn_once(variable, message)


_warned: set[str] = set()


def _warn_once(subject: str, message: str) -> None:
    if subject not in _warned:
        _warned.add(subject)
        warnings.warn(message, RuntimeWarning, stacklevel=4)


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(CPU_SOURCES.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
