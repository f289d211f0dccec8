"""The client's end of the messages between it and the ranks of one solve (`gsparse.distributed.worker.channel`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import distributed

from gsparse.distributed.client.cluster import check_running
from gsparse.distributed.worker.channel import answers_of

__all__ = ["ClientEnd"]


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
        self._answers = {rank: distributed.Queue(answers_of(name, rank), client=client) for rank in answered}

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
