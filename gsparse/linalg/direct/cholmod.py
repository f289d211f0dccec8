"""CHOLMOD, through scikit-sparse: Cholesky factors on the host, many times faster than SuperLU's."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.errors import NotPositiveDefiniteError
from gsparse.linalg.direct.factors import FactorLibrary, FactorOptions, MatrixKind, Transposition
from gsparse.linalg.direct.superlu import HostFactors, host_matrix, out_of_memory
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix


@cache
def find_cholmod() -> Any:
    """Return the module `sksparse.cholmod`, or None if there is none with the interface of version 0.5."""
    try:
        module = import_module("sksparse.cholmod")
    except ImportError:
        return None
    return module if hasattr(module, "CholeskyFactor") else None


class CholmodFactors(HostFactors):
    """Factors of CHOLMOD: P·A·Pᵀ = L·Lᴴ.

    Parameters
    ----------
    matrix : SquareMatrix
    kind : str
    options : FactorOptions
    """

    def __init__(self, matrix: SquareMatrix, kind: MatrixKind, options: FactorOptions) -> None:
        super().__init__(matrix, kind)
        self._cholmod = find_cholmod()
        self._factor: Any = None
        self._factorize(sp.csc_array(host_matrix(matrix)))

    def _factorize(self, S: sp.csc_array) -> None:
        try:
            if self._factor is None:
                self._factor = self._cholmod.CholeskyFactor(S, lower=True)
            self._factor.factorize(S, ldl=False)
        except self._cholmod.CholmodNotPositiveDefiniteError as error:
            raise NotPositiveDefiniteError(
                f"the matrix is not positive definite ({error}): use factorized(A), or assume_a='hermitian'"
            ) from error
        except MemoryError as error:
            raise out_of_memory("CHOLMOD", self.size, error) from error

    @property
    def nnz(self) -> int:
        return int(self._factor.nnz)

    def _solve_on_host(self, b: npt.NDArray[Any], trans: Transposition) -> npt.NDArray[Any]:
        # Aᴴ is A, and Aᵀ is conj(A).
        x = np.asarray(self._factor.solve(np.conj(b) if trans == "T" else b))
        return np.conj(x) if trans == "T" else x

    def _triangles(self) -> tuple[Any, Any, npt.NDArray[Any], npt.NDArray[Any]]:
        L = sp.csc_array(self._factor.get_factor("LL", lower=True))
        roots = L.diagonal()
        place = np.argsort(self._factor.get_perm())
        return L @ sp.diags_array(1 / roots), sp.diags_array(roots) @ L.conj().T, place, place

    def update(self, matrix: SquareMatrix) -> None:
        self._replace(matrix)
        self._factorize(sp.csc_array(host_matrix(matrix)))

    def logdet(self) -> float:
        return float(self._factor.logdet())


def _obstacle(device: Device, kind: MatrixKind) -> str:
    if kind != "positive definite":
        return f"it factorizes positive definite matrices, this one is {kind}"
    return "" if find_cholmod() is not None else "scikit-sparse is not installed: pip install 'scikit-sparse>=0.5'"


CHOLMOD = FactorLibrary("cholmod", "CHOLMOD", True, _obstacle, CholmodFactors)
