"""Choosing by the clock: the best few candidates are timed, and the verdict is remembered on disk.

A verdict holds for the same device, versions, types and features of a matrix: whoever builds such a matrix again is not
timed again.

References
----------
Two measured candidates match or beat a trained selector, without its tail of bad choices: published for 2,843 matrices
on MI250X and V100 (Ginkgo's runs).
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

import numpy as np

from gsparse._version import __version__
from gsparse.device.base import Device
from gsparse.device.cache import cache_folder, make_private
from gsparse.device.locks import make_lock
from gsparse.plan.choice import Plan, rank

__all__ = ["CANDIDATES", "LazyTuner", "cache_path", "forget", "key_of", "recall", "remember", "worth_timing"]

# Candidates that are timed at most, and how far behind the best prediction one may be.
CANDIDATES = 4
_WITHIN = 2.5

# Products of each candidate that `tune="lazy"` times.
_ROUNDS = 3


def worth_timing(plan: Plan, expected_products: int) -> list[str]:
    """Give the two to four formats that may turn out best."""
    ranked = rank(plan.candidates, expected_products)
    close = [c.format for c in ranked if c.seconds <= _WITHIN * ranked[0].seconds]
    return close[:CANDIDATES] if len(close) > 1 else [c.format for c in ranked[:2]]


def cache_path() -> Path:
    """Give the file that verdicts are kept in."""
    return cache_folder() / "verdicts.sqlite"


def key_of(device: Device, plan: Plan, types: tuple[Any, ...]) -> str:
    """Name what a verdict depends on."""
    features = [device.identity(), __version__, np.__version__, [str(t) for t in types], repr(plan.stats)]
    features += [[c.format, repr(c.storage), repr(c.launch)] for c in plan.candidates]
    return hashlib.sha256(json.dumps(features).encode()).hexdigest()


def recall(key: str, formats: Collection[str]) -> dict[str, float] | None:
    """Return the remembered times by format, or None where the cache holds none that can be used.

    Parameters
    ----------
    key : str
        Of `key_of`.
    formats : collection of str
        The formats that can be chosen: times of any other were not written here.
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
    """Return times by format, or nothing where `text` is not what `remember` writes."""
    try:
        times = {name: float(seconds) for name, seconds in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
    return times if all(0 <= seconds < inf for seconds in times.values()) else {}


def remember(key: str, times: dict[str, float]) -> None:
    """Keep times by format; where no cache can be written, they are lost and measured again."""
    path = cache_path()
    try:
        make_private(path.parent)
        with closing(sqlite3.connect(path, timeout=1)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, times TEXT)")
            database.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, json.dumps(times)))
    except (OSError, sqlite3.Error):
        return


def forget() -> None:
    """Drop all verdicts."""
    cache_path().unlink(missing_ok=True)


class LazyTuner:
    """Takes the candidates in turn, one a product, until each has been timed a few times; never waits for any.

    Parameters
    ----------
    device : Device
    candidates : dict of format to ``multiply(...)``
    decide : callable
        Called once with the best time of each format, in seconds.
    """

    def __init__(
        self, device: Device, candidates: dict[str, Callable[..., None]], decide: Callable[[dict[str, float]], None]
    ) -> None:
        self._device, self._candidates, self._decide = device, candidates, decide
        self._turns = [name for _ in range(_ROUNDS + 1) for name in candidates]  # (the first of each only warms up)
        self._expected = len(self._turns)
        self._times: list[tuple[str, Callable[[], float | None]]] = []
        self._lock = make_lock()  # products may come from several threads

    def __call__(self, *args: Any) -> None:
        """Compute one product by whichever candidate is next."""
        capturing = self._device.is_capturing()
        with self._lock:
            name = self._turns.pop(0) if self._turns and not capturing else None
        if name is not None:
            time = self._device.timed(lambda: self._candidates[name](*args))
            with self._lock:
                self._times.append((name, time))
            return
        next(iter(self._candidates.values()))(*args)
        if not capturing:
            self._finish()

    def _finish(self) -> None:
        """Decide, once, when all times are known."""
        with self._lock:
            if len(self._times) < self._expected:
                return
            times = [(name, finished()) for name, finished in self._times[len(self._candidates) :]]
            if any(seconds is None for _, seconds in times):
                return
            self._expected = self._expected + 1  # never again
        self._decide({name: min(t for n, t in times if n == name and t is not None) for name in self._candidates})
