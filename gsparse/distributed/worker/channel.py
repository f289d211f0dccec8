"""Messages between the ranks of one solve and its client: through queues of dask's scheduler, which end with the solve.

Dask counts who has opened a queue, and deletes it when all of them have closed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import distributed

__all__ = ["RankEnd", "answers_of"]

# Seconds between two looks whether the client has answered.
_NAP = 5e-3


class RankEnd:
    """A rank's end, opened and closed by the task that runs the solve.

    Parameters
    ----------
    name : str
    rank : int
    is_answered : bool
        Whether the client answers this rank.
    """

    def __init__(self, name: str, rank: int, *, is_answered: bool) -> None:
        client = distributed.get_client()
        self._outbox = distributed.Queue(name, client=client)
        self._answers = distributed.Queue(answers_of(name, rank), client=client) if is_answered else None

    def send(self, message: Any) -> None:
        """Send numbers, strings, bytes, lists and dictionaries of them."""
        self._outbox.put(message)

    def answer(self, check: Callable[[], None]) -> Any:
        """Wait for the client's answer; call `check` meanwhile, which raises to end the wait."""
        assert self._answers is not None
        while not (found := self._answers.get(batch=True)):
            check()
            time.sleep(_NAP)
        return found[0]

    def close(self) -> None:
        for queue in filter(None, (self._outbox, self._answers)):
            queue.close()


def answers_of(name: str, rank: int) -> str:
    """Return the name of the queue of a channel that holds the answers to one rank."""
    return f"{name}-{rank}"
