"""What ranks say to each other: one contract, implemented for threads, sockets and one rank alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

__all__ = ["Communicator", "SingleCommunicator"]

Buffers = Mapping[int, npt.NDArray[Any]]


class Communicator(ABC):
    """A rank's end of a group. All ranks call the same methods in the same order.

    Attributes
    ----------
    rank, world_size : int
    """

    rank: int
    world_size: int

    @abstractmethod
    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        """Begin to send contiguous arrays to other ranks, and give what waits for those that come.

        Parameters
        ----------
        sends, receives : mapping of rank to array
            What goes where, and where to put what comes from where, of the very size and dtype that is sent. Arrays
            that are sent must not change before the exchange has been waited for.

        Returns
        -------
        callable
            Returns once all of `receives` is filled; to be called before any other method.

        Raises
        ------
        CommunicationError, RankLostError
            From either call: another rank is gone, silent, or about something else, or has called `abort`.
        """

    @abstractmethod
    def allreduce(self, values: npt.NDArray[Any]) -> None:
        """Add an array up over all ranks, in place: the same bits on each, run after run.

        Raises
        ------
        CommunicationError, RankLostError
        """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Have every other rank's next or current call raise `CommunicationError` with this reason."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the group holds. Nothing may be called after it."""

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is not None:
            self.abort(f"rank {self.rank}: {kind.__name__ if kind else ''}: {error}")
        self.close()


class SingleCommunicator(Communicator):
    """One rank alone."""

    rank, world_size = 0, 1

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        assert not sends and not receives
        return lambda: None

    def allreduce(self, values: npt.NDArray[Any]) -> None:
        pass

    def abort(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass
