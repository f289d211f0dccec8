"""Communicators between ranks that share memory: processes of one host, on its CPUs or on its GPUs.

Ranks write messages into each other's memory (`gsparse.kernels.exchange`). Processes on CPUs share a file that is kept
in memory. Processes on GPUs share memory of the GPUs (`gpu_memory.py`).
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import get_device
from gsparse.distributed.ranks.communicator import Buffers, Communicator, bytes_of
from gsparse.errors import CommunicationError
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.exchange import Mailboxes
from gsparse.kernels.steps import Call

# The smallest and the largest size of half a box, in 64-bit words. The largest size of the file with all boxes, in
# bytes.
_MIN_HALF_WORDS, _MAX_HALF_WORDS, _MAX_FILE_BYTES = 1 << 6, 1 << 15, 1 << 26
# The dtypes in which sums are computed. Other dtypes are converted.
_SUMMED = tuple(np.dtype(name) for name in ("float32", "float64", "int64"))


class MemoryCommunicator(Communicator):
    """A communicator that writes messages to other ranks' memory, and reads messages from this rank's memory.

    Parameters
    ----------
    control : Communicator
        A communicator of the same ranks for host arrays, which notices the loss of a rank. `close` and `abort` of this
        communicator call the same method of `control`.
    device : Device
        The device of the arrays. If it is a GPU, host arrays are sent over `control`.
    mailboxes : Mailboxes
        The boxes of this rank.
    release : callable, optional
        A function that `close` calls to free the memory of the boxes.
    """

    def __init__(
        self, control: Communicator, device: Device, mailboxes: Mailboxes, release: Callable[[], None] = lambda: None
    ) -> None:
        self.rank, self.world_size, self.timeout = control.rank, control.world_size, control.timeout
        self._control, self._device, self._mailboxes, self._release = control, device, mailboxes, release
        self.is_queued = self.uses_second_stream = not device.is_host

    def on(self, device: Device) -> Communicator:
        if device is self._device:
            return self
        return super().on(device) if self._device.is_host else self._control.on(device)

    def exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        return self.bind_exchange(sends, receives)()

    def bind_exchange(self, sends: Buffers, receives: Buffers) -> Callable[[], Callable[[], None]]:
        arrays = [*sends.values(), *receives.values()]
        if not all(self._device.owns(values) for values in arrays):
            return self._control.bind_exchange(sends, receives)
        if any(values.nbytes % 4 for values in arrays):
            return partial(self._exchange_copies, sends, receives)
        rounds = self._rounds(*({peer: _words(values) for peer, values in one.items()} for one in (sends, receives)))

        def begin() -> Callable[[], None]:
            if not rounds:
                return lambda: None
            wait_for_signals = self._post(rounds[0])

            def wait() -> None:
                wait_for_signals()
                self._wait_for_all(rounds[0].collect)
                for later in rounds[1:]:
                    self._post(later)()
                    self._wait_for_all(later.collect)

            return wait

        return begin

    def _exchange_copies(self, sends: Buffers, receives: Buffers) -> Callable[[], None]:
        """Exchange copies of host arrays whose sizes are not multiples of 4 bytes."""
        copies = {peer: _padded(values) for peer, values in receives.items()}
        wait_for_copies = self.exchange({peer: _padded(values) for peer, values in sends.items()}, copies)

        def wait() -> None:
            wait_for_copies()
            for peer, values in receives.items():
                bytes_of(values)[:] = bytes_of(copies[peer])[: values.nbytes]

        return wait

    def _rounds(self, sends: dict[int, Array], receives: dict[int, Array]) -> list[Round]:
        """Return the rounds of an exchange. In each round, two ranks send each other one message, possibly empty."""
        capacity, peers = self._mailboxes.capacity, sorted({*sends, *receives})
        nothing = dict.fromkeys(peers, self._device.empty(0, np.dtype(np.uint32)))
        sends, receives = nothing | sends, nothing | receives
        counts = {peer: -(-max(sends[peer].size, receives[peer].size) // capacity) for peer in peers}
        rounds: list[Round] = []
        for number in range(max(counts.values(), default=0)):
            part = slice(number * capacity, (number + 1) * capacity)
            active = [peer for peer in peers if number < counts[peer]]
            post = self._mailboxes.bind_post({peer: sends[peer][part] for peer in active})
            collect = self._mailboxes.bind_collect({peer: receives[peer][part] for peer in active})
            rounds.append(Round(active, post, collect))
        return rounds

    def _post(self, messages: Round) -> Callable[[], None]:
        """Write messages. Return a callable that waits until the messages of the receivers can be read."""
        messages.post()
        return lambda: None

    def _wait_for_all(self, call: Callable[[], list[int]]) -> None:
        """Repeat `call`, which returns the ranks whose messages are missing, until no message is missing."""
        waiting: list[int] = []

        def is_done() -> bool:
            waiting[:] = call()
            return not waiting

        self.wait(is_done, waiting)
        self._check_agreement()

    def allreduce(self, values: Array) -> None:
        if not self._device.owns(values):
            self._control.allreduce(values)
            return
        flat = values.reshape(-1)
        flat = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
        flat = flat.view(np.int64) if flat.dtype == np.uint64 else flat  # the sums have the same bits
        summed = flat if flat.dtype in _SUMMED else flat.astype(np.result_type(flat.dtype, np.int64))
        step = 4 * self._mailboxes.capacity // summed.itemsize
        for first in range(0, summed.size, step):
            self._wait_for_all(partial(self._mailboxes.sum, summed[first : first + step]))
        if summed is not flat:
            flat[:] = summed

    def _check_agreement(self) -> None:
        peer = self._mailboxes.disagreeing_rank
        if peer is not None:
            raise CommunicationError(
                f"ranks disagree: rank {peer} sent an array of another size than rank {self.rank} expects"
            )

    def check(self, ranks: Sequence[int] | None = None) -> None:
        self._check_agreement()
        self._control.check(ranks)

    def abort(self, reason: str) -> None:
        self._control.abort(reason)
        self._mailboxes.stop()

    def close(self) -> None:
        self._control.close()
        self._mailboxes.stop()
        self._release()


class Round(NamedTuple):
    """One exchange of messages. This rank sends one message to each rank in `peers`, and receives one from each."""

    peers: list[int]
    post: Call
    collect: Callable[[], list[int]]


def _words(values: Array) -> Array:
    return values.reshape(-1).view(np.uint32)


def _padded(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return a copy of an array's bytes, padded with zeros to a multiple of 4 bytes."""
    copy = np.zeros(values.nbytes + -values.nbytes % 4, np.uint8)
    bytes_of(copy)[: values.nbytes] = bytes_of(np.ascontiguousarray(values))
    return copy


