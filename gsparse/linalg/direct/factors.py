"""What every library of factorizations provides: solves, new values, and figures of the factors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError
from gsparse.linalg.direct.kinds import MatrixKind
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

# "N" solves A·x = b, "T" Aᵀ·x = b, and "H" Aᴴ·x = b.
Transposition = Literal["N", "T", "H"]


@dataclass(frozen=True)
class FactorOptions:
    """What a caller asks of a factorization.

    Attributes
    ----------
    superlu : dict
        Arguments of `scipy.sparse.linalg.splu` beside the matrix.
    num_threads : int, optional
        Number of threads of the host that analyse the matrix, where the library can use several.
    deterministic : bool
        Whether the same input has to give the same bits, also where that is slower.
    """

    superlu: dict[str, Any] = field(default_factory=dict)
    num_threads: int | None = None
    deterministic: bool = False


class Factors(ABC):
    """The factors of one matrix.

    Parameters
    ----------
    matrix : SquareMatrix
    kind : str
        See `gsparse.linalg.direct.kinds`.

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
        """Return the solutions for right-hand sides, both on the device and one column after the other.

        `b` is contiguous and has the dtype of the factors. It is not overwritten. There is at least one column.
        """

    @abstractmethod
    def update(self, matrix: SquareMatrix) -> None:
        """Factorize a matrix with other values at the same entries, and keep the order of elimination.

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
            If these factors do not tell.
        """
        if self.kind == "positive definite":
            return self.size, 0
        raise FactorizationError(
            f"{self.kind} factors have no inertia: if the matrix is Hermitian, factorize it with assume_a='hermitian'"
        )
