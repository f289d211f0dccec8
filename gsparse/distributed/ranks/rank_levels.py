"""The set-up of multigrid over ranks: distributed levels, and replicated levels, which every rank has in full.

    finest level, and coarser ones          distributed over all ranks
    fewer rows per rank, on average, than
    _MIN_ROWS_PER_RANK                      distributed over fewer ranks; the others have no rows
    at most _MAX_REPLICATED_ROWS            replicated: every rank computes them alone, without waiting for others

The finest level is usually distributed. It may be replicated in three cases: it has at most `max_coarse` rows;
`max_levels` is 1; or the next level would have no rows, or more than `STALLED` times the rows of the finest level.

The restriction to the first replicated level collects the residual from all ranks. The prolongation from this level
uses only the rank's own rows of the correction.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.distributed.ranks.halo import recorded_wait
from gsparse.distributed.ranks.partition import RowPartition
from gsparse.distributed.ranks.rank_coarsening import BlockSmoother, RankCoarsening, RankLevelMatrix
from gsparse.distributed.ranks.rank_operator import RankOperator
from gsparse.distributed.ranks.rank_rows import RankRows
from gsparse.errors import CoarseningWarning
from gsparse.formats import Csr
from gsparse.formats.row_stats import MAX_INT32
from gsparse.linalg.multigrid.coarsening import Transfers
from gsparse.linalg.multigrid.cycle import Level
from gsparse.linalg.multigrid.level_setup import LEVEL_PRODUCTS, TRANSFER_PRODUCTS, LevelSetup, Setup, share_bounds
from gsparse.linalg.operators import Apply, MatrixOperator, Operator
from gsparse.linalg.preconditioners.polynomial import gershgorin_bound
from gsparse.linalg.preconditioners.relaxation import Relaxation, Smoother
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, operator_of
from gsparse.sparse.canonical import canonical

# Largest number of rows of a replicated level, by the kind of device. On such a level, a product takes less time than
# messages between ranks (about 40 µs over NCCL).
_MAX_REPLICATED_ROWS = {"cpu": 20_000, "gpu": 300_000}
# Smallest average number of rows per rank on a distributed coarser level.
_MIN_ROWS_PER_RANK = 50_000
# The smoothers that multiply by the whole matrix in each step. Any other smoother smooths the diagonal block of each
# rank. Before its first step, it multiplies the entries in columns of other ranks by x once.
_WHOLE = ("jacobi", "l1_jacobi", "chebyshev")


@dataclass(eq=False)
class RankLevelSetup(Setup):
    """The set-up of multigrid over ranks.

    Attributes
    ----------
    smoother : str
        The name of the smoother, or "auto".
    replicated : LevelSetup or None
        The set-up of the replicated levels; None without such levels, and before the first set-up.
    sizes : list of (int, int)
        Rows and entries of each level on all ranks together, after the set-up.

    The docstring of `Setup` describes all other attributes.
    """

    smoother: str
    replicated: LevelSetup | None = None
    sizes: list[tuple[int, int]] = field(default_factory=list)

    def build(self, finest: RankLevelMatrix) -> tuple[list[Level], MatrixOperator | None]:
        """Return the levels, and the inverse of the coarsest matrix; None if that matrix is only smoothed.

        Synchronizes.

        Raises
        ------
        FactorizationError
            If the coarsest level is too large for a dense inverse and `max_levels` allows no further level.
        """
        self.sizes = []
        levels, matrix, candidates = self._coarsen(finest)
        if matrix.part.shape[0] > _max_replicated_rows(matrix.device) and len(levels) + 1 < self.options.max_levels:
            smoothers = self._smoothers_of_stalled(matrix, len(levels))
            return [*levels, self._level(matrix, len(levels), None, smoothers)], None
        return self._with_replicated(levels, matrix, candidates())

    def _coarse_matrix(self, matrix: RankLevelMatrix, depth: int, transfers: Transfers[RankRows]) -> RankLevelMatrix:
        operator = transfers.coarse.matrix(expected_products=LEVEL_PRODUCTS, symmetric=self._declared)
        return RankLevelMatrix.of_rows(transfers.coarse, operator)

    def _smoothers(self, matrix: RankLevelMatrix) -> tuple[Smoother, Smoother]:
        is_polynomial = self.is_automatic and self._is_hermitian and matrix.has_positive_diagonal()
        if is_polynomial or self.smoother in _WHOLE:
            return super()._smoothers(matrix)
        block = matrix.own_block()
        before, after = (BlockSmoother(s.name, s, block.operator) for s in self.make(block, False))
        return before, after

    def _is_small(self, matrix: RankLevelMatrix, depth: int) -> bool:
        options = self.options
        limit = _max_replicated_rows(matrix.device) if depth else options.max_coarse * options.block_size
        return matrix.part.shape[0] <= limit

    def _new_coarsening(
        self, matrix: RankLevelMatrix, depth: int, limits: tuple[int, int] | None = None
    ) -> RankCoarsening:
        sizes, strength = (self._block_size(depth), self.num_candidates), self.options.strength(depth)
        limits = limits or (_MIN_ROWS_PER_RANK, _max_replicated_rows(matrix.device))
        return RankCoarsening(matrix.part, *sizes, self.symmetry, strength, self.phases, *limits)

    def _smoothers_of_stalled(self, matrix: RankLevelMatrix, depth: int) -> tuple[Smoother, Smoother]:
        """Return the smoothers of a large level that cannot be coarsened.

        Issue a warning if the level has more entries than rows.
        """
        if matrix.part.nnz > matrix.part.shape[0]:
            size, max_replicated = matrix.part.shape[0], _max_replicated_rows(matrix.device)
            if self._is_small(matrix, depth):
                text = (
                    f"the matrix has {size} rows, more than the {max_replicated} up to which a level is replicated, "
                    "and max_coarse does not let it be coarsened, so it is only smoothed: use a smaller max_coarse"
                )
            else:
                text = (
                    f"level {depth} of {size} rows has too few strong connections within the ranks for a coarser one, "
                    "so it is only smoothed: use another strength, such as strength=('classical', {'theta': 0.02})"
                )
            warnings.warn(f"amg: {text}", CoarseningWarning, stacklevel=2)
        if gershgorin_bound not in matrix.shared:
            # Only the bounds of a new coarsening are needed, because `_coarsening` has discarded the coarsening that
            # stalled together with its bounds. In an update, it makes no coarsening for this level.
            share_bounds(matrix, self._new_coarsening(matrix, depth, (1, 0)))
        smoothers: tuple[Smoother, Smoother] = self.phases.run("smoothers", self._smoothers, matrix)
        return smoothers

    # ------------------------------------------------------------------ replicated levels

    def _with_replicated(
        self, distributed: list[Level], matrix: RankLevelMatrix, candidates: tuple[Array, Array]
    ) -> tuple[list[Level], MatrixOperator | None]:
        """Collect a level on every rank. Then make the replicated levels on each rank, without the other ranks."""
        context, partition = matrix.part.context, matrix.part.rows
        device = context.device
        whole = self.phases.run("gather", context.rows_of_all, matrix.part.in_whole_columns(), partition)
        csr = canonical(device, _narrowest(whole))
        right = context.values_of_all(candidates[0], partition)
        left = right if candidates[1] is candidates[0] else context.values_of_all(candidates[1], partition)
        if self.replicated is None:
            depth, options = len(distributed), self.options
            options = replace(
                options,
                block_size=self._block_size(depth),
                strengths=options.strengths[min(depth, len(options.strengths) - 1) :],
                max_levels=options.max_levels - depth,
            )
            self.replicated = LevelSetup(
                options, self.symmetry, right, left, self.make, self.dtype, improves=not depth, finer_levels=depth
            )
        # On a coarser level, the candidates depend on the values, so an update has new candidates.
        self.replicated.candidates, self.replicated.left_candidates = right, left
        square = SquareMatrix(device, csr, operator_of(device, csr, LEVEL_PRODUCTS))
        levels, inverse = self.replicated.build(square)
        self.sizes += [(level.size, int(level.operator.matrix.nnz)) for level in levels]
        if inverse is not None:
            self.sizes.append((inverse.shape[0], self.replicated.coarse_nnz))
        if not distributed:  # the finest level is replicated
            nothing = Relaxation("none", ())
            distributed = [Level(self._operator(matrix.part, matrix.operator), None, None, nothing, nothing)]
        last: Any = distributed.pop()
        R, P = (
            _ReplicatedTransfer(last.operator, partition, inner, restricts)
            for inner, restricts in ((last.restriction, True), (last.prolongation, False))
        )
        return [*distributed, replace(last, restriction=R, prolongation=P), *levels], inverse

    def _level(
        self,
        matrix: RankLevelMatrix,
        depth: int,
        transfers: Transfers[RankRows] | None,
        smoothers: tuple[Smoother, Smoother],
    ) -> Level:
        self.sizes.append((matrix.part.shape[0], matrix.part.nnz))
        operator: Any = self._operator(matrix.part, matrix.operator)
        R: Any = None
        P: Any = None
        if transfers is not None:
            R, P = (
                self._narrow(part).matrix(expected_products=TRANSFER_PRODUCTS, symmetric=False)
                for part in (transfers.restriction, transfers.prolongation)
            )
        return Level(operator, R, P, *smoothers)

    def _operator(self, part: RankRows, operator: Any) -> Any:
        """Return the matrix of a level as an operator, with values of the levels' dtype."""
        narrow = self._narrow(part)
        return operator if narrow is part else narrow.matrix(expected_products=LEVEL_PRODUCTS, symmetric=self._declared)

    def _narrow(self, part: RankRows) -> RankRows:
        dtype = self._narrow_dtype(part.csr.dtype)
        return part if dtype == part.csr.dtype else part.with_data(part.csr.data.astype(dtype))


