"""The choice of a format: row statistics → candidates with bytes and predicted time → one choice with its reason.

Pure: nothing here touches a device. `RowStats` is computed by `gsparse.operand`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gsparse.errors import FormatError
from gsparse.kernels import DEFAULT_THREADS_PER_BLOCK, THREADS_PER_BLOCK, Launch

__all__ = ["FORMATS", "Candidate", "Plan", "RowStats", "make_plan", "threads_per_row"]

# The names `format=` takes; "auto" picks one of the others.
FORMATS = ("auto", "csr_scalar", "csr_vector", "ellpack", "blocked_ellpack")

# ELLPACK counts and strides its rows' entries in int32.
MAX_WIDTH = 2**31 - 1


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
        Entries that blocked ELLPACK would store, padding included.
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

    @property
    def efficiency(self) -> float:
        """η: the share of lanes at work when each lane of a warp owns a row."""
        return self.nnz / self.blocked_stored if self.blocked_stored else 1.0


@dataclass(frozen=True)
class KernelModel:
    """How far a kernel stays behind the bytes it reads.

    Attributes
    ----------
    traffic : float
        Time over (bytes / bandwidth) on rows of even length.
    traffic_per_entry : float
        What each entry of the mean row adds to `traffic`: threads that walk a row each read farther apart.
    step : float
        Seconds one lane takes for one entry when nothing hides the latency: the longest row's critical path.
    setup : float
        What the conversion from CSR costs, in products.
    """

    traffic: float
    traffic_per_entry: float
    step: float
    setup: float = 0.0


@dataclass(frozen=True)
class MachineModel:
    """The constants of one class of device; the ratios between kernels matter more than the absolute times.

    Attributes
    ----------
    bandwidth : float
        Bytes a second of a large copy.
    launch : float
        Seconds a product costs however small it is.
    kernels : dict
        `KernelModel` by format name.
    """

    bandwidth: float
    launch: float
    kernels: dict[str, KernelModel]


# Fitted to asv_bench/measure_spmv.py on one NVIDIA H200, float64: 7-point 200³, 27-point 128³, banded, G3_circuit for
# traffic, cnr-2000 and R-MAT 21 for the critical path.
GPU_MODEL = MachineModel(
    bandwidth=4.266e12,
    launch=3e-6,
    kernels={
        "csr_scalar": KernelModel(traffic=0.75, traffic_per_entry=0.08, step=0.1e-6),
        "csr_vector": KernelModel(traffic=1.6, traffic_per_entry=0.0, step=0.18e-6),
        "ellpack": KernelModel(traffic=1.03, traffic_per_entry=0.0, step=0.25e-6, setup=5.0),
        "blocked_ellpack": KernelModel(traffic=1.03, traffic_per_entry=0.0, step=0.25e-6, setup=6.0),
    },
)
# Fitted to two cores of an AMD EPYC (Zen 4), float64: 7-point 100³, 27-point 48³, G3_circuit, cnr-2000, USA-road-FLA.
# Rows are split over threads whole, so that the longest row's path is short beside the rest.
CPU_MODEL = MachineModel(
    bandwidth=25e9,
    launch=2e-6,
    kernels={
        "csr_scalar": KernelModel(traffic=1.25, traffic_per_entry=0.0, step=1e-9),
        "csr_vector": KernelModel(traffic=1.45, traffic_per_entry=-0.008, step=1e-9),
        "ellpack": KernelModel(traffic=1.1, traffic_per_entry=0.02, step=1e-9, setup=10.0),
        "blocked_ellpack": KernelModel(traffic=1.0, traffic_per_entry=0.012, step=1e-9, setup=10.0),
    },
)

# Products a matrix is expected to serve: what a conversion is worth.
EXPECTED_PRODUCTS = 1000


@dataclass(frozen=True)
class Candidate:
    """One format that could serve.

    Attributes
    ----------
    format : str
    num_stored : int
        Entries stored, padding included.
    nbytes : int
        Bytes one product moves: the stored matrix once, x once, y once.
    padding_ratio : float
        Stored over true entries.
    seconds : float
        Predicted time of one product.
    setup_seconds : float
        Predicted time of the conversion from CSR.
    launch : Launch
    """

    format: str
    num_stored: int
    nbytes: int
    padding_ratio: float
    seconds: float
    setup_seconds: float
    launch: Launch


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
        return self.chosen.launch

    def __str__(self) -> str:
        stats = self.stats
        lines = [
            f"{self.format} on {self.device}: {self.reason}",
            f"{stats.num_rows} x {stats.num_cols}, {stats.nnz} entries; a row {stats.min_length} to "
            f"{stats.max_length}, mean {stats.mean_length:.2f}, std {stats.std_length:.2f}, {stats.num_empty} empty; "
            f"η {stats.efficiency:.2f}",
            f"{'':2}{'format':<16}{'MB a product':>14}{'padding':>9}{'predicted µs':>14}",
        ]
        for c in self.candidates:
            mark = "→" if c.format == self.format else ""
            megabytes, microseconds = c.nbytes / 1e6, c.seconds * 1e6
            lines.append(f"{mark:2}{c.format:<16}{megabytes:>14.3f}{c.padding_ratio:>9.2f}{microseconds:>14.1f}")
        return "\n".join(lines)


def threads_per_row(mean_length: float, lanes: int) -> int:
    """Give the largest power of two ≤ the mean row length, between 2 and the lanes of a warp.

    Examples
    --------
    >>> [threads_per_row(mean, 32) for mean in (0.0, 1.0, 4.0, 7.9, 8.0, 1000.0)]
    [2, 2, 4, 4, 8, 32]
    """
    return min(max(2, 1 << int(mean_length).bit_length() >> 1), lanes)


def make_plan(
    stats: RowStats,
    *,
    device: str,
    lanes: int,
    model: MachineModel,
    value_bytes: int,
    index_bytes: int,
    format: str = "auto",
    threads_per_block: int = DEFAULT_THREADS_PER_BLOCK,
    expected_products: int = EXPECTED_PRODUCTS,
) -> Plan:
    """Choose a format for a matrix with these rows.

    Parameters
    ----------
    stats : RowStats
    device : str
        Name of the device, for the table.
    lanes : int
        Threads of a warp there.
    model : MachineModel
    value_bytes, index_bytes : int
        Size of a stored value and of a column index.
    format : str
        A name out of `FORMATS`; "auto" leaves the choice to the model.
    threads_per_block : {128, 256, 512}
    expected_products : int
        How many products pay for a conversion.

    Raises
    ------
    FormatError
        Where the name is unknown, or ELLPACK was asked for and a row is longer than it can count.
    """
    check_request(format, threads_per_block)
    launch = Launch(threads_per_block, threads_per_row(stats.mean_length, lanes))
    found = [_candidate(name, stats, model, value_bytes, index_bytes, launch, lanes) for name in FORMATS[1:]]
    candidates = tuple(c for c in found if not (c.format.endswith("ellpack") and stats.max_length > MAX_WIDTH))
    if format != "auto":
        if format not in (c.format for c in candidates):
            raise FormatError(f"{format} counts a row in int32, the longest row has {stats.max_length} entries")
        return Plan(format, "asked for", stats, candidates, device)
    ranked = sorted(candidates, key=lambda c: c.seconds + c.setup_seconds / expected_products)
    return Plan(ranked[0].format, _reason(ranked[0], ranked[1], expected_products), stats, candidates, device)


def check_request(format: str, threads_per_block: int) -> None:
    """Refuse a format or launch shape that does not exist, saying which do."""
    if format not in FORMATS:
        raise FormatError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
    if threads_per_block not in THREADS_PER_BLOCK:
        raise FormatError(f"threads_per_block must be one of {THREADS_PER_BLOCK}, got {threads_per_block!r}")


def _candidate(
    name: str, stats: RowStats, model: MachineModel, value_bytes: int, index_bytes: int, launch: Launch, lanes: int
) -> Candidate:
    padded = {"ellpack": stats.max_length * stats.num_rows, "blocked_ellpack": stats.blocked_stored}
    stored = padded.get(name, stats.nnz)
    offsets = {"ellpack": 0, "blocked_ellpack": 8 * (-(-stats.num_rows // lanes) + 1)}
    nbytes = stored * (value_bytes + index_bytes) + offsets.get(name, index_bytes * (stats.num_rows + 1))
    nbytes += (stats.num_rows + stats.num_cols) * value_bytes
    lanes_per_row = launch.threads_per_row if name == "csr_vector" else 1
    kernel = model.kernels[name]
    traffic = max(1.0, kernel.traffic + kernel.traffic_per_entry * stats.mean_length)
    critical = kernel.step * stats.max_length / lanes_per_row
    seconds = model.launch + max(traffic * nbytes / model.bandwidth, critical)
    padding = stored / stats.nnz if stats.nnz else 1.0
    return Candidate(name, stored, nbytes, padding, seconds, kernel.setup * seconds, launch)


def _reason(best: Candidate, next_best: Candidate, expected_products: int) -> str:
    return (
        f"{best.nbytes / 1e6:.3f} MB and {best.seconds * 1e6:.1f} µs predicted a product, {next_best.format} "
        f"{next_best.seconds * 1e6:.1f} µs, over {expected_products} products with their set-up"
    )
