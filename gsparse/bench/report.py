"""The text of a run: a table for each matrix; then means, worst cases and the quality of the plan's choices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gsparse.bench.records import Record, Run, by_matrix, geometric_mean

# The classes of matrices for which means are computed: name, smallest and largest number of nonzeros.
SIZE_CLASSES = (
    ("from 1e6 nonzeros", 1_000_000, math.inf),
    ("1e5 to 1e6 nonzeros", 100_000, 1_000_000),
    ("below 1e5 nonzeros", 0, 100_000),
)

# A time of at most this factor times the best time counts as best, because repeated measurements differ by as much.
NEAR_BEST = 1.05


@dataclass(frozen=True)
class RatioSummary:
    """The geometric mean of ratios, the smallest and the largest of them, and their number."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f}, {self.count} figures)"


def summarize_ratios(values: Iterable[float]) -> RatioSummary | None:
    """Return the summary of ratios, or None if there are none."""
    ratios = list(values)
    mean = geometric_mean(ratios)
    return None if mean is None else RatioSummary(mean, min(ratios), max(ratios), len(ratios))


def _speedups_over(records: Sequence[Record], prefix: str) -> list[tuple[Record, float]]:
    """Return each record of the plan, with the library's time per eager call divided by the plan's.

    The library is the first peer whose name begins with `prefix`.
    """
    speedups = []
    for rows in by_matrix(records).values():
        library_us = next((r.call_us for r in rows if r.what.startswith(prefix) and r.call_us), None)
        speedups += [(r, library_us / r.call_us) for r in rows if r.kind == "plan" and r.call_us and library_us]
    return speedups


def summary_lines(records: Sequence[Record]) -> list[str]:
    """Return the summary of a run as lines of text."""
    plans = [r for r in records if r.kind == "plan" and r.speedup]
    lines = []
    for name, least, most in SIZE_CLASSES:
        inside = [r for r in plans if least <= r.nnz < most]
        for reference in sorted({r.reference for r in inside}):
            over = summarize_ratios(r.speedup or 1.0 for r in inside if r.reference == reference)
            lines.append(f"{name}: the plan's speed over {reference}: {over}")
        calls = summarize_ratios(ratio for r, ratio in _speedups_over(records, "CuPy") if least <= r.nnz < most)
        if calls is not None:
            lines.append(f"{name}: the speed of a call over CuPy's: {calls}")
    if plans:
        worst = min(plans, key=lambda r: r.speedup or math.inf)
        chosen = f", as {worst.format}" if worst.format else ""
        lines.append(f"worst: {worst.speedup:.2f} of {worst.reference} on {worst.matrix}{chosen}")
    lines += _column_lines(records)
    return lines + _setup_lines(records) + _choice_lines(records) + _failure_lines(records)


def _column_lines(records: Sequence[Record]) -> list[str]:
    """Report, by number of columns and dtype, the plan's speed-up over the reference, and a call's over CuPy's call."""
    lines = []
    for columns, dtype in sorted({(r.columns, r.dtype) for r in records if r.columns is not None}):
        inside = [r for r in records if (r.columns, r.dtype) == (columns, dtype)]
        over = summarize_ratios(r.speedup for r in inside if r.kind == "plan" and r.speedup)
        calls = summarize_ratios(ratio for _, ratio in _speedups_over(inside, "CuPy"))
        if over is not None:
            reference = next(r.reference for r in inside if r.reference)
            lines.append(f"{columns} columns, {dtype}: the plan's speed over {reference}: {over}")
        if calls is not None:
            lines.append(f"{columns} columns, {dtype}: the speed of a call over CuPy's: {calls}")
    return lines


def _setup_lines(records: Sequence[Record]) -> list[str]:
    """Report the set-up times, divided by the time of one product, and the largest peak of memory during set-up."""
    kinds = {
        "formats without compression": [r for r in records if r.kind == "format" and r.compressed is False],
        "formats with compression": [r for r in records if r.kind == "format" and r.compressed],
        "the plan": [r for r in records if r.kind == "plan"],
    }
    setups = {
        kind: summarize_ratios(r.setup_products for r in rows if r.setup_products) for kind, rows in kinds.items()
    }
    lines = [f"set-up in products, {kind}: {setup}" for kind, setup in setups.items() if setup is not None]
    peaks = [r for r in records if r.peak]
    if peaks:
        worst = max(peaks, key=lambda r: r.peak or 0.0)
        lines.append(f"peak device memory: {worst.peak:.2f} x CSR at most, {worst.what} on {worst.matrix}")
    return lines


def _choice_lines(records: Sequence[Record]) -> list[str]:
    """Report how often the plan's choice is as fast as the best format, and the worst case."""
    factors: list[tuple[float, str]] = []
    for (matrix, _, _), rows in by_matrix(records).items():
        plan_us = next((r.us for r in rows if r.kind == "plan" and r.us), None)
        format_us = [r.us for r in rows if r.kind == "format" and r.us]
        if plan_us is not None and format_us:
            factors.append((plan_us / min(plan_us, *format_us), matrix))
    if not factors:
        return []
    near = sum(factor <= NEAR_BEST for factor, _ in factors)
    worst, matrix = max(factors)
    return [
        f"choice: within {100 * (NEAR_BEST - 1):.0f} % of the best candidate on {near} of {len(factors)}; "
        f"worst factor {worst:.2f} on {matrix}"
    ]


