"""The contract of a communicator between ranks, and its implementations for a single rank and for staging.

`local.py` implements the contract for threads, `sockets.py` for processes, `shared_memory.py` for processes of one host
and for their GPUs, `mpi.py` for processes of MPI, and `gpu_memory.py` for GPUs over NCCL.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import CommunicationError, RankLostError

# The default of the longest time, in seconds, for which a rank may be silent.
TIMEOUT = 60.0

Buffers = Mapping[int, Array]

# Seconds between two calls of `check` while a rank waits.
_CHECK_INTERVAL = 0.05
# A wait polls without a pause for _BUSY_SECONDS, and after that once every _POLL_INTERVAL seconds.
_BUSY_SECONDS, _POLL_INTERVAL = 2e-3, 5e-5


# Lets another thread or process run on this CPU. On Windows, which has no `sched_yield`, a sleep of zero seconds does
# the same.
yield_cpu: Callable[[], Any] = getattr(os, "sched_yield", partial(time.sleep, 0))


def bytes_of(values: npt.NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array as a buffer of bytes."""
    return values.reshape(-1).view(np.uint8).data


class Communicator(ABC):
    """The connection of one rank to the other ranks of its group. All ranks call the same methods in the same order.

    The end of a ``with`` block closes the communicator. If the block raises an exception, the other ranks are aborted
    first.

    Attributes
    ----------
    rank, world_size : int
        The number of this rank, and the number of ranks.
    timeout : float
        Longest time, in seconds, for which a rank may be silent while another one waits for it.
    is_queued : bool
        Whether calls with arrays of a GPU only queue work on the GPU's current stream, and can therefore be part of a
        CUDA graph.
    uses_second_stream : bool
        Whether the exchange of ghosts, and the product with them, are queued on a second stream of a GPU, parallel to
        the product with the diagonal block.
    is_stuck : bool
        Whether `close` or `abort` did not finish in time. The resources are then freed only when the process ends.

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
    timeout: float = TIMEOUT
    is_queued: bool = False
    uses_second_stream: bool = False
    is_stuck: bool = False

    def on(self, device: Device) -> Communicator:
        """Return a communicator of the same ranks that takes arrays of a device.

        Parameters
        ----------
        device : Device
            The device on which the arrays to be sent lie.

        Returns
        -------
        Communicator
            The same communicator if it takes arrays of the device; otherwise a communicator that copies arrays through
            host memory.
        """
        return self if device.is_host else StagedCommunicator(self, device)

    def check(self, ranks: Sequence[int] | None = None) -> None:  # noqa: B027  (not abstract: one rank alone loses nobody)
        """Raise an error if another rank is known to be lost, or to have called `abort`.

        A rank that has closed its communicator after its last call also counts as lost.

        Parameters
        ----------
        ranks : sequence of int, optional
            The ranks to check; by default all.

        Raises
        ------
        CommunicationError, RankLostError
        """

    def wait(self, is_done: Callable[[], bool], ranks: Sequence[int] | None = None) -> None:
        """Wait for work that may depend on other ranks. Raise an error if one of these ranks is lost.

        Parameters
        ----------
        is_done : callable
            Returns, without waiting, whether the work is done.
        ranks : sequence of int, optional
            The ranks on which the work depends; by default all. `is_done` may change the sequence.

        Raises
        ------
        CommunicationError
            If a rank has called `abort`, or the work is not done after `timeout` seconds.
        RankLostError
            If a rank in `ranks` is lost.
        """
        began = time.monotonic()
        next_check = began + _CHECK_INTERVAL
        while not is_done():
            now = time.monotonic()
            if now >= next_check:
                try:
                    self.check(ranks)
                except RankLostError as error:
                    if is_done():  # The rank is not lost: it has closed its communicator after its last call.
                        return
                    if ranks is None or error.rank in ranks:
                        raise
                next_check = now + _CHECK_INTERVAL
            if now - began > self.timeout:
                silent = f"rank {ranks[0]}" if ranks else "another rank"
                raise CommunicationError(f"rank {self.rank} has waited for {self.timeout:g} s: {silent} is silent")
            time.sleep(_POLL_INTERVAL if now - began > _BUSY_SECONDS else 0)

    @abstractmethod
    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        """Begin to send arrays to other ranks. Return a callable that waits until the arrays of other ranks arrive.

        Parameters
        ----------
        sends : mapping of rank to array
            Contiguous arrays, by the rank that receives them. They must not change until the exchange is complete.
        receives : mapping of rank to array
            Contiguous arrays to be filled, by the rank that sends their values. Each must have the size and the dtype
            of the array that the other rank sends.

        Returns
        -------
        callable
            Waits until all arrays of `receives` are filled; if `is_queued`, only the GPU's current stream waits. Call
            it before any other method.

        Raises
        ------
        CommunicationError, RankLostError
            From this method or from the returned callable, if another rank is lost or silent, makes a different call,
            or has called `abort`.
        """

    def bind_exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], Callable[[], None]]:
        """Return a callable without parameters that begins this exchange each time it is called.

        Parameters
        ----------
        sends, receives : mapping of rank to array
            As for `exchange`. The arrays are read and written by each exchange.

        Returns
        -------
        callable
            Begins the exchange, and returns a callable that waits until the exchange is complete.
        """
        return partial(self.exchange, sends, receives)

    @abstractmethod
    def allreduce(self, values: Array) -> None:
        """Replace an array by its sum over all ranks. The result has the same bits on every rank and in every run.

        Parameters
        ----------
        values : array
            A contiguous array, of the same shape and dtype on all ranks.

        Raises
        ------
        CommunicationError, RankLostError
        """

    def table(self, values: Sequence[Any] | npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a table with one row of numbers for each rank.

        Parameters
        ----------
        values : sequence of numbers, or ndarray, of length k
            This rank's row: a few finite numbers on the host. Length and dtype must be the same on each rank.

        Returns
        -------
        ndarray, shape (number of ranks, k)
            The same array on each rank.

        Raises
        ------
        CommunicationError, RankLostError
        """
        own = np.asarray(values)
        table = np.zeros((self.world_size, own.size), own.dtype)
        table[self.rank] = own
        self.allreduce(table)
        return table

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Make the current or the following call of every other rank raise `CommunicationError`.

        Parameters
        ----------
        reason : str
            The message of these errors.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the resources of this rank's communicator. No method may be called afterwards."""

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is not None:
            self.abort(f"rank {self.rank}: {kind.__name__ if kind else ''}: {error}")
        self.close()


