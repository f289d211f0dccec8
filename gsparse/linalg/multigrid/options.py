"""The options of a set-up by smoothed aggregation, under PyAMG's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any

import scipy.sparse as sp

from gsparse.kernels.aggregation import MEASURES
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix
from gsparse.matrix.product_methods import declared_block_shape

SYMMETRIES = ("hermitian", "symmetric", "nonsymmetric")
# The default θ of each measure, as in PyAMG.
_THETAS = {"classical": 0.1, "symmetric": 0.0}


@dataclass(frozen=True)
class Strength:
    """The strength of connection on one level.

    Attributes
    ----------
    measure : str
        One of `gsparse.kernels.aggregation.MEASURES`.
    theta : float
    drops : bool
        Whether prolongators are smoothed with the filtered matrix, whose weak entries are added to the diagonal.
    """

    measure: str
    theta: float
    drops: bool


@dataclass(frozen=True)
class AggregationOptions:
    """Options of smoothed aggregation, see `gsparse.linalg.amg`.

    Attributes
    ----------
    block_size : int
    symmetry : {"hermitian", "symmetric", "nonsymmetric"} or None
        None stands for "hermitian" or "nonsymmetric", by the values of the matrix.
    strengths : tuple of Strength
        For each level; the last one also stands for all coarser levels.
    max_levels, max_coarse : int
    """

    block_size: int
    symmetry: str | None
    strengths: tuple[Strength, ...]
    max_levels: int
    max_coarse: int

    def strength(self, depth: int) -> Strength:
        """Return the strength of connection on a level; the finest one has depth 0."""
        return self.strengths[min(depth, len(self.strengths) - 1)]


def parse_options(
    A: Any, block_size: int | None, symmetry: str | None, strength: Any, max_levels: int, max_coarse: int
) -> AggregationOptions:
    """Check the options of `amg` for a matrix. A block sparse matrix, or one made of it, knows its own block size.

    Raises
    ------
    ValueError
        If an option has no allowed value.
    """
    if block_size is None:
        rows, columns = blocks_of(A)
        block_size = rows if rows == columns else 1
    if index(block_size) < 1 or A.shape[0] % block_size:
        raise ValueError(f"block_size must divide the number of rows, {A.shape[0]}, got {block_size}")
    if symmetry is not None and symmetry not in SYMMETRIES:
        raise ValueError(f"symmetry must be None or one of {', '.join(map(repr, SYMMETRIES))}, got {symmetry!r}")
    if index(max_levels) < 1 or index(max_coarse) < 1:
        raise ValueError(f"max_levels and max_coarse must be at least 1, got {max_levels} and {max_coarse}")
    strengths = strength if isinstance(strength, list) else [strength]
    if not strengths:
        raise ValueError("strength must have an element for the finest level, got an empty list")
    return AggregationOptions(block_size, symmetry, tuple(map(_parse_strength, strengths)), max_levels, max_coarse)


def blocks_of(A: Any) -> tuple[int, int]:
    """Return the size of the blocks of a matrix in BSR, or made of one, and (1, 1) for others. Synchronizes."""
    if isinstance(A, DeviceMatrix):
        return declared_block_shape(A) or (1, 1)
    return A.blocksize if sp.issparse(A) and A.format == "bsr" else (1, 1)


def _parse_strength(strength: Any) -> Strength:
    name, options = strength if isinstance(strength, tuple) else (strength, {})
    if name is None and not options:
        return Strength("symmetric", 0.0, False)
    if name not in MEASURES:
        names = ", ".join(map(repr, MEASURES))
        raise ValueError(
            f"strength must be None, {names} or (name, {{'theta': number}}), got {strength!r}: "
            "for other measures, pass a hierarchy of PyAMG"
        )
    if not isinstance(options, Mapping) or {*options} - {"theta"}:
        raise ValueError(f"the strength {name!r} has the option 'theta', got {options!r}")
    theta = options.get("theta", _THETAS[name])
    if not (isinstance(theta, Real) and 0 <= float(theta) <= 1):
        raise ValueError(f"theta must be a number between 0 and 1, got {theta!r}")
    return Strength(name, float(theta), name == "classical")
