"""Published claims about these algorithms, beside the corresponding figures of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gsparse.bench.records import Record, by_matrix
from gsparse.bench.summary import RatioSummary, choice_lines, choices, summarize_ratios

__all__ = ["CLAIMS", "Claim", "claim_lines"]

NOT_MEASURED = "not measured in this run"

# A matrix has a long tail if its longest row has more than this many times the entries of the mean row.
LONG_TAIL = 20.0

Filter = Callable[[Record], bool]
Figure = Callable[[Sequence[Record]], object]


@dataclass(frozen=True)
class Claim:
    """A published claim.

    Attributes
    ----------
    text, conditions : str
        The claim in our words, and the hardware and matrices for which it was published.
    figure : callable
        Takes the records and returns the figure of this run, or None if the run has none.
    unit : str
        What the figure means.
    """

    text: str
    conditions: str
    figure: Figure
    unit: str


def every_record(_: Record) -> bool:
    """Return True, so that a filter selects every record."""
    return True


def has_long_tail(record: Record) -> bool:
    """Return whether the matrix has a row that is far longer than its mean row."""
    return record.longest * record.rows > LONG_TAIL * record.nnz


def best_time(rows: Sequence[Record], prefix: str) -> float | None:
    """Return the best time of the ways of multiplying whose names begin with `prefix`.

    Uncompressed storage is preferred, because the published formats did not compress.
    """
    measured = [r for r in rows if r.what.startswith(prefix) and r.us]
    uncompressed = [r for r in measured if r.compressed is False]
    return min((r.us or 0.0 for r in uncompressed or measured), default=None)


def speedup(records: Sequence[Record], ours: str, theirs: str, which: Filter = every_record) -> RatioSummary | None:
    """Summarize the best time of `theirs` over the best time of `ours`, which are beginnings of names."""
    ratios = []
    for rows in by_matrix(r for r in records if which(r)).values():
        our_time, their_time = best_time(rows, ours), best_time(rows, theirs)
        if our_time and their_time:
            ratios.append(their_time / our_time)
    return summarize_ratios(ratios)


def on_long_tails(records: Sequence[Record], ours: str) -> str | None:
    """Compare a format with the vendor's default on long tails, and count the matrices that the format does not fit."""
    tails = [r for r in records if has_long_tail(r)]
    requested = {(r.matrix, r.dtype) for r in tails if r.what.startswith(ours)}
    measured = {(r.matrix, r.dtype) for r in tails if r.what.startswith(ours) and r.us}
    summary = speedup(tails, ours, DEFAULT)
    if not any(r.what == DEFAULT for r in records) or not requested:
        return None
    left_out = f"does not fit {len(requested - measured)} of {len(requested)} matrices"
    return left_out if summary is None else f"{summary}; {left_out}"


def setup(records: Sequence[Record], prefix: str) -> RatioSummary | None:
    """Summarize the set-up, in products, of the ways of multiplying whose names begin with `prefix`."""
    return summarize_ratios(r.setup_products for r in records if r.what.startswith(prefix) and r.setup_products)


def block_size(records: Sequence[Record], threads: int) -> RatioSummary | None:
    """Summarize the time with 256 threads per block over the time with `threads`, for the same matrix and format."""
    times = {(r.matrix, r.dtype, r.format, r.compressed, r.threads_per_block): r.us for r in records}
    ratios = []
    for (*key, threads_per_block), time in times.items():
        default = times.get((*key, 256))  # type: ignore[arg-type]
        if threads_per_block == threads and time and default:
            ratios.append(default / time)
    return summarize_ratios(ratios)


def two_candidates(records: Sequence[Record]) -> str | None:
    """Compare the better of the plan's first two candidates with the best one, and say how good the plan's choice is.

    The better candidate is the one that measured faster.
    """
    compared = choices(records)
    better_of_two = summarize_ratios(c.better_of_two for c in compared if c.better_of_two is not None)
    return None if better_of_two is None else f"{better_of_two}; {' '.join(choice_lines(compared))}"


DEFAULT = "cuSPARSE default"
OVER_DEFAULT = "speed over cuSPARSE's default, geometric mean (range)"
LAB_NOTES = "MI250X, 33 matrices, over default rocSPARSE, read off the published figure"
PRODUCTS = "products, geometric mean (range)"


def _speedup_claim(ours: str, published: str) -> Claim:
    return Claim(f"{ours}: {published}", LAB_NOTES, partial(speedup, ours=ours, theirs=DEFAULT), OVER_DEFAULT)


def _long_tail_claim(ours: str, published: str) -> Claim:
    figure = partial(on_long_tails, ours=ours)
    return Claim(f"long-tailed AMG levels: {ours} {published}", "MI250X", figure, f"{OVER_DEFAULT}, on long tails")


CLAIMS = (
    *(
        Claim(
            f"256 threads per block are slightly faster than {threads}",
            "MI250X",
            partial(block_size, threads=threads),
            f"speed of {threads} over 256 threads per block, geometric mean (range)",
        )
        for threads in (128, 512)
    ),
    _speedup_claim("cuSPARSE CSR", "vendor's CSR with analysis 1.34"),
    _speedup_claim("csr_vector", "1.22"),
    _speedup_claim("blocked_ellpack", "0.92 (0.20 to 1.67)"),
    _speedup_claim("ellpack", "0.46"),
    _speedup_claim("csr_scalar", "0.21"),
    Claim(
        "set-up: the vendor's analysis 27 products (4 to 65)", "MI250X", partial(setup, prefix="cuSPARSE CSR"), PRODUCTS
    ),
    Claim(
        "set-up: blocked_ellpack 4.2 products (1.8 to 16)", "MI250X", partial(setup, prefix="blocked_ellpack"), PRODUCTS
    ),
    Claim("set-up: ellpack 5.7 products (2 to 25)", "MI250X", partial(setup, prefix="ellpack"), PRODUCTS),
    _long_tail_claim("ellpack", "becomes very slow"),
    _long_tail_claim("blocked_ellpack", "becomes very slow"),
    _long_tail_claim("csr_vector", "stays fast"),
    Claim(
        "two measured candidates match or beat a trained selector, without its tail of bad choices",
        "2,843 matrices on MI250X and V100, Ginkgo's published runs",
        two_candidates,
        "time of the better of the two over that of the best candidate",
    ),
)


def claim_lines(records: Sequence[Record]) -> list[str]:
    """Return the lines of text that show each claim, and below it the figure of this run."""
    lines = []
    for claim in CLAIMS:
        figure = claim.figure(records)
        text = NOT_MEASURED if figure is None else f"{figure} — {claim.unit}"
        lines += [f"- {claim.text} [{claim.conditions}]", f"    this run: {text}"]
    return lines
