"""Exchanges between ranks: elements of vectors, and messages through memory that processes share.

The contract is in `gsparse.kernels.exchange`. The loops write and read each word of a message with one access, which is
atomic for aligned words of 64 bits. A read does not wait. It copies the words that have arrived and returns, so that
the caller can check whether the other rank is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels import exchange
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.exchange import HEADER_WORDS
from gsparse.kernels.steps import Call


def gather(device: Device, x: Array, numbers: Array, out: Array) -> None:
    """Compute ``out = x[numbers]``. NumPy writes directly to `out` only in the mode "clip"."""
    np.take(x, numbers, out=out, mode="clip")


def num_scatter_dots(count: int) -> int:
    """Return the number of partial sums that `scatter_add` writes, which is 1."""
    return 1


def scatter_add(
    device: Device,
    values: Array,
    numbers: Array,
    y: Array,
    x: Array | None = None,
    dots: Array | None = None,
) -> None:
    """Add values to elements of `y`.

    NumPy's warnings are off, because a solve that has broken down continues with inf, and a GPU does not warn either.
    """
    with np.errstate(all="ignore"):
        y[numbers] += values
    if x is not None and dots is not None:
        dots[0] = np.vdot(x[numbers].astype(dots.dtype), values)


@jitted
def _write(words: Any, box: Any, stamp: Any) -> None:
    high = np.uint64(stamp) << np.uint64(32)
    half = box[stamp % 2]
    half[0] = high | np.uint64(words.size)
    for i in range(words.size):
        half[HEADER_WORDS + i] = high | np.uint64(words[i])


@jitted
def _read(words: Any, box: Any, stamp: Any, begin: Any) -> int:
    """Read words of a message from word `begin` on. Return the number of the first word that has not arrived yet.

    Word -1 is the header. Return -2 if the message does not have the size of `words`.
    """
    half = box[stamp % 2]
    if begin < 0:
        header = half[0]
        if header >> np.uint64(32) != np.uint64(stamp):
            return -1
        if header & np.uint64(0xFFFFFFFF) != np.uint64(words.size):
            return -2
        begin = 0
    for i in range(begin, words.size):
        word = half[HEADER_WORDS + i]
        if word >> np.uint64(32) != np.uint64(stamp):
            return i
        words[i] = np.uint32(word & np.uint64(0xFFFFFFFF))
    return int(words.size)


class Mailboxes(exchange.Mailboxes):
    """Boxes in memory that the processes of a host share."""

    def __init__(self, device: Device, rank: int, theirs: Sequence[Array], own: Sequence[Array]) -> None:
        super().__init__(device, rank, theirs, own)
        self._stamps = [1] * self.world_size  # for each rank, the number of the current message to or from it
        self._begins = [-1] * self.world_size  # for each rank, the first word of this message that has not been read
        # While `sum` runs: the values of all ranks, and the call that collects the values of the other ranks.
        self._parts: list[npt.NDArray[Any]] = []
        self._collect_parts: Callable[[], list[int]] = list

    def bind_post(self, words: Mapping[int, Array]) -> Call:
        def post() -> None:
            for peer, part in words.items():
                self._post(peer, part)

        return post

    def bind_collect(self, words: Mapping[int, Array]) -> Callable[[], list[int]]:
        waiting: list[int] = []

        def collect() -> list[int]:
            # An empty list means that all messages have arrived, so this call is the first one of a new exchange.
            waiting[:] = [peer for peer in waiting or words if not self._collect(peer, words[peer])]
            return waiting

        return collect

    def _post(self, peer: int, words: Array) -> None:
        _write(words, self.theirs[peer], self._stamps[peer])

    def _collect(self, peer: int, words: Array) -> bool:
        begin = _read(words, self.own[peer], self._stamps[peer], self._begins[peer])
        if begin == -2:
            self._flags[1] = peer + 1
            return True
        self._begins[peer] = begin
        if begin < words.size:
            return bool(self._flags[0])
        self._stamps[peer] = (self._stamps[peer] + 1) % 2**32
        self._begins[peer] = -1
        return True

    def sum(self, values: Array) -> list[int]:
        if not self._parts:
            self._parts = [np.empty_like(values) for _ in range(self.world_size)]
            self._parts[self.rank][:] = values
            of_others = {p: part.view(np.uint32) for p, part in enumerate(self._parts) if p != self.rank}
            self._collect_parts = self.bind_collect(of_others)
            self.bind_post(dict.fromkeys(of_others, values.view(np.uint32)))()
        if waiting := self._collect_parts():
            return waiting
        values[:] = self._parts[0]
        with np.errstate(all="ignore"):  # A GPU does not warn either.
            for part in self._parts[1:]:
                values += part
        # `_collect_parts` refers to this object. Drop it, because the cycle would keep the memory of the boxes in use.
        self._parts, self._collect_parts = [], list
        return []
