"""Predict the time of CG on many GPUs: an iteration on the 7-point problem, modelled from runs on a few GPUs.

A model of the time of an iteration (memory traffic, ghosts of the neighbours, two all-reduces) is fitted to measured
runs. It then predicts the time on up to 1024 GPUs, with eight on each host: with 8 million rows for each GPU (weak
scaling), and with 64 million and a billion rows in all (strong scaling). The rows are divided in two ways: into slabs,
as consecutive rows are, and into boxes, which resemble the parts that METIS finds. The constants of the links between
hosts are assumed and not measured, until there are records of several hosts. `CostModel` describes what else the model
leaves out.

    python examples/thousand_gpus.py
    python examples/thousand_gpus.py --records examples/measured_cg_h200.json
    python examples/thousand_gpus.py --records my_runs.json --plot scaling.png
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from math import ceil, log2
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

_VALUE_BYTES = 8  # bytes of a float64
_POINTER_BYTES = 4  # bytes of a row in indptr
# Vectors read and written by the product q = A·p, and by the passes x += α·p, r -= α·q and p = r + β·p. The dot
# products are fused into them and read nothing more.
_PRODUCT_VECTORS, _PASS_VECTORS = 2, 9
_REDUCTIONS = 2  # All-reduces per iteration, of p·q and r·r.
# Share of a rank's neighbours and ghosts that are on other hosts, if there are several hosts. This is right for a rank
# at the edge of a host if ranks are slabs, and for every rank if they are boxes with 2 by 2 by 2 of them on a host.
_SHARE_ACROSS_HOSTS = 0.5


@dataclass(frozen=True)
class RankWork:
    """The work of the slowest rank in one iteration.

    Parameters
    ----------
    rows, nnz : float
        Rows and entries of the rank.
    world_size : int
    ghosts, neighbours : float
        Ghost entries that the rank receives, and the number of ranks that they come from.
    overlap : bool
        Whether the halo exchange overlaps with the product of the diagonal block.
    entry_bytes : float
        Bytes of an entry: 12 in CSR with float64 and int32, fewer in a format that stores fewer.
    """

    rows: float
    nnz: float
    world_size: int = 1
    ghosts: float = 0.0
    neighbours: float = 0.0
    overlap: bool = True
    entry_bytes: float = 12.0

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> RankWork:
        """Make the work from the values of a run's record that have the names of these parameters."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})

    @property
    def product_bytes(self) -> float:
        return self.nnz * self.entry_bytes + self.rows * (_POINTER_BYTES + _PRODUCT_VECTORS * _VALUE_BYTES)

    @property
    def pass_bytes(self) -> float:
        return self.rows * _PASS_VECTORS * _VALUE_BYTES


class Costs(NamedTuple):
    """The parts of an iteration's seconds. `halo` is the time of the exchange that the product does not hide."""

    local: float
    halo: float
    reductions: float


@dataclass(frozen=True)
class CostModel:
    """A model of the seconds that an iteration of CG takes on the slowest rank.

    The model adds three parts:

    - local work: ``launch`` + bytes of the product and of the vector passes / ``bandwidth``;
    - halo exchange: ``exchange_start`` + ``latency`` for each neighbour + bytes / ``link_bandwidth``, less the time of
      the product if they overlap;
    - two all-reduces: each is ``reduce_start`` + one ``reduce_step`` for every doubling of the ranks on a host + one
      ``reduce_step_across`` for every doubling of the hosts.

    Constants that end in ``_across`` hold between hosts.

    A fit starts from the defaults, and constants that no record depends on keep them. Inside a host they were measured
    one by one on H200s with NVLink (a copy; all-reduces of 16 bytes on 2 and 4 GPUs; exchanges of 320 kB and 64 MB).
    **Across hosts they are assumed**: NCCL's own 5 µs per hop [1]_, up and down its tree, and most of a 400 Gb/s link
    for each GPU.

    The model leaves out uneven rows, noise (all-reduces wait for the slowest of all ranks), traffic that shares links
    or switches, caches (local time is proportional to bytes), the additional kernels of ranks (packing ghosts, the
    product of the off-diagonal block), and preconditioners.

    Parameters
    ----------
    launch : float
        Seconds of an iteration without rows.
    bandwidth : float
        Bandwidth of a rank's memory, in bytes per second.
    reduce_start, reduce_step, reduce_step_across : float
        Constants of an all-reduce, in seconds.
    exchange_start, latency, latency_across : float
        Constants of a halo exchange, in seconds.
    link_bandwidth, link_bandwidth_across : float
        Bandwidth of a rank's links, in bytes per second.
    ranks_per_host : int
        Ranks on a host. It is not fitted.

    References
    ----------
    .. [1] NVIDIA, NCCL, src/graph/tuning.cc: `hwLat`, network, tree, LL.
    """

    launch: float = 4e-6
    bandwidth: float = 4.2e12
    reduce_start: float = 3.2e-6
    reduce_step: float = 2.3e-6
    reduce_step_across: float = 10e-6
    exchange_start: float = 8e-6
    latency: float = 1e-6
    latency_across: float = 5e-6
    link_bandwidth: float = 260e9
    link_bandwidth_across: float = 40e9
    ranks_per_host: int = 8

    def costs(self, work: RankWork) -> Costs:
        """Return the seconds of an iteration in parts."""
        product = work.product_bytes / self.bandwidth
        local = self.launch + product + work.pass_bytes / self.bandwidth
        halo = self._halo(work)
        return Costs(local, max(0.0, halo - product) if work.overlap else halo, self._reductions(work.world_size))

    def seconds(self, work: RankWork) -> float:
        """Return the seconds of an iteration."""
        return sum(self.costs(work))

    def _halo(self, work: RankWork) -> float:
        if not work.neighbours:
            return 0.0
        across = _SHARE_ACROSS_HOSTS if work.world_size > self.ranks_per_host else 0.0
        latency = (1 - across) * self.latency + across * self.latency_across
        seconds_per_byte = (1 - across) / self.link_bandwidth + across / self.link_bandwidth_across
        return self.exchange_start + work.neighbours * latency + work.ghosts * _VALUE_BYTES * seconds_per_byte

    def _reductions(self, world_size: int) -> float:
        if world_size == 1:
            return 0.0
        inside = ceil(log2(min(world_size, self.ranks_per_host)))
        across = ceil(log2(ceil(world_size / self.ranks_per_host)))
        return _REDUCTIONS * (self.reduce_start + inside * self.reduce_step + across * self.reduce_step_across)


