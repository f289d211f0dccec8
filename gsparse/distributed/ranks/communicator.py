"""What ranks say to each other: one contract, implemented for threads, sockets and one rank alone."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import CommunicationError

__all__ = ["Communicator", "SingleCommunicator", "StagedCommunicator"]

Buffers = Mapping[int, Array]

# Seconds: between two looks whether all others are there, that a wait is busy, and that it sleeps then.
_CHECK_EVERY, _SPIN, _NAP = 0.05, 2e-3, 5e-5


class Communicator(ABC):
    """A rank's end of a group. All ranks call the same methods in the same order.

    Attributes
    ----------
    rank, world_size : int
    timeout : float
        Seconds that another rank may be silent when something of it is waited for.
    is_queued : bool
        Whether calls with arrays of a GPU only queue work on its current stream, and so can be part of a CUDA graph.
    is_stuck : bool
        Whether something has not let go in time. Only the end of the process frees what it holds then.

    Examples
    --------
    >>> import numpy
    >>> from gsparse.distributed import Communicator, run_ranks
    >>> def shift(communicator: Communicator) -> int:
    ...     rank, size = communicator.rank, communicator.world_size
    ...     received = numpy.empty(1, numpy.int64)
    ...     wait = communicator.exchange({(rank + 1) % size: numpy.array([rank])}, {(rank - 1) % size: received})
    ...     wait()
    ...     return int(received[0])
    >>> run_ranks(shift, 3)
    [2, 0, 1]
    """

    rank: int
    world_size: int
    timeout: float = 60.0
    is_queued: bool = False
    is_stuck: bool = False

    def on(self, device: Device) -> Communicator:
        """Give a communicator of the same ranks that takes arrays of a device.

        Parameters
        ----------
        device : Device
            Where the arrays live that will be sent.

        Returns
        -------
        Communicator
            This one where it takes them; otherwise one that goes by way of the host.
        """
        return self if device.is_host else StagedCommunicator(self, device)

    def check(self) -> None:  # noqa: B027  (whoever can tell only when it waits has nothing to do)
        """Raise where another rank is known to be gone, or to have called `abort`."""

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Wait for something on this rank's device that others may keep from ever being done.

        Parameters
        ----------
        is_done : callable
            Tells, without waiting, whether it is.

        Raises
        ------
        CommunicationError, RankLostError
        """
        began = time.monotonic()
        next_check = began + _CHECK_EVERY
        while not is_done():
            now = time.monotonic()
            if now >= next_check:
                self.check()
                next_check = now + _CHECK_EVERY
            if now - began > self.timeout:
                raise CommunicationError(f"rank {self.rank} has waited for {self.timeout:g} s: another rank is silent")
            if now - began > _SPIN:
                time.sleep(_NAP)

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
    def allreduce(self, values: Array) -> None:
        """Add an array up over all ranks, in place: the same bits on each, run after run.

        Parameters
        ----------
        values : array
            Of the same shape and dtype on all ranks.

        Raises
        ------
        CommunicationError, RankLostError
        """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Have every other rank's next or current call raise `CommunicationError`.

        Parameters
        ----------
        reason : str
            What these errors say.
        """

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
    """One rank alone.

    Examples
    --------
    >>> import numpy
    >>> from gsparse.distributed import SingleCommunicator
    >>> values = numpy.ones(2)
    >>> SingleCommunicator().allreduce(values)
    >>> values
    array([1., 1.])
    """

    rank, world_size, is_queued = 0, 1, True

    def on(self, device: Device) -> Communicator:
        return self

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        assert not sends and not receives
        return lambda: None

    def allreduce(self, values: Array) -> None:
        pass

    def abort(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


class StagedCommunicator(Communicator):
    """A communicator of host arrays for a GPU's: by way of the host, which waits for each call.

    Parameters
    ----------
    communicator : Communicator
    device : Device
    """

    def __init__(self, communicator: Communicator, device: Device) -> None:
        self._inner, self._device = communicator, device
        self.rank, self.world_size, self.timeout = communicator.rank, communicator.world_size, communicator.timeout

    def on(self, device: Device) -> Communicator:
        return self if device is self._device else self._inner.on(device)

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        device = self._device
        arrived = {peer: np.empty(target.shape, target.dtype) for peer, target in receives.items()}
        wait_for = self._inner.exchange({peer: device.download(values) for peer, values in sends.items()}, arrived)

        def wait() -> None:
            wait_for()
            for peer, target in receives.items():
                target[...] = device.upload(arrived[peer])

        return wait

    def allreduce(self, values: Array) -> None:
        on_host = self._device.download(values)
        self._inner.allreduce(on_host)
        values[...] = self._device.upload(on_host)

    def check(self) -> None:
        self._inner.check()

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)

    def close(self) -> None:
        self._inner.close()
