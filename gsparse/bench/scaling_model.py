"""How long an iteration of CG takes on many ranks: a model with few constants, fitted to measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

__all__ = ["CostModel", "Costs", "Work", "fit"]

_VALUE = 8  # bytes of a float64
_POINTER = 4  # bytes of a row in indptr
# Vectors read and written: q = A·p, then x += α·p, r -= α·q and p = r + β·p; dots ride along.
_PRODUCT_VECTORS, _PASS_VECTORS = 2, 9
_REDUCTIONS = 2  # all-reduces an iteration: p·q and r·r
# Of a rank's neighbours and ghosts where there are several hosts: with ranks in slabs, the one on a host's edge; in
# boxes of 2 by 2 by 2 to a host, all of them.
_SHARE_ACROSS = 0.5


@dataclass(frozen=True)
class Work:
    """What an iteration of the slowest rank consists of.

    Parameters
    ----------
    rows, nnz : float
        Of the rank.
    world_size : int
    ghosts, neighbours : float
        Entries that it needs of others, and how many others.
    overlap : bool
        Whether ghosts travel while the rank multiplies by its own columns.
    entry_bytes : float
        What an entry takes: 12 in CSR with float64 and int32, less where a plan stores less.
    """

    rows: float
    nnz: float
    world_size: int = 1
    ghosts: float = 0.0
    neighbours: float = 0.0
    overlap: bool = True
    entry_bytes: float = 12.0

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Work:
        """Take what has these names from the record of a run."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})

    @property
    def product_bytes(self) -> float:
        return self.nnz * self.entry_bytes + self.rows * (_POINTER + _PRODUCT_VECTORS * _VALUE)

    @property
    def pass_bytes(self) -> float:
        return self.rows * _PASS_VECTORS * _VALUE


class Costs(NamedTuple):
    """Seconds of an iteration, by what they go to; of the halo, what the product does not hide."""

    local: float
    halo: float
    reductions: float


@dataclass(frozen=True)
class CostModel:
    """Seconds of an iteration of CG on the slowest rank.

    local = launch + bytes of the product and the passes / bandwidth; the halo is a start, a latency for each neighbour
    and bytes / link bandwidth, less the time of the product where they overlap; each of two all-reduces is a start and
    a step for every doubling, of ranks inside a host and of hosts. What crosses hosts has constants of its own.

    The defaults are where a fit begins, and what remains of constants that no record depends on. Inside a host they
    were measured one by one on H200s with NVLink (a copy; all-reduces of 16 bytes on 2 and 4 GPUs; exchanges of 320 kB
    and 64 MB). **Across hosts they are assumed**: NCCL's own 5 µs a hop [1]_, up and down its tree, and most of a
    400 Gb/s link for each GPU.

    It leaves out uneven rows, noise (all-reduces wait for the slowest of all ranks), traffic that shares links or
    switches, caches (local time is proportional to bytes), kernels that ranks add (packing ghosts, the second
    product), and preconditioners.

    Parameters
    ----------
    launch : float
        Seconds of an iteration without rows.
    bandwidth : float
        Bytes a second, of a rank's memory.
    reduce_start, reduce_step, reduce_step_across : float
        Seconds.
    exchange_start, latency, latency_across : float
        Seconds.
    link_bandwidth, link_bandwidth_across : float
        Bytes a second, of a rank.
    ranks_per_host : int
        Not fitted.

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

    def costs(self, work: Work) -> Costs:
        """Give the seconds of an iteration in parts."""
        product = work.product_bytes / self.bandwidth
        local = self.launch + product + work.pass_bytes / self.bandwidth
        halo = self._halo(work)
        return Costs(local, max(0.0, halo - product) if work.overlap else halo, self._reductions(work.world_size))

    def seconds(self, work: Work) -> float:
        """Give the seconds of an iteration."""
        return sum(self.costs(work))

    def _halo(self, work: Work) -> float:
        if not work.neighbours:
            return 0.0
        across = _SHARE_ACROSS if work.world_size > self.ranks_per_host else 0.0
        latency = (1 - across) * self.latency + across * self.latency_across
        byte = (1 - across) / self.link_bandwidth + across / self.link_bandwidth_across
        return self.exchange_start + work.neighbours * latency + work.ghosts * _VALUE * byte

    def _reductions(self, world_size: int) -> float:
        if world_size == 1:
            return 0.0
        inside = ceil(log2(min(world_size, self.ranks_per_host)))
        across = ceil(log2(ceil(world_size / self.ranks_per_host)))
        return _REDUCTIONS * (self.reduce_start + inside * self.reduce_step + across * self.reduce_step_across)


# A constant that is e times what it was counts as much as a record that is missed by 0.1 %.
_STAY = 1e-3
_NUM_FITTED = len(fields(CostModel)) - 1  # all but ranks_per_host, the last


def fit(records: Sequence[Mapping[str, Any]], start: CostModel | None = None) -> CostModel:
    """Fit the constants to measured runs: least squares of the logarithms of modelled over measured seconds.

    Parameters
    ----------
    records : sequence of mapping
        Each with ``seconds_per_iteration``, and by name what `Work` takes.
    start : CostModel, optional
        Where to begin. What the records say nothing about, such as links between hosts where all ran on one, stays as
        it is here; where they tell only a sum of constants, each changes as little as it can.

    Examples
    --------
    >>> runs = [{"rows": n, "nnz": 7 * n, "seconds_per_iteration": 5e-6 + n * 176 / 1e12} for n in (1e4, 1e6, 1e8)]
    >>> f"{fit(runs).bandwidth:.2e}"
    '1.00e+12'
    """
    start = start or CostModel()
    works = [Work.from_record(record) for record in records]
    measured = np.array([record["seconds_per_iteration"] for record in records], np.float64)
    if not len(records) or not (measured > 0).all():
        raise ValueError(f"a fit needs records, of more than 0 seconds an iteration, got {measured}")
    begin = np.array(astuple(start)[:_NUM_FITTED])

    def scaled(logarithms: npt.NDArray[np.float64]) -> CostModel:
        values = (begin * np.exp(logarithms)).tolist()
        changes = {field.name: value for field, value in zip(fields(CostModel), values, strict=False)}
        return replace(start, **changes)

    def deviations(logarithms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        model = scaled(logarithms)
        misfit = np.log([model.seconds(work) for work in works] / measured)
        return np.concatenate([misfit, _STAY * logarithms])

    return scaled(least_squares(deviations, np.zeros(_NUM_FITTED)).x)
