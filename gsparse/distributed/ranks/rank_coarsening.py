"""One level of multigrid over ranks: its matrix and smoothers, the transfers, and the next coarser matrix.

All nodes of an aggregate are on the same rank. The steps exchange data between ranks as follows:

    own nodes       →  aggregates; ranks exchange only the numbers of their aggregates
    ghosts          ←  ghosts' aggregates and rows of the tentative prolongator, from their owners
    own rows of P   →  R = Pᴴ and R·A·P, by the products and transposes of `RankRows`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_operator import RankOperator
from gsparse.distributed.ranks.rank_rows import RankRows
from gsparse.formats import Csr
from gsparse.kernels.aggregation import Examination, NodePattern
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Call
from gsparse.linalg.multigrid.coarsening import Coarsening, Transfers, group_nodes
from gsparse.linalg.multigrid.level_setup import LevelMatrix
from gsparse.linalg.multigrid.options import Phases, Strength
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.relaxation import BoundSmoother, Relax, Smoother
from gsparse.linalg.preconditioners.square_matrix import canonical_csr


@dataclass(frozen=True, eq=False)
class RankLevelMatrix(LevelMatrix):
    """A rank's rows of the matrix of a level.

    `csr` has the columns of `RankRows`, and `operator` is a `RankOperator`.

    Attributes
    ----------
    part : RankRows
    """

    part: RankRows

    @staticmethod
    def of_rows(part: RankRows, operator: RankOperator) -> RankLevelMatrix:
        whole: Callable[..., RankLevelMatrix] = RankLevelMatrix  # `operator` spans all ranks
        return whole(part.context.device, part.csr, operator, part)

    @property
    def coarsening_input(self) -> RankRows:
        return self.part

    @property
    def structure(self) -> RankRows:  # type: ignore[override]  # of all ranks
        return self.part.with_data(super().structure.data)

    def has_positive_diagonal(self) -> bool:
        """Return whether all diagonal elements on all ranks are positive. All ranks must call this. Synchronizes."""
        # This is not a cached property, because in Python 3.11, threads of two ranks would wait for each other's lock.
        key = RankLevelMatrix.has_positive_diagonal
        if key not in self.shared:
            self.shared[key] = self.part.context.all_ranks(super().has_positive_diagonal())
        is_positive: bool = self.shared[key]
        return is_positive

    def own_block(self) -> LevelMatrix:
        """Return the diagonal block as the matrix of a level without other ranks."""
        diagonal = self.operator.diagonal  # type: ignore[attr-defined]
        csr = canonical_csr(diagonal)
        return LevelMatrix(self.device, csr, MatrixOperator(diagonal))


@dataclass(frozen=True, eq=False)
class BlockSmoother(Smoother):
    """Smooths each rank's rows separately: x += S(b - A·x). S is a smoother of A's diagonal block that starts from 0.

    Attributes
    ----------
    smoother : Smoother
        The smoother S.
    block : MatrixOperator
        The diagonal block.
    """

    name: str
    smoother: Smoother
    block: MatrixOperator

    def __str__(self) -> str:
        return f"{self.smoother}, on each rank"

    def relaxation(self, bound: BoundSmoother) -> Relax:
        # Unless x starts as 0, this smoother moves six vectors in addition to the vectors of the block's smoother.
        passes, size = bound.passes, self.block.shape[0]
        smoother = self.smoother.bind(passes, self.block, bound.adjoint)
        correction, work = passes.vector(size), passes.vector(size)

        def relax(x: Array, b: Array, r: Array, guess: bool, residual: bool) -> list[Call]:
            if not guess:
                return smoother.calls(x, b, r, guess=False, residual=False)
            smooth = smoother.calls(correction, r, work, guess=False, residual=False)
            return [*bound.residual(x, b, r), *smooth, partial(passes.device.xp.add, x, correction, out=x)]

        return relax

    def mirrored(self) -> BlockSmoother:
        return replace(self, smoother=self.smoother.mirrored())


@dataclass(frozen=True, eq=False)
class _NodeAggregates:
    """The aggregates of a rank's own nodes and ghosts, and the structure of its rows of P.

    Attributes
    ----------
    aggregates : array of int32
        For each own node and each ghost, the local number of its aggregate; -1 if it has no aggregate.
    ghosts : array of int64
        Numbers of other ranks' aggregates, on the host. Their local numbers come after the rank's own aggregates.
    pattern : NodePattern
    """

    aggregates: Array
    ghosts: npt.NDArray[np.int64]
    pattern: NodePattern


class RankCoarsening(Coarsening):
    """The structure of the transfers of a distributed level. All ranks must construct their objects together.

    Parameters
    ----------
    A : RankRows
        The rank's rows of the matrix of the level.
    block_size, num_candidates : int
        Number of unknowns of a node of this level, and of a node of the next coarser level.
    symmetry : {"hermitian", "symmetric", "nonsymmetric"}
    strength : Strength
    phases : Phases
    min_rows_per_rank, max_replicated_rows : int
        The next coarser level will be replicated if it has at most `max_replicated_rows` rows. A larger level is
        distributed over so few ranks that they have at least `min_rows_per_rank` rows on average.

    Attributes
    ----------
    aggregates : array of int32, shape (own nodes,)
        The aggregate of each node of this rank, counted from the rank's first aggregate; -1 for no aggregate.
    num_aggregates : int
        Number of aggregates of all ranks together.
    coarse_rows : RowPartition
        The owners of the rows of the coarser level.
    unfiltered_bound, diagonal_range
        As in `gsparse.kernels.aggregation.Examination`, for all ranks and the latest values.
    """

    def __init__(
        self,
        A: RankRows,
        block_size: int,
        num_candidates: int,
        symmetry: str,
        strength: Strength,
        phases: Phases,
        min_rows_per_rank: int,
        max_replicated_rows: int,
    ) -> None:
        super().__init__(A.context.device, A, block_size, symmetry, strength, phases)
        self._k = num_candidates
        ends = np.cumsum(A.context.communicator.table([self.num_aggregates])[:, 0]).tolist()
        self._aggregate_owners = RowPartition((0, *ends))
        self.num_aggregates = self._aggregate_owners.num_rows
        is_replicated = self.num_aggregates * num_candidates <= max_replicated_rows
        self._coarse_node_owners = self._aggregate_owners
        if not is_replicated:
            min_nodes_per_rank = -(-min_rows_per_rank // num_candidates)
            self._coarse_node_owners = on_fewer_ranks(self._aggregate_owners, min_nodes_per_rank)
        self.coarse_rows = _times(self._coarse_node_owners, num_candidates)
        # The first element is for the prolongator, and the second is for the prolongator of the adjoint.
        self._interpolations: list[_NodeAggregates] = []

    def _own_nodes(self, nodes: Csr) -> Csr:
        """Return the graph of this rank's nodes, without their connections to nodes of other ranks."""
        device, xp = self._device, self._device.xp
        numbers = xp.arange(nodes.num_cols, dtype=nodes.indices.dtype)
        places = xp.where(numbers < nodes.num_rows, numbers, -1).astype(numbers.dtype)
        own = kernels_of(device).sparse_rows.map_columns(device, nodes, places, nodes.num_rows)
        return replace(own, is_canonical=True)

    def _examine(self, matrix: RankRows) -> tuple[Csr, Examination]:
        self._context = matrix.context  # in an update, the context of the new matrix
        nodes, examination = super()._examine(matrix.csr)
        smallest, largest = examination.diagonal_range
        # A rank without rows has no smallest element.
        numbers = [examination.bound, examination.unfiltered_bound, largest, -smallest if nodes.num_rows else -np.inf]
        most = self._largest_of_all(np.array(numbers))
        bound, unfiltered, largest, smallest = most[0], most[1], most[2], -most[3]
        diagonal_range = smallest, largest
        return nodes, replace(examination, bound=bound, unfiltered_bound=unfiltered, diagonal_range=diagonal_range)

    def _largest_of_all(self, numbers: npt.NDArray[np.float64]) -> list[float]:
        """Return the maximum of each number over all ranks. All ranks must call this.

        `Communicator.table` takes only finite numbers, so the bits of the numbers are sent as int64.
        """
        bits = self._context.communicator.table(numbers.view(np.int64))
        largest: list[float] = bits.view(np.float64).max(axis=0).tolist()
        return largest

    def fill(  # type: ignore[override] # takes `RankRows` instead of `Csr`
        self, A: RankRows, candidates: Callable[[], tuple[Array, Array]], radius: float, phases: Phases
    ) -> Transfers[RankRows]:
        own, k, of_both = self._aggregate_owners.rows(self._context.rank), self._k, phases.run("candidates", candidates)
        groups = group_nodes(self._device, self.aggregates, own.stop - own.start)
        tentative, coarse = phases.run("candidates", self._orthonormalize, groups, of_both[0])
        P = phases.run("prolongation", self._smooth_rows, 0, A, self._examined, tentative, radius)
        left_coarse = coarse
        if self._symmetry == "nonsymmetric":
            tentative, left_coarse = phases.run("candidates", self._orthonormalize, groups, of_both[1])
            adjoint = phases.run("transpose", A.adjoint, self._block_size)
            examined = self._examine(adjoint)
            left = phases.run("prolongation", self._smooth_rows, 1, adjoint, examined, tentative, radius)
            R = phases.run("transpose", left.adjoint)
        else:
            R = phases.run("transpose", P.adjoint if self._symmetry == "hermitian" else P.transposed)
        AP = phases.run("products", A.multiply, P)
        return Transfers(P, R, phases.run("products", R.multiply, AP, k), coarse, left_coarse)

    def _orthonormalize(self, groups: tuple[Array, Array], candidates: Array) -> tuple[Array, Array]:
        """Return the tentative prolongator, and the candidates for this rank's rows of the coarser level."""
        tentative, coarse = super()._orthonormalize(groups, self._device.xp.ascontiguousarray(candidates))
        wanted = [self.coarse_rows.rows(rank) for rank in range(self.coarse_rows.world_size)]
        return tentative, self._context.values_of_rows(coarse, _times(self._aggregate_owners, self._k), wanted)

    def _smooth_rows(
        self, number: int, A: RankRows, examined: tuple[Csr, Examination], tentative: Array, radius: float
    ) -> RankRows:
        """Return the smoothed prolongator of the matrix (if `number` is 0) or of its adjoint (if `number` is 1)."""
        k, expand_pattern = self._k, kernels_of(self._device).prolongation.expand_pattern
        if len(self._interpolations) == number:
            self._interpolations.append(self._interpolation(A, examined))
        interpolation = self._interpolations[number]
        pattern, aggregates = interpolation.pattern, interpolation.aggregates
        data = self._values(A.csr, examined, pattern, aggregates, A.with_ghosts(tentative), radius)
        indptr, indices = expand_pattern(self._device, pattern.indptr, pattern.indices, self._block_size, k)
        ghosts = (k * interpolation.ghosts[:, None] + np.arange(k)).reshape(-1)
        own = self.coarse_rows.rows(self._context.rank)
        csr = Csr((A.csr.num_rows, own.stop - own.start + ghosts.size), indptr, indices, data, is_canonical=True)
        return RankRows.make(self._context, csr, ghosts, A.rows, self.coarse_rows)

    def _interpolation(self, A: RankRows, examined: tuple[Csr, Examination]) -> _NodeAggregates:
        """Number the aggregates of own nodes and ghosts. Find the aggregates that each node reaches. Synchronizes."""
        context, xp, size = self._context, self._context.device.xp, self._block_size
        first = self._aggregate_owners.rows(context.rank).start
        numbers = xp.where(self.aggregates < 0, np.int64(-1), self.aggregates.astype(np.int64) + first)
        # Values of ghosts are exchanged by row, so repeat each node's number for the rows of the node.
        numbers = A.with_ghosts(xp.repeat(numbers, size))[::size]
        own = self._coarse_node_owners.rows(context.rank)
        is_own = (numbers >= own.start) & (numbers < own.stop)
        ghosts = xp.unique(numbers[~is_own & (numbers >= 0)])
        places = xp.where(is_own, numbers - own.start, own.stop - own.start + xp.searchsorted(ghosts, numbers))
        aggregates = xp.where(numbers < 0, -1, places).astype(np.int32)
        count = own.stop - own.start + int(ghosts.size)
        pattern = self._pattern(examined, aggregates, count)
        return _NodeAggregates(aggregates, context.device.download(ghosts), pattern)


