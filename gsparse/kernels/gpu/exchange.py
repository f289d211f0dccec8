"""Exchanges between ranks: elements of vectors, and messages through GPU memory.

The contract is in `gsparse.kernels.exchange`, the kernels in `src/exchange.cu`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import COMPUTE_DTYPES, INDEX_DTYPES, Array
from gsparse.kernels import exchange
from gsparse.kernels.gpu.launch import BLOCK_DOTS, FLOATS, NO_DOTS, Source, address_of, constant, expression
from gsparse.kernels.steps import Call

_SOURCE = Source("exchange.cu", constant("exchange.cu", "GS_HALO_THREADS"))
# Maximum number of blocks of scatter_add if each block writes a partial sum.
_MAX_HALO_BLOCKS = 528

_MAILBOX_THREADS = constant(_SOURCE.file, "GS_MAILBOX_THREADS")
# Maximum number of blocks for each message. More blocks are hardly faster: with 128, sending 320 KB takes 4.9 instead
# of 5.1 µs (two H200s, NVLink).
_MAX_BLOCKS = 64
_SUMMED = tuple(np.dtype(name) for name in ("float32", "float64", "int64"))


def gather(device: Device, x: Array, numbers: Array, out: Array) -> None:
    """Compute out = x[numbers], with one thread per element."""
    _SOURCE.launch(device, "gather", (x.dtype, numbers.dtype), out.size, (np.int64(out.size), x, numbers, out))


def num_scatter_dots(count: int) -> int:
    """Return the number of partial sums that `scatter_add` writes: one per block."""
    return max(1, min(-(-count // _SOURCE.threads), _MAX_HALO_BLOCKS))


def scatter_add(
    device: Device, values: Array, numbers: Array, y: Array, x: Array | None = None, dots: Array | None = None
) -> None:
    """Add with one thread per element. With `dots`, launch only a few blocks, each of which writes a partial sum."""
    threads, kind = values.size, NO_DOTS
    if dots is not None:
        threads, kind = num_scatter_dots(values.size) * _SOURCE.threads, BLOCK_DOTS
    args = (np.int64(values.size), values, numbers, y, x, dots)
    _SOURCE.launch(device, "scatter_add", (y.dtype, numbers.dtype, kind), threads, args)


class Mailboxes(exchange.Mailboxes):
    """Boxes in GPU memory. The kernels count the messages, so a CUDA graph can contain the exchange."""

    def __init__(self, device: Device, rank: int, theirs: Sequence[Array], own: Sequence[Array]) -> None:
        super().__init__(device, rank, theirs, own)
        # For each other rank, the number of its last message, and how many blocks have finished a message from it. This
        # rank sends no messages to itself, so its own element of `_finished` counts the finished blocks of the kernel
        # of sums.
        counts = device.upload(np.zeros(2 * self.world_size, np.uint32))
        self._stamps, self._finished = counts[: self.world_size], counts[self.world_size :]
        self._finished_sums = self._finished[rank : rank + 1]
        addresses = np.array([[address_of(box) for box in boxes] for boxes in (self.theirs, self.own)], np.uint64)
        self._addresses = device.upload(addresses)
        self._half = np.int64(self.own[rank - 1].shape[1])

    def bind_post(self, words: Mapping[int, Array]) -> Call:
        return self._bind_letters("post_words", self.theirs, words, ())

    def bind_collect(self, words: Mapping[int, Array]) -> Callable[[], list[int]]:
        args = self._finished, self._flags_on_device
        launch = self._bind_letters("collect_words", self.own, words, args)

        def collect() -> list[int]:
            launch()
            return []

        return collect

    def _bind_letters(
        self, name: str, boxes: Sequence[Array], words: Mapping[int, Array], args: tuple[Array, ...]
    ) -> Call:
        # The fields of `Letter` in exchange.cu.
        letters = [(part.size, address_of(part), address_of(boxes[peer]), peer) for peer, part in words.items()]
        args = self.device.upload(np.array(letters, np.int64)), self._half, self._stamps, *args
        blocks = _num_blocks(max(part.size for part in words.values()))
        launch = self.device.bind_kernel(_SOURCE.file, name, (blocks, len(words)), (_MAILBOX_THREADS,), args)

        def call(_words: Mapping[int, Array] = words) -> None:  # the default keeps the arrays alive
            launch()

        return call

    def sum(self, values: Array) -> list[int]:
        words, (theirs, own) = values.view(np.uint32), self._addresses
        ranks = np.int32(self.rank), np.int32(self.world_size), theirs, own, self._half
        args = np.int64(words.size), words, *ranks, self._stamps, self._finished_sums, self._flags_on_device
        name = expression("sum_over_ranks", values.dtype)
        self.device.bind_kernel(_SOURCE.file, name, (_num_blocks(words.size),), (_MAILBOX_THREADS,), args)()
        return []


def _num_blocks(num_words: int) -> int:
    return max(1, min(-(-num_words // (2 * _MAILBOX_THREADS)), _MAX_BLOCKS))


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel, for a warp of `lanes` lanes."""
    return [
        *_SOURCE.variants("gather", COMPUTE_DTYPES, INDEX_DTYPES),
        *_SOURCE.variants("scatter_add", FLOATS, INDEX_DTYPES, (NO_DOTS, BLOCK_DOTS)),
        *((_SOURCE.file, name) for name in ("post_words", "collect_words")),
        *_SOURCE.variants("sum_over_ranks", _SUMMED),
    ]
