"""Calls without arguments, of which a solver's loop consists: kernels that are bound to their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Call = Callable[[], None]


def queue(calls: Sequence[Call], times: int = 1) -> None:
    """Make all calls in order, `times` times."""
    for _ in range(times):
        for call in calls:
            call()
