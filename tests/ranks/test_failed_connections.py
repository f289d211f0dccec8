"""A rank that fails while ranks connect to each other returns what it has opened and allocated."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gsparse.device.gpu import GpuDevice
from gsparse.distributed.ranks import gpu_memory
from gsparse.errors import CommunicationError


class _Runtime:
    """The calls of CUDA's runtime that boxes make, without a GPU. It counts what is allocated and open."""

    CUDARuntimeError = ZeroDivisionError
    is_hip = False

    def __init__(self) -> None:
        self.num_allocated = self.num_open = 0

    def malloc(self, nbytes: int) -> int:
        self.num_allocated += 1
        return 1 << 20

    def memset(self, address: int, value: int, nbytes: int) -> None: ...

    def deviceSynchronize(self) -> None: ...

    def ipcGetMemHandle(self, address: int) -> bytes:
        return bytes(range(64))

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        self.num_open += 1
        return 1 << 21

    def ipcCloseMemHandle(self, address: int) -> None:
        self.num_open -= 1


class _FailingControl:
    """The communicator of rank 0 of two processes on one host, whose calls fail from one of them on."""

    rank, world_size, timeout = 0, 2, 1.0

    def __init__(self, failing: int) -> None:
        self._remaining = failing

    def table(self, values: Any) -> Any:
        if not self._remaining:
            raise CommunicationError("another rank has failed")
        self._remaining -= 1
        # The other process has the same host, another GPU and another number, and is not on AMD.
        return np.stack([values, np.asarray(values) + np.arange(len(values)) % 3])


@pytest.mark.parametrize("failing", [1, 2])
def test_boxes_are_returned_if_another_rank_fails_meanwhile(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    runtime, device = _Runtime(), object.__new__(GpuDevice)
    attributes = {
        "xp": SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)),
        "index": 0,
        "bus": "0",
        "active": nullcontext,
    }
    for name, value in attributes.items():
        monkeypatch.setattr(GpuDevice, name, value, raising=False)
    monkeypatch.setattr(gpu_memory, "_memory_pool", gpu_memory._MemoryPool())
    for _ in range(3):
        with pytest.raises(CommunicationError, match="another rank has failed"):
            gpu_memory.connect_gpus(_FailingControl(failing), device)  # type: ignore[arg-type]
    assert (runtime.num_allocated, runtime.num_open) == (1, 0)


@pytest.mark.parametrize("failing", ["share_memory", "connect_gpus"])
def test_sockets_are_closed_if_ranks_cannot_share_memory(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")
    from gsparse.distributed.worker import group_tasks

    calls: list[str] = []
    control = SimpleNamespace(rank=0, is_stuck=False, abort=calls.append, close=lambda: calls.append("closed"))

    def fail(*_: Any) -> None:
        raise MemoryError("no room")

    for name in ("share_memory", "connect_gpus"):
        monkeypatch.setattr(group_tasks, name, fail if name == failing else lambda communicator, *_: communicator)
    monkeypatch.setattr(group_tasks, "SocketCommunicator", lambda *_: control)
    rank: Any = SimpleNamespace(number=0, workers=("one", "two"), timeout=1.0, listener=object(), tls=lambda: None)
    with pytest.raises(MemoryError, match="no room"):
        group_tasks._connect(rank, (), b"secret", object.__new__(GpuDevice))
    assert calls == ["rank 0: MemoryError: no room", "closed"]
