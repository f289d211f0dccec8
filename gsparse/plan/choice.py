"""The choice of a format: row statistics → candidates with bytes and predicted time → one choice with its reason.

`gsparse.products.structure` measures the statistics, and `gsparse.products.storage` describes the candidates. The
constants of the prediction are those of each format (`gsparse.formats.registry`) and of the device
(`gsparse.plan.cost_model`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gsparse.errors import FormatError
from gsparse.formats.costs import SCALAR_LENGTH, TABLE_BYTES, num_sharing
from gsparse.formats.launch import DEFAULT_THREADS_PER_BLOCK, THREADS_PER_BLOCK, Launch
from gsparse.formats.registry import Storage, choices, find_format
from gsparse.formats.row_stats import RowStats
from gsparse.plan.cost_model import MachineModel

# In csr_vector, the threads per row are the typical row length divided by this number, rounded down to a power of two,
# so that a thread has 6 to 12 entries. (On an H200, products were fastest with 4 to 8 here.)
_ENTRIES_PER_THREAD = 6.0
# The number of threads that keep all multiprocessors of a device busy.
_DEVICE_THREADS = 2**17

# The default number of products with a matrix. The plan divides the time of a conversion by this number.
EXPECTED_PRODUCTS = 1000


@dataclass(frozen=True)
class Candidate:
    """One format in which the matrix could be stored.

    Attributes
    ----------
    format : str
    storage : Storage
    nbytes : int
        Bytes that one product moves: the stored matrix, x and y, each once.
    padding_ratio : float
        Number of stored positions divided by the number of entries.
    seconds : float
        Predicted time of one product.
    setup_seconds : float
        Predicted time of the conversion from CSR.
    launch : Launch
    measured : float or None
        Measured time of one product in seconds, if it was timed (`tune=`).
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
        """Number of stored positions, including padding."""
        return self.storage.num_stored


