"""The choice of a format by measured times: the best few candidates are timed, and the times are stored on disk.

Stored times are valid for the same device, versions, dtypes and features of a matrix. A matrix for which they are valid
is not timed again.

References
----------
Timing two candidates matches or beats a trained selector, and avoids the few very bad choices of such a selector. This
was published for 2,843 matrices on MI250X and V100 (Ginkgo's runs).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import numpy as np

from gsparse._version import __version__
from gsparse.device.base import Device
from gsparse.device.cache import cache_folder, make_private
from gsparse.device.locks import make_lock
from gsparse.plan.choice import Plan, rank

__all__ = ["MAX_CANDIDATES", "LazyTuner", "cache_path", "forget", "formats_to_time", "key_of", "recall", "remember"]

# Largest number of candidates that are timed. A candidate is timed if its predicted time is at most _MAX_RATIO times
# that of the best one.
MAX_CANDIDATES = 4
_MAX_RATIO = 2.5

# Number of products of each candidate that `tune="lazy"` times.
_ROUNDS = 3


def formats_to_time(plan: Plan, expected_products: int) -> list[str]:
    """Return the names of the two to four formats that may be the fastest."""
    ranked = rank(plan.candidates, expected_products)
    close = [c.format for c in ranked if c.seconds <= _MAX_RATIO * ranked[0].seconds]
    return close[:MAX_CANDIDATES] if len(close) > 1 else [c.format for c in ranked[:2]]


def cache_path() -> Path:
    """Return the path of the database in which times are stored."""
    return cache_folder() / "verdicts.sqlite"


def key_of(device: Device, plan: Plan, types: tuple[Any, ...]) -> str:
    """Return a hash of everything on which measured times depend."""
    features = [device.identity(), __version__, np.__version__, [str(t) for t in types], repr(plan.stats)]
    features += [[c.format, repr(c.storage), repr(c.launch)] for c in plan.candidates]
    return hashlib.sha256(json.dumps(features).encode()).hexdigest()


def recall(key: str, formats: Collection[str]) -> dict[str, float] | None:
    """Return the stored times by format, or None if no usable ones are stored.

    Parameters
    ----------
    key : str
        The result of `key_of`.
    formats : collection of str
        The formats that can be chosen. An entry with the time of any other format is not usable.
    """
    path = cache_path()
    try:
        if not path.is_file():
            return None
        make_private(path.parent)
        with closing(sqlite3.connect(path, timeout=1)) as database:
            row = database.execute("SELECT times FROM verdicts WHERE key = ?", (key,)).fetchone()
    except (OSError, sqlite3.Error):
        return None
    times = {} if row is None else _parse_times(row[0])
    return times if times and times.keys() <= set(formats) else None


def _parse_times(text: Any) -> dict[str, float]:
    """Return times by format, or an empty dictionary if `remember` cannot have written `text`."""
    try:
        times = {name: float(seconds) for name, seconds in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
    return times if all(0 <= seconds < inf for seconds in times.values()) else {}


def remember(key: str, times: dict[str, float]) -> None:
    """Store times by format. If the cache cannot be written, they are lost, and will be measured again."""
    path = cache_path()
    try:
        make_private(path.parent)
        with closing(sqlite3.connect(path, timeout=1)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, times TEXT)")
            database.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, json.dumps(times)))
    except (OSError, sqlite3.Error):
        return


def forget() -> None:
    """Delete all stored times."""
    cache_path().unlink(missing_ok=True)


class FirstProducts:
    """A product that counts its calls and says when there were many.

    Parameters
    ----------
    multiply : callable
    count : int
        Number of calls that are many.
    say_so : WeakMethod
        Called before each call after that; the first one replaces this product. Weak, so that the matrix is freed as
        soon as nobody refers to it.
    """

    def __init__(self, multiply: Callable[..., None], count: int, say_so: WeakMethod[Callable[[], None]]) -> None:
        self._multiply, self._remaining, self._say_so = multiply, count, say_so

    def __call__(self, *args: Any) -> None:
        self._remaining -= 1
        if self._remaining < 0 and (say_so := self._say_so()) is not None:
            say_so()
        self._multiply(*args)


class LazyTuner:
    """A product that times its candidates: each call uses the next one, until all have been timed several times.

    It never waits for the device, so a call may find that the times are not known yet.

    Parameters
    ----------
    device : Device
    candidates : dict of format to ``multiply(...)``
    decide : callable
        Called once with the shortest time of each format, in seconds.
    """

    def __init__(
        self, device: Device, candidates: dict[str, Callable[..., None]], decide: Callable[[dict[str, float]], None]
    ) -> None:
        self._device, self._candidates, self._decide = device, candidates, decide
        # The first product of each candidate warms up, and its time is not used.
        self._remaining = [name for _ in range(_ROUNDS + 1) for name in candidates]
        self._expected = len(self._remaining)
        self._times: list[tuple[str, Callable[[], float | None]]] = []
        self._lock = make_lock()  # Several threads may call the product.

    def __call__(self, *args: Any) -> None:
        """Compute one product with the next candidate. A product that a CUDA graph captures is not timed."""
        capturing = self._device.is_capturing()
        with self._lock:
            name = self._remaining.pop(0) if self._remaining and not capturing else None
        if name is not None:
            time = self._device.timed(lambda: self._candidates[name](*args))
            with self._lock:
                self._times.append((name, time))
            return
        next(iter(self._candidates.values()))(*args)
        if not capturing:
            self._finish()

    def _finish(self) -> None:
        """Call `decide`, once, when all times are known."""
        with self._lock:
            if len(self._times) < self._expected:
                return
            times = [(name, seconds_if_known()) for name, seconds_if_known in self._times[len(self._candidates) :]]
            if any(seconds is None for _, seconds in times):
                return
            self._expected = self._expected + 1  # More times than there will ever be: no later call decides again.
        self._decide({name: min(t for n, t in times if n == name and t is not None) for name in self._candidates})
