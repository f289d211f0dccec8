"""One level of multigrid over ranks: its matrix and smoothers, the transfers, and the next coarser matrix.

Aggregates lie within a rank. What crosses ranks is the smoothing of the prolongator and the products:

    own nodes       →  aggregates, and their numbers in the whole level
    ghosts          ←  the aggregates and the tentative prolongator of their owners
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
from gsparse.linalg.multigrid.coarsening import OMEGA, aggregate_nodes, group_nodes, strong_graph
from gsparse.linalg.multigrid.level_setup import LevelMatrix, MakeSmoothers
from gsparse.linalg.multigrid.options import Phases, Strength
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.relaxation import BoundSmoother, Relax, Smoother
from gsparse.linalg.preconditioners.square_matrix import canonical_csr

# The smoothers whose steps multiply by the whole matrix. The others smooth the diagonal block of each rank, and
# multiply the entries in columns of other ranks by the x before their first step.
_WHOLE = ("jacobi", "l1_jacobi", "chebyshev")


@dataclass(frozen=True, eq=False)
class RankLevelMatrix(LevelMatrix):
    """A rank's rows of the matrix of a level. `csr` has the columns of `RankRows`, and `operator` is a `RankOperator`.

    Attributes
    ----------
    part : RankRows
    """

    part: RankRows

    @staticmethod
    def of_rows(part: RankRows, operator: RankOperator) -> RankLevelMatrix:
        whole: Callable[..., RankLevelMatrix] = RankLevelMatrix  # `operator` is not one of the device alone
        return whole(part.context.device, part.csr, operator, part)

    def has_positive_diagonal(self) -> bool:
        """Return whether all elements of the diagonal on all ranks are positive. Synchronizes."""
        # Not a cached property: with Python 3.11, threads that are ranks would wait for each other's lock.
        key = RankLevelMatrix.has_positive_diagonal
        if key not in self.shared:
            self.shared[key] = self.part.context.all_ranks(super().has_positive_diagonal())
        is_positive: bool = self.shared[key]
        return is_positive

    def own_block(self) -> LevelMatrix:
        """Return the block of the rank's rows and columns, as a matrix of its own."""
        diagonal = self.operator.diagonal  # type: ignore[attr-defined]
        csr = canonical_csr(diagonal)
        return LevelMatrix(self.device, csr, MatrixOperator(diagonal))


def smoothers_over_ranks(
    make: MakeSmoothers, name: str
) -> Callable[[RankLevelMatrix, bool], tuple[Smoother, Smoother]]:
    """Return the function that makes the smoothers of a level over ranks.

    Parameters
    ----------
    make : callable
        The function that makes them for a matrix on one device.
    name : str
        The name of the smoother, or "auto".
    """

    def make_over_ranks(matrix: RankLevelMatrix, hermitian: bool) -> tuple[Smoother, Smoother]:
        is_polynomial = name == "auto" and hermitian and matrix.has_positive_diagonal()
        if is_polynomial or name in _WHOLE:
            return make(matrix, hermitian)
        block = matrix.own_block()
        before, after = (_BlockSmoother(s.name, s, block.operator) for s in make(block, False))
        return before, after

    return make_over_ranks


@dataclass(frozen=True, eq=False)
class _BlockSmoother(Smoother):
    """Smooths the rows of each rank by themselves: x += S(b - A·x), where S smooths A's diagonal block from zero.

    Attributes
    ----------
    smoother : Smoother
        S.
    block : MatrixOperator
        The diagonal block.
    """

    name: str
    smoother: Smoother
    block: MatrixOperator

    def __str__(self) -> str:
        return f"{self.smoother}, on each rank"

    def relaxation(self, bound: BoundSmoother) -> Relax:
        # Traffic in vectors, besides that of the smoother of the block: 6 from x, none from zero.
        passes, size = bound.passes, self.block.shape[0]
        smoother = self.smoother.bind(passes, self.block, bound.adjoint)
        correction, work = passes.vector(size), passes.vector(size)

        def relax(x: Array, b: Array, r: Array, guess: bool, residual: bool) -> list[Call]:
            if not guess:
                return smoother.calls(x, b, r, guess=False, residual=False)
            smooth = smoother.calls(correction, r, work, guess=False, residual=False)
            return [*bound.residual(x, b, r), *smooth, partial(passes.device.xp.add, x, correction, out=x)]

        return relax

    def mirrored(self) -> _BlockSmoother:
        return replace(self, smoother=self.smoother.mirrored())


@dataclass(frozen=True, eq=False)
class RankTransfers:
    """The transfers of one level, and the matrix and candidates of the next one.

    Attributes
    ----------
    prolongation, restriction : RankRows
        P and R.
    coarse : RankRows
        R·A·P.
    candidates, left_candidates : array
        The rank's rows of the near-nullspace candidates of the coarser level. `left_candidates` belong to the adjoint.
    """

    prolongation: RankRows
    restriction: RankRows
    coarse: RankRows
    candidates: Array
    left_candidates: Array


