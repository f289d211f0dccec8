"""The hook of the profile: functions and decorators by which other subpackages record their operations."""

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

# The identity of a span's matrix: its name or None, shape, number of entries, dtype and format.
MatrixLabel = tuple[Any, ...]


class TimedDevice(Protocol):
    """The attributes and methods that spans use of a device."""

    name: str
    has_events: bool

    @property
    def copy_bandwidth(self) -> float: ...

    def record_event(self) -> Any: ...

    def seconds_between(self, begin: Any, end: Any) -> float: ...

    def release_event(self, event: Any) -> None: ...


class SpanReceiver(Protocol):
    """An object that receives closed spans, such as a profile."""

    begin: float

    def receive(self, span: Span) -> None: ...


class _ThreadState(threading.local):
    """The open spans of a thread, and the number of its open `paused` blocks."""

    def __init__(self) -> None:
        self.stack: list[Span] = []
        self.num_pauses = 0
        self.stack_and_thread = self.stack, threading.get_ident()


_STATE = _ThreadState()


class Span:
    """One operation on one thread, from its begin to its end; a context manager.

    Parameters
    ----------
    kind, name : str
        The row of the table to which the operation belongs.
    device : TimedDevice, optional
        The device that works during the span; None if only the host works.
    matrix : MatrixLabel, optional
    nbytes : int
        Bytes that the device reads and writes, or that are copied; 0 if this is not known.

    Attributes
    ----------
    parent : Span or None
        The span inside which this span was opened.
    place : Place or None
        The line of the user's program that called gsparse. It is the same for all spans inside one call.
    begin, end : float
        Times of `time.perf_counter`.
    inner_seconds : float
        Seconds of all spans that were opened inside this span.
    device_seconds : float or None
        Seconds on the device from the start of the span's first work to the end of its last; None until they are known.
    iteration : Span or None
        For the launch of a CUDA graph: the span of an iteration that ran without a graph, with a span for each step.
    repeats : int
        For the launch of a CUDA graph: the number of iterations in the graph.
    iterations : int
        For a solver: the number of iterations that it took.
    children : list of Span or None
        For an iteration that ran without a graph: the spans of its steps.
    """

    # These defaults are attributes of the class, because most spans change few of them. This makes new spans fast.
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
        while stack and stack.pop() is not self:  # An inner span was left open by an error.
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
        """Seconds from begin to end, for which the caller waited."""
        return self.end - self.begin

    @property
    def own_seconds(self) -> float:
        """Seconds for which the caller waited, minus the seconds of spans inside this span."""
        return self.end - self.begin - self.inner_seconds


class Recorder:
    """Passes closed spans on to all open profiles. Each process has one recorder."""

    def __init__(self) -> None:
        self._receivers: tuple[SpanReceiver, ...] = ()
        self._lock = threading.Lock()

    def add(self, receiver: SpanReceiver) -> None:
        """Begin to pass spans on to another profile."""
        with self._lock:
            self._receivers = (*self._receivers, receiver)
            _find_nvtx()
            _set_recorder(self)

    def remove(self, receiver: SpanReceiver) -> None:
        """Stop passing spans on to a profile."""
        with self._lock:
            self._receivers = tuple(other for other in self._receivers if other is not receiver)
            if not self._receivers:
                _set_recorder(None)

    def distribute(self, closed: Span) -> None:
        """Pass a closed span on to the profiles that were open when the span began."""
        for receiver in self._receivers:
            if closed.begin >= receiver.begin:
                receiver.receive(closed)


# The recorder while a profile is open, else None. Hooks must read it as ``recording.recorder`` each time.
recorder: Recorder | None = None
# The only recorder of this process.
RECORDER = Recorder()


def _set_recorder(current: Recorder | None) -> None:
    global recorder  # noqa: PLW0603  (the global variable is what makes the test of a hook cheap)
    recorder = current


# The functions that open and close an NVTX range, which NVIDIA's tools show; None if the package nvtx is missing.
_push_range: Callable[[str], Any] | None = None
_pop_range: Callable[[], Any] | None = None


def _find_nvtx() -> None:
    global _push_range, _pop_range
    if _push_range is None and find_spec("nvtx") is not None:
        nvtx = import_module("nvtx")
        _push_range, _pop_range = nvtx.push_range, nvtx.pop_range


# ----------------------------------------------------------------------------------------- what instrumented code calls


def span(
    kind: str,
    name: str,
    device: TimedDevice | None = None,
    matrix: MatrixLabel | None = None,
    nbytes: int = 0,
) -> Any:
    """Return a context manager that records its block, unless recording is paused on this thread.

    The parameters are those of `Span`. Call this only while a profile is open.
    """
    return _NO_CONTEXT if _STATE.num_pauses else Span(kind, name, device, matrix, nbytes)


class _Guarded:
    """A context manager that enters a span and, inside it, another context manager."""

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
    """Return a context manager that enters `guard`, and records its block under the name of the function around it.

    Parameters
    ----------
    device : TimedDevice
    guard : context manager
        The context manager that is entered inside the span.
    """
    kind, name = name_of_block(sys._getframe(2))
    return _Guarded(span(kind, name, device), guard) if name else guard


def timed(call: Function, kind: str, name: str, *details: Any) -> Function:
    """Return a function that makes `call`, and if a profile is open, records a `span` with the other arguments."""

    def recorded_each_time(*args: Any) -> Any:
        if recorder is None:
            return call(*args)
        with span(kind, name, *details):
            return call(*args)

    return cast(Function, recorded_each_time)


def timed_graph(launch: Callable[[], None], iteration: Span, repeats: int) -> Callable[[], None]:
    """Return a function that launches a CUDA graph of several iterations, and records the launch.

    Parameters
    ----------
    launch : callable
    iteration : Span
        An iteration that ran without a graph and whose steps were recorded.
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
    """Record nothing on this thread within the block, whose calls are captured in a CUDA graph and do not run yet."""
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
    """Close the innermost open span of this thread if its kind is `kind`."""
    stack = _STATE.stack
    if stack and stack[-1].kind == kind:
        stack[-1].__exit__()


def note_solve(iterations: int) -> None:
    """Add a number of iterations to the innermost open span of a solver on this thread."""
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
    """Return a decorator that records calls of a function on the host, such as an operation that SciPy computes.

    Each field of `name`, such as ``{0}``, is replaced by the positional argument of this number.
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
