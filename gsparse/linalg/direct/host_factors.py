"""Factors that are computed on the host: by SuperLU, SciPy's library, and by CHOLMOD, through scikit-sparse.

CHOLMOD is much faster than SuperLU, but only for positive definite matrices.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import DeviceMemoryError, FactorizationError, NotPositiveDefiniteError, SingularMatrixError
from gsparse.linalg.direct.factors import FactorLibrary, FactorOptions, Factors, MatrixKind, Transposition
from gsparse.linalg.direct.triangular import LevelSolves
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.sparse.construction import on_host

# If there are at least this many right-hand sides, the GPU solves. For fewer, the host is faster, because the factors
# have many levels with few rows.
MIN_COLUMNS = 8


def host_matrix(matrix: SquareMatrix) -> sp.csr_array:
    """Return a matrix on the host, in canonical form. Synchronizes."""
    return sp.csr_array(on_host(matrix.device, matrix.csr))


def out_of_memory(library: str, size: int, error: MemoryError) -> DeviceMemoryError:
    """Return the error that the factors for a matrix with `size` rows do not fit into the host's memory."""
    return DeviceMemoryError(
        f"{library}: the host has too little memory for the factors of {size} rows ({error}): use library='cudss' on "
        "a GPU, an iterative solver such as cg with amg, or float32"
    )


class HostFactors(Factors):
    """Factors on the host. They are copied to the GPU of the matrix when many right-hand sides are solved."""

    _matrix: SquareMatrix
    # The factors on the device; None until many right-hand sides have been solved.
    _on_device: LevelSolves | None
    _fits_on_device: bool

    def __init__(self, matrix: SquareMatrix, kind: MatrixKind) -> None:
        super().__init__(matrix, kind)
        self._replace(matrix)

    @abstractmethod
    def _solve_on_host(self, b: npt.NDArray[Any], trans: Transposition) -> npt.NDArray[Any]:
        """Return the solutions for the columns of b. Each column is contiguous."""

    @abstractmethod
    def _triangles(self) -> tuple[Any, Any, npt.NDArray[Any], npt.NDArray[Any]]:
        """Return L (with a unit diagonal), U, perm_r and perm_c: the arguments of `LevelSolves`."""

    def solve(self, b: Array, columns: int, trans: Transposition) -> Array:
        if columns >= MIN_COLUMNS and not self.device.is_host and self._fits_on_device:
            x = self._solve_on_device(b, columns, trans)
            if x is not None:
                return x
        x = self._solve_on_host(self.device.download(b).reshape(columns, self.size).T, trans)  # synchronizes
        return self.device.upload(np.ascontiguousarray(x.T).reshape(-1))

    def _solve_on_device(self, b: Array, columns: int, trans: Transposition) -> Array | None:
        """Return the solutions; None if the device's memory is too small for the factors or for the solve."""
        try:
            with self.device.memory_guard():
                if self._on_device is None:
                    self._on_device = LevelSolves(self._matrix, *self._triangles())
                return self._on_device.solve(b, columns, trans)
        except DeviceMemoryError:
            self._on_device, self._fits_on_device = None, False
            return None

    def _replace(self, matrix: SquareMatrix) -> None:
        """Set the matrix, and forget the factors on the device."""
        self._matrix, self._on_device, self._fits_on_device = matrix, None, True


# SuperLU chooses the diagonal entry of a symmetric matrix as the pivot if it is at least this fraction of the largest
# entry in its column. SuperLU's guide recommends 0.0 to 0.1: other pivots destroy the symmetry, on which the ordering
# relies.
_SYMMETRIC_THRESHOLD = 0.1
# SuperLU counts entries with C's type int.
_MAX_ENTRIES = np.iinfo(np.intc).max


