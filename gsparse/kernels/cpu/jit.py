"""How numba compiles this backend: without the GIL, and kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

import numba

from gsparse.device.cache import UntrustedFolderError, make_private_code_folder

__all__ = ["OPTIONS", "PIECE_OPTIONS", "jitted", "piece"]

P = ParamSpec("P")
R = TypeVar("R")

# NumPy's division saves the checks for a zero divisor; nothing re-associates: sums keep their order and their bits.
# C calls none of it and Python no pieces: compiling csr_scalar with wrappers for both took 1.9 s, not 1.05.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
PIECE_OPTIONS: dict[str, Any] = {**OPTIONS, "no_cpython_wrapper": True}


def jitted(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    """Compile a function for the types of its first call, to run without the GIL, and keep the code on disk.

    The code is kept in the user's cache directory, or beside the source where that cannot be written. Where neither
    can, or where other users may write to the cache directory, each process compiles anew.
    """
    try:
        with _kept_elsewhere():
            return cast("Callable[P, R]", numba.njit(cache=True, **OPTIONS, **options)(function))
    except (RuntimeError, UntrustedFolderError):  # numba found no directory to write to, or the code may be another's
        return cast("Callable[P, R]", numba.njit(**OPTIONS, **options)(function))


@contextmanager
def _kept_elsewhere() -> Iterator[None]:
    """Have numba keep what is decorated within this block in a folder of our own; others' code goes where it did.

    Beside the source, it would stay when pip removes the package, and hide one that is installed in another way. And
    numba compiles again what changed in the function's own file, not in a piece's of another: hence a folder for each
    state of the sources.
    """
    config: Any = numba.config
    before = config.CACHE_DIR
    try:
        config.CACHE_DIR = str(make_private_code_folder())
    except UntrustedFolderError:
        raise
    except (RuntimeError, OSError):  # there is no home directory, or it cannot be written
        pass
    try:
        yield
    finally:
        config.CACHE_DIR = before


def piece(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that only compiled ones call, into each of them; called from Python it ends the process."""
    return cast("Callable[P, R]", numba.njit(**PIECE_OPTIONS)(function))
