"""The choice of a format: row statistics → candidates with bytes and predicted time → one choice with its reason.

Pure: nothing here touches a device. What it looks at is measured by `gsparse.products.storage`, the constants it
predicts with are in `gsparse.plan.cost_model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import erf, log, sqrt

from gsparse.errors import FormatError
from gsparse.formats.launch import DEFAULT_THREADS_PER_BLOCK, THREADS_PER_BLOCK, Launch
from gsparse.plan.cost_model import MachineModel

__all__ = [
    "AS_STORED",
    "FORMATS",
    "Candidate",
    "Plan",
    "RowStats",
    "Storage",
    "fits",
    "make_plan",
    "rank",
    "settle",
    "threads_per_row",
]

# The names `format=` takes; "auto" picks one of the others.
FORMATS = (
    "auto",
    "csr_scalar",
    "csr_vector",
    "csr_adaptive",
    "csr_split",
    "ellpack",
    "blocked_ellpack",
    "row_pattern",
)

# Those that read CSR's own arrays: nothing is laid out anew.
AS_STORED = FORMATS[1:5]

# Formats that number rows, columns or the entries of one row in int32.
_MAX_INT32 = 2**31 - 1

# csr_vector: entries a thread should have at least (an H200 is fastest with 4 to 8), and threads that fill a device.
_ENTRIES_PER_THREAD = 6.0
_FILL = 2**17

# Stored over true entries up to which rows stay in their slices as they are; above, long rows are kept apart, and what
# still pads more is sorted.
MAX_PADDING = 1.25


@dataclass(frozen=True)
class RowStats:
    """What the choice looks at.

    Attributes
    ----------
    num_rows, num_cols, nnz : int
    min_length, max_length : int
        Entries of the shortest and longest row.
    mean_length, std_length : float
    num_empty : int
        Rows without entries.
    blocked_stored : int
        Positions of slices in natural order, padding included.
    split_stored : int
        The same without long rows.
    num_long, long_entries : int
        Long rows, and their entries.
    """

    num_rows: int
    num_cols: int
    nnz: int
    min_length: int
    max_length: int
    mean_length: float
    std_length: float
    num_empty: int
    blocked_stored: int
    split_stored: int = 0
    num_long: int = 0
    long_entries: int = 0

    @property
    def typical_length(self) -> float:
        """The length that threads are counted for: that of rows with entries, and above it where lengths scatter."""
        mean = self.nnz / max(self.num_rows - self.num_empty, 1)
        return mean + min(self.std_length, mean)

    @property
    def wants_sorting(self) -> bool:
        """Whether slices pad so much, even without long rows, that rows are sorted first."""
        most = MAX_PADDING * self.nnz
        return self.blocked_stored > most and self.split_stored + self.long_entries > most

    @property
    def efficiency(self) -> float:
        """The share of lanes at work when each lane of a warp owns a row: η."""
        return self.nnz / self.blocked_stored if self.blocked_stored else 1.0


@dataclass(frozen=True)
class Storage:
    """How one format would write its entries down.

    Attributes
    ----------
    columns, values : str
        For the table: "int32", "uint16", "float64", "uint8 of 5", "all equal" …
    num_stored : int
        Positions, padding included.
    nbytes : int
        Bytes of the matrix that one product reads.
    runs : (int, int)
        Of row patterns on a CPU: how often consecutive rows begin to follow another, and the entries of these rows.
    """

    columns: str
    values: str
    num_stored: int
    nbytes: int
    runs: tuple[int, int] = (0, 0)


# Products a matrix is expected to serve: what a conversion is worth.
EXPECTED_PRODUCTS = 1000


@dataclass(frozen=True)
class Candidate:
    """One format that could serve.

    Attributes
    ----------
    format : str
    storage : Storage
    nbytes : int
        Bytes one product moves: the stored matrix once, x once, y once.
    padding_ratio : float
        Stored over true entries.
    seconds : float
        Predicted time of one product.
    setup_seconds : float
        Predicted time of the conversion from CSR.
    launch : Launch
    measured : float or None
        Time of one product, in seconds, where it was timed (`tune=`).
    """

    format: str
    storage: Storage
    nbytes: int
    padding_ratio: float
    seconds: float
    setup_seconds: float
    launch: Launch
    measured: float | None = None

    @property
    def num_stored(self) -> int:
        """Positions stored, padding included."""
        return self.storage.num_stored


@dataclass(frozen=True)
class Plan:
    """The chosen format, why, and what else was looked at; prints as a table.

    Attributes
    ----------
    format : str
        One of `FORMATS` without "auto".
    reason : str
    stats : RowStats
    candidates : tuple of Candidate
    device : str
    """

    format: str
    reason: str
    stats: RowStats
    candidates: tuple[Candidate, ...]
    device: str

    @cached_property
    def chosen(self) -> Candidate:
        """The candidate that `format` names."""
        return next(c for c in self.candidates if c.format == self.format)

    @cached_property
    def launch(self) -> Launch:
        """How the chosen format's kernel is launched."""
        return self.chosen.launch

    def __str__(self) -> str:
        stats = self.stats
        is_measured = any(c.measured is not None for c in self.candidates)
        lines = [
            f"{self.format} on {self.device}: {self.reason}",
            f"{stats.num_rows} x {stats.num_cols}, {stats.nnz} entries; a row {stats.min_length} to "
            f"{stats.max_length}, mean {stats.mean_length:.2f}, std {stats.std_length:.2f}, {stats.num_empty} empty; "
            f"η {stats.efficiency:.2f}",
            f"{'':2}{'format':<16}{'columns':>9}{'values':>16}{'MB a product':>14}{'padding':>9}{'predicted µs':>14}"
            f"{'measured µs' if is_measured else '':>13}".rstrip(),
        ]
        for c in self.candidates:
            mark = "→" if c.format == self.format else ""
            megabytes, predicted = c.nbytes / 1e6, c.seconds * 1e6
            measured = "" if c.measured is None else f"{c.measured * 1e6:.1f}"
            lines.append(
                f"{mark:2}{c.format:<16}{c.storage.columns:>9}{c.storage.values:>16}{megabytes:>14.3f}"
                f"{c.padding_ratio:>9.2f}{predicted:>14.1f}{measured:>13}".rstrip()
            )
        return "\n".join(lines)