# Weight of the regularization that keeps constants near their start. A constant that changes by the factor e counts as
# much as a record whose modelled time is wrong by 0.1 %.
_REGULARIZATION = 1e-3
_NUM_FITTED = len(fields(CostModel)) - 1  # All but ranks_per_host, which is the last field.


def fit(records: Sequence[Mapping[str, Any]], start: CostModel | None = None) -> CostModel:
    """Fit the constants to measured runs, by least squares of the logarithms of modelled over measured seconds.

    Parameters
    ----------
    records : sequence of mapping
        Each has ``seconds_per_iteration``, and the parameters of `RankWork` by name.
    start : CostModel, optional
        The constants to start from. A constant that no record depends on keeps this value, for example those of links
        between hosts if all runs used one host. If the records determine only the sum of several constants, each of
        them changes as little as possible.

    Raises
    ------
    ValueError
        If there is no record, or one whose seconds are not above 0.

    Examples
    --------
    >>> runs = [{"rows": n, "nnz": 7 * n, "seconds_per_iteration": 5e-6 + n * 176 / 1e12} for n in (1e4, 1e6, 1e8)]
    >>> f"{fit(runs).bandwidth:.2e}"
    '1.00e+12'
    """
    start = start or CostModel()
    works = [RankWork.from_record(record) for record in records]
    measured = np.array([record["seconds_per_iteration"] for record in records], np.float64)
    if not len(records) or not (measured > 0).all():
        raise ValueError(
            f"a fit needs at least one record, each with more than 0 seconds per iteration, got {measured}"
        )
    begin = np.array(astuple(start)[:_NUM_FITTED])

    def scaled(logarithms: npt.NDArray[np.float64]) -> CostModel:
        values = (begin * np.exp(logarithms)).tolist()
        changes = {field.name: value for field, value in zip(fields(CostModel), values, strict=False)}
        return replace(start, **changes)

    def deviations(logarithms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        model = scaled(logarithms)
        misfit = np.log([model.seconds(work) for work in works] / measured)
        return np.concatenate([misfit, _REGULARIZATION * logarithms])

    return scaled(least_squares(deviations, np.zeros(_NUM_FITTED)).x)


WORLD_SIZES = [2**k for k in range(11)]
ENTRIES_PER_ROW = 7

# The number of rows of the whole problem, by the number of GPUs.
SCENARIOS: dict[str, Callable[[int], float]] = {
    "8 million rows per GPU (weak scaling)": lambda world_size: 8e6 * world_size,
    "64 million rows (strong scaling)": lambda world_size: 64e6,
    "a billion rows (strong scaling)": lambda world_size: 1e9,
}


def slabs(num_rows: float, world_size: int) -> RankWork:
    """Return the work of a rank if a cube is cut into slabs."""
    return inner_block(num_rows, (1, 1, world_size))


def boxes(num_rows: float, world_size: int) -> RankWork:
    """Return the work of a rank if a cube is cut into equal boxes, as close to cubes as a power of two allows."""
    doublings = world_size.bit_length() - 1
    return inner_block(num_rows, tuple(2 ** ((doublings + axis) // 3) for axis in range(3)))


def inner_block(num_rows: float, cuts: tuple[int, ...]) -> RankWork:
    """Return the work of the block with the most neighbours.

    A slab that is thinner than one plane of points has more neighbours than are counted here.
    """
    world_size = math.prod(cuts)
    rows = num_rows / world_size
    neighbours = [min(cut - 1, 2) for cut in cuts]
    faces = [min(rows / (num_rows ** (1 / 3) / cut), rows) for cut in cuts]
    ghosts = sum(count * face for count, face in zip(neighbours, faces, strict=True))
    return RankWork(rows, ENTRIES_PER_ROW * rows, world_size, ghosts, sum(neighbours))


CUTS = {"slabs": slabs, "boxes": boxes}


def efficiency(model: CostModel, num_rows: float, work: RankWork) -> float:
    """Return the ideal time over the modelled one.

    The ideal time is that of one GPU with enough memory for all rows, divided by the number of GPUs.
    """
    single_gpu = model.seconds(RankWork(num_rows, ENTRIES_PER_ROW * num_rows))
    return single_gpu / work.world_size / model.seconds(work)


def print_fit(model: CostModel, measured: dict[str, Any]) -> None:
    """Print the measured times beside those of the model."""
    print(textwrap.fill(measured["source"], 110) + "\n")
    print(f"{'GPUs':>5} {'rows/GPU':>11} {'measured µs':>12} {'model':>7}")
    for record in measured["records"]:
        modelled = model.seconds(RankWork.from_record(record))
        print(
            f"{record['world_size']:5} {record['rows']:11,} {record['seconds_per_iteration'] * 1e6:12.1f} "
            f"{modelled * 1e6:7.1f}"
        )
    print("\n" + "\n".join(f"{name:22} {value:.3g}" for name, value in asdict(model).items()))


def print_table(model: CostModel, name: str, rows_on: Callable[[int], float]) -> None:
    """Print one scenario in µs per iteration. The time of the halo is the part that the product does not hide."""
    print(f"\n{name}: efficiency, and µs per iteration = local + halo + all-reduces")
    print(f"{'GPUs':>5}" + "".join(f" {cut:>10} {'µs =':>9} {'local':>8} {'halo':>7} {'reduce':>7}" for cut in CUTS))
    for world_size in WORLD_SIZES:
        line = f"{world_size:5}"
        for cut in CUTS.values():
            work = cut(rows_on(world_size), world_size)
            costs = model.costs(work)
            share = efficiency(model, rows_on(world_size), work)
            line += f" {share:10.0%} {sum(costs) * 1e6:9.1f}" + "".join(
                f" {cost * 1e6:{width}.1f}" for cost, width in zip(costs, (8, 7, 7), strict=True)
            )
        print(line)


def plot(model: CostModel, path: str) -> None:
    """Draw efficiencies, and below them the parts of an iteration with boxes, without halos that cost no time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    axes = figure.subplots(2, len(SCENARIOS), sharex=True)
    for (name, rows_on), above, below in zip(SCENARIOS.items(), *axes, strict=True):
        for cut, mark in zip(CUTS, "sD", strict=True):
            shares = [efficiency(model, rows_on(p), CUTS[cut](rows_on(p), p)) for p in WORLD_SIZES]
            above.plot(WORLD_SIZES, shares, marker=mark, label=cut)
        above.set(title=name, ylim=(0, 1.05))
        costs = [model.costs(boxes(rows_on(p), p)) for p in WORLD_SIZES]
        for part, style in {"local": "-", "halo": "--", "reductions": "-."}.items():
            below.plot(WORLD_SIZES, [1e6 * getattr(cost, part) or math.nan for cost in costs], style, label=part)
        below.plot(WORLD_SIZES, [1e6 * sum(cost) for cost in costs], color="black", label="together")
        below.set(xlabel="GPUs", xscale="log", yscale="log", xticks=WORLD_SIZES[::2], xticklabels=WORLD_SIZES[::2])
        below.minorticks_off()
        for ax in (above, below):
            ax.axvline(model.ranks_per_host, color="grey", linestyle=":", label="one host")
    axes[0, 0].set_ylabel("efficiency")
    axes[1, 0].set_ylabel("µs per iteration, with boxes")
    axes[0, 0].legend()
    axes[1, 1].legend()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Fit the model, print its predictions, and draw them if ``--plot`` asks for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).with_name("measured_cg.json")
    parser.add_argument("--records", default=default, type=Path, help="JSON file with the measured runs")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture, .png or .svg; needs matplotlib")
    options = parser.parse_args()

    measured = json.loads(options.records.read_text())
    model = fit(measured["records"])
    print_fit(model, measured)
    print(f"\nBelow, an entry takes {RankWork.entry_bytes:g} bytes, as in plain CSR.")
    for name, rows_on in SCENARIOS.items():
        print_table(model, name, rows_on)
    if options.plot:
        plot(model, options.plot)


if __name__ == "__main__":
    main()
