"""The rows of a profile: sums of its spans, by operation, by matrix or by line of the program."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gsparse.profiling.names import text_of_place
from gsparse.profiling.recording import MatrixLabel, Span, TimedDevice

# The kind of the row for the time in which no operation of gsparse ran.
OUTSIDE = "outside gsparse"

# Kind, name, matrix, calling line and thread of a span.
_Key = tuple[str, str, Any, Any, int]


@dataclass(frozen=True)
class Row:
    """A row of a profile's table.

    Attributes
    ----------
    kind, name : str
        The operation.
    matrix : str
        The matrix's name, or its shape, number of entries, dtype and format; empty if rows are not by matrix.
    place : str
        The file and line of the program that called gsparse, such as "heat.py:31"; empty if rows are not by line.
    is_other_thread : bool
        Whether the operation ran on another thread than the thread that opened the profile.
    calls : int
        Number of calls.
    seconds : float
        Seconds for which the caller waited, without inner operations, which have their own rows. The rows of the thread
        that opened the profile add up to the wall-clock time of the profile.
    inclusive_seconds : float
        Seconds for which the caller waited, including inner operations.
    device_seconds : float
        Seconds on the device from the start of the operation's first work to the end of its last, without inner
        operations.
    nbytes : int
        Bytes that were read, written or copied; 0 if their number is not known.
    device : str
        The name of the device; empty if only the host worked.
    iterations : int
        Iterations of solvers.
    is_estimated : bool
        Whether the operation was part of CUDA graphs. Its time is then estimated from an iteration that was timed
        without a graph: it gets the same share of the graphs' time.
    """

    kind: str
    name: str
    matrix: str = ""
    place: str = ""
    is_other_thread: bool = False
    calls: int = 0
    seconds: float = 0.0
    inclusive_seconds: float = 0.0
    device_seconds: float = 0.0
    nbytes: int = 0
    device: str = ""
    iterations: int = 0
    is_estimated: bool = False

    @property
    def bandwidth(self) -> float | None:
        """Bytes divided by the seconds on the device, or None if one of the two is not known."""
        return self.nbytes / self.device_seconds if self.nbytes and self.device_seconds > 0 else None


@dataclass
class _Total:
    """The sum of all spans with one key. `Row` describes the attributes."""

    calls: int = 0
    seconds: float = 0.0
    inclusive_seconds: float = 0.0
    device_seconds: float = 0.0
    nbytes: int = 0
    device: str = ""
    iterations: int = 0


@dataclass
class _Graphs:
    """All launches of CUDA graphs of one iteration. The iteration's steps were timed without a graph."""

    iteration: Span
    iterations: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0


@dataclass
class Totals:
    """Sums of spans, by kind, name, matrix, calling line and thread."""

    by_key: dict[_Key, _Total] = field(default_factory=dict)
    graphs: dict[tuple[_Key, int], _Graphs] = field(default_factory=dict)
    devices: dict[str, TimedDevice] = field(default_factory=dict)

    def add(self, span: Span, begin: float) -> None:
        """Add a closed span to the totals.

        Parameters
        ----------
        begin : float
            The time when the profile began. Spans that began earlier do not belong to the profile.
        """
        key = _key_of(span)
        total = self.by_key.setdefault(key, _Total())
        total.calls += 1
        total.seconds += span.own_seconds
        total.nbytes += span.nbytes
        total.iterations += span.iterations
        around = list(_spans_around(span, begin))
        # An outer span of the same row already contains this span's seconds.
        if not any((other.kind, other.name) == (span.kind, span.name) for other in around):
            total.inclusive_seconds += span.seconds
        if span.device is not None:
            total.device = span.device.name
            self.devices[span.device.name] = span.device
        seconds = self._resolve(span)
        total.device_seconds += seconds
        # The nearest outer span that events measured contains this span's seconds on the device.
        measured = [other for other in around if other.events is not None and other.device is span.device]
        if measured:
            self.by_key.setdefault(_key_of(measured[0]), _Total()).device_seconds -= seconds
        if span.iteration is not None:
            graphs = self.graphs.setdefault((key, id(span.iteration)), _Graphs(span.iteration))
            graphs.iterations += span.repeats
            graphs.seconds += span.own_seconds
            graphs.device_seconds += seconds

    def _resolve(self, span: Span) -> float:
        """Return the span's seconds on the device. The first call for a span waits for the device."""
        if span.device_seconds is not None:
            return span.device_seconds
        seconds, device = 0.0, span.device
        if device is not None:
            first, last = span.events or (None, None)
            if first is not None and last is not None:
                seconds = device.seconds_between(first, last)
                device.release_event(first)
                device.release_event(last)
            elif not device.has_events:  # The device works only while the caller waits.
                seconds = span.own_seconds
        span.device_seconds = seconds
        return seconds

    def bandwidths(self) -> dict[str, float]:
        """Return the bandwidth of a large copy on each device, in bytes per second. Each device is measured once."""
        bandwidths = {}
        for name, device in self.devices.items():
            try:
                bandwidths[name] = float(device.copy_bandwidth)
            except MemoryError:  # The program has filled the device's memory, so the copy cannot be measured.
                continue
        return bandwidths