def threads_per_row(length: float, lanes: int, num_rows: int = _FILL) -> int:
    """Give the threads that share a row: a power of two from 2 to the lanes of a warp.

    Enough that each has about six entries, all of which it asks for at once; but where rows are few, as many as it
    takes to fill the device, up to one an entry.

    Examples
    --------
    >>> [threads_per_row(mean, 32) for mean in (0.0, 1.0, 12.0, 24.0, 60.0, 1000.0)]
    [2, 2, 2, 4, 8, 32]
    >>> threads_per_row(60.0, 32, num_rows=5000)
    16
    """
    entries = max(length / _ENTRIES_PER_THREAD, min(length, _FILL / max(num_rows, 1)))
    return min(max(2, 1 << int(entries).bit_length() >> 1), lanes)


def make_plan(
    stats: RowStats,
    storages: Mapping[str, Storage],
    *,
    device: str,
    lanes: int,
    model: MachineModel,
    value_bytes: int,
    format: str = "auto",
    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK,
    expected_products: int = EXPECTED_PRODUCTS,
) -> Plan:
    """Choose a format for a matrix with these rows.

    Parameters
    ----------
    stats : RowStats
    storages : mapping of format to Storage
        The formats that fit the matrix.
    device : str
        Name of the device, for the table.
    lanes : int
        Threads of a warp there.
    model : MachineModel
    value_bytes : int
        Size of an element of x and y.
    format : str
        A name out of `FORMATS`; "auto" leaves the choice to the model.
    threads_per_block : {128, 256, 512}
    expected_products : int
        How many products pay for a conversion.

    Raises
    ------
    FormatError
        Where the name is unknown, or the format asked for does not fit.
    """
    check_request(format, threads_per_block)
    launch = Launch(threads_per_block, threads_per_row(stats.typical_length, lanes, stats.num_rows))
    candidates = tuple(_candidate(n, s, stats, model, value_bytes, launch) for n, s in storages.items())
    if format != "auto":
        if format not in storages:
            raise FormatError(f"{format} does not fit this matrix: {_UNFIT.get(format, _UNFIT['ellpack'])}")
        return Plan(format, "asked for", stats, candidates, device)
    ranked = rank(candidates, expected_products)
    return Plan(ranked[0].format, _reason(ranked[0], ranked[1], expected_products), stats, candidates, device)


def rank(candidates: Iterable[Candidate], expected_products: int) -> list[Candidate]:
    """Sort candidates by predicted time, their share of the set-up included, the best first."""
    return sorted(candidates, key=lambda c: c.seconds + c.setup_seconds / expected_products)


def settle(plan: Plan, measured: Mapping[str, float], source: str) -> Plan:
    """Give the plan that measured times decide.

    Parameters
    ----------
    plan : Plan
    measured : mapping of format to seconds
    source : str
        Where the times come from, for the reason.
    """
    candidates = tuple(replace(c, measured=measured.get(c.format)) for c in plan.candidates)
    best = min(measured, key=lambda name: measured[name])
    others = ", ".join(
        f"{name} {1e6 * t:.1f}" for name, t in sorted(measured.items(), key=lambda i: i[1]) if name != best
    )
    reason = f"{1e6 * measured[best]:.1f} µs {source}" + (f", {others}" if others else "")
    return Plan(best, reason, plan.stats, candidates, plan.device)