class SingleCommunicator(Communicator):
    """The communicator of a group of one rank.

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
    """Sends the arrays of a GPU over a communicator for host arrays. Each call copies them and waits for the GPU.

    Parameters
    ----------
    communicator : Communicator
        A communicator that takes host arrays.
    device : Device
        The device of the arrays.
    """

    def __init__(self, communicator: Communicator, device: Device) -> None:
        self._host_communicator, self._device = communicator, device
        self.rank, self.world_size, self.timeout = communicator.rank, communicator.world_size, communicator.timeout

    def on(self, device: Device) -> Communicator:
        return self if device is self._device else self._host_communicator.on(device)

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        device = self._device
        received = {peer: np.empty(target.shape, target.dtype) for peer, target in receives.items()}
        sent = {peer: device.download(values) for peer, values in sends.items()}
        wait_on_host = self._host_communicator.exchange(sent, received)

        def wait() -> None:
            wait_on_host()
            for peer, target in receives.items():
                target[...] = device.upload(received[peer])

        return wait

    def allreduce(self, values: Array) -> None:
        on_host = self._device.download(values)
        self._host_communicator.allreduce(on_host)
        values[...] = self._device.upload(on_host)

    def check(self, ranks: Sequence[int] | None = None) -> None:
        self._host_communicator.check(ranks)

    def abort(self, reason: str) -> None:
        self._host_communicator.abort(reason)

    def close(self) -> None:
        self._host_communicator.close()
