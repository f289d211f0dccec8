"""The hook of the profile: what other subpackages call or decorate, in order to have an operation recorded."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Protocol, TypeVar, cast

from gsparse.profiling.names import Place, name_of_block, place_of_caller

Function = TypeVar("Function", bound=Callable[..., Any])

_NO_CONTEXT = nullcontext()

# What identifies the matrix of a span: its name or None, shape, number of entries, dtype and format.
MatrixLabel = tuple[Any, ...]


class TimedDevice(Protocol):
    """What a span needs of a device."""

    name: str
    has_events: bool

    @property
    def copy_bandwidth(self) -> float: ...

    def record_event(self) -> Any: ...

    def seconds_between(self, begin: Any, end: Any) -> float: ...

    def release_event(self, event: Any) -> None: ...


class SpanReceiver(Protocol):
    """What receives closed spans: a profile."""

    begin: float

    def receive(self, span: Span) -> None: ...


class _ThreadState(threading.local):
    """The open spans of a thread, and how often its recording is paused."""

    def __init__(self) -> None:
        self.stack: list[Span] = []
        self.num_pauses = 0
        self.stack_and_thread = self.stack, threading.get_ident()


_STATE = _ThreadState()


class Span:
    """One operation of one thread, from its begin to its end; a context manager.

    Parameters
    ----------
    kind, name : str
        The row of the table to which the operation belongs.
    device : TimedDevice, optional
        The device that works meanwhile; None if the host does.
    matrix : MatrixLabel, optional
    nbytes : int
        Bytes that the device reads and writes, or that are copied; 0 if this is not known.

    Attributes
    ----------
    parent : Span or None
        The span inside which this one was opened.
    place : Place or None
        The line of the user's code that called, the same for all spans inside of one call.
    begin, end : float
        Times of `time.perf_counter`.
    inner_seconds : float
        Seconds of the spans that were opened inside of this one.
    device_seconds : float or None
        Seconds on the device from the first to the last work of the span; None until it is known.
    iteration : Span or None
        For the launch of a CUDA graph: the span of one iteration that was timed alone, with a span for each step.
    repeats : int
        For the launch of a CUDA graph: the number of iterations in the graph.
    iterations : int
        For a solver: the iterations that it needed.
    children : list of Span or None
        The spans inside of an iteration that is timed alone.
    """

    # Defaults as attributes of the class: most spans change few of them, so a span is made quickly.
    parent: Span | None = None
    place: Place | None = None
    inner_seconds = 0.0
    iteration: Span | None = None
    repeats = 0
    iterations = 0
    children: list[Span] | None = None
    events: Any = None
    device_seconds: float | None = None
    begin: float
    end: float
    thread: int

    def __init__(
        self,
        kind: str,
        name: str,
        device: TimedDevice | None = None,
        matrix: MatrixLabel | None = None,
        nbytes: int = 0,
    ) -> None:
        self.kind, self.name, self.device, self.matrix, self.nbytes = kind, name, device, matrix, nbytes

    def __enter__(self) -> Span:
        stack, self.thread = _STATE.stack_and_thread
        if stack:
            self.parent = parent = stack[-1]
            self.place = parent.place
        else:
            self.place = place_of_caller(sys._getframe(1))
        stack.append(self)
        if _push_range is not None:
            _push_range(f"{self.kind}: {self.name}")
        device = self.device
        if device is not None and device.has_events:
            self.events = device.record_event(), None
        self.begin = perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.end = perf_counter()
        if self.events is not None:
            self.events = self.events[0], cast(TimedDevice, self.device).record_event()
        if _pop_range is not None:
            _pop_range()
        stack = _STATE.stack
        while stack and stack.pop() is not self:  # A span inside was left open, by an error that nobody caught there.
            pass
        parent = self.parent
        if parent is not None:
            parent.inner_seconds += self.end - self.begin
            if parent.children is not None:
                parent.children.append(self)
        current = recorder
        if current is not None:
            current.distribute(self)

    @property
    def seconds(self) -> float:
        """Seconds from the begin to the end, for which the caller waited."""
        return self.end - self.begin

    @property
    def own_seconds(self) -> float:
        """Seconds for which the caller waited, without the spans inside of this one."""
        return self.end - self.begin - self.inner_seconds


class Recorder:
    """Hands closed spans to all open profiles. There is one in each process."""

    def __init__(self) -> None:
        self._receivers: tuple[SpanReceiver, ...] = ()
        self._lock = threading.Lock()

    def add(self, receiver: SpanReceiver) -> None:
        """Begin to record for one more profile."""
        with self._lock:
            self._receivers = (*self._receivers, receiver)
            _find_nvtx()
            _set_recorder(self)

    def remove(self, receiver: SpanReceiver) -> None:
        """Stop to record for a profile."""
        with self._lock:
            self._receivers = tuple(other for other in self._receivers if other is not receiver)
            if not self._receivers:
                _set_recorder(None)

    def distribute(self, closed: Span) -> None:
        """Hand a closed span to the profiles that have been open since it began."""
        for receiver in self._receivers:
            if closed.begin >= receiver.begin:
                receiver.receive(closed)


# The recorder while a profile is open, else None. Hooks read it as ``recording.recorder``.
recorder: Recorder | None = None
# The only recorder of the process.
RECORDER = Recorder()


def _set_recorder(current: Recorder | None) -> None:
    global recorder  # noqa: PLW0603  (the global variable is what makes the test of a hook cheap)
    recorder = current


# The functions that open and close an NVTX range, which NVIDIA's tools show; None if the package nvtx is not installed.
_push_range: Callable[[str], Any] | None = None
_pop_range: Callable[[], Any] | None = None


def _find_nvtx() -> None:
    global _push_range, _pop_range
    if _push_range is None and find_spec("nvtx") is not None:
        nvtx = import_module("nvtx")
        _push_range, _pop_range = nvtx.push_range, nvtx.pop_range


# ---------------------------------------------------------------------------------------- what hooks of operations call


def span(
    kind: str,
    name: str,
    device: TimedDevice | None = None,
    matrix: MatrixLabel | None = None,
    nbytes: int = 0,
) -> Any:
    """Return a context manager that records its block, or does nothing while the thread's recording is paused.

    The parameters are those of `Span`. Call it while a profile is open.
    """
    return _NO_CONTEXT if _STATE.num_pauses else Span(kind, name, device, matrix, nbytes)


class _Guarded:
    """A span around another context manager."""

    __slots__ = ("_guard", "_span")

    def __init__(self, span: Any, guard: Any) -> None:
        self._span, self._guard = span, guard

    def __enter__(self) -> Any:
        self._span.__enter__()
        return self._guard.__enter__()

    def __exit__(self, *error: Any) -> Any:
        try:
            return self._guard.__exit__(*error)
        finally:
            self._span.__exit__(*error)


def block(device: TimedDevice, guard: Any) -> Any:
    """Record a block that works on a device, under the name of the function that contains it.

    Parameters
    ----------
    device : TimedDevice
    guard : context manager
        It is entered inside of the span.
    """
    kind, name = name_of_block(sys._getframe(2))
    return _Guarded(span(kind, name, device), guard) if name else guard


def timed(call: Function, kind: str, name: str, *details: Any) -> Function:
    """Return a call that is recorded each time, as `span` does, for as long as a profile is open."""

    def recorded_each_time(*args: Any) -> Any:
        if recorder is None:
            return call(*args)
        with span(kind, name, *details):
            return call(*args)

    return cast(Function, recorded_each_time)


def timed_graph(launch: Callable[[], None], iteration: Span, repeats: int) -> Callable[[], None]:
    """Return the launch of a CUDA graph of several iterations, recorded each time.

    Parameters
    ----------
    launch : callable
    iteration : Span
        One iteration, whose steps were recorded when it ran without a graph.
    repeats : int
        The number of iterations in the graph.
    """

    def recorded_launch() -> None:
        if recorder is None or _STATE.num_pauses:
            return launch()
        launched = Span("solver", f"{iteration.name} in CUDA graphs", iteration.device)
        launched.iteration, launched.repeats = iteration, repeats
        with launched, paused():
            launch()

    return recorded_launch


@contextmanager
def paused() -> Iterator[None]:
    """Record nothing on this thread within the block, because its calls are captured in a CUDA graph."""
    _STATE.num_pauses += 1
    try:
        yield
    finally:
        _STATE.num_pauses -= 1


def begin(kind: str, name: str) -> None:
    """Open a span that `end` closes, for code that cannot use a ``with`` block."""
    if not _STATE.num_pauses:
        Span(kind, name).__enter__()


def end(kind: str) -> None:
    """Close the innermost span of this thread if it is of this kind."""
    stack = _STATE.stack
    if stack and stack[-1].kind == kind:
        stack[-1].__exit__()


def note_solve(iterations: int) -> None:
    """Enter how a solve went into the innermost open span of a solver."""
    solver = next((each for each in reversed(_STATE.stack) if each.kind == "solver"), None)
    if solver is not None:
        solver.iterations += iterations


def recorded_copy(name: str) -> Callable[[Function], Function]:
    """Return a decorator for methods of a device, ``method(self, array)``, that copy an array."""

    def decorate(method: Function) -> Function:
        @wraps(method)
        def copy(self: Any, array: Any) -> Any:
            if recorder is None:
                return method(self, array)
            with span("copy", name, self, None, int(array.nbytes)):
                return method(self, array)

        return cast(Function, copy)

    return decorate


def recorded_call(kind: str, name: str) -> Callable[[Function], Function]:
    """Return a decorator for functions of the host, such as operations that SciPy computes.

    Fields of `name`, such as ``{0}``, are replaced by positional arguments of the call.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if recorder is None:
                return function(*args, **options)
            with span(kind, name.format(*args)):
                return function(*args, **options)

        return cast(Function, call)

    return decorate