def on_fewer_ranks(partition: RowPartition, min_rows_per_rank: int) -> RowPartition:
    """Return a partition over fewer ranks, if ranks have too few rows.

    Consecutive ranks form groups of equal size. The first rank of a group gets all rows of the group.

    Parameters
    ----------
    partition : RowPartition
    min_rows_per_rank : int
        Smallest average number of rows of the ranks that have rows.

    Returns
    -------
    RowPartition
        `partition` itself if its ranks have enough rows.

    Examples
    --------
    >>> from gsparse.distributed import RowPartition
    >>> from gsparse.distributed.ranks.rank_coarsening import on_fewer_ranks
    >>> on_fewer_ranks(RowPartition((0, 10, 20, 30, 40)), 20).row_bounds
    (0, 20, 20, 40, 40)
    """
    bounds, world_size = partition.row_bounds, partition.world_size
    num_used = int(np.count_nonzero(np.diff(bounds)))
    wanted = max(1, partition.num_rows // max(min_rows_per_rank, 1))
    if wanted >= num_used:
        return partition
    group = -(-world_size // wanted)
    ends = [bounds[min(rank - rank % group + group, world_size)] for rank in range(world_size)]
    return RowPartition((0, *ends))


def _times(partition: RowPartition, size: int) -> RowPartition:
    """Return the partition of rows that corresponds to a partition of nodes. Each node has `size` rows."""
    return RowPartition(tuple(size * bound for bound in partition.row_bounds))
