"""A hierarchy that PyAMG has set up on the host, copied to a device."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.errors import FactorizationError, SmootherWarning
from gsparse.linalg.multigrid.cycle import Level, MultigridPreconditioner, check_cycle, inner_dtype
from gsparse.linalg.multigrid.level_setup import MAX_INVERTED, MakeSmoothers
from gsparse.linalg.multigrid.pyamg_smoothers import EQUIVALENTS, relaxation_for
from gsparse.linalg.multigrid.smoothers import SMOOTHERS
from gsparse.linalg.operators import MatrixOperator
from gsparse.linalg.preconditioners.relaxation import Smoother
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.matrix.arrays import frames_to_the_caller
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix


def _equivalents(matrix: SquareMatrix, level: Any, hermitian: bool) -> tuple[Smoother, Smoother]:
    """Return the equivalents of the smoothers of a level of PyAMG's."""
    return (
        relaxation_for(matrix, level.presmoother, hermitian=hermitian),
        relaxation_for(matrix, level.postsmoother, hermitian=hermitian),
    )


def _warn_of_replacements(levels: Sequence[Level]) -> None:
    """Warn once of each kind of smoother that was replaced, except by an equivalent one."""
    replaced = {s.replaces: s.name for level in levels for s in (level.presmoother, level.postsmoother)}
    for name, replacement in replaced.items():
        if name not in ("", *EQUIVALENTS.get(replacement, ())):
            warnings.warn(
                f"amg: the smoother {name} of the hierarchy is replaced by {replacement}, because no device runs it, "
                f"or only slowly for this matrix; to choose another one, pass smoother= one of "
                f"{', '.join(map(repr, SMOOTHERS))}",
                SmootherWarning,
                stacklevel=frames_to_the_caller(),
            )


def _is_hermitian(matrix: SquareMatrix, symmetry: str | None) -> bool:
    """Return whether the finest matrix of a hierarchy is Hermitian; `symmetry` is PyAMG's name. Synchronizes."""
    if symmetry == "hermitian" or (symmetry == "symmetric" and matrix.dtype.kind != "c"):
        return matrix.is_roughly_hermitian()  # PyAMG's default, so the matrix may be neither
    return symmetry != "nonsymmetric" and matrix.is_hermitian()


def convert_hierarchy(
    ml: Any, device: Device, make: MakeSmoothers | None, cycle_index: int, dtype: Any
) -> MultigridPreconditioner:
    """Copy a hierarchy of PyAMG's to a device.

    Parameters
    ----------
    ml : pyamg.MultilevelSolver
    device : Device
        It must be the active one.
    make : callable or None
        Makes the smoothers of a level; None for the equivalents of those of the hierarchy.
    cycle_index : int
        How often a cycle visits the next coarser level.
    dtype : dtype or None
        The dtype of the levels; None for that of the hierarchy.

    Raises
    ------
    FactorizationError
        If the coarsest matrix has more than `MAX_INVERTED` rows, a smoother divides by a diagonal that has a zero or
        diverges, or a value is not finite.

    Warns
    -----
    SmootherWarning
        If a smoother is replaced by one that is not equivalent, or diverges.
    """
    hermitian: bool | None = None
    levels, coarsest = [], ml.levels[-1].A
    if coarsest.shape[0] > MAX_INVERTED:
        raise FactorizationError(
            f"amg: the coarsest level has {coarsest.shape[0]} rows, and a dense inverse is computed for at most "
            f"{MAX_INVERTED}: build the hierarchy with more levels (max_levels, max_coarse)"
        )
    for level in ml.levels[:-1]:
        operator = _operator(level.A, device, dtype)
        with SquareMatrix.of(operator, "amg") as matrix:
            # Only the finest matrix is tested: if it is Hermitian, so are the coarser ones, up to rounding.
            hermitian = _is_hermitian(matrix, getattr(level.A, "symmetry", None)) if hermitian is None else hermitian
            smoothers = _equivalents(matrix, level, hermitian) if make is None else make(matrix, hermitian)
        levels.append(Level(operator, _operator(level.R, device, dtype), _operator(level.P, device, dtype), *smoothers))
    with SquareMatrix.of(_operator(coarsest, device, None), "amg"):  # raises if a value is not finite
        inverse = np.linalg.pinv(sp.csr_array(coarsest).toarray(), hermitian=bool(hermitian))
    _warn_of_replacements(levels)
    coarse = _operator(inverse, device, dtype)
    M = MultigridPreconditioner(device, levels, coarse, cycle_index, dtype, int(coarsest.nnz))
    check_cycle(M, levels[0].operator if levels else coarse)
    return M


def _operator(matrix: Any, device: Device, dtype: Any) -> MatrixOperator:
    """Copy a host matrix to the device, in the requested precision."""
    host = sp.csr_array(matrix)
    if not host.has_canonical_format:
        host = host.copy()  # its arrays may belong to PyAMG's hierarchy
        host.sum_duplicates()
    if dtype is not None:
        host = host.astype(inner_dtype(np.dtype(dtype), host.dtype))
    return MatrixOperator(GpuSparseMatrix(host, device=device))
