"""The contract of exchanges between ranks: elements of vectors, and messages through shared memory (`Mailboxes`).

Ranks whose processes share memory write messages into each other's boxes. A box has room for two messages: messages
with even numbers use one half, messages with odd numbers the other. Each stamped word has 64 bits: 32 bits of the
message, and the message's number, called its stamp:

    memory of rank 1:    box of rank 0                                         box of rank 2
                         even messages             odd messages
                       | count  0 | w | w | ...  | count  0 | w | w | ...    | ...
    stamps             |   4    4 | 4 | 4 |      |   5    5 | 5 | 5 |        |

The reader repeats its loads until all stamps are the number of the message for which it waits. So no flag is needed,
and words may arrive in any order, because a stamped word is written and read as a whole. The count shows the reader
whether a message has an unexpected size. Messages of sums on a GPU have no count.

Two ranks send each other the same number of messages, of which some are empty. Before rank 0 writes a message to rank
1, it has read all earlier messages of rank 1, and the other way round. So once rank 0 has read message n + 1 of rank 1,
rank 1 has read message n of rank 0, and rank 0 may overwrite the half of the box which that message took.

References
----------
NVIDIA, "NCCL", protocol LL, which also stores a flag beside each 4 bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Call

# Stamped words before the contents of a message: the count, and an unused word. So the contents begin at a multiple of
# 16 bytes, which a GPU thread reads or writes with one instruction.
HEADER_WORDS = 2


class Mailboxes(ABC):
    """The boxes through which one rank sends messages to the other ranks and receives theirs.

    On a GPU, calls only queue work on the current stream. On a CPU, calls that read do not wait: the caller repeats
    them until all messages have arrived.

    Parameters
    ----------
    device : Device
        The device that reads and writes the boxes.
    rank : int
        The number of this rank.
    theirs, own : sequence of arrays of uint64, shape (2, stamped words)
        This rank writes to ``theirs[p]``, which is in the memory of rank p. Rank p writes to ``own[p]``, which is in
        this rank's memory. All elements are initially zero. The boxes for the rank itself are not used.

    Attributes
    ----------
    capacity : int
        Largest number of 32-bit words in a message.
    """

    def __init__(self, device: Device, rank: int, theirs: Sequence[Array], own: Sequence[Array]) -> None:
        self.device, self.rank, self.world_size = device, rank, len(own)
        self.theirs, self.own = list(theirs), list(own)
        self.capacity: int = own[rank - 1].shape[1] - HEADER_WORDS  # of any other rank: all have one size
        # Element 0 is set to 1 to end all waits. Element 1 is 1 plus the sender of a message of an unexpected size.
        self._flags, self._flags_on_device = device.host_array(2, np.dtype(np.uint32))

    def stop(self) -> None:
        """End all waits of this rank, now and in the future.

        Arrays that these waits should have filled have no valid contents afterwards.
        """
        self._flags[0] = 1

    @property
    def disagreeing_rank(self) -> int | None:
        """A rank that has sent a message of an unexpected size; None if there is none."""
        return int(self._flags[1]) - 1 if self._flags[1] else None

    @abstractmethod
    def bind_post(self, words: Mapping[int, Array]) -> Call:
        """Return a call that writes the next message to each of some ranks.

        After posting a message to a rank, collect the next message from that rank before posting another one to it.

        Parameters
        ----------
        words : mapping of rank to array of uint32
            The contents of each message, at most `capacity` words; for at least one rank.
        """

    @abstractmethod
    def bind_collect(self, words: Mapping[int, Array]) -> Callable[[], list[int]]:
        """Return a call that fills arrays with the next message of each of some ranks.

        Parameters
        ----------
        words : mapping of rank to array of uint32
            The arrays to fill, of the sizes of the messages; for at least one rank.

        Returns
        -------
        callable
            Returns the ranks whose messages have not arrived yet. If there are some, call again. On a GPU the list is
            empty, because the work is only queued.
        """

    @abstractmethod
    def sum(self, values: Array) -> list[int]:
        """Replace an array by its sum over all ranks, with the same bits on all of them.

        The sum takes one message from each rank to each other rank.

        Parameters
        ----------
        values : array, shape (n,)
            float32, float64 or int64, of at most 4·`capacity` bytes. Every rank calls this with the same n.

        Returns
        -------
        list of int
            The ranks whose values have not arrived yet; empty on a GPU. If there are some, call again with the same
            array.
        """


class ExchangeKernels(Protocol):
    """Elements of vectors that ranks exchange, and messages through shared memory."""

    @property
    def Mailboxes(self) -> type[Mailboxes]:
        """The backend's implementation of `Mailboxes`."""

    def gather(self, device: Device, x: Array, numbers: Array, out: Array) -> None:
        """Compute out = x[numbers]."""

    def scatter_add(
        self,
        device: Device,
        values: Array,
        numbers: Array,
        y: Array,
        x: Array | None = None,
        dots: Array | None = None,
    ) -> None:
        """Compute y[numbers] += values; all numbers are distinct.

        With `x` and `dots`, also write ``num_scatter_dots(values.size)`` partial sums of conj(x[numbers])·values into
        `dots`.
        """

    def num_scatter_dots(self, count: int) -> int:
        """Return the number of partial sums that `scatter_add` writes for `count` values."""
