"""Messages between the ranks of one solve and its client: through queues of dask's scheduler, which end with the solve.

Dask counts who has opened a queue, and deletes it when all of them have closed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import distributed

from gsparse.distributed.cluster import check_running

__all__ = ["ClientEnd", "RankEnd"]

# Seconds between two looks whether the client has answered.
_NAP = 5e-3


class ClientEnd:
    """The client's end.

    Parameters
    ----------
    client : distributed.Client
    name : str
        Of the channel; the same for the ranks.
    answered : sequence of int
        The ranks that wait for answers.
    """

    def __init__(self, client: distributed.Client, name: str, answered: Sequence[int]) -> None:
        self._client, self._inbox = client, distributed.Queue(name, client=client)
        self._answers = {rank: distributed.Queue(_answers_of(name, rank), client=client) for rank in answered}

    def received(self) -> list[Any]:
        """Return the messages that have come since the last call, without waiting for any.

        Raises
        ------
        CommunicationError
            Where the scheduler does not answer.
        """
        check_running(self._client)
        # (a `get` that times out would be an error in the scheduler's log)
        return list(self._inbox.get(batch=True))

    def answer(self, value: Any) -> None:
        """Send the same answer to every rank that waits for one."""
        for queue in self._answers.values():
            queue.put(value)

    def close(self, lost: Iterable[int] = ()) -> None:
        """Close the queues, also on behalf of ranks that are lost and cannot do it themselves."""
        for queue in (self._inbox, *self._answers.values()):
            queue.close()
        for rank in lost:
            for queue in (self._inbox, *filter(None, [self._answers.get(rank)])):
                queue.close()


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
        self._answers = distributed.Queue(_answers_of(name, rank), client=client) if is_answered else None

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


def _answers_of(name: str, rank: int) -> str:
    return f"{name}-{rank}"
