"""Factors that a library of the host has computed: solves on the host, or many at once on the GPU of the matrix."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.dtypes import Array
from gsparse.errors import DeviceMemoryError
from gsparse.linalg.direct.factors import Factors, Transposition
from gsparse.linalg.direct.kinds import MatrixKind
from gsparse.linalg.direct.level_solves import LevelSolves
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.sparse.construction import on_host

# The smallest number of right-hand sides that are solved on a GPU. Fewer do not pay for the many narrow levels of the
# factors, which the processor of the host passes faster.
MIN_COLUMNS = 8


def host_matrix(matrix: SquareMatrix) -> sp.csr_array:
    """Return a matrix on the host, in canonical form. Synchronizes."""
    return sp.csr_array(on_host(matrix.device, matrix.csr))


class HostFactors(Factors):
    """Factors on the host, which are copied to the GPU of the matrix when many right-hand sides are solved."""

    _matrix: SquareMatrix
    # The factors on the device, once many right-hand sides have been solved.
    _on_device: LevelSolves | None
    _fits_on_device: bool

    def __init__(self, matrix: SquareMatrix, kind: MatrixKind) -> None:
        super().__init__(matrix, kind)
        self._replace(matrix)

    @abstractmethod
    def _solve_on_host(self, b: npt.NDArray[Any], trans: Transposition) -> npt.NDArray[Any]:
        """Return the solutions for the columns of b, which are contiguous."""

    @abstractmethod
    def _triangles(self) -> tuple[Any, Any, npt.NDArray[Any], npt.NDArray[Any]]:
        """Return L with a diagonal of ones, U, and the permutations of L·U = Pr·A·Pc, as `LevelSolves` takes them."""

    def solve(self, b: Array, columns: int, trans: Transposition) -> Array:
        if columns >= MIN_COLUMNS and not self.device.is_host and self._fits_on_device:
            x = self._solve_on_device(b, columns, trans)
            if x is not None:
                return x
        x = self._solve_on_host(self.device.download(b).reshape(columns, self.size).T, trans)  # synchronizes
        return self.device.upload(np.ascontiguousarray(x.T).reshape(-1))

    def _solve_on_device(self, b: Array, columns: int, trans: Transposition) -> Array | None:
        """Return the solutions, or None if the device's memory is too small for the factors or for the solve."""
        try:
            with self.device.memory_guard():
                if self._on_device is None:
                    self._on_device = LevelSolves(self._matrix, *self._triangles())
                return self._on_device.solve(b, columns, trans)
        except DeviceMemoryError:
            self._on_device, self._fits_on_device = None, False
            return None

    def _replace(self, matrix: SquareMatrix) -> None:
        """Forget what depends on the values of the matrix of before."""
        self._matrix, self._on_device, self._fits_on_device = matrix, None, True
