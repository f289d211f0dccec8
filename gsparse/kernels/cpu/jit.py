"""The options with which numba compiles this backend: without the GIL, and cached on disk.

The loops are in other modules. One listener here tells `gsparse.device.compilation` when numba compiles. The other
listener keeps functions with different options from sharing numba's internal functions.
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

# - With NumPy's error model, divisions do not check for a zero divisor. Sums are not reordered, and so keep their bits.
# - No wrappers for calls from C are compiled. Functions that only compiled code calls also have no wrappers for calls
#   from Python. Without both wrappers, compiling takes half the time.
# - Code is compiled without numba's reference counts of arrays (`_nrt`), because the Python caller keeps the arrays
#   alive. A small product then takes 8 to 12 % less time. Only functions that allocate arrays need the counts, because
#   numba refuses to compile them otherwise.
# - Each subroutine has its own option `fastmath`. Otherwise, it would use the option of the first kernel that calls it.
OPTIONS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False, "fastmath": False,
}  # fmt: skip
SUBROUTINE_OPTIONS: dict[str, Any] = {**OPTIONS, "no_cpython_wrapper": True}

# A fork waits until no thread compiles. Otherwise the child would inherit a half-finished compilation, and a lock that
# no thread of the child would release.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


class _CompileListener(event.Listener):
    """Tells `COMPILE_NOTICE` when numba compiles a function of gsparse. Loading cached code does not count."""

    def on_start(self, event: Any) -> None:
        if _is_ours(event):
            COMPILE_NOTICE.__enter__()

    def on_end(self, event: Any) -> None:
        if _is_ours(event):
            COMPILE_NOTICE.__exit__()


class _InternalFunctions(event.Listener):
    """Lets functions share numba's internal functions only if they have the same option `fastmath`.

    Numba compiles some operations, such as the product of two complex numbers, as internal functions. Each internal
    function is compiled once per process, with the option `fastmath` of the first kernel that needs it. So, without
    this class, the roundings of a kernel would depend on the kernel that is compiled first.

    Attributes
    ----------
    of_option : dict
        For each value of the option `fastmath`, the internal functions that have been compiled with it.
    """

    def __init__(self) -> None:
        self.of_option: dict[frozenset[str], dict[Any, Any]] = {}
        # This is a stack, because compiling a kernel also compiles the functions that the kernel calls. Only one thread
        # compiles at the same time.
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
    """Compile a function at its first call, for the types of its arguments. Cache the code on disk.

    The function runs without the GIL. The cache is in the user's cache directory, or beside the source if the cache
    directory is not writable. If neither is writable, if the disk is full, or if other users may write to the cache
    directory, each process compiles again, and issues one warning. `allocates` says whether the function allocates
    arrays.
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
    # Numba calls this method when it has no code for the types of a call. Ctrl-C must not interrupt the method.
    dispatcher._compile_for_args = uninterrupted()(dispatcher._compile_for_args)
    return cast("Callable[P, R]", dispatcher)


def _save_if_possible(cache: Any) -> None:
    """Issue a warning, instead of an error, if the files of a function's cache cannot be written."""
    save = cache.save_overload

    def save_overload(*args: Any) -> None:
        try:
            save(*args)
        except OSError as error:
            warn_unwritable(error, "NUMBA_CACHE_DIR" if os.environ.get("NUMBA_CACHE_DIR") else CACHE_VARIABLE)

    cache.save_overload = save_overload


# This lock protects `numba.config.CACHE_DIR`, which numba reads several times while it decorates a function.
_setting = make_lock()


@contextmanager
def _own_cache_folder() -> Iterator[None]:
    """Let numba cache the functions that it decorates in this block in a folder of this package.

    The code of other libraries is cached as before. A cache beside the source would remain after pip has removed the
    package, and would hide a package that is installed in another way. Numba compiles a function again if its own file
    has changed, but not if the file of a subroutine has changed. So each version of the sources has its own folder.
    """
    config: Any = numba.config
    with _setting:
        before = config.CACHE_DIR
        try:
            config.CACHE_DIR = str(make_private_code_folder())
        except UntrustedFolderError:
            raise
        except (RuntimeError, OSError):  # there is no home directory, or it is not writable
            pass
        try:
            yield
        finally:
            config.CACHE_DIR = before


def subroutine(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that only compiled code calls. It has no wrapper, so a call from Python would crash."""
    return cast("Callable[P, R]", numba.njit(**SUBROUTINE_OPTIONS)(function))


def intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Apply numba's `intrinsic`, with a type for mypy that leaves out the function's first argument."""
    return cast("Callable[..., Any]", extending.intrinsic(function))
