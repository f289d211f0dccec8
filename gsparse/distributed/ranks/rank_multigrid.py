"""The preconditioner that `amg(A)` returns for a matrix over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gsparse.distributed.ranks.rank_coarsening import RankLevelMatrix
from gsparse.distributed.ranks.rank_levels import RankLevelSetup
from gsparse.distributed.ranks.rank_operator import RankOperator
from gsparse.distributed.ranks.rank_rows import RankRows
from gsparse.errors import DtypeError, FactorizationError, ShapeError, StructureError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.multigrid.amg import automatic_smoothers, parse_cycle
from gsparse.linalg.multigrid.options import parse_candidates, parse_options
from gsparse.linalg.multigrid.smoothed_aggregation import SmoothedAggregation
from gsparse.matrix.product_methods import declared_block_shape

# Largest asymmetry, in units of eps, that is attributed to rounding in the assembly of a matrix.
_ROUNDING = 32


class RankMultigrid(SmoothedAggregation):
    """One rank's part of multigrid over ranks. All ranks must construct and apply their objects together.

    Parameters
    ----------
    matrix : RankLevelMatrix
        The rank's rows of the matrix.
    setup : RankLevelSetup
        The object that makes the levels, also in an update.
    cycle_index : int
        Number of visits to the next coarser level: 1 for a V-cycle, 2 for a W-cycle.

    Attributes
    ----------
    seconds : dict
        The seconds of each phase of the latest set-up or update on this rank. The key "in all" has the total.
    aggregates : list of array
        For each distributed level that was coarsened: the aggregate of each node of this rank, or -1 for none.
        Aggregates are counted from the rank's first aggregate.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.distributed import RankMatrix, RowPartition, run_ranks
    >>> from gsparse.linalg import amg, cg
    >>> line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(40, 40))
    >>> S = scipy.sparse.kronsum(line, line, format="csr")
    >>> partition = RowPartition.by_nnz(S.indptr, 3)
    >>> def solve(communicator):
    ...     own = partition.rows(communicator.rank)
    ...     A = RankMatrix(S[own], partition, partition, communicator, device="cpu")
    ...     return cg(A, numpy.ones(own.stop - own.start), M=amg(A), rtol=1e-8, full_output=True)
    >>> results = run_ranks(solve, 3)
    >>> [result.info for result in results], results[0].iterations < 15
    ([0, 0, 0], True)
    """

    _setup: RankLevelSetup

    @property
    def is_resident(self) -> bool:  # type: ignore[override]
        return bool(self.levels[0].operator.is_resident)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The number of rows and of entries of each level on all ranks; the finest level comes first."""
        return list(self._setup.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's parts of all levels' matrices and transfers, as if they were stored in CSR."""
        operators = [o for level in self.levels for o in (level.operator, level.restriction, level.prolongation)]
        matrices: dict[int, Any] = {}
        for operator in (*operators, self.coarse):
            inner = getattr(operator, "inner", operator)
            for name in ("matrix", "diagonal", "off_diagonal"):
                matrix = getattr(inner, name, None)
                matrices[id(matrix)] = matrix
        return sum(int(matrix._prepared()[0].csr.nbytes) for matrix in matrices.values() if matrix is not None)

    def update(self, A: RankOperator) -> RankMultigrid:
        """Compute the levels again for other values. The aggregates and the transfers' structure do not change.

        Parameters
        ----------
        A : RankMatrix
            A matrix with the same structure, distribution and dtype as in the set-up. All ranks must call this
            together.

        Returns
        -------
        RankMultigrid
            This object, updated. Synchronizes.

        Raises
        ------
        StructureError
            If the matrix has another structure or distribution.
        DtypeError
            If the matrix has another dtype.
        FactorizationError
            If a diagonal has a zero, a value is not finite, or the smoother diverges.
        """
        with A.device.active(), A.device.memory_guard():
            part = _finest_rows(A, self._setup.options.block_size)
            self._check_structure(part)
            self._build_again(RankLevelMatrix.of_rows(part, A))
        return self

    def _check_structure(self, part: RankRows) -> None:
        known, csr, xp = self._structure, part.csr, part.context.device.xp
        if csr.dtype != known.csr.dtype:
            raise DtypeError(f"update needs a matrix of {known.csr.dtype}, got {csr.dtype}: use amg(A)")
        is_same = (
            (part.rows, part.columns, csr.shape, csr.nnz) == (known.rows, known.columns, known.csr.shape, known.csr.nnz)
            and np.array_equal(part.ghosts, known.ghosts)
            and bool(xp.array_equal(csr.indptr, known.csr.indptr) and xp.array_equal(csr.indices, known.csr.indices))
        )
        if not part.context.all_ranks(is_same):
            raise StructureError(
                f"update needs the structure of the set-up, of shape {known.shape}, distributed by "
                f"{known.rows.row_bounds}: use amg(A)"
            )

    def _remarks(self) -> dict[str, str]:
        ranks = self._structure.rows.world_size
        return {**super()._remarks(), "Ranks": str(ranks)}


def amg_over_ranks(A: RankOperator, arguments: Mapping[str, Any]) -> RankMultigrid:
    """Set multigrid up for a matrix over ranks. All ranks must call this together. Synchronizes.

    Parameters
    ----------
    A : RankOperator
    arguments : mapping
        All arguments of `gsparse.linalg.amg` except the matrix. `B` and `BH` are the rank's rows of the candidates.

    Raises
    ------
    ShapeError, ValueError, FactorizationError
        As `gsparse.linalg.amg`.
    """
    smoother = arguments["smoother"]
    make, cycle_index, dtype = parse_cycle(arguments["cycle"], smoother, arguments["sweeps"], arguments["dtype"])
    if A.rows != A.columns:
        raise ShapeError(
            f"amg needs a square matrix whose rows and columns are distributed alike, got shape {A.whole_shape}, "
            f"distributed by {A.rows.row_bounds} and {A.columns.row_bounds}"
        )
    device = A.device
    with device.active(), device.memory_guard():
        block_size = arguments["block_size"]
        if block_size is None:
            rows, columns = declared_block_shape(A.diagonal) or (1, 1)
            block_size = rows if rows == columns else 1
        names = ("symmetry", "strength", "max_levels", "max_coarse")
        options = parse_options(A.diagonal, 1, *(arguments[name] for name in names))
        _check_block_size(A, block_size)
        options = replace(options, block_size=int(block_size))
        part = _finest_rows(A, options.block_size)
        symmetry = options.symmetry or ("hermitian" if is_hermitian(A, part) else "nonsymmetric")
        candidates = parse_candidates(
            device, part.csr.num_rows, part.csr.dtype, options, symmetry, arguments["B"], arguments["BH"]
        )
        name = smoother[0] if isinstance(smoother, tuple) else smoother
        smoothers = make or automatic_smoothers(candidates[0].shape[1])
        setup = RankLevelSetup(options, symmetry, *candidates, smoothers, dtype, name, is_automatic=make is None)
        return RankMultigrid(RankLevelMatrix.of_rows(part, A), setup, cycle_index)


def _check_block_size(A: RankOperator, block_size: Any) -> None:
    bounds = A.rows.row_bounds
    if not (isinstance(block_size, int | np.integer) and block_size >= 1):
        raise ValueError(f"block_size must be an integer above 0, got {block_size!r}")
    if any(bound % block_size for bound in bounds):
        raise ShapeError(
            f"block_size={block_size} must divide the first row of each rank, so that no node is on two ranks; the "
            f"rows are distributed by {bounds}: use bounds that are multiples of {block_size} (partition= takes bounds)"
        )


def _finest_rows(A: RankOperator, block_size: int) -> RankRows:
    """Return the rows of the finest level, with whole nodes as ghosts. Raise an error if a value is not finite."""
    part = RankRows.of(A, A.dtype if A.dtype.kind in "fc" else np.float64)
    device = A.device
    entry = kernels_of(device).reductions.first_where(device, part.csr.data, "not finite")
    if entry is not None:
        rows = kernels_of(device).sparse_rows.row_numbers(device, part.csr.indptr, part.csr.nnz)
        row, value = int(rows[entry]) + A.rows.rows(part.context.rank).start, part.csr.data[entry].item()
        raise FactorizationError(f"amg needs finite values, row {row} of the matrix holds {value}: replace it")
    return part if block_size == 1 else part.with_ghosts_of_entries(block_size)


def is_hermitian(A: RankOperator, part: RankRows) -> bool:
    """Return whether the matrix is Hermitian: as declared by the option `symmetric`, else found up to rounding."""
    declared = A.diagonal._prepared()[0].options.symmetric
    if declared is None:
        return part.equals_adjoint(_ROUNDING * float(np.finfo(part.csr.dtype).eps))
    return declared == "hermitian" or (bool(declared) and part.csr.dtype.kind != "c")
