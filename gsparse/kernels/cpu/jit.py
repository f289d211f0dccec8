"""The options with which numba compiles this backend: without the GIL, and cached on disk.

The loops themselves are in other modules. One listener tells `gsparse.device.compilation` when numba compiles; another
keeps numba's internal functions for different options apart.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba import extending
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

from gsparse._interrupt import uninterrupted
from gsparse.device.cache import CACHE_VARIABLE, UntrustedFolderError, make_private_code_folder, warn_unwritable
from gsparse.device.compilation import COMPILE_NOTICE
from gsparse.device.locks import make_lock

P = ParamSpec("P")
R = TypeVar("R")

# - NumPy's error model omits the check for a zero divisor in each division. Sums are not reordered, so that they keep
#   their bits.
# - No wrappers are compiled for calls from C, nor for calls from Python to functions that only compiled code calls:
#   compiling csr_scalar took 1.9 s with both wrappers and 1.05 s without.
# - Code is compiled without numba's reference counts of arrays (`_nrt`), because the Python caller keeps the arrays
#   alive. A small product then takes 8 to 12 % less time, because no counted object is created for each array, and
#   compiling takes about 5 % less. Functions that allocate arrays need the counts; numba refuses to compile them
#   otherwise.
# - Without an option `fastmath`, a subroutine would get, for all kernels, the option of the kernel that calls it first.
OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False, "fastmath": False,
}  # fmt: skip
SUBROUTINE_OPTIONS: dict[str, Any] = {**OPTIONS, "no_cpython_wrapper": True}

# A fork waits until no other thread compiles. Otherwise the child would inherit a half-finished compilation, and a lock
# that no thread would release.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


class _CompileListener(event.Listener):
    """Tells `COMPILE_NOTICE` when numba compiles a function of this package. Loading cached code does not count."""

    def on_start(self, event: Any) -> None:
        if _is_ours(event):
            COMPILE_NOTICE.__enter__()

    def on_end(self, event: Any) -> None:
        if _is_ours(event):
            COMPILE_NOTICE.__exit__()


class _InternalFunctions(event.Listener):
    """Lets functions share numba's internal functions only if they have the same option `fastmath`.

    Numba compiles some operations, such as the product of two complex numbers, as separate functions: once in a
    process, with the option `fastmath` of the kernel that needs them first. The roundings of all other kernels would
    depend on which kernel that is, and would differ between processes.

    Attributes
    ----------
    of_option : dict
        The internal functions that have been compiled, for each value of the option `fastmath`.
    """

    def __init__(self) -> None:
        self.of_option: dict[frozenset[str], dict[Any, Any]] = {}
        # A stack: only one thread compiles at a time, but while it compiles a kernel, it also compiles functions that
        # the kernel calls.
        self._before: list[dict[Any, Any]] = []

    def on_start(self, event: Any) -> None:
        dispatcher = event.data["dispatcher"]
        self._before.append(dispatcher.targetctx.cached_internal_func)
        if _is_ours(event):
            option = frozenset(dispatcher.targetoptions.get("fastmath") or ())
            dispatcher.targetctx.cached_internal_func = self.of_option.setdefault(option, {})

    def on_end(self, event: Any) -> None:
        event.data["dispatcher"].targetctx.cached_internal_func = self._before.pop()


def _is_ours(event: Any) -> bool:
    # Modules that `steps` writes have names like gsparse_cg_0123456789abcdef.
    return str(event.data["dispatcher"].py_func.__module__).startswith(("gsparse.", "gsparse_"))


event.register("numba:compile", _CompileListener())  # type: ignore[no-untyped-call]
event.register("numba:compile", _InternalFunctions())  # type: ignore[no-untyped-call]


def jitted(function: Callable[P, R], *, allocates: bool = False, **options: Any) -> Callable[P, R]:
    """Compile a function for the types of its first call, to run without the GIL, and cache the code on disk.

    The cache is in the user's cache directory, or beside the source if that directory cannot be written. If neither can
    be written, if the disk is full, or if other users may write to the cache directory, each process compiles again,
    and a warning says so once. Set `allocates` for a function that allocates arrays.
    """
    options = {**OPTIONS, "_nrt": allocates, **options}
    try:
        with _own_cache_folder():
            dispatcher: Any = numba.njit(cache=True, **options)(function)
        _save_if_possible(dispatcher._cache)
    except (RuntimeError, UntrustedFolderError) as error:
        dispatcher = numba.njit(**options)(function)
        if isinstance(error, RuntimeError) and Path(inspect.getfile(function)).exists():
            # For a function from a file, the RuntimeError means that numba cannot write to any folder.
            warn_unwritable("no folder can be written")
    # Numba calls this method if it has no code for the types of a call. Ctrl-C must not interrupt it.
    dispatcher._compile_for_args = uninterrupted()(dispatcher._compile_for_args)
    return cast("Callable[P, R]", dispatcher)


def _save_if_possible(cache: Any) -> None:
    """Make numba's cache of a function issue a warning, not raise an error, if its files cannot be written."""
    save = cache.save_overload

    def save_overload(*args: Any) -> None:
        try:
            save(*args)
        except OSError as error:
            warn_unwritable(error, "NUMBA_CACHE_DIR" if os.environ.get("NUMBA_CACHE_DIR") else CACHE_VARIABLE)

    cache.save_overload = save_overload


# Numba reads this setting several times. Other threads must not change it meanwhile.
_setting = make_lock()


@contextmanager
def _own_cache_folder() -> Iterator[None]:
    """Make numba cache the functions that are decorated within this block in a folder of this package.

    The code of other libraries is cached as before. A cache beside the source would remain after pip has removed the
    package, and would hide a package that is installed in another way. Numba compiles a function again if its own file
    has changed, but not if the file of a subroutine has. So each state of the sources has its own folder.
    """
    config: Any = numba.config
    with _setting:
        before = config.CACHE_DIR
        try:
            config.CACHE_DIR = str(make_private_code_folder())
        except UntrustedFolderError:
            raise
        except (RuntimeError, OSError):  # without a home directory, or if it is not writable
            pass
        try:
            yield
        finally:
            config.CACHE_DIR = before


def subroutine(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that only compiled code calls. It has no wrapper: a call from Python would be a crash."""
    return cast("Callable[P, R]", numba.njit(**SUBROUTINE_OPTIONS)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply numba's `intrinsic`. For mypy, the result lacks the first argument of the function."""
    return cast("Callable[..., Any]", extending.intrinsic(function))
