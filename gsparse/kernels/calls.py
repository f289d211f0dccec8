"""Bound work: what a solver's loop is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["Call", "queue"]

Call = Callable[[], None]


def queue(calls: Sequence[Call], times: int = 1) -> None:
    """Call all of them, several times over."""
    for _ in range(times):
        for call in calls:
            call()