class SuperLUFactors(HostFactors):
    """Factors of SuperLU: Pr·A·Pc = L·U.

    Parameters
    ----------
    matrix : SquareMatrix
    kind : str
    options : FactorOptions

    Attributes
    ----------
    superlu : SuperLU
        SciPy's object for A, or for a symmetric permutation of A after `update`.
    """

    def __init__(self, matrix: SquareMatrix, kind: MatrixKind, options: FactorOptions) -> None:
        super().__init__(matrix, kind)
        S = host_matrix(matrix)
        self._options = {**_defaults(kind, S), **options.superlu}
        # For each row and column, its position in the order of elimination of an earlier factorization; None if unused.
        self._place: npt.NDArray[Any] | None = None
        self.superlu = self._factorized(S, self._options)

    def _factorized(self, S: sp.csr_array, options: dict[str, Any]) -> Any:
        if S.nnz > _MAX_ENTRIES:
            raise FactorizationError(
                f"SuperLU factorizes at most {_MAX_ENTRIES} entries, got {S.nnz}: use library='cudss', or cg with amg"
            )
        try:
            factors = splu(sp.csc_array(S), **options)
        except RuntimeError as error:
            # SuperLU may fail with a message that does not say "singular", but names a line of its source.
            raise SingularMatrixError(
                f"SuperLU: {str(error).strip()}, so the matrix seems to have no inverse: "
                "remove rows or columns that are empty or repeated, "
                "or solve for a least-squares solution with gsparse.linalg.lsmr"
            ) from error
        except MemoryError as error:
            raise out_of_memory("SuperLU", S.shape[0], error) from error
        if self.kind == "positive definite":
            _check_positive(factors)
        return factors

    @property
    def nnz(self) -> int:
        return int(self.superlu.nnz)

    @property
    def perm_r(self) -> npt.NDArray[Any]:
        """For each row of A, its row in Pr·A·Pc."""
        return self._in_order_of_A(self.superlu.perm_r)

    @property
    def perm_c(self) -> npt.NDArray[Any]:
        """For each column of A, its column in Pr·A·Pc."""
        return self._in_order_of_A(self.superlu.perm_c)

    def _in_order_of_A(self, permutation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return permutation if self._place is None else permutation[self._place]

    def _solve_on_host(self, b: npt.NDArray[Any], trans: Transposition) -> npt.NDArray[Any]:
        if self._place is None:
            return np.asarray(self.superlu.solve(b, trans))
        permuted = np.empty_like(b)
        permuted[self._place] = b
        return np.asarray(self.superlu.solve(permuted, trans)[self._place])

    def _triangles(self) -> tuple[Any, Any, npt.NDArray[Any], npt.NDArray[Any]]:
        return self.superlu.L, self.superlu.U, self.perm_r, self.perm_c

    def update(self, matrix: SquareMatrix) -> None:
        place = self.perm_c
        self._place = place
        self._replace(matrix)
        order = np.argsort(place)
        permuted = host_matrix(matrix)[order][:, order]
        options = {**self._options, "permc_spec": "NATURAL"}
        # With the order "NATURAL", SciPy sets SymmetricMode unless the options say otherwise.
        options["options"] = {"SymmetricMode": False, **(options.get("options") or {})}
        self.superlu = self._factorized(permuted, options)

    def logdet(self) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(np.abs(self.superlu.U.diagonal())).sum())

    def inertia(self) -> tuple[int, int]:
        if self.kind == "hermitian":
            if not np.array_equal(self.superlu.perm_r, self.superlu.perm_c):
                raise FactorizationError(
                    "SuperLU has exchanged rows, so that its pivots do not tell the inertia: use library='cudss' on a "
                    "GPU, or eigsh"
                )
            # If rows and columns have the same permutation, U is D·Lᴴ, and D has the inertia of A (Sylvester).
            pivots = self.superlu.U.diagonal().real
            return int((pivots > 0).sum()), int((pivots < 0).sum())
        return super().inertia()


def _defaults(kind: MatrixKind, S: sp.csr_array) -> dict[str, Any]:
    """Return the arguments of `splu` that suit a kind of matrix.

    If the diagonal has zeros, as in a saddle point, exchanges of rows destroy the symmetry. With the order for general
    matrices, the factors then have fewer entries: 0.1 M instead of 1 M for the matrix hangGlider_2.
    """
    if kind == "general" or (kind != "positive definite" and (S.diagonal() == 0).any()):
        return {}
    threshold = 0.0 if kind == "positive definite" else _SYMMETRIC_THRESHOLD
    return {
        "permc_spec": "MMD_AT_PLUS_A",
        "diag_pivot_thresh": threshold,
        "options": {"SymmetricMode": True},
    }


def _check_positive(factors: Any) -> None:
    """Raise an error unless all pivots are positive and on the diagonal."""
    pivots = factors.U.diagonal().real
    if not np.array_equal(factors.perm_r, factors.perm_c) or not (pivots > 0).all():
        raise NotPositiveDefiniteError(
            f"the matrix is not positive definite: the smallest pivot is {pivots.min(initial=0.0):.3g}; use "
            "factorized(A), or assume_a='hermitian'"
        )


def estimate_operations(S: sp.csr_array) -> float:
    """Estimate the operations of a factorization: the sum of squared row widths of the envelope (Cuthill–McKee)."""
    pattern = sp.csr_array((np.ones(S.nnz, np.int8), S.indices, S.indptr), shape=S.shape)
    pattern = sp.csr_array(pattern + pattern.T)
    place = np.empty(S.shape[0], np.int64)
    place[reverse_cuthill_mckee(pattern, symmetric_mode=True)] = np.arange(S.shape[0])
    coo = pattern.tocoo()
    widths = np.zeros(S.shape[0])
    np.maximum.at(widths, place[coo.coords[0]], place[coo.coords[0]] - place[coo.coords[1]])
    return float((widths**2).sum())


SUPERLU = FactorLibrary("superlu", "SuperLU", True, lambda device, kind: "", SuperLUFactors)


@cache
def find_cholmod() -> Any:
    """Return the module `sksparse.cholmod`; None if it is missing, or lacks the interface of version 0.5."""
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
