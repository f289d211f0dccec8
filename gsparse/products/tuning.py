"""The choice of a format by measured times: the best few candidates are timed, and the times are stored on disk.

Stored times are valid for the same device, versions, dtypes and features of a matrix. A matrix with valid stored times
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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import numpy as np

from gsparse._version import __version__
from gsparse.device.base import Device
from gsparse.device.cache import cache_folder, make_private
from gsparse.device.locks import make_lock
from gsparse.plan.choice import Plan, choose_fastest, sorted_by_time

# At most MAX_CANDIDATES candidates are timed: those whose predicted time is at most _MAX_RATIO times the shortest one.
MAX_CANDIDATES = 4
_MAX_RATIO = 2.5

# Number of products of each candidate that `tune="lazy"` times.
ROUNDS = 3

# A time is steady if the _AGREEING shortest timings differ by at most _STEADY times the shortest one. A format whose
# time is not steady is timed again, at most MAX_REPEATS times.
_AGREEING = 3
_STEADY = 0.1
MAX_REPEATS = 3


@dataclass(frozen=True)
class Timing:
    """The time of a product, from several timings.

    Other work on the machine makes timings longer, but never shorter. So the shortest timing counts. It can be trusted
    if the second and third shortest timings are almost the same.

    Attributes
    ----------
    seconds : float
        The shortest timing.
    spread : float
        By how much the third shortest timing exceeds the shortest one, as a fraction of the shortest one.
    """

    seconds: float
    spread: float

    @classmethod
    def of(cls, timings: Iterable[float]) -> Timing:
        shortest = sorted(timings)[:_AGREEING]
        return cls(shortest[0], shortest[-1] / shortest[0] - 1 if shortest[0] > 0 else 0.0)

    @property
    def is_steady(self) -> bool:
        return self.spread <= _STEADY


def measure(device: Device, calls: Mapping[str, Callable[[], None]]) -> dict[str, Timing]:
    """Return the time of each call.

    Times that are not steady are measured again, up to `MAX_REPEATS` times. Synchronizes.
    """
    timings = {name: device.timings_of(call) for name, call in calls.items()}
    for _ in range(MAX_REPEATS):
        for name in _unsteady(timings):
            timings[name] += device.timings_of(calls[name])
    return {name: Timing.of(seconds) for name, seconds in timings.items()}


def _unsteady(timings: Mapping[str, Sequence[float]]) -> list[str]:
    return [name for name, seconds in timings.items() if not Timing.of(seconds).is_steady]


def choose_measured(plan: Plan, times: Mapping[str, Timing], source: str) -> Plan:
    """Return a plan that chooses the fastest format. Its reason says so if the times are not steady.

    Parameters
    ----------
    plan : Plan
    times : mapping of format to Timing
    source : str
        Where the times come from, for the reason: "measured" or "measured before".
    """
    spread = max(timing.spread for timing in times.values())
    source = source if spread <= _STEADY else f"{source} on a busy machine (timings differ by {spread:.0%})"
    return choose_fastest(plan, {name: timing.seconds for name, timing in times.items()}, source)


def formats_to_time(plan: Plan, expected_products: int) -> list[str]:
    """Return the names of the two to four formats that may be the fastest."""
    ranked = sorted_by_time(plan.candidates, expected_products)
    close = [c.format for c in ranked if c.seconds <= _MAX_RATIO * ranked[0].seconds]
    return close[:MAX_CANDIDATES] if len(close) > 1 else [c.format for c in ranked[:2]]


def cache_path() -> Path:
    """Return the path of the database in which times are stored."""
    return cache_folder() / "verdicts.sqlite"


def key_of(device: Device, plan: Plan, types: tuple[Any, ...]) -> str:
    """Return a hash of everything on which measured times depend.

    This is the device and the number of its threads, versions, dtypes, row statistics and candidates.
    """
    features = [
        device.identity(),
        device.num_threads,
        __version__,
        np.__version__,
        [str(t) for t in types],
        repr(plan.stats),
    ]
    features += [[c.format, repr(c.storage), repr(c.launch)] for c in plan.candidates]
    return hashlib.sha256(json.dumps(features).encode()).hexdigest()


def recall(key: str, formats: Collection[str]) -> dict[str, Timing] | None:
    """Return the stored times by format, or None if no usable times are stored.

    Times that were not steady are not usable: the machine was busy, so the caller measures again.

    Parameters
    ----------
    key : str
        The result of `key_of`.
    formats : collection of str
        The formats that can be chosen. An entry with the time of any other format is not usable.
    """
    try:
        path = cache_path()
        if not path.is_file():
            return None
        make_private(path.parent)
        with closing(sqlite3.connect(path, timeout=1)) as database:
            row = database.execute("SELECT times FROM verdicts WHERE key = ?", (key,)).fetchone()
    except (OSError, sqlite3.Error):
        return None
    times = {} if row is None else _parse_times(row[0])
    is_usable = times and times.keys() <= set(formats) and all(timing.is_steady for timing in times.values())
    return times if is_usable else None


def _parse_times(text: Any) -> dict[str, Timing]:
    """Return times by format, or an empty dictionary if `text` was not written by `remember`."""
    try:
        times = {name: Timing(float(seconds), float(spread)) for name, (seconds, spread) in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}
    return times if all(0 <= t.seconds < inf and 0 <= t.spread < inf for t in times.values()) else {}


def remember(key: str, times: Mapping[str, Timing]) -> None:
    """Store times by format, with their spread.

    If the cache cannot be written, the times are lost, and the next process measures them again.
    """
    text = json.dumps({name: [t.seconds, t.spread] for name, t in times.items()})
    try:
        path = cache_path()
        make_private(path.parent)
        with closing(sqlite3.connect(path, timeout=1)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, times TEXT)")
            database.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, text))
    except (OSError, sqlite3.Error):
        return


def forget() -> None:
    """Delete all stored times."""
    cache_path().unlink(missing_ok=True)


def call_if_alive(method: WeakMethod[Callable[..., None]], *args: Any) -> None:
    """Call a method, unless its object has been freed."""
    if (function := method()) is not None:
        function(*args)


class LazyTuner:
    """A product that times its candidates: each call uses another candidate, until all have been timed several times.

    A call never waits for the device, so times may become known only in a later call. Candidates whose times are not
    steady are timed again, up to `MAX_REPEATS` times.

    Parameters
    ----------
    device : Device
    candidates : dict of format to ``multiply(...)``
    decide : callable
        Called once with the time of each format.
    """

    def __init__(
        self, device: Device, candidates: dict[str, Callable[..., None]], decide: Callable[[dict[str, Timing]], object]
    ) -> None:
        self._device, self._candidates, self._decide = device, candidates, decide
        # The first product of each candidate warms up, and its time is not used.
        self._remaining = [name for _ in range(ROUNDS + 1) for name in candidates]
        self._expected, self._repeats = len(self._remaining), MAX_REPEATS
        self._times: list[tuple[str, Callable[[], float | None]]] = []
        self._lock = make_lock()  # Several threads may call the product.

    def __call__(self, *args: Any) -> None:
        """Compute one product with the next candidate. A product that a CUDA graph captures is not timed."""
        capturing = self._device.is_capturing()
        with self._lock:
            name = self._remaining.pop(0) if self._remaining and not capturing else None
        if name is not None:
            try:
                time = self._device.timed(lambda: self._candidates[name](*args))
            except BaseException:
                with self._lock:
                    self._remaining.append(name)
                raise
            with self._lock:
                self._times.append((name, time))
            return
        next(iter(self._candidates.values()))(*args)
        if not capturing:
            self._finish()

    def _finish(self) -> None:
        """Call `decide`, once, when all times are known and steady, or have been measured often enough."""
        with self._lock:
            if len(self._times) < self._expected:
                return
            times: dict[str, list[float]] = {name: [] for name in self._candidates}
            for name, seconds_if_known in self._times[len(self._candidates) :]:
                seconds = seconds_if_known()
                if seconds is None:
                    return
                times[name].append(seconds)
            unsteady = _unsteady(times)
            if unsteady and self._repeats:
                self._repeats -= 1
                self._remaining = unsteady * ROUNDS
                self._expected += len(self._remaining)
                return
            self._expected = self._expected + 1  # This exceeds every number of times, so no later call decides again.
        self._decide({name: Timing.of(seconds) for name, seconds in times.items()})