def _key_of(span: Span) -> _Key:
    return span.kind, span.name, span.matrix, span.place, span.thread


def _spans_around(span: Span, begin: float) -> Iterator[Span]:
    """Yield the spans around a span, the innermost first, but only those that began at `begin` or later."""
    parent = span.parent
    while parent is not None and parent.begin >= begin:
        yield parent
        parent = parent.parent


def _text_of_matrix(label: MatrixLabel | None) -> str:
    """Return the text for a matrix: its name, or else its shape, entries and dtype; then its format."""
    if label is None:
        return ""
    name, shape, entries, dtype, format = label
    described = name or f"{' x '.join(f'{n:,}' for n in shape)}, {entries:,} entries of {dtype}"
    return f"{described}, {format}"


def make_rows(totals: Totals, by: str, thread: int, wall_seconds: float) -> list[Row]:
    """Return the rows of a profile, sorted by seconds in descending order.

    Parameters
    ----------
    totals : Totals
    by : {"operation", "matrix", "line"}
    thread : int
        The thread that opened the profile.
    wall_seconds : float
        The wall-clock seconds of the profile.
    """
    rows: dict[Hashable, Row] = {}
    for key, total in totals.by_key.items():
        _enter(rows, _row_of(key, total, by, thread))
    for (key, _), graphs in totals.graphs.items():
        for row in _divided(graphs, _row_of(key, _Total(), by, thread), by, thread):
            _enter(rows, row)
    recorded = sum(row.seconds for row in rows.values() if not row.is_other_thread)
    outside = Row(OUTSIDE, "", calls=1, seconds=max(wall_seconds - recorded, 0.0))
    outside = replace(outside, inclusive_seconds=outside.seconds)
    return sorted([*rows.values(), outside], key=lambda row: -max(row.seconds, row.device_seconds))


def _row_of(key: _Key, total: _Total, by: str, thread: int) -> Row:
    kind, name, matrix, place, own_thread = key
    return Row(
        kind,
        name,
        _text_of_matrix(matrix) if by == "matrix" else "",
        text_of_place(place) if by == "line" else "",
        own_thread != thread,
        **vars(total),
    )


def _enter(rows: dict[Hashable, Row], row: Row) -> None:
    """Enter a row into `rows`. If the same operation has a row there, replace it by the sum of both."""
    key = row.kind, row.name, row.matrix, row.place, row.is_other_thread
    old = rows.get(key)
    if old is not None:
        numbers: Callable[[str], Any] = lambda name: getattr(old, name) + getattr(row, name)  # noqa: E731
        names = "calls", "seconds", "inclusive_seconds", "device_seconds", "nbytes", "iterations"
        row = replace(
            old,
            device=old.device or row.device,
            is_estimated=old.is_estimated or row.is_estimated,
            **{name: numbers(name) for name in names},
        )
    rows[key] = row


def _divided(graphs: _Graphs, graph_row: Row, by: str, thread: int) -> list[Row]:
    """Divide the time of CUDA graphs among their steps, in proportion to the steps' times in `graphs.iteration`.

    Returns
    -------
    list of Row
        One row for each step, and a row that subtracts their times from `graph_row`, which then holds launches only.
    """
    steps = [span for span in graphs.iteration.children or [] if span.device_seconds]
    total = sum(span.device_seconds or 0.0 for span in steps)
    if not total:
        return []
    rows = []
    for span in steps:
        share = (span.device_seconds or 0.0) / total
        part = _Total(
            calls=graphs.iterations,
            seconds=share * graphs.seconds,
            inclusive_seconds=share * graphs.seconds,
            device_seconds=share * graphs.device_seconds,
            nbytes=graphs.iterations * span.nbytes,
            device=span.device.name if span.device is not None else "",
        )
        key = span.kind, span.name, span.matrix, graphs.iteration.place, graphs.iteration.thread
        rows.append(replace(_row_of(key, part, by, thread), is_estimated=True))
    taken = replace(graph_row, seconds=-graphs.seconds, device_seconds=-graphs.device_seconds)
    return [*rows, taken]
