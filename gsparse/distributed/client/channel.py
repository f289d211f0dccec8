"""The client's end of the channel to the ranks of one solve; `gsparse.distributed.worker.channel` has the other end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import distributed

from gsparse.distributed.client.scheduler import check_running, naming_lost_scheduler
from gsparse.distributed.worker.channel import answer_queue_name


class ClientChannel:
    """Receives the messages of the ranks, and sends answers.

    Parameters
    ----------
    client : distributed.Client
    name : str
        Name of the channel, the same for the ranks.
    answered : sequence of int
        The ranks that wait for answers.
    """

    def __init__(self, client: distributed.Client, name: str, answered: Sequence[int]) -> None:
        self._client, self._inbox = client, distributed.Queue(name, client=client)
        self._answers = {rank: distributed.Queue(answer_queue_name(name, rank), client=client) for rank in answered}

    def received(self) -> list[Any]:
        """Return the messages that have arrived since the last call, without waiting.

        Raises
        ------
        CommunicationError
            If the scheduler does not answer.
        """
        check_running(self._client)
        # `batch=True` does not wait. A `get` that timed out would leave an error in the scheduler's log.
        with naming_lost_scheduler(self._client):
            return list(self._inbox.get(batch=True))

    def answer(self, value: Any) -> None:
        """Send the same answer to every rank that waits for answers."""
        with naming_lost_scheduler(self._client):
            for queue in self._answers.values():
                queue.put(value)

    def close(self, lost: Iterable[int] = ()) -> None:
        """Close the queues, also on behalf of ranks that are lost and cannot do it themselves."""
        for queue in (self._inbox, *self._answers.values()):
            queue.close()
        for rank in lost:
            for queue in (self._inbox, *filter(None, [self._answers.get(rank)])):
                queue.close()
