"""What was published about these algorithms, beside the same figures of this run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gsparse.bench.records import Record, by_matrix
from gsparse.bench.summary import Spread, choice_lines, choices, spread

__all__ = ["CLAIMS", "Claim", "claim_lines"]

NOT_MEASURED = "not measured in this run"

# A matrix has a long tail where its longest row has so many times the mean row's entries.
LONG_TAIL = 20.0

Filter = Callable[[Record], bool]
Figure = Callable[[Sequence[Record]], object]


@dataclass(frozen=True)
class Claim:
    """A published claim.

    Attributes
    ----------
    text, said_for : str
        The claim in our words, and what it was measured on.
    figure : callable
        Takes the records and gives this run's figure; None where it has none.
    unit : str
        What the figure is.
    """

    text: str
    said_for: str
    figure: Figure
    unit: str


def anything(_: Record) -> bool:
    """Take every record."""
    return True


def long_tailed(record: Record) -> bool:
    """Tell whether a matrix has a row far longer than its mean row."""
    return record.longest * record.rows > LONG_TAIL * record.nnz


def regular(record: Record) -> bool:
    """Tell whether a matrix has no such row."""
    return not long_tailed(record)


def named(record: Record, matrix: str) -> bool:
    """Tell whether a record is of this matrix."""
    return record.matrix == matrix


def best(rows: Sequence[Record], name: str) -> float | None:
    """Give the best time of what is named so, stored plainly where it was measured: compression was no part of it."""
    found = [r for r in rows if r.what.startswith(name) and r.us]
    plain = [r for r in found if r.compressed is False]
    return min((r.us or 0.0 for r in plain or found), default=None)


def speedup(records: Sequence[Record], ours: str, theirs: str, which: Filter = anything) -> Spread | None:
    """Compare two ways of multiplying, each named by how its name begins: theirs over ours."""
    ratios = []
    for rows in by_matrix(r for r in records if which(r)).values():
        mine, other = best(rows, ours), best(rows, theirs)
        if mine and other:
            ratios.append(other / mine)
    return spread(ratios)


def on_long_tails(records: Sequence[Record], ours: str) -> str | None:
    """Compare with the vendor's default on long tails, and say where padding kept a format from being tried."""
    tails = [r for r in records if long_tailed(r)]
    asked = {(r.matrix, r.dtype) for r in tails if r.what.startswith(ours)}
    measured = {(r.matrix, r.dtype) for r in tails if r.what.startswith(ours) and r.us}
    found = speedup(tails, ours, DEFAULT)
    if not any(r.what == DEFAULT for r in records) or not asked:
        return None
    left_out = f"does not fit {len(asked - measured)} of {len(asked)} matrices"
    return left_out if found is None else f"{found}; {left_out}"


def setup(records: Sequence[Record], what: str) -> Spread | None:
    """Give the set-up of what is named so, in products of its own."""
    return spread(r.setup_products for r in records if r.what.startswith(what) and r.setup_products)


def block_size(records: Sequence[Record], threads: int) -> Spread | None:
    """Compare a launch shape with 256 threads a block, same matrix and format: the time with 256 over this one's."""
    times = {(r.matrix, r.dtype, r.format, r.compressed, r.threads_per_block): r.us for r in records}
    ratios = []
    for (*rest, shape), time in times.items():
        usual = times.get((*rest, 256))  # type: ignore[arg-type]
        if shape == threads and time and usual:
            ratios.append(usual / time)
    return spread(ratios)


def two_candidates(records: Sequence[Record]) -> str | None:
    """Say how far the better of the plan's first two candidates, both measured, is from the best, and its choice."""
    found = choices(records)
    two = spread(c.of_two for c in found if c.of_two is not None)
    return None if two is None else f"{two}; {' '.join(choice_lines(found))}"


DEFAULT = "cuSPARSE default"
OVER_DEFAULT = "speed over cuSPARSE's default, geometric mean (range)"
LAB_NOTES = "MI250X, 33 matrices, over default rocSPARSE, read off the published figure"
PRODUCTS = "products, geometric mean (range)"


def _over_default(ours: str, said: str, which: Filter = anything) -> Claim:
    return Claim(f"{ours}: {said}", LAB_NOTES, partial(speedup, ours=ours, theirs=DEFAULT, which=which), OVER_DEFAULT)


def _ruined(ours: str, said: str) -> Claim:
    figure = partial(on_long_tails, ours=ours)
    return Claim(f"long-tailed AMG levels: {ours} {said}", "MI250X", figure, f"{OVER_DEFAULT}, on long tails")


CLAIMS = (
    *(
        Claim(
            f"256 threads a block beats {threads}, slightly",
            "MI250X",
            partial(block_size, threads=threads),
            f"speed of {threads} over 256 threads a block, geometric mean (range)",
        )
        for threads in (128, 512)
    ),
    _over_default("cuSPARSE CSR", "vendor's CSR with analysis 1.34"),
    _over_default("csr_vector", "1.22"),
    _over_default("blocked_ellpack", "0.92 (0.20 to 1.67)"),
    _over_default("ellpack", "0.46"),
    _over_default("csr_scalar", "0.21"),
    Claim(
        "set-up: the vendor's analysis 27 products (4 to 65)", "MI250X", partial(setup, what="cuSPARSE CSR"), PRODUCTS
    ),
    Claim(
        "set-up: blocked_ellpack 4.2 products (1.8 to 16)", "MI250X", partial(setup, what="blocked_ellpack"), PRODUCTS
    ),
    Claim("set-up: ellpack 5.7 products (2 to 25)", "MI250X", partial(setup, what="ellpack"), PRODUCTS),
    _ruined("ellpack", "is ruined"),
    _ruined("blocked_ellpack", "is ruined"),
    _ruined("csr_vector", "holds"),
    Claim(
        "csr_adaptive runs about twice as fast as csr_scalar",
        "M1, 10 % dense uniform",
        partial(speedup, ours="csr_adaptive", theirs="csr_scalar", which=partial(named, matrix="uniform 4k x 400")),
        "speed over csr_scalar on uniform 4k x 400 (10 % dense)",
    ),
    Claim(
        "equal nonzeros over a thread a row: 1.2 to 1.5 times on regular rows",
        "Ampere, expected, not measured",
        partial(speedup, ours="csr_split", theirs="csr_scalar", which=regular),
        "speed of csr_split over csr_scalar, regular rows",
    ),
    Claim(
        "equal nonzeros over a thread a row: 2 to 4 times on power laws",
        "Ampere, expected, not measured",
        partial(speedup, ours="csr_split", theirs="csr_scalar", which=long_tailed),
        "speed of csr_split over csr_scalar, long tails",
    ),
    Claim(
        "two measured candidates match or beat a trained selector, without its tail of bad choices",
        "2,843 matrices on MI250X and V100, Ginkgo's published runs",
        two_candidates,
        "time of the better of two over the best candidate's",
    ),
)


def claim_lines(records: Sequence[Record]) -> list[str]:
    """Give each claim with this run's figure beside it, as lines of text."""
    lines = []
    for claim in CLAIMS:
        found = claim.figure(records)
        here = NOT_MEASURED if found is None else f"{found} — {claim.unit}"
        lines += [f"- {claim.text} [{claim.said_for}]", f"    here: {here}"]
    return lines
