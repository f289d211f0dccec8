"""Messages through memory of GPUs (contract: `gsparse.kernels.mailboxes`; kernels: `src/mailboxes.cu`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.kernels import mailboxes
from gsparse.kernels.calls import Call
from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.gpu.panels import address_of
from gsparse.kernels.gpu.source_constants import constant

__all__ = ["Mailboxes", "instantiations"]

_SOURCE = "mailboxes.cu"
_THREADS = constant(_SOURCE, "GS_MAILBOX_THREADS")
# More blocks are no faster: 64 send 320 KB in 5.1 µs and 128 in 4.9, of which 16 take 7.2 (two H200s, NVLink).
_MAX_BLOCKS = 64
_SUMMED = tuple(np.dtype(name) for name in ("float32", "float64", "int64"))


def instantiations() -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel."""
    names = ["post_words", "collect_words", *(expression("sum_over_ranks", dtype) for dtype in _SUMMED)]
    return [(_SOURCE, name) for name in names]


class Mailboxes(mailboxes.Mailboxes):
    """Boxes in memory of GPUs. The kernels count the messages, so that they can be part of a CUDA graph."""

    def __init__(self, device: Device, rank: int, theirs: Sequence[Array], own: Sequence[Array]) -> None:
        super().__init__(device, rank, theirs, own)
        # The stamps of the last messages by rank, and how many blocks of a kernel have finished.
        counts = device.upload(np.zeros(self.world_size + 1, np.uint32))
        self._stamps, self._finished = counts[: self.world_size], counts[self.world_size :]
        self._stamp_of = [self._stamps[peer : peer + 1] for peer in range(self.world_size)]
        addresses = np.array([[address_of(box) for box in boxes] for boxes in (self.theirs, self.own)], np.uint64)
        self._addresses = device.upload(addresses)
        self._half = np.int64(self.own[rank - 1].shape[1])

    def bind_post(self, peer: int, words: Array) -> Call:
        args = np.int64(words.size), words, self.theirs[peer], self._half, self._stamp_of[peer]
        return self._bind("post_words", words.size, args)

    def bind_collect(self, peer: int, words: Array) -> Callable[[], bool]:
        counts = self._stamp_of[peer], self._finished, self._flags_on_device
        args = np.int64(words.size), words, self.own[peer], self._half, *counts, np.uint32(peer)
        launch = self._bind("collect_words", words.size, args)

        def collect() -> bool:
            launch()
            return True

        return collect

    def sum(self, values: Array) -> list[int]:
        words, (theirs, own) = values.view(np.uint32), self._addresses
        ranks = np.int32(self.rank), np.int32(self.world_size), theirs, own, self._half
        args = np.int64(words.size), words, *ranks, self._stamps, self._finished, self._flags_on_device
        self._bind(expression("sum_over_ranks", values.dtype), words.size, args)()
        return []

    def _bind(self, name: str, num_words: int, args: tuple[object, ...]) -> Call:
        blocks = max(1, min(-(-num_words // (2 * _THREADS)), _MAX_BLOCKS))
        return self.device.bind_kernel(_SOURCE, name, (blocks,), (_THREADS,), args)