def _failure_lines(records: Sequence[Record]) -> list[str]:
    failed = [r for r in records if r.status == "failed"]
    wrong = [r for r in records if r.correct is False]
    checked = [r for r in records if r.correct is not None]
    lines = [f"failed: {len(failed)} of {len(records)} rows"] if failed else []
    if checked:
        worst = max(r.error_eps or 0.0 for r in checked)
        lines.append(
            f"check: {len(checked) - len(wrong)} of {len(checked)} products are correct in every row; "
            f"largest error {worst:.1f} eps·(|A|·|x|)"
        )
    return lines + [f"WRONG: {r.what} on {r.matrix}, {r.dtype}" for r in wrong]


# Number of characters of a note that a table shows. The JSON file has the complete note.
MAX_NOTE = 90

# The explanation of terms, which is printed below the last table.
WORDS = """\
plan: what gsparse chooses by itself; plain: the format above without compression (compress=False)
best-of: the fastest product of the named libraries, on a CPU with at most as many threads as the row"""

Cell = Callable[[Record, Run], str]


def number(value: float | None, digits: int) -> str:
    """Format a number with this many digits after the point. None becomes a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def _microseconds(value: float | None) -> str:
    return number(value, 2 if value is not None and value < 100 else 1)


def _note(record: Record) -> str:
    wrong = "WRONG RESULT; " if record.correct is False else ""
    status = {"skipped": "left out: ", "failed": "FAILED: "}.get(record.status, "")
    chosen = record.format if record.kind == "plan" else ""
    note = record.note if len(record.note) <= MAX_NOTE else record.note[:MAX_NOTE] + "…"
    return wrong + status + (note or chosen)


@dataclass(frozen=True)
class Column:
    """A column of the table: its head, its width, the function for its cells, and whether a record needs the column."""

    head: str
    width: int
    cell: Cell
    is_needed: Callable[[Record], bool] = lambda _: True


COLUMNS = (
    Column("threads", 8, lambda r, _: str(r.threads or "–"), lambda r: r.threads is not None),
    Column("kernel µs", 11, lambda r, _: _microseconds(r.kernel_us), lambda r: r.kernel_us is not None),
    Column("call µs", 11, lambda r, _: _microseconds(r.call_us)),
    Column("GB/s", 8, lambda r, _: number(r.gbytes_per_second, 0 if r.threads is None else 1)),
    Column("of copy", 9, lambda r, run: number(run.copy_share(r), 2)),
    Column("set-up", 9, lambda r, _: number(r.setup_products, 1)),
    Column("peak", 7, lambda r, _: number(r.peak, 2), lambda r: r.peak is not None),
    Column("speed", 8, lambda r, _: number(r.speedup, 2)),
    Column("error", 8, lambda r, _: number(r.error_eps, 1), lambda r: r.error_eps is not None),
)


def header(run: Run) -> str:
    """Return a description of the machine, and an explanation of the columns of the tables."""
    copies = ", ".join(
        f"{value:.0f} GB/s" + ("" if key == "gpu" else f" with {key} thread(s)")
        for key, value in run.copy_gbytes_per_second.items()
    )
    facts = ", ".join(f"{k} {v}" for k, v in run.environment.items() if k not in ("device", "machine"))
    return (
        f"{run.environment['device']} ({run.environment['machine']}): a copy moves {copies}\n{facts}\n"
        "kernel: time on the device; call: time of an eager call; GB/s: bytes of the stored matrix, x and y over time\n"
        "set-up: in units of one product; peak: device memory during set-up over that of the CSR arrays\n"
        "speed: relative to the reference named above each table, more is faster; error: in eps·(|A|·|x|)"
    )


def part_of_run(part: Run) -> str:
    """Return the table of one matrix and dtype, or its error; for a run without either, the header."""
    lines = [matrix_table(part.records, part)] if part.records else []
    lines += [f"{name}: {why}" for name, why in part.errors.items()]
    return "\n".join(["", *lines]) if lines else header(part)


def matrix_table(records: Sequence[Record], run: Run) -> str:
    """Return the table of one matrix and dtype."""
    first = records[0]
    columns = [column for column in COLUMNS if any(column.is_needed(r) for r in records)]
    width = max(len(r.what) for r in records) + 2
    reference = next((r.reference for r in records if r.reference), "no other library")
    lines = [
        f"{first.matrix}: {first.rows} x {first.cols}, {first.nnz} entries, longest row {first.longest}, "
        f"{first.dtype}; speed over {reference}",
        " " * width + "".join(f"{c.head:>{c.width}}" for c in columns),
    ]
    for record in records:
        cells = "".join(f"{c.cell(record, run):>{c.width}}" for c in columns)
        lines.append(f"{record.what:<{width}}{cells}  {_note(record)}".rstrip())
    return "\n".join(lines)


def summary(run: Run) -> str:
    """Return the last part of a run's output: means, choices and failures."""
    lines = [WORDS, "", "Summary", *summary_lines(run.records)]
    return "\n".join([*lines, *(f"not measured: {name}: {why}" for name, why in run.errors.items())])