_UNFIT = {
    "row_pattern": "it stores few distinct rows (offsets from the diagonal) once, and here too many differ",
    "ellpack": f"it counts rows and the entries of each in int32, up to {_MAX_INT32}",
}


def fits(format: str, stats: RowStats) -> bool:
    """Tell whether a format can number the rows of a matrix, and the entries of one."""
    if format == "ellpack" or (format == "blocked_ellpack" and stats.num_rows > _MAX_INT32):
        return stats.max_length <= _MAX_INT32
    return format in ("csr_scalar", "csr_vector") or stats.num_rows <= _MAX_INT32


def check_request(format: str, threads_per_block: int) -> None:
    """Refuse a format or launch shape that does not exist, saying which do."""
    if format not in FORMATS:
        raise FormatError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
    if threads_per_block not in THREADS_PER_BLOCK:
        raise FormatError(f"threads_per_block must be one of {THREADS_PER_BLOCK}, got {threads_per_block!r}")


# Entries that a thread asks for at once.
_BATCH = 4
# Entries above which a row is kept apart (for each thread in csr_vector), and of a chunk.
_LONG = {"csr_scalar": 16, "csr_vector": 8, "csr_adaptive": 1024}
_CHUNK = 256


def share_above(stats: RowStats, length: float) -> tuple[float, float]:
    """Estimate the shares of rows with entries, and of entries, in rows longer than this: lengths as if log-normal."""
    if stats.max_length <= length:
        return 0.0, 0.0
    rows = stats.num_rows - stats.num_empty
    mean = stats.nnz / rows
    square = (stats.std_length**2 + stats.mean_length**2) * stats.num_rows / rows
    deviation = sqrt(log(max(square / mean**2, 1 + 1e-6)))
    place = log(mean / length) / deviation
    return _normal(place - deviation / 2), _normal(place + deviation / 2)


def _normal(x: float) -> float:
    """Give the standard normal distribution's share below x."""
    return (1 + erf(x / sqrt(2))) / 2


def _terms(
    name: str, storage: Storage, nbytes: int, stats: RowStats, model: MachineModel, launch: Launch
) -> dict[str, float]:
    """Count how often each term of `KernelModel` comes in one product."""
    positions, longest, threads = storage.num_stored, stats.max_length, 1.0
    limit, apart = _LONG.get(name, longest), (0.0, 0.0)
    if name == "csr_vector":
        threads = launch.threads_per_row
        limit = max(limit * launch.threads_per_row, 2 * _LONG["csr_scalar"])
    elif name == "csr_adaptive":
        threads = max(1.0, (stats.mean_length + 1) / _BATCH) / _BATCH
    elif name == "blocked_ellpack" and positions < stats.blocked_stored:
        limit = model.long_length
    if name == "blocked_ellpack" and limit < longest:
        apart = stats.num_long, stats.long_entries
    elif name in _LONG and stats.nnz:
        rows, entries = share_above(stats, limit)
        apart = rows * (stats.num_rows - stats.num_empty), entries * stats.nnz
    resident, streamed = model.cache
    return {
        "fixed": 1,
        "byte": nbytes,
        "stream": nbytes * min(max((nbytes - resident) / (streamed - resident), 0), 1),
        "position": positions,
        "row": stats.num_rows,
        "step": 0 if name == "csr_split" else min(longest, limit) / threads / _BATCH,
        "stride": positions * min(stats.mean_length, _LONG["csr_scalar"]),
        "chunk": apart[0] + apart[1] / _CHUNK,
        "sorted": stats.num_rows * (name == "blocked_ellpack" and stats.wants_sorting),
        "coded": positions * storage.values.startswith("uint"),
        "narrow": positions * storage.columns.startswith("uint"),
        "run": storage.runs[0],
        "run_entry": storage.runs[1],
    }


def _candidate(
    name: str, storage: Storage, stats: RowStats, model: MachineModel, value_bytes: int, launch: Launch
) -> Candidate:
    nbytes, kernel = storage.nbytes + (stats.num_rows + stats.num_cols) * value_bytes, model.kernels[name]
    terms = _terms(name, storage, nbytes, stats, model, launch)
    seconds = sum(getattr(kernel, term) * count for term, count in terms.items())
    padding = storage.num_stored / stats.nnz if stats.nnz else 1.0
    return Candidate(name, storage, nbytes, padding, seconds, kernel.setup * seconds, launch)


def _reason(best: Candidate, next_best: Candidate, expected_products: int) -> str:
    return (
        f"{best.nbytes / 1e6:.3f} MB and {best.seconds * 1e6:.1f} µs predicted a product, {next_best.format} "
        f"{next_best.seconds * 1e6:.1f} µs, over {expected_products} products with their set-up"
    )
