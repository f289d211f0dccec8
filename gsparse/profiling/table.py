"""The table of a profile, as text."""

from __future__ import annotations

from collections.abc import Sequence

from gsparse.profiling.rows import OUTSIDE, Row

_HEADS = ("operation", "calls", "waiting s", "share", "with inner", "device s", "GB", "GB/s", "copy %")
# What the rows of these kinds move passes through the memory of the device, so they can be compared with a copy there.
_IN_MEMORY = ("product", "step", "preconditioner")
_WIDEST = 72


def as_text(rows: Sequence[Row], seconds: float, by: str, most: int, bandwidths: dict[str, float]) -> str:
    """Return the table with a head, the rows of the profile's own thread, their sum, and those of other threads."""
    own = _shortened([row for row in rows if not row.is_other_thread], most)
    others = _shortened([row for row in rows if row.is_other_thread], most)
    lines = [_HEADS, *(_cells(row, seconds, bandwidths) for row in own)]
    lines.append(("wall-clock time", "", f"{seconds:.4f}", "100.0 %", "", "", "", "", ""))
    if others:
        lines.append(("in other threads, at the same time", *[""] * 8))
        lines.extend(_cells(row, seconds, bandwidths) for row in others)
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADS))]
    text = [f"{line[0]:<{widths[0]}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(line[1:], widths[1:], strict=True))
            for line in lines]  # fmt: skip
    notes = [f"copy on {name}: {bandwidth / 1e9:.1f} GB/s" for name, bandwidth in bandwidths.items()]
    if any(row.is_estimated for row in rows):
        notes.append("* in CUDA graphs: calls are counted; times are those of one iteration timed alone, scaled")
    return "\n".join(line.rstrip() for line in [f"profile by {by}", *text, *notes])


def _shortened(rows: Sequence[Row], most: int) -> list[Row]:
    """Return the first rows, one that adds up the others, and always the one for the time outside of gsparse."""
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
    """Return the cells of a row. What is not known is empty."""
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
