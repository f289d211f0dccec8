"""The common interface of libraries for factorizations: solves, updates, results, and the kinds of matrices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.interchange import DenseInput
from gsparse.errors import DeviceError, FactorizationError, ShapeError
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

# Largest difference between entries (i, j) and (j, i) that counts as rounding error in the assembly of a matrix, in
# units of eps times the largest magnitude in a row.
_ROUNDING = 32

MatrixKind = Literal["general", "symmetric", "hermitian", "positive definite"]

_ABBREVIATIONS: dict[str, MatrixKind] = {
    "gen": "general",
    "sym": "symmetric",
    "her": "hermitian",
    "pos": "positive definite",
}
# For each kind, the kinds that it includes. "symmetric" means equal to the transpose without conjugation; for real
# matrices, `parse_kind` and `find_kind` return "hermitian" instead.
_SUBSETS: dict[MatrixKind, tuple[MatrixKind, ...]] = {
    "general": ("general", "symmetric", "hermitian", "positive definite"),
    "symmetric": ("symmetric",),
    "hermitian": ("hermitian", "positive definite"),
    "positive definite": ("positive definite",),
}


def parse_kind(assume_a: str | None, *, is_complex: bool) -> MatrixKind | None:
    """Return the kind that the argument `assume_a` names; None if the matrix is to be examined.

    Raises
    ------
    ValueError
        If there is no such kind.
    """
    if assume_a is None:
        return None
    kind = _ABBREVIATIONS.get(assume_a, assume_a)
    if kind not in get_args(MatrixKind):
        names = ", ".join(map(repr, get_args(MatrixKind)))
        raise ValueError(
            f"assume_a must be one of {names}, or None to let the matrix decide, got {assume_a!r}: "
            "triangular matrices have spsolve_triangular"
        )
    return "hermitian" if kind == "symmetric" and not is_complex else kind  # type: ignore[return-value]


def find_kind(matrix: SquareMatrix) -> MatrixKind:
    """Return the most special kind to which a matrix certainly belongs. Synchronizes.

    A Hermitian matrix is certainly positive (semi)definite if each diagonal element is positive and at least as large
    as the sum of the magnitudes of the other entries of its row. If the matrix was declared symmetric or Hermitian
    (``symmetric=``), this is trusted; otherwise, the values are tested.
    """
    if matrix.is_hermitian():
        return "positive definite" if _is_dominant(matrix) else "hermitian"
    return "symmetric" if matrix.dtype.kind == "c" and is_symmetric(matrix) else "general"


def is_symmetric(matrix: SquareMatrix) -> bool:
    """Return whether a matrix equals its transpose without conjugation, up to rounding. Synchronizes."""
    tolerance = _ROUNDING * float(np.finfo(matrix.dtype).eps)
    return bool(kernels_of(matrix.device).transpose.is_symmetric(matrix.device, matrix.csr, False, tolerance))


def includes(kind: MatrixKind, other: MatrixKind) -> bool:
    """Return whether each matrix of the kind `other` is also of the kind `kind`."""
    return other in _SUBSETS[kind]


def _is_dominant(matrix: SquareMatrix) -> bool:
    if not matrix.stores_positive_diagonal:
        return False
    diagonal = matrix.stored_diagonal.real
    others = matrix.row_sums() - diagonal
    return (
        kernels_of(matrix.device).reductions.first_where(matrix.device, diagonal >= others, "zero") is None
    )  # synchronizes


# "N" solves A·x = b, "T" Aᵀ·x = b, and "H" Aᴴ·x = b.
Transposition = Literal["N", "T", "H"]


@dataclass(frozen=True)
class FactorOptions:
    """The options of a factorization.

    Attributes
    ----------
    superlu : dict
        Arguments of `scipy.sparse.linalg.splu` in addition to the matrix.
    num_threads : int, optional
        Number of host threads for the analysis of the matrix, if the library can use several.
    deterministic : bool
        Whether the same input must yield the same bits, even if that is slower.
    """

    superlu: dict[str, Any] = field(default_factory=dict)
    num_threads: int | None = None
    deterministic: bool = False


class Factors(ABC):
    """The factors of one matrix: the base class for all libraries.

    Parameters
    ----------
    matrix : SquareMatrix
    kind : str
        A `MatrixKind`.

    Attributes
    ----------
    device : Device
        The device of the matrix, on which right-hand sides and solutions are.
    size : int
    dtype : dtype
    kind : str
    """

    def __init__(self, matrix: SquareMatrix, kind: MatrixKind) -> None:
        self.device: Device = matrix.device
        self.size, self.dtype, self.kind = matrix.size, np.dtype(matrix.dtype), kind

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Number of entries of the factors."""

    @abstractmethod
    def solve(self, b: Array, columns: int, trans: Transposition) -> Array:
        """Return the solutions for right-hand sides. Both are device arrays, which hold one column after the other.

        `b` is contiguous and has the dtype of the factors. It is not overwritten. There is at least one column.
        """

    @abstractmethod
    def update(self, matrix: SquareMatrix) -> None:
        """Factorize a matrix of the same structure with other values, with the same order of elimination.

        Raises
        ------
        FactorizationError
            The factors are then lost, and each solve raises this error.
        """

    @abstractmethod
    def logdet(self) -> float:
        """Return the logarithm of the absolute value of the determinant. Synchronizes."""

    def inertia(self) -> tuple[int, int]:
        """Return the numbers of positive and of negative eigenvalues of a Hermitian matrix. Synchronizes.

        Raises
        ------
        FactorizationError
            If these factors do not contain this information.
        """
        if self.kind == "positive definite":
            return self.size, 0
        raise FactorizationError(
            f"{self.kind} factors have no inertia: if the matrix is Hermitian, factorize it with assume_a='hermitian'"
        )


def solved(
    right: DenseInput, device: Device, size: int, dtype: np.dtype[Any], solve: Callable[[Array, int], Array]
) -> Any:
    """Return the solutions for a right-hand side of one or two dimensions, in its array library.

    ``solve(b, columns)`` takes and returns contiguous device arrays, which hold one column after the other.
    """
    if right.gpu is not None and right.gpu is not device:  # on GPUs only
        raise DeviceError(f"the matrix lives on {device.name}, b on {right.gpu.name}: bring one to the other")
    if right.ndim not in (1, 2) or right.shape[0] != size:
        raise ShapeError(
            f"A and b have incompatible dimensions: b must have shape ({size},) or ({size}, k), because A has {size} "
            f"rows, got {right.shape}"
        )
    columns = math.prod(right.shape[1:])
    with device.active(), device.memory_guard():
        x = solve(right.flat(device, dtype, columns), columns) if right.array.size else device.empty(0, dtype)
        x = right.copy_back(device, x.reshape(*right.shape[:0:-1], size))
    return right.returned(x.T)


@dataclass(frozen=True)
class FactorLibrary:
    """A library that computes factorizations.

    Attributes
    ----------
    name : str
        The value of the argument `library`.
    title : str
        The name for users, such as "SuperLU".
    obstacle : callable
        ``obstacle(device, kind)`` returns a text that says why the library cannot factorize such a matrix, with a
        remedy if there is one; an empty text if it can.
    runs_on_host : bool
        Whether the factors are computed on the host, which takes long for large matrices.
    factorize : callable
        ``factorize(matrix, kind, options)`` returns the factors.
    """

    name: str
    title: str
    runs_on_host: bool
    obstacle: Callable[[Device, MatrixKind], str]
    factorize: Callable[[SquareMatrix, MatrixKind, FactorOptions], Factors]
