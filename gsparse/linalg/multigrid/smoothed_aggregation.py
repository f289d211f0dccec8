"""The preconditioner of `amg(A)`: a cycle whose levels were set up by smoothed aggregation, and can be updated."""

from __future__ import annotations

import time
from typing import Any

from gsparse.device.dtypes import Array
from gsparse.linalg.multigrid.cycle import MultigridPreconditioner, check_cycle
from gsparse.linalg.multigrid.level_setup import Setup
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix


class SmoothedAggregation(MultigridPreconditioner):
    """A multigrid cycle whose levels were set up by smoothed aggregation. `amg(A)` returns it.

    Parameters
    ----------
    matrix : SquareMatrix
        The matrix of the finest level.
    setup : Setup
        Computes the levels, and computes them again in updates.
    cycle_index : int
        Number of visits to the next coarser level.

    Attributes
    ----------
    seconds : dict
        The seconds of each phase of the latest set-up or update; "in all" is the total.

    Examples
    --------
    >>> import scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import amg
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(1000, 1000))
    >>> M = amg(GpuSparseMatrix(S.tocsr(), device="cpu"))
    >>> len(M.aggregates[0]), M.block_sizes[0]
    (1000, 1)
    """

    def __init__(self, matrix: SquareMatrix, setup: Setup, cycle_index: int) -> None:
        self._setup = setup
        self._structure: Any = matrix.structure
        levels, coarse = self._build(matrix)
        super().__init__(matrix.device, levels, coarse, cycle_index, setup.dtype, setup.coarse_nnz)
        self._check(matrix)

    def _build(self, matrix: SquareMatrix) -> tuple[Any, Any]:
        begin = time.perf_counter()
        levels = self._setup.build(matrix)
        matrix.device.synchronize()  # synchronizes
        self.seconds = {**self._setup.phases.seconds(), "in all": time.perf_counter() - begin}
        self._milliseconds = self._setup.phases.line(self.seconds)
        return levels

    @property
    def aggregates(self) -> list[Array]:
        """For each level but the coarsest, a device array with the aggregate of each node, -1 for none."""
        return [coarsening.aggregates for coarsening in self._setup.coarsenings or ()]

    @property
    def block_sizes(self) -> list[int]:
        """For each level but the coarsest, the number of rows of a node."""
        return [
            self._setup.num_candidates if depth else self._setup.options.block_size
            for depth in range(len(self.aggregates))
        ]

    def update(self, A: Any) -> SmoothedAggregation:
        """Compute the levels again for other values, in place, with the same aggregates and structures.

        This method is meant for sequences of matrices that differ little, as in Newton's method or time steps. The
        near-nullspace candidates and the symmetry of the set-up are used again.

        Parameters
        ----------
        A : sparse array, shape (N, N)
            A matrix with the structure, the dtype and the device of the first matrix, for instance
            ``A.with_data(values)``.

        Returns
        -------
        SmoothedAggregation
            This object, which has changed. Synchronizes.

        Raises
        ------
        StructureError
            If the shape or the positions of the entries differ.
        DeviceError, DtypeError
            If the matrix lives on another device, or has another dtype.
        FactorizationError
            If a diagonal has a zero, a value is not finite, or the smoother diverges.

        Examples
        --------
        >>> import numpy, pyamg
        >>> from gsparse import GpuSparseMatrix
        >>> from gsparse.linalg import amg, cg
        >>> A = GpuSparseMatrix(pyamg.gallery.poisson((40, 40), format="csr"), device="cpu")
        >>> M = amg(A)
        >>> A = A * 2.0
        >>> cg(A, numpy.ones(1600), M=M.update(A), rtol=1e-8)[1]
        0
        """
        with SquareMatrix.of(A, "amg", keep=True) as matrix:
            matrix.check_structure(self.device, self._structure, "amg")
            self._build_again(matrix)
        return self

    def _build_again(self, matrix: SquareMatrix) -> None:
        levels, self.coarse = self._build(matrix)
        self.levels = tuple(levels)
        self._latest = (None,)
        self._check(matrix)

    def _check(self, matrix: SquareMatrix) -> None:
        if not self._setup.suits_theory:  # otherwise no smoother can diverge, and the check is skipped
            check_cycle(self, matrix.operator)

    def _remarks(self) -> dict[str, str]:
        return {**super()._remarks(), "Milliseconds": self._milliseconds}
