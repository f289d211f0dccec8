"""Divide the parts of a product among threads, and run Python functions on a pool of threads.

The kernels of `gsparse.kernels.cpu` have threads of their own that never need the GIL (`gsparse.kernels.cpu.pool`);
`run_parts` decides how many of them a product has. The threads of this module run Python functions, and kernels on
systems where those other threads do not work. Both replace the threading layers of numba: `workqueue` aborts the
process when two threads enter it at the same time, and `omp` aborts a forked child.

The calling thread computes parts until no part is left, and then waits only for parts that other threads have begun. So
a product always ends, even if all threads of the pool are busy, if it is called from a part of another product, or if
no thread can be started.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from contextvars import Context, copy_context
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse._interrupt import uninterrupted
from gsparse.errors import SettingsError

# Smallest cost (entries plus rows) per thread of a kernel that has its own threads. On a virtual machine with two CPUs,
# a second thread saves time above a cost of 10,000 to 20,000 if it is awake because another product has just ended,
# and above 160,000 if it is asleep. It is woken already above 40,000, so that it is awake for the following product.
_NATIVE_COST = 20_000

# The cost (entries plus rows) that one thread computes in the time that it takes to wake another thread of this pool.
# Threads wake one after the other, because each acquires the GIL. With h helpers, a product of cost w takes the time
# w / (h + 1) + h * wake, which is shortest with sqrt(w / wake) threads.
_WAKE_COST = 60_000

# Number of parts per thread. It is larger than one, so that other threads can take over parts of a thread that starts
# late or has slower rows.
_PARTS_PER_THREAD = 4

# Number of elements that `map_elements` maps per call: so few that the result stays in the cache until it is copied.
_BLOCK = 2**16

# The environment variables that set the number of threads. The first one that is set takes effect.
_ENVIRONMENT = ("GSPARSE_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS")

# In Python 3.14, Ctrl-C could leave the locks of an executor locked forever; see `gsparse.device.locks`.
_guarded = uninterrupted if sys.version_info[:2] == (3, 14) else nullcontext


class _Pool:
    """The threads that run Python functions. They are started at the first use."""

    def __init__(self) -> None:
        self.executor: ThreadPoolExecutor | None = None

    @cached_property
    def num_threads(self) -> int:
        """The number of threads that a product may use, including the calling thread.

        The environment is read only at the first use, because a dask nanny sets it after its worker has imported this
        module.
        """
        return _default_num_threads()

    def forget_threads(self) -> None:
        """Let the threads end; in a forked child, forget the parent's threads. The next work starts new ones."""
        self.executor = None

    def run(self, function: Callable[..., None], num_threads: int, args: tuple[Any, ...]) -> None:
        """Compute parts on this and other threads, and wait only for parts that other threads have begun."""
        num_parts = num_threads * _PARTS_PER_THREAD
        parts = list(range(num_parts))

        def take_parts() -> None:
            while parts:
                try:
                    part = parts.pop()
                except IndexError:  # another thread has taken the last part
                    return
                function(part, num_parts, *args)

        executor = self.executor = self.executor or ThreadPoolExecutor(max(1, self.num_threads - 1), "gsparse-cpu")
        futures: list[Future[None]] = []
        try:
            # If no thread can be started, or the interpreter is ending, this thread does the work.
            with _guarded(), suppress(RuntimeError):
                futures.extend(executor.submit(take_parts) for _ in range(num_threads - 1))
            take_parts()
        finally:
            parts.clear()  # parts remain if one of them raised an error
            with _guarded():
                begun = [future for future in futures if not future.cancel()]
                wait(begun)
        for future in begun:
            future.result()  # raises the error of a part


def _parse_num_threads(num_threads: Any) -> int:
    message = f"num_threads must be an integer, got {type(num_threads).__name__}: pass 1 or more"
    if isinstance(num_threads, bool):
        raise TypeError(message)
    try:
        parsed = operator.index(num_threads)
    except TypeError:
        raise TypeError(message) from None
    if parsed < 1:
        raise ValueError(f"num_threads must be at least 1, got {num_threads!r}: 1 runs all on the calling thread")
    return parsed


def _default_num_threads() -> int:
    """Return the number of threads that the environment sets; without a setting, the number of available CPUs."""
    for name in _ENVIRONMENT:
        # OpenMP allows a list of numbers, one for each level of nesting.
        text = os.environ.get(name, "").split(",")[0].strip()
        if text.isdecimal() and int(text) > 0:
            return int(text)
        if text and name == _ENVIRONMENT[0]:
            raise SettingsError(f"{name} must be an integer of at least 1, got {text!r}: correct or unset it")
    return available_cpus()