def share_memory(control: Communicator) -> Communicator:
    """Return a communicator through memory if all ranks are processes of one host, else `control`.

    All ranks must call this together. Host arrays are then exchanged through a file in memory, and `control` notices
    the loss of a rank. The result is also `control` for more than 256 ranks, if a rank cannot map the file, and on
    Windows, where a mapped file cannot be removed.
    """
    if sys.platform == "win32":
        return control
    half_words = min(_MAX_HALF_WORDS, _MAX_FILE_BYTES // (16 * control.world_size**2))
    if control.world_size == 1 or half_words < _MIN_HALF_WORDS:
        return control
    if np.unique(control.table([host_hash()])).size > 1:
        return control
    name = secrets.randbits(62) if control.rank == 0 else 0
    path = _folder() / f"gsparse-{int(control.table([name])[0, 0]):016x}"
    shape = control.world_size, control.world_size, 2, half_words
    boxes: npt.NDArray[Any] | None = None
    try:
        if control.rank == 0:
            boxes = _mapped(path, shape, os.O_CREAT | os.O_EXCL)
        if control.table([control.rank > 0 or boxes is not None]).all() and control.rank > 0:
            boxes = _mapped(path, shape, 0)
        is_mapped = control.table([boxes is not None]).all()
    finally:
        if control.rank == 0:
            path.unlink(missing_ok=True)  # the memory is freed when the last rank has unmapped it
    if not is_mapped or boxes is None:
        return control
    device, rank = get_device("cpu"), control.rank
    return MemoryCommunicator(
        control, device, kernels_of(device).exchange.Mailboxes(device, rank, [*boxes[:, rank]], [*boxes[rank]])
    )


def host_hash() -> int:
    """Return a number that identifies this host. It is a hash of the host's name and network namespace."""
    try:
        network = str(Path("/proc/self/ns/net").readlink())  # a container has its own network
    except OSError:
        network = ""
    return hash_of(f"{platform.node()} {network}")


def hash_of(text: str) -> int:
    """Return 62 bits of the SHA-256 hash of a text, as an integer."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "little") >> 2


def _folder() -> Path:
    """Return a folder whose files are kept in memory; without such a folder, the system's temporary folder."""
    in_memory = Path("/dev/shm")
    return in_memory if in_memory.is_dir() else Path(tempfile.gettempdir())


def _mapped(path: Path, shape: tuple[int, ...], flags: int) -> npt.NDArray[Any] | None:
    """Map a file as an array of uint64. Return None if that fails.

    `flags` are the flags of `os.open` that create the file, which is then filled with zeros; 0 opens an existing file.
    """
    size = 8 * int(np.prod(shape))
    try:
        file = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | flags, 0o600)
        try:
            if flags and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, size)  # otherwise, a write would end the process if no memory is left
            elif flags:
                os.ftruncate(file, size)
            return np.frombuffer(mmap.mmap(file, size), np.uint64).reshape(shape)
        finally:
            os.close(file)
    except (OSError, ValueError):
        return None
