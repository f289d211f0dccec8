"""CUDA graphs that are captured with a second stream: they keep priorities, and streams and events are used again."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gsparse.device import gpu_streams
from gsparse.device.gpu_streams import launch_with_priorities
from tests.conftest import make_device

NODE_PRIORITY = 8  # CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY


class StandInRuntime:
    """CUDA's functions for executable graphs. They remember what was launched and destroyed."""

    is_hip = False

    def __init__(self) -> None:
        self.launched: list[tuple[int, int]] = []
        self.destroyed: list[int] = []

    def graphLaunch(self, handle: int, stream: int) -> None:
        self.launched.append((handle, stream))

    def graphExecDestroy(self, handle: int) -> None:
        self.destroyed.append(handle)


def driver(status: int, handle: int) -> Callable[..., int]:
    """Return a stand-in for the driver's function."""

    def instantiate(result: Any, graph: ctypes.c_void_p, flags: ctypes.c_ulonglong) -> int:
        assert (graph.value, flags.value) == (17, NODE_PRIORITY)
        result._obj.value = handle
        return status

    return instantiate


@pytest.fixture
def cupy() -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(runtime=StandInRuntime()))


def test_an_executable_graph_is_launched_and_destroyed(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_streams, "_instantiate", lambda: driver(0, 23))
    launch = launch_with_priorities(cupy, SimpleNamespace(graph=17))
    launch(SimpleNamespace(ptr=5))
    launch(SimpleNamespace(ptr=6))
    assert cupy.cuda.runtime.launched == [(23, 5), (23, 6)]
    assert cupy.cuda.runtime.destroyed == []
    del launch
    gc.collect()
    assert cupy.cuda.runtime.destroyed == [23]


@pytest.mark.parametrize("reason", ["no driver", "an error", "HIP"])
def test_a_graph_without_priorities_is_launched_by_cupy(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    cupy.cuda.runtime.is_hip = reason == "HIP"
    monkeypatch.setattr(gpu_streams, "_instantiate", lambda: None if reason == "no driver" else driver(801, 0))
    launched: list[Any] = []
    launch = launch_with_priorities(cupy, SimpleNamespace(graph=17, launch=launched.append))
    launch("stream")
    assert launched == ["stream"]


@pytest.mark.gpu
def test_the_driver_makes_executable_graphs_with_priorities() -> None:
    gpu = make_device("gpu")
    if gpu.xp.cuda.runtime.is_hip:
        pytest.skip("HIP captures no graphs through CuPy")
    x = gpu.xp.zeros(1000)
    with gpu.active(), gpu.own_stream():
        stream = gpu.xp.cuda.get_current_stream()
        x += 1  # compiles
        stream.begin_capture()
        x += 1
        launch = launch_with_priorities(gpu.xp, stream.end_capture())
        assert isinstance(launch, gpu_streams._Executable)
        launch(stream)
    assert (gpu.xp.asnumpy(x) == 2).all()
