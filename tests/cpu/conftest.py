"""All calls of kernels run as later calls do, on a number of threads that is restored."""

from __future__ import annotations

from typing import Any

import pytest

from gsparse.device import threads
from gsparse.kernels.cpu.compiling import HandOut


@pytest.fixture(autouse=True)
def _restored_threads() -> Any:
    num_threads = threads.get_num_threads()
    yield
    threads.set_num_threads(num_threads)


@pytest.fixture(autouse=True)
def every_kernel_has_been_called_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all calls run as later calls do. The tests of other folders mostly run first calls."""
    monkeypatch.setattr(HandOut, "num_first", 0)
