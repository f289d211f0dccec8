"""The seconds that each phase of a set-up takes, measured without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gsparse.device.base import Device
from gsparse.device.compilation import COMPILE_NOTICE

_Result = TypeVar("_Result")


class Phases:
    """Measures named phases, each of which may run several times.

    Parameters
    ----------
    device : Device
        The device on which the phases queue their work. It must be the active one.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._compilations = device, COMPILE_NOTICE.compilations
        self._readers: list[tuple[str, Callable[[], float | None]]] = []

    def run(self, name: str, function: Callable[..., _Result], *args: Any, **options: Any) -> _Result:
        """Return ``function(*args, **options)``, and count its time to a phase."""
        results: list[_Result] = []
        self._readers.append((name, self._device.timed(lambda: results.append(function(*args, **options)))))
        return results[0]

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase, in the order in which they first ran. Call it when the device is idle."""
        seconds: dict[str, float] = {}
        for name, read in self._readers:
            seconds[name] = seconds.get(name, 0.0) + (read() or 0.0)
        return seconds

    def line(self, seconds: dict[str, float]) -> str:
        """Return the milliseconds of phases as text, with a remark if kernels were compiled since the set-up began."""
        times = ", ".join(f"{name} {1e3 * time:.3g}" for name, time in seconds.items())
        is_first = COMPILE_NOTICE.compilations > self._compilations
        return f"{times}; compiling kernels included" if is_first else times