def available_cpus() -> int:
    """Return the number of CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_pool = _Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget_threads)


def get_num_threads() -> int:
    """Return the number of threads that one product may use, including the calling thread.

    Returns
    -------
    int
        The number that `set_num_threads` set. Without it, the first of ``GSPARSE_NUM_THREADS``, ``NUMBA_NUM_THREADS``
        and ``OMP_NUM_THREADS`` that is set at the first use; else the number of CPUs on which the process may run.

    Raises
    ------
    SettingsError
        If ``GSPARSE_NUM_THREADS`` is not an integer of at least 1.

    Examples
    --------
    >>> import gsparse
    >>> gsparse.get_num_threads() >= 1
    True
    """
    return _pool.num_threads


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads that one product may use, in the whole process.

    `threadpoolctl.threadpool_limits` sets it too. The results of a kernel do not depend on this number, not even in the
    last bit. A matrix chooses its format for the number of threads at its first product. It keeps that format when the
    number changes, so that its products keep the same bits. ``A.release()`` lets it choose again.

    Parameters
    ----------
    num_threads : int
        At least 1, including the calling thread.

    Raises
    ------
    TypeError, ValueError
        If `num_threads` is not an integer, or is less than 1.

    Examples
    --------
    >>> import gsparse
    >>> before = gsparse.get_num_threads()
    >>> gsparse.set_num_threads(2)
    >>> gsparse.get_num_threads()
    2
    >>> gsparse.set_num_threads(before)
    """
    _pool.num_threads = _parse_num_threads(num_threads)
    _pool.forget_threads()


def run_parts(function: Callable[..., None], cost: int, *args: Any) -> None:
    """Call ``function(part, num_parts, *args)`` for each part of a product, and return when all parts are done.

    Parameters
    ----------
    function : callable
        A loop that releases the GIL. Parts run in parallel and in any order. If the function has an attribute
        `hand_out`, ``hand_out(helpers, num_parts, args)`` runs all parts, on this thread and on at most `helpers`
        threads of another pool, and returns True; or it runs none of them and returns False.
    cost : int
        Number of entries plus rows of the product, which determines the number of threads.
    *args
        Further arguments of the function.

    Raises
    ------
    BaseException
        The error that a part raised. Parts that had not begun by then may not run.
    """
    hand_out = getattr(function, "hand_out", None)
    num_threads = min(_pool.num_threads, _most_threads(hand_out, cost))
    if hand_out is not None and num_threads > 1:
        if hand_out(num_threads - 1, num_threads * _PARTS_PER_THREAD, args):
            return
        num_threads = min(num_threads, _most_threads(None, cost))  # threads of this module take longer to wake
    if num_threads < 2:
        function(0, 1, *args)
        return
    _pool.run(function, num_threads, args)


def is_for_one_thread(function: Callable[..., None], cost: int) -> bool:
    """Return whether `run_parts` runs work of this cost on one thread, even if there are more."""
    return _most_threads(getattr(function, "hand_out", None), cost) < 2


def _most_threads(hand_out: Any, cost: int) -> int:
    """Return the largest number of threads with which work of this cost still gets faster."""
    return isqrt(cost // _WAKE_COST) if hand_out is None else cost // _NATIVE_COST


def map_elements(
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], values: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Return ``function(values)`` for an elementwise NumPy function. Large arrays are divided among threads.

    Parameters
    ----------
    function : callable
        It releases the GIL, as NumPy's functions do. Each thread runs it in a copy of the caller's context, so that the
        caller's `numpy.errstate` applies.
    values : ndarray, one-dimensional

    Examples
    --------
    >>> import numpy
    >>> map_elements(numpy.sqrt, numpy.array([4.0, 9.0]))
    array([2., 3.])
    """
    if values.size <= _BLOCK or _pool.num_threads < 2:
        return function(values)
    first = function(values[:_BLOCK])
    result = np.empty(values.size, first.dtype)
    result[:_BLOCK] = first
    run_parts(_map_blocks, values.size - _BLOCK, copy_context(), function, values, result)
    return result


def _map_blocks(
    part: int,
    num_parts: int,
    context: Context,
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    values: npt.NDArray[Any],
    result: npt.NDArray[Any],
) -> None:
    context = context.copy()  # two threads cannot use the same context
    for begin in range(_BLOCK * (1 + part), values.size, _BLOCK * num_parts):
        result[begin : begin + _BLOCK] = context.run(function, values[begin : begin + _BLOCK])