@dataclass(frozen=True, eq=False)
class _NodeAggregates:
    """The aggregates of the nodes that a rank reads, and the structure of its rows of P.

    Attributes
    ----------
    aggregates : array of int32
        For each own node and each ghost, the local number of its aggregate, -1 for none.
    ghosts : array of int64
        The aggregates of other ranks, whose local numbers follow those of the rank's own ones. On the host.
    pattern : NodePattern
    """

    aggregates: Array
    ghosts: npt.NDArray[np.int64]
    pattern: NodePattern


class RankCoarsening:
    """The structure of a level's transfers. All ranks make theirs at the same time.

    Parameters
    ----------
    A : RankRows
        The rank's rows of the matrix of the level.
    block_size, num_candidates : int
        Number of unknowns of a node of this level, and of the next one.
    symmetry : {"hermitian", "symmetric", "nonsymmetric"}
    strength : Strength
    min_rows_per_rank, max_replicated_rows : int
        A coarser level with at most `max_replicated_rows` rows will be replicated. Otherwise, each rank that has rows
        should have at least `min_rows_per_rank` of them on average.
    phases : Phases

    Attributes
    ----------
    aggregates : array of int32, shape (own nodes,)
        The aggregate of each node of this rank, counted from its first one; -1 for none.
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
        min_rows_per_rank: int,
        max_replicated_rows: int,
        phases: Phases,
    ) -> None:
        self._block_size, self._k = block_size, num_candidates
        self._symmetry, self._strength = symmetry, strength
        nodes, examination = self.examine(A, phases)
        device, xp = A.context.device, A.context.device.xp
        numbers = xp.arange(nodes.num_cols, dtype=nodes.indices.dtype)
        places = xp.where(numbers < nodes.num_rows, numbers, -1).astype(numbers.dtype)
        own = kernels_of(device).sparse_rows.map_columns(device, nodes, places, nodes.num_rows)
        own = replace(own, is_canonical=True)
        graph = phases.run("strength", strong_graph, device, own, examination, strength, symmetry)
        self.aggregates, count = phases.run("aggregation", aggregate_nodes, device, graph)
        ends = np.cumsum(A.context.communicator.table([count])[:, 0]).tolist()
        self._aggregate_owners = RowPartition((0, *ends))
        self.num_aggregates = self._aggregate_owners.num_rows
        is_replicated = self.num_aggregates * num_candidates <= max_replicated_rows
        self._coarse_node_owners = self._aggregate_owners
        if not is_replicated:
            min_nodes_per_rank = -(-min_rows_per_rank // num_candidates)
            self._coarse_node_owners = on_fewer_ranks(self._aggregate_owners, min_nodes_per_rank)
        self.coarse_rows = _times(self._coarse_node_owners, num_candidates)
        # For the prolongator, and for that of the adjoint.
        self._interpolations: list[_NodeAggregates] = []

    def examine(self, A: RankRows, phases: Phases) -> tuple[Csr, Examination]:
        """Examine the values of a matrix with this structure, and store the `Examination` for `fill`. Synchronizes."""
        self._context = A.context  # in an update, that of another matrix
        self._examined: tuple[Csr, Examination] = phases.run("strength", self._examine, A)
        examination = self._examined[1]
        self.unfiltered_bound, self.diagonal_range = examination.unfiltered_bound, examination.diagonal_range
        return self._examined

    def _examine(self, A: RankRows) -> tuple[Csr, Examination]:
        device, size = self._context.device, self._block_size
        kernels, nodes = kernels_of(device), A.csr
        if size > 1:
            nodes = kernels.aggregation.block_weights(device, A.csr, size)
            nodes = replace(nodes, shape=(nodes.num_rows, A.csr.num_cols // size))
        examination = kernels.aggregation.examine_rows(
            device, A.csr, nodes, size, self._strength.measure, self._strength.dropping_theta
        )
        smallest, largest = examination.diagonal_range
        # A rank without rows has no smallest element.
        numbers = [examination.bound, examination.unfiltered_bound, largest, -smallest if A.csr.num_rows else -np.inf]
        most = self._largest_of_all(np.array(numbers))
        bound, unfiltered, largest, smallest = most[0], most[1], most[2], -most[3]
        diagonal_range = smallest, largest
        return nodes, replace(examination, bound=bound, unfiltered_bound=unfiltered, diagonal_range=diagonal_range)

    def _largest_of_all(self, numbers: npt.NDArray[np.float64]) -> list[float]:
        """Return the largest of each number over all ranks.

        `table` adds up finite numbers only, so the bits of the numbers, which may be infinite, are sent as int64.
        """
        bits = self._context.communicator.table(numbers.view(np.int64))
        largest: list[float] = bits.view(np.float64).max(axis=0).tolist()
        return largest

    def fill(self, A: RankRows, candidates: tuple[Array, Array], radius: float, phases: Phases) -> RankTransfers:
        """Compute the transfers and the coarser matrix for the matrix that was examined last. Synchronizes.

        Parameters
        ----------
        A : RankRows
        candidates : (array, array)
            The rank's rows of the candidates of the matrix and of its adjoint, of shape (own rows, k).
        radius : float
            An estimate of the largest magnitude of an eigenvalue of D⁻¹A.
        phases : Phases
        """
        own, k = self._aggregate_owners.rows(self._context.rank), self._k
        groups = group_nodes(self._context.device, self.aggregates, own.stop - own.start)
        tentative, coarse = phases.run("candidates", self._orthonormalize, groups, candidates[0])
        P = phases.run("prolongation", self._smooth, 0, A, self._examined, tentative, radius)
        left_coarse = coarse
        if self._symmetry == "nonsymmetric":
            tentative, left_coarse = phases.run("candidates", self._orthonormalize, groups, candidates[1])
            adjoint = phases.run("transpose", A.adjoint, self._block_size)
            left = phases.run("prolongation", self._smooth, 1, adjoint, self._examine(adjoint), tentative, radius)
            R = phases.run("transpose", left.adjoint)
        else:
            R = phases.run("transpose", P.adjoint if self._symmetry == "hermitian" else P.transposed)
        AP = phases.run("products", A.multiply, P)
        return RankTransfers(P, R, phases.run("products", R.multiply, AP, k), coarse, left_coarse)

    def _orthonormalize(self, groups: tuple[Array, Array], candidates: Array) -> tuple[Array, Array]:
        """Return the tentative prolongator, and the candidates of the coarse rows that this rank owns."""
        context = self._context
        candidates = context.device.xp.ascontiguousarray(candidates)
        orthonormal = kernels_of(context.device).prolongation.orthonormal_candidates
        tentative, coarse = orthonormal(context.device, *groups, candidates, self._block_size)
        wanted = [self.coarse_rows.rows(rank) for rank in range(self.coarse_rows.world_size)]
        return tentative, context.values_of_rows(coarse, _times(self._aggregate_owners, self._k), wanted)

    def _smooth(
        self, number: int, A: RankRows, examined: tuple[Csr, Examination], tentative: Array, radius: float
    ) -> RankRows:
        """Return the smoothed prolongator of the matrix (0) or of its adjoint (1)."""
        device, kernels, (nodes, examination) = self._context.device, kernels_of(self._context.device), examined
        theta = self._strength.dropping_theta if examination.num_dropped else 0.0
        size, k = self._block_size, self._k
        if len(self._interpolations) == number:
            self._interpolations.append(self._interpolation(A, nodes, examination, theta))
        interpolation = self._interpolations[number]
        pattern = interpolation.pattern
        omega = OMEGA / (min(examination.bound, radius) or 1.0)
        data = kernels.prolongation.prolongator_values(
            device,
            A.csr,
            nodes,
            pattern,
            interpolation.aggregates,
            examination.scales,
            theta,
            A.with_ghosts(tentative),
            size,
            omega,
        )
        indptr, indices = kernels.prolongation.expand_pattern(device, pattern.indptr, pattern.indices, size, k)
        ghosts = (k * interpolation.ghosts[:, None] + np.arange(k)).reshape(-1)
        own = self.coarse_rows.rows(self._context.rank)
        csr = Csr((A.csr.num_rows, own.stop - own.start + ghosts.size), indptr, indices, data, is_canonical=True)
        return RankRows.make(self._context, csr, ghosts, A.rows, self.coarse_rows)

    def _interpolation(self, A: RankRows, nodes: Csr, examination: Examination, theta: float) -> _NodeAggregates:
        """Number the aggregates of own nodes and of ghosts, and find those that each node reaches. Synchronizes."""
        context, xp, size = self._context, self._context.device.xp, self._block_size
        first = self._aggregate_owners.rows(context.rank).start
        numbers = xp.where(self.aggregates < 0, np.int64(-1), self.aggregates.astype(np.int64) + first)
        # The halo is indexed by rows: repeat each number for the rows of its node.
        numbers = A.with_ghosts(xp.repeat(numbers, size))[::size]
        own = self._coarse_node_owners.rows(context.rank)
        is_own = (numbers >= own.start) & (numbers < own.stop)
        ghosts = xp.unique(numbers[~is_own & (numbers >= 0)])
        places = xp.where(is_own, numbers - own.start, own.stop - own.start + xp.searchsorted(ghosts, numbers))
        aggregates = xp.where(numbers < 0, -1, places).astype(np.int32)
        count = own.stop - own.start + int(ghosts.size)
        pattern = kernels_of(context.device).prolongation.prolongator_pattern(
            context.device, nodes, aggregates, count, examination.scales, theta
        )
        return _NodeAggregates(aggregates, context.device.download(ghosts), pattern)


def on_fewer_ranks(partition: RowPartition, min_rows_per_rank: int) -> RowPartition:
    """Merge groups of consecutive ranks: the first rank of each group owns the rows of the whole group.

    Parameters
    ----------
    partition : RowPartition
    min_rows_per_rank : int
        Number of rows that the ranks with rows should have on average, at least.

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
    """Return the partition of the rows, for nodes of `size` rows each."""
    return RowPartition(tuple(size * bound for bound in partition.row_bounds))
