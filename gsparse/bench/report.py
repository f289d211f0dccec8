"""A run as text: a table for each matrix, and a summary of the whole run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gsparse.bench.records import Record, Run
from gsparse.bench.summary import summary_lines

# Number of characters of a note that a table shows. The JSON file has the whole note.
MAX_NOTE = 90

# The explanation of words, printed below the last table.
WORDS = """\
plan: what gsparse chooses by itself; plain: the format above without compression (compress=False)
best-of: the fastest product of the named libraries, on a CPU with at most as many threads as the row"""

Cell = Callable[[Record, Run], str]


def number(value: float | None, digits: int) -> str:
    """Format a number with this many digits after the point, and None as a dash."""
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
    """A column of the table: its head, its width, its cell, and whether a record needs the column to be shown."""

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
    """Describe the machine, and explain the columns of the tables."""
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
    """Return the end of the output of a run: means, choices and failures."""
    lines = [WORDS, "", "Summary", *summary_lines(run.records)]
    return "\n".join([*lines, *(f"not measured: {name}: {why}" for name, why in run.errors.items())])
