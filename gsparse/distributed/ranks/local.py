"""A communicator between ranks that are threads of one process, on the CPU or on several GPUs, without a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import numpy.typing as npt

from gsparse.distributed.ranks.communicator import TIMEOUT, Buffers, Communicator
from gsparse.distributed.ranks.partition import check_world_size
from gsparse.errors import CommunicationError


class _Group:
    """The state that a group's ranks share: a queue for each pair of ranks, a barrier, and the parts of a sum."""

    def __init__(self, world_size: int, timeout: float) -> None:
        self.timeout = timeout
        self.queues = {(a, b): SimpleQueue[Any]() for a in range(world_size) for b in range(world_size) if a != b}
        self.barrier = threading.Barrier(world_size)
        self.parts: list[Any] = [None] * world_size
        self.reason = ""

    def synchronize(self) -> None:
        """Wait until all ranks have called this method."""
        try:
            self.barrier.wait(self.timeout)
        except threading.BrokenBarrierError:
            raise CommunicationError(self.reason or f"not all ranks made this call within {self.timeout:g} s") from None


class LocalCommunicator(Communicator):
    """The communicator of one rank in a group of threads.

    `LocalCommunicator.group` makes the communicators of all ranks.

    Parameters
    ----------
    group : object
        The state that the ranks share.
    rank : int
        The number of this rank.
    world_size : int
        Number of ranks.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import numpy
    >>> from gsparse.distributed import LocalCommunicator
    >>> totals = [numpy.array([1.0]), numpy.array([2.0])]
    >>> with ThreadPoolExecutor(2) as pool:  # as `run_ranks` does
    ...     communicators = LocalCommunicator.group(2)
    ...     done = list(pool.map(lambda c: c.allreduce(totals[c.rank]), communicators))
    >>> totals
    [array([3.]), array([3.])]
    """

    def __init__(self, group: _Group, rank: int, world_size: int) -> None:
        self._group, self.rank, self.world_size, self.timeout = group, rank, world_size, group.timeout

    @classmethod
    def group(cls, world_size: int, timeout: float = TIMEOUT) -> list[LocalCommunicator]:
        """Make the communicators of a new group.

        Parameters
        ----------
        world_size : int
            Number of ranks.
        timeout : float
            Longest time, in seconds, for which a rank waits for another.

        Returns
        -------
        list of LocalCommunicator
            One for each rank, in the order of the ranks.
        """
        shared = _Group(world_size, timeout)
        return [cls(shared, rank, world_size) for rank in range(world_size)]

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        for peer, values in sends.items():
            self._group.queues[self.rank, peer].put(values.copy())

        def wait() -> None:
            for peer, target in receives.items():
                target[...] = self._receive(peer, target).reshape(target.shape)

        return wait

    def _receive(self, peer: int, target: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            values = self._group.queues[peer, self.rank].get(timeout=self._group.timeout)
        except Empty:
            raise CommunicationError(f"rank {peer} has sent nothing for {self._group.timeout:g} s") from None
        if values is None:
            raise CommunicationError(self._group.reason)
        if (values.size, values.dtype) != (target.size, target.dtype):
            expected, sent = (f"{a.size} numbers of {a.dtype}" for a in (target, values))
            raise CommunicationError(f"ranks disagree: rank {self.rank} expects {expected}, rank {peer} sent {sent}")
        return values  # type: ignore[no-any-return]

    def allreduce(self, values: npt.NDArray[Any]) -> None:
        group = self._group
        group.parts[self.rank] = values
        group.synchronize()
        kinds = {f"{part.size} numbers of {part.dtype}" for part in group.parts}
        total = group.parts[0].reshape(values.shape).copy() if len(kinds) == 1 else None
        for part in group.parts[1:] if total is not None else ():
            total += part.reshape(values.shape)
        group.synchronize()
        if total is None:
            raise CommunicationError(f"ranks disagree on the array to add up: {', '.join(sorted(kinds))}")
        values[...] = total

    def check(self, ranks: Sequence[int] | None = None) -> None:
        if self._group.reason:
            raise CommunicationError(self._group.reason)

    def abort(self, reason: str) -> None:
        group = self._group
        group.reason = group.reason or reason
        group.barrier.abort()
        for peer in range(self.world_size):
            if peer != self.rank:
                group.queues[self.rank, peer].put(None)

    def close(self) -> None:
        pass


def run_ranks(work: Callable[..., Any], world_size: int, *args: Any, timeout: float = TIMEOUT) -> list[Any]:
    """Run ``work(communicator, *args)`` in one thread for each rank, and return the results.

    Parameters
    ----------
    work : callable
        Called with the rank's `Communicator` and `args`. If it raises an exception, the other ranks are aborted.
    world_size : int
        Number of ranks, at least 1.
    *args
        Further arguments of `work`.
    timeout : float
        Longest time, in seconds, for which a rank waits for another.

    Returns
    -------
    list
        The result of each rank, in the order of the ranks.

    Raises
    ------
    ValueError
        If `world_size` is less than 1.
    Exception
        The exception of the first rank whose failure was not the consequence of another rank's failure.

    Examples
    --------
    >>> import numpy
    >>> from gsparse.distributed import run_ranks
    >>> def add(communicator):
    ...     values = numpy.array([communicator.rank])
    ...     communicator.allreduce(values)
    ...     return int(values[0])
    >>> run_ranks(add, 4)
    [6, 6, 6, 6]
    """

    def run(communicator: LocalCommunicator) -> Any:
        with communicator:
            return work(communicator, *args)

    check_world_size(world_size)
    with ThreadPoolExecutor(world_size) as pool:
        communicators = LocalCommunicator.group(world_size, timeout)
        futures = [pool.submit(run, communicator) for communicator in communicators]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, CommunicationError)):
        raise error
    return [future.result() for future in futures]