def _max_replicated_rows(device: Device) -> int:
    return _MAX_REPLICATED_ROWS["cpu" if device.is_host else "gpu"]


def _narrowest(csr: Csr) -> Csr:
    """Return a matrix with int32 indices if these suffice."""
    is_small = max(*csr.shape, csr.nnz) <= MAX_INT32
    return csr.with_index_dtype(np.int32) if is_small else csr


class _ReplicatedTransfer(Operator):
    """A transfer between a distributed level and a replicated level. Every rank has whole vectors of the latter.

    Parameters
    ----------
    matrix : RankOperator
        The matrix of the distributed level.
    partition : RowPartition
        The rank that computes each row of the replicated level.
    inner : RankOperator or None
        The restriction or the prolongation, whose coarse rows are distributed by `partition`; None for the identity.
    restricts : bool
        Whether the transfer is a restriction, whose result each rank receives in full.
    """

    def __init__(self, matrix: Any, partition: RowPartition, inner: RankOperator | None, restricts: bool) -> None:
        self._partition, self._communicator = partition, matrix.communicator
        self.inner, self._restricts, self._own = inner, restricts, partition.rows(matrix.communicator.rank)
        size, own = partition.num_rows, self._own
        other = inner.shape[1 if restricts else 0] if inner is not None else own.stop - own.start
        self.shape = (size, other) if restricts else (other, size)
        self.dtype = matrix.dtype if inner is None else inner.dtype
        self.is_resident = matrix.is_resident

    def bind(
        self,
        device: Device,
        dtype: np.dtype[Any],
        columns: int = 1,
        *,
        adjoint: bool = False,
        alpha: float = 1,
        beta: float = 0,
    ) -> Apply:
        """Bind the product. `beta` must be 0 if y belongs to the replicated level, because y is then overwritten."""
        own = self._own
        part = device.xp.zeros(columns * (own.stop - own.start), dtype)

        def copy(x: Array, y: Array) -> None:
            y[...] = x + y if beta else x  # alpha is 1, beta is 0 or 1

        multiply: Apply = copy
        if self.inner is not None:
            multiply = self.inner.bind(device, dtype, columns, adjoint=adjoint, alpha=alpha, beta=beta)

        if self._restricts != adjoint:
            return self._bind_collect(device, multiply, part.reshape(columns, -1))

        def take(x: Array, y: Array) -> None:
            part.reshape(columns, -1)[...] = x.reshape(columns, -1)[:, own]
            multiply(part, y)

        return take

    def _bind_collect(self, device: Device, multiply: Apply, part: Array) -> Apply:
        """Bind a product whose result every rank receives in full. `multiply` writes the rank's own rows to `part`."""
        own, rows, communicator = self._own, self._partition.rows, self._communicator
        others = [peer for peer in range(communicator.world_size) if peer != communicator.rank]
        senders = [peer for peer in others if rows(peer).start < rows(peer).stop]
        receivers = others if own.start < own.stop else []
        whole = device.xp.zeros((len(part), self._partition.num_rows), part.dtype)
        exchanges = [
            communicator.bind_exchange(dict.fromkeys(receivers, mine), {peer: all_rows[rows(peer)] for peer in senders})
            for mine, all_rows in zip(part, whole, strict=True)
        ]

        def collect(x: Array, y: Array) -> None:
            multiply(x, part.reshape(-1))
            for exchange in exchanges:
                recorded_wait(exchange(), "values of a replicated level", device, whole)()
            whole[:, own] = part
            y.reshape(whole.shape)[...] = whole

        return collect
