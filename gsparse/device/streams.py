"""The work of a device: its streams, waiting, timing and graphs of launches."""

from __future__ import annotations

import statistics
import threading
import time
from abc import ABC
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

# Number of timings that `Streams.timings_of` returns.
NUM_TIMINGS = 5

# A context manager that does nothing.
NO_CONTEXT = nullcontext()

# The names of copies in profiles.
TO_DEVICE, TO_HOST = "host to device", "device to host"


class Streams(ABC):  # noqa: B024  (a part of `Device`, which is abstract)
    """The streams of a device. The methods of this class are for the host, whose work is done when a call returns.

    Attributes
    ----------
    has_events : bool
        Whether the device has events, which record when it reaches a point in a stream.
    """

    has_events: bool = False

    def synchronize(self) -> None:
        """Wait for the work on the caller's current stream. On the host there is nothing to wait for."""
        return

    def timed(self, call: Callable[[], None]) -> Callable[[], float | None]:
        """Make a call. Return a function that returns the seconds the call took, or None until they are known."""
        begin = time.perf_counter()
        call()
        seconds = time.perf_counter() - begin
        return lambda: seconds

    def timings_of(self, call: Callable[[], None]) -> list[float]:
        """Return `NUM_TIMINGS` timings, in seconds, of the device's work for one call. Synchronizes.

        A GPU captures the calls in a CUDA graph, so `call` must not wait for the device.
        """
        call()
        return [self.timed(call)() or 0.0 for _ in range(NUM_TIMINGS)]

    def seconds_of(self, call: Callable[[], None]) -> float:
        """Return the seconds of the device's work for one call: the median of several timings. Synchronizes."""
        return statistics.median(self.timings_of(call))

    def record_event(self) -> Any:
        """Record an event on the current stream for `seconds_between`, and return it.

        Return None if the device has no events, or if the stream captures a graph.
        """
        return None

    def seconds_between(self, begin: Any, end: Any) -> float:
        """Return the seconds between two events. Synchronizes."""
        raise NotImplementedError("this device has no events")

    def release_event(self, event: Any) -> None:
        """Keep an event, which is no longer needed, for a later call of `record_event`."""
        return

    def is_capturing(self) -> bool:
        """Return whether the current stream captures launches in a CUDA graph instead of running them."""
        return False

    def stream_key(self) -> Hashable:
        """Return a key of the current stream. Work with the same key runs in the order in which it was launched."""
        return threading.get_ident()

    def outside_capture(self) -> AbstractContextManager[Any]:
        """Run the work of the block immediately, even while the caller's stream captures a graph. Synchronizes."""
        return NO_CONTEXT

    def own_stream(self) -> AbstractContextManager[Any]:
        """Queue the work of the block on another stream, after earlier and before later work of the caller's stream.

        During the block, no other thread uses that stream.
        """
        return NO_CONTEXT

    def alongside(self, call: Callable[[], None]) -> Callable[[], None]:
        """Queue the work of `call` on a second stream, after earlier work of the caller's stream.

        The second stream belongs to the calling thread. The returned function makes later work of the caller's stream
        wait for the work of `call`; it does not block the host. Call it before the next call of this method.
        """
        call()
        return lambda: None

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats the launches of `call`. On a GPU, it launches a CUDA graph of them."""
        return call