@dataclass(frozen=True)
class Plan:
    """The chosen format, the reason for the choice, and all candidates, which are shown as a table.

    Attributes
    ----------
    format : str
        The name of a registered format (`gsparse.formats.registry`).
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

    def __repr__(self) -> str:
        stats = self.stats
        is_measured = any(c.measured is not None for c in self.candidates)
        lanes = "" if self.device == "cpu" else f"; lane efficiency {stats.efficiency:.2f}"
        lines = [
            f"{self.format} on {self.device}: {self.reason}",
            f"{stats.num_rows} x {stats.num_cols}, {stats.nnz} entries; per row {stats.min_length} to "
            f"{stats.max_length}, mean {stats.mean_length:.2f}, std {stats.std_length:.2f}, {stats.num_empty} empty"
            f"{lanes}",
            f"{'':2}{'format':<16}{'columns':>11}{'values':>16}{'MB per product':>16}{'padding':>9}{'predicted µs':>14}"
            f"{'measured µs' if is_measured else '':>13}".rstrip(),
        ]
        for c in self.candidates:
            mark = "→" if c.format == self.format else ""
            megabytes, predicted = c.nbytes / 1e6, c.seconds * 1e6
            measured = "" if c.measured is None else f"{c.measured * 1e6:.1f}"
            lines.append(
                f"{mark:2}{c.format:<16}{c.storage.columns:>11}{c.storage.values:>16}{megabytes:>16.3f}"
                f"{c.padding_ratio:>9.2f}{predicted:>14.1f}{measured:>13}".rstrip()
            )
        return "\n".join(lines)


def threads_per_row(length: float, lanes: int, num_rows: int = _DEVICE_THREADS) -> int:
    """Return the number of threads that share a row: a power of two from 2 to the lanes of a warp.

    Each thread has 6 to 12 entries. In a row with fewer than 12 entries, it has fewer; if a whole warp shares the row,
    it may have more. If the matrix has few rows, more threads share a row, to fill the device, but at most one for each
    entry.

    Parameters
    ----------
    length : float
        The typical number of entries of a row (`RowStats.typical_length`).
    lanes : int
        The size of a warp.
    num_rows : int
        The number of rows of the matrix; by default, enough to fill a device.

    Examples
    --------
    >>> [threads_per_row(mean, 32) for mean in (0.0, 1.0, 12.0, 24.0, 60.0, 1000.0)]
    [2, 2, 2, 4, 8, 32]
    >>> threads_per_row(60.0, 32, num_rows=5000)
    16
    """
    wanted_threads = max(length / _ENTRIES_PER_THREAD, min(length, _DEVICE_THREADS / max(num_rows, 1)))
    return min(max(2, 1 << int(wanted_threads).bit_length() >> 1), lanes)


def make_plan(
    stats: RowStats,
    storages: Mapping[str, Sequence[Storage]],
    *,
    device: str,
    lanes: int,
    model: MachineModel,
    value_bytes: int,
    threads: int = 1,
    format: str = "auto",
    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK,
    expected_products: int = EXPECTED_PRODUCTS,
) -> Plan:
    """Choose a storage format.

    Parameters
    ----------
    stats : RowStats
    storages : mapping of format to sequence of Storage
        The formats in which the matrix can be stored. A format may come in several encodings; only the best encoding
        becomes a candidate.
    device : str
        Name of the device, for the table.
    lanes : int
        Number of threads in a warp of the device.
    model : MachineModel
    value_bytes : int
        Size of an element of x and y.
    threads : int
        Number of threads of a CPU that share a product; 1 for a GPU.
    format : str
        The name of a format, which is then chosen; the name of a layout such as "csr", for which the model chooses
        among the formats of this layout; or "auto", with which it chooses among all formats.
    threads_per_block : {128, 256, 512}
    expected_products : int
        The expected number of products with the matrix. The time of the conversion is divided by it.

    Raises
    ------
    FormatError
        If the format or `threads_per_block` is invalid, or the matrix cannot be stored in the format.
    """
    check_request(format, threads_per_block)
    allowed = [each.name for each in choices(format)]
    launch = Launch(threads_per_block, threads_per_row(stats.typical_length, lanes, stats.num_rows))
    candidates = tuple(
        sorted_by_time(
            [_candidate(name, s, stats, model, value_bytes, launch, threads) for s in encoded], expected_products
        )[0]
        for name, encoded in storages.items()
    )
    ranked = sorted_by_time([c for c in candidates if c.format in allowed], expected_products)
    if not ranked:
        raise find_format(allowed[0]).refusal()
    if len(ranked) == 1:
        return Plan(ranked[0].format, "named by the caller", stats, candidates, device)
    return Plan(ranked[0].format, _reason(ranked[0], ranked[1], expected_products), stats, candidates, device)


def sorted_by_time(candidates: Iterable[Candidate], expected_products: int) -> list[Candidate]:
    """Sort by the predicted time of a product plus its share of the set-up time, the shortest first."""
    return sorted(candidates, key=lambda c: c.seconds + c.setup_seconds / expected_products)


def choose_fastest(plan: Plan, measured: Mapping[str, float], source: str) -> Plan:
    """Return a plan that chooses the format with the shortest measured time.

    Parameters
    ----------
    plan : Plan
    measured : mapping of format to seconds
        Maps the name of a candidate's format to its measured time. It has at least one item; candidates without a time
        are not chosen.
    source : str
        How the times are called in the plan's reason: "measured" or "measured before".
    """
    candidates = tuple(replace(c, measured=measured.get(c.format)) for c in plan.candidates)
    best = min(measured, key=lambda name: measured[name])
    others = ", ".join(
        f"{name} {1e6 * t:.1f}" for name, t in sorted(measured.items(), key=lambda i: i[1]) if name != best
    )
    reason = f"{1e6 * measured[best]:.1f} µs {source}" + (f", {others}" if others else "")
    return Plan(best, reason, plan.stats, candidates, plan.device)


def check_request(format: str, threads_per_block: int) -> None:
    """Raise a FormatError for an unknown format or number of threads. The message lists the valid ones."""
    choices(format)
    if threads_per_block not in THREADS_PER_BLOCK:
        raise FormatError(f"threads_per_block must be one of {THREADS_PER_BLOCK}, got {threads_per_block!r}")


def count_terms(
    name: str, storage: Storage, nbytes: int, stats: RowStats, model: MachineModel, launch: Launch
) -> dict[str, float]:
    """Return how often each term of `KernelModel` counts in one product."""
    positions, (cached, streamed) = storage.num_stored, model.cache
    common = {
        "fixed": 1,
        "byte": nbytes,
        "stream": nbytes * min(max((nbytes - cached) / (streamed - cached), 0), 1),
        "position": positions,
        "row": stats.num_rows,
        "step": 0,
        "stride": positions * min(stats.mean_length, SCALAR_LENGTH),
        "chunk": 0,
        "sorted": 0,
        "coded": positions * storage.has_codes,
        "narrow": positions * storage.has_bases / storage.values_per_column,
        "table": positions * min(storage.table_bytes / TABLE_BYTES, 1.0),
        "run": storage.runs[0],
        "run_entry": storage.runs[1],
    }
    return common | find_format(name).terms(stats, storage, launch, model.long_length)


def _candidate(
    name: str,
    storage: Storage,
    stats: RowStats,
    model: MachineModel,
    value_bytes: int,
    launch: Launch,
    threads: int,
) -> Candidate:
    nbytes = storage.nbytes + (stats.num_rows + stats.num_cols) * value_bytes
    kernel = find_format(name).costs[model.kind]
    terms = count_terms(name, storage, nbytes, stats, model, launch)
    seconds = sum(getattr(kernel, term) * count / num_sharing(term, threads) for term, count in terms.items())
    padding = storage.num_stored / stats.nnz if stats.nnz else 1.0
    return Candidate(name, storage, nbytes, padding, seconds, kernel.setup * seconds, launch)


def _reason(best: Candidate, next_best: Candidate, expected_products: int) -> str:
    return (
        f"{best.nbytes / 1e6:.3f} MB and {best.seconds * 1e6:.1f} µs predicted per product, {next_best.format} "
        f"{next_best.seconds * 1e6:.1f} µs; ranked by the time of {expected_products} products and the set-up"
    )
