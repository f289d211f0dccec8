"""A model of the time that an iteration of CG takes on many ranks, with few constants, fitted to measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

__all__ = ["CostModel", "Costs", "RankWork", "fit"]

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
