"""What a whole run says: geometric means by size class, the worst case, and how good the plan's choices are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gsparse.bench.records import Record, by_matrix, geometric_mean

__all__ = ["SIZE_CLASSES", "Choice", "Spread", "choices", "speedups_over", "spread", "summary_lines"]

# Name, least and most nonzeros of the classes that means are taken over.
SIZE_CLASSES = (
    ("from 1e6 nonzeros", 1_000_000, math.inf),
    ("1e5 to 1e6 nonzeros", 100_000, 1_000_000),
    ("below 1e5 nonzeros", 0, 100_000),
)

# A choice this near to the best is as good as it: figures repeat no better.
NEAR = 1.05


@dataclass(frozen=True)
class Spread:
    """The geometric mean of some ratios, the least, the greatest, and of how many."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f}, {self.count} figures)"


@dataclass(frozen=True)
class Choice:
    """The plan's choice for one matrix, type and count of threads, beside what was measured to be best.

    Attributes
    ----------
    matrix : str
    factor : float
        The choice's time over the best of gsparse's.
    of_two : float or None
        The same for the better, as measured, of the two formats that were predicted to be best.
    """

    matrix: str
    factor: float
    of_two: float | None


def spread(values: Iterable[float]) -> Spread | None:
    """Summarize ratios; None of nothing."""
    found = list(values)
    mean = geometric_mean(found)
    return None if mean is None else Spread(mean, min(found), max(found), len(found))


def choices(records: Sequence[Record]) -> list[Choice]:
    """Give the plan's choices where formats were measured beside it, at the default launch shape."""
    found = []
    for (matrix, _, _), rows in by_matrix(records).items():
        plan = next((r for r in rows if r.kind == "plan" and r.us), None)
        formats = [r for r in rows if r.kind == "format" and r.us and r.threads_per_block in (None, 256)]
        if plan is None or not plan.us or not formats:
            continue
        best = min(r.us or math.inf for r in (plan, *formats))
        predicted = sorted((r for r in formats if r.predicted_us), key=lambda r: r.predicted_us or math.inf)[:2]
        of_two = min((r.us or math.inf for r in predicted), default=None)
        found.append(Choice(matrix, plan.us / best, None if of_two is None else of_two / best))
    return found


def speedups_over(records: Sequence[Record], what: str) -> list[tuple[Record, float]]:
    """Give each plan record with the eager call of a library, named by how its name begins, over its own."""
    found = []
    for rows in by_matrix(records).values():
        theirs = next((r.call_us for r in rows if r.what.startswith(what) and r.call_us), None)
        found += [(r, theirs / r.call_us) for r in rows if r.kind == "plan" and r.call_us and theirs]
    return found


def summary_lines(records: Sequence[Record]) -> list[str]:
    """Give the summary of a run as lines of text."""
    plans = [r for r in records if r.kind == "plan" and r.speedup]
    lines = []
    for name, least, most in SIZE_CLASSES:
        inside = [r for r in plans if least <= r.nnz < most]
        for reference in sorted({r.reference for r in inside}):
            over = spread(r.speedup or 1.0 for r in inside if r.reference == reference)
            lines.append(f"{name}: the plan's speed over {reference}: {over}")
        calls = spread(ratio for r, ratio in speedups_over(records, "CuPy") if least <= r.nnz < most)
        if calls is not None:
            lines.append(f"{name}: A @ x over CuPy's A @ x, a call: {calls}")
    if plans:
        worst = min(plans, key=lambda r: r.speedup or math.inf)
        chosen = f", as {worst.format}" if worst.format else ""
        lines.append(f"worst: {worst.speedup:.2f} of {worst.reference} on {worst.matrix}{chosen}")
    lines += column_lines(records)
    return lines + setup_lines(records) + choice_lines(choices(records)) + _trouble_lines(records)


def column_lines(records: Sequence[Record]) -> list[str]:
    """Say for each count of columns and type how much faster the plan is than the reference and than CuPy's call."""
    lines = []
    for columns, dtype in sorted({(r.columns, r.dtype) for r in records if r.columns is not None}):
        inside = [r for r in records if (r.columns, r.dtype) == (columns, dtype)]
        over = spread(r.speedup for r in inside if r.kind == "plan" and r.speedup)
        calls = spread(ratio for _, ratio in speedups_over(inside, "CuPy"))
        if over is not None:
            reference = next(r.reference for r in inside if r.reference)
            lines.append(f"{columns} columns, {dtype}: the plan's speed over {reference}: {over}")
        if calls is not None:
            lines.append(f"{columns} columns, {dtype}: a call over CuPy's: {calls}")
    return lines + _launch_lines(records)


def _launch_lines(records: Sequence[Record]) -> list[str]:
    """Name the launch that was best wherever the plan chose another that took longer."""
    lines = []
    for (matrix, dtype, _), rows in by_matrix(r for r in records if r.columns is not None).items():
        for chosen, tried in (("plan", "format"), ("plan by columns", "layout")):
            plan = next((r for r in rows if r.what == chosen and r.us), None)
            launches = [r for r in rows if r.kind == tried and r.what != chosen and r.us]
            best = min(launches, key=lambda r: r.us or math.inf, default=None)
            if plan is None or best is None or not plan.us or not best.us or plan.us <= NEAR * best.us:
                continue
            lines.append(
                f"{matrix}, {dtype}: {chosen} {plan.us:.1f} µs ({plan.format}), {best.what} {best.us:.1f}: "
                f"{plan.us / best.us:.2f} times as long"
            )
    return lines


def setup_lines(records: Sequence[Record]) -> list[str]:
    """Say what set-up takes, in products of the format's own, and the most memory that it needs."""
    kinds = {
        "formats as they are": [r for r in records if r.kind == "format" and r.compressed is False],
        "formats that read less": [r for r in records if r.kind == "format" and r.compressed],
        "the plan": [r for r in records if r.kind == "plan"],
    }
    found = {kind: spread(r.setup_products for r in rows if r.setup_products) for kind, rows in kinds.items()}
    lines = [f"set-up in products, {kind}: {over}" for kind, over in found.items() if over is not None]
    peaks = [r for r in records if r.peak]
    if peaks:
        worst = max(peaks, key=lambda r: r.peak or 0.0)
        lines.append(f"peak device memory: {worst.peak:.2f} x CSR at most, {worst.what} on {worst.matrix}")
    return lines


def choice_lines(found: Sequence[Choice]) -> list[str]:
    """Say how often the plan's choice is as good as the best, and how bad it gets."""
    if not found:
        return []
    near = sum(choice.factor <= NEAR for choice in found)
    worst = max(found, key=lambda choice: choice.factor)
    return [
        f"choice: within {100 * (NEAR - 1):.0f} % of the best candidate on {near} of {len(found)}; "
        f"worst factor {worst.factor:.2f} on {worst.matrix}"
    ]


def _trouble_lines(records: Sequence[Record]) -> list[str]:
    failed = [r for r in records if r.status == "failed"]
    wrong = [r for r in records if r.correct is False]
    checked = [r for r in records if r.correct is not None]
    lines = [f"failed: {len(failed)} of {len(records)} rows"] if failed else []
    if checked:
        worst = max(r.error_eps or 0.0 for r in checked)
        lines.append(
            f"check: {len(checked) - len(wrong)} of {len(checked)} products right row by row; "
            f"largest error {worst:.1f} eps·(|A|·|x|)"
        )
    return lines + [f"WRONG: {r.what} on {r.matrix}, {r.dtype}" for r in wrong]
