"""Messages between the ranks of one solve and its client, through queues of dask's scheduler.

Dask counts the processes that have opened a queue, and deletes the queue when all of them have closed it. So the queues
of a solve end with the solve.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import distributed

# Seconds between two checks whether the client has answered.
_POLL_INTERVAL = 5e-3


class RankChannel:
    """A rank's end of the channel, which the task that runs the solve opens and closes.

    Parameters
    ----------
    name : str
        Name of the channel, the same for the client.
    rank : int
    is_answered : bool
        Whether the client answers the messages of this rank.
    """

    def __init__(self, name: str, rank: int, *, is_answered: bool) -> None:
        client = distributed.get_client()
        self._outbox = distributed.Queue(name, client=client)
        self._answers = distributed.Queue(answer_queue_name(name, rank), client=client) if is_answered else None

    def send(self, message: Any) -> None:
        """Send a message made of numbers, strings, bytes, lists and dictionaries."""
        self._outbox.put(message)

    def answer(self, check: Callable[[], None]) -> Any:
        """Wait for the client's answer and return it; `check` is called meanwhile, and may raise to end the wait."""
        assert self._answers is not None
        while not (answers := self._answers.get(batch=True)):
            check()
            time.sleep(_POLL_INTERVAL)
        return answers[0]

    def close(self) -> None:
        for queue in filter(None, (self._outbox, self._answers)):
            queue.close()


def answer_queue_name(name: str, rank: int) -> str:
    """Return the name of the queue of a channel that holds the answers to one rank."""
    return f"{name}-{rank}"
