"""`gsparse.profile()`: the time of a program's operations, as a table by operation, matrix and line."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Self

from gsparse.profiling.recording import RECORDER, Span
from gsparse.profiling.rows import OUTSIDE, Row, Totals, make_rows
from gsparse.writing import replacing

_HEADS = ("operation", "calls", "waiting s", "share", "with inner", "device s", "GB", "GB/s", "copy %")
# The bytes of operations of these kinds pass through the device's memory, so their bandwidth is compared with a copy's.
_IN_MEMORY = ("product", "step", "preconditioner")
_WIDEST = 72


def as_text(rows: Sequence[Row], seconds: float, by: str, most: int, bandwidths: dict[str, float]) -> str:
    """Return the table: the heads, the rows of the thread that opened the profile, the wall-clock time, other threads.

    At most `most` rows are shown for the former thread, and as many for the others; see `_shortened`.
    """
    own = _shortened([row for row in rows if not row.is_other_thread], most)
    others = _shortened([row for row in rows if row.is_other_thread], most)
    lines = [_HEADS, *(_cells(row, seconds, bandwidths) for row in own)]
    lines.append(("wall-clock time", "", f"{seconds:.4f}", "100.0 %", "", "", "", "", ""))
    if others:
        lines.append(("in other threads, at the same time", *[""] * 8))
        lines.extend(_cells(row, seconds, bandwidths) for row in others)
    notes = [f"copy on {name}: {bandwidth / 1e9:.1f} GB/s" for name, bandwidth in bandwidths.items()]
    if any(row.is_estimated for row in rows):
        notes.append("* in CUDA graphs: calls are counted; times are those of one iteration timed alone, scaled")
    return "\n".join([f"profile by {by}", *aligned(lines), *notes])


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return table lines as text. The first cell of each line is aligned to the left, all others to the right."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return [
        "  ".join(
            [f"{line[0]:<{widths[0]}}", *(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    ]


def _shortened(rows: Sequence[Row], most: int) -> list[Row]:
    """Return the first `most` rows, one row that adds up the others, and the row for time outside gsparse."""
    first, rest = list(rows[:most]), list(rows[most:])
    outside = [row for row in rest if row.kind == OUTSIDE]
    rest = [row for row in rest if row.kind != OUTSIDE]
    if rest:
        first.append(
            Row(
                f"{len(rest)} other rows",
                "",
                calls=sum(row.calls for row in rest),
                seconds=sum(row.seconds for row in rest),
                device_seconds=sum(row.device_seconds for row in rest),
                device=next((row.device for row in rest if row.device), ""),
                is_other_thread=rest[0].is_other_thread,
            )
        )
    return first + outside


def _cells(row: Row, seconds: float, bandwidths: dict[str, float]) -> tuple[str, ...]:
    """Return the cells of a row. A cell is empty if its value is not known."""
    is_operation = row.kind != OUTSIDE
    bandwidth = row.bandwidth
    copy = bandwidths.get(row.device) if row.kind in _IN_MEMORY else None
    return (
        _title(row),
        f"{row.calls:,}{'*' if row.is_estimated else ''}" if is_operation else "",
        f"{row.seconds:.4f}",
        f"{100 * row.seconds / seconds:.1f} %" if seconds > 0 and not row.is_other_thread else "",
        f"{row.inclusive_seconds:.4f}" if is_operation and row.inclusive_seconds else "",
        f"{row.device_seconds:.4f}" if row.device else "",
        f"{row.nbytes / 1e9:.3f}" if row.nbytes else "",
        f"{bandwidth / 1e9:.1f}" if bandwidth else "",
        f"{100 * bandwidth / copy:.0f}" if bandwidth and copy else "",
    )


def _title(row: Row) -> str:
    parts = [f"{row.kind}: {row.name}" if row.name else row.kind, row.matrix, row.place]
    title = " | ".join(part for part in parts if part)
    return title if len(title) <= _WIDEST else f"{title[: _WIDEST - 1]}…"


# Number of closed spans after which the profile adds the spans to its totals, so that they take little memory.
_MAX_SPANS = 200_000


class Profile:
    """Records where the time of a program goes, while the profile is open: ``with gsparse.profile() as p``.

    All threads of the process are recorded. The rows of the thread that opened the profile add up to its wall-clock
    time. Other threads work at the same time, and have separate rows. Profiles can be nested: each records the
    operations that begin and end while that profile is open.

    Attributes
    ----------
    begin : float
        What `time.perf_counter` returned when the profile was opened.

    Examples
    --------
    >>> import gsparse, numpy, scipy.sparse
    >>> A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(1000, format="csr"), device="cpu")
    >>> with gsparse.profile() as p:
    ...     for _ in range(3):
    ...         y = A @ numpy.ones(1000)
    >>> [row.calls for row in p.rows() if row.name == "A @ x"]
    [3]
    """

    def __init__(self) -> None:
        self.begin = 0.0
        self._end: float | None = None
        self._thread = 0
        self._spans: list[Span] = []
        self._totals = Totals()
        # Reentrant, because a finalizer may close a span on a thread that holds these locks.
        self._spans_lock, self._totals_lock = threading.RLock(), threading.RLock()

    def __enter__(self) -> Self:
        if self.begin:
            raise RuntimeError("a profile records once: make a new one with gsparse.profile()")
        self._thread = threading.get_ident()
        self.begin = perf_counter()
        RECORDER.add(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._end = perf_counter()
        RECORDER.remove(self)

    def receive(self, span: Span) -> None:
        """Receive a closed span from the recorder.

        Parameters
        ----------
        span : Span
            A span that has ended. The events of its device have not been read yet.
        """
        with self._spans_lock:
            self._spans.append(span)
            are_many = len(self._spans) >= _MAX_SPANS
        if are_many:
            self._add_up()

    def _add_up(self) -> None:
        """Add all received spans to the totals. Synchronizes with the devices."""
        with self._totals_lock:
            with self._spans_lock:
                spans, self._spans = self._spans, []
            for span in spans:
                self._totals.add(span, self.begin)

    # ------------------------------------------------------------------------------------------------------ the figures

    @property
    def seconds(self) -> float:
        """Wall-clock seconds from begin to end, or until now if the profile is open; 0 if it was never opened."""
        if not self.begin:
            return 0.0
        return (perf_counter() if self._end is None else self._end) - self.begin

    def rows(self, by: str = "operation") -> list[Row]:
        """Return the recorded operations, the largest row first. Synchronizes with the devices.

        Parameters
        ----------
        by : {"operation", "matrix", "line"}
            Whether there is a row for each operation, for each operation and matrix, or for each operation and line of
            the program.

        Returns
        -------
        list of Row
            All rows are operations, except one of the kind "outside gsparse".

        Raises
        ------
        ValueError
            If `by` is none of these.
        """
        if by not in ("operation", "matrix", "line"):
            raise ValueError(f"by must be 'operation', 'matrix' or 'line', got {by!r}")
        seconds = self.seconds
        self._add_up()
        return make_rows(self._totals, by, self._thread, seconds)

    def table(self, by: str = "operation", most: int = 30) -> str:
        """Return the rows as text.

        Parameters
        ----------
        by : {"operation", "matrix", "line"}
            As for `rows`.
        most : int
            Number of rows to show. One more row adds up the remaining rows. The time outside gsparse always has a row.

        Returns
        -------
        str
            The table, with a line for each row.
        """
        rows, seconds = self.rows(by), self.seconds
        return as_text(rows, seconds, by, most, self._totals.bandwidths())

    def __str__(self) -> str:
        return self.table()

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """Return the rows by operation, by matrix and by line as JSON, and write them to a file if `path` is not None.

        Synchronizes with the devices.

        Parameters
        ----------
        path : path-like, optional
            The file to write. An existing file is replaced.

        Returns
        -------
        str
            A JSON object with the keys "seconds", "copy_bandwidths", "by_operation", "by_matrix" and "by_line". Times
            are in seconds, and bandwidths in bytes per second.
        """
        tables = {f"by_{by}": [asdict(row) for row in self.rows(by)] for by in ("operation", "matrix", "line")}
        figures = {"seconds": self.seconds, "copy_bandwidths": self._totals.bandwidths()}
        text = json.dumps(figures | tables, indent=1)
        if path is not None:
            with replacing(Path(path)) as new:
                new.write(text.encode())
        return text


def profile() -> Profile:
    """Return a profile, which records the operations of gsparse while it is open.

    An open profile costs a few microseconds per operation. Without an open profile, an operation costs some ten
    nanoseconds more than without this hook. Each operation is recorded with the line of the program that called it. On
    a GPU, events measure the time. The profile waits for the device only after every 200,000 operations and when it is
    evaluated.

    Returns
    -------
    Profile
        A context manager. After the block, ``print(p)`` shows a table.

    Examples
    --------
    >>> import gsparse, gsparse.linalg, numpy, scipy.sparse
    >>> S = scipy.sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(100, 100), format="csr")
    >>> with gsparse.profile() as p:
    ...     x, info = gsparse.linalg.cg(gsparse.GpuSparseMatrix(S, device="cpu"), numpy.ones(100))
    >>> "cg: update" in str(p)
    True
    """
    return Profile()
