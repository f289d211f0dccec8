"""cuDSS, NVIDIA's library of sparse direct solvers, through the bindings of nvmath-python.

The solver object of nvmath-python is made for a fixed number of right-hand sides, and loses the analysis if it gets
other arrays. The lower-level bindings of the C interface have neither limitation, so `cudss_solver` calls these.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from gsparse._version import install_command
from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.errors import FactorizationError, NotPositiveDefiniteError, SingularMatrixError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.direct.cudss_solver import CudssSolver, find_bindings
from gsparse.linalg.direct.factors import FactorLibrary, FactorOptions, Factors, MatrixKind, Transposition
from gsparse.linalg.preconditioners.square_matrix import MAX_ERROR, SquareMatrix

# Steps of iterative refinement in each solve, if cuDSS has replaced pivots that were too small.
_REFINEMENTS = 2


class CudssFactors(Factors):
    """Factors of cuDSS, on the GPU.

    cuDSS before 1.0 cannot solve with the transpose of a general matrix, so the first such solve also factorizes the
    adjoint.

    Parameters
    ----------
    matrix : SquareMatrix
    kind : str
    options : FactorOptions
    """

    def __init__(self, matrix: SquareMatrix, kind: MatrixKind, options: FactorOptions) -> None:
        super().__init__(matrix, kind)
        if not matrix.csr.nnz:  # cuDSS rejects it as invalid
            raise SingularMatrixError(
                "the matrix is singular, because it has no entries: solve for a least-squares solution with "
                "gsparse.linalg.lsmr"
            )
        self._options = options
        self._solver = self._factorized(matrix.csr)
        self._adjoint: CudssSolver | None = None

    def _factorized(self, csr: Csr) -> CudssSolver:
        """Return the factors of a regular matrix. Synchronizes.

        cuDSS exchanges rows within small blocks only. If that leaves pivots that are too small, for instance because
        the diagonal has zeros, the matrix is factorized again after a matching of rows and columns (Duff and Koster
        2001).
        """
        solver = self._computed(csr)
        if self.kind != "positive definite" and solver.num_replaced_pivots():
            with suppress(FactorizationError):  # without a matching, the matrix is singular
                solver = self._computed(csr, matching=True)
        self._check(solver, csr)
        return solver

    def _computed(self, csr: Csr, *, matching: bool = False) -> CudssSolver:
        solver = CudssSolver(self.device, csr, self.kind, self._options, matching=matching)
        solver.analyse()
        solver.factorize()
        return solver

    def _check(self, solver: CudssSolver, csr: Csr) -> None:
        """Raise an error if the factors are not those of a regular matrix. Synchronizes."""
        info = solver.info()
        if info and self.kind == "positive definite":
            raise NotPositiveDefiniteError(
                f"the matrix is not positive definite: cuDSS reports the leading minor {info} of the reordered matrix; "
                "use factorized(A), or assume_a='hermitian'"
            )
        if info:
            raise FactorizationError(f"cuDSS could not factorize the matrix (info {info}): use library='superlu'")
        if solver.num_replaced_pivots():
            if not self._options.deterministic:
                solver.refine(_REFINEMENTS)
            self._check_solution(solver, csr)

    def _check_solution(self, solver: CudssSolver, csr: Csr) -> None:
        """Raise an error unless a test solve has a small residual: cuDSS replaces zero pivots of a singular matrix."""
        xp = self.device.xp
        b = xp.cos(xp.arange(self.size, dtype=np.float64)).astype(self.dtype)  # a vector without structure
        residual = b - self._product(csr, solver.solve(b, 1))
        error = float(xp.linalg.norm(residual) / xp.linalg.norm(b))  # synchronizes
        if not error <= MAX_ERROR:
            raise SingularMatrixError(
                f"cuDSS: the matrix is singular to working precision, a solve has the relative residual {error:.1e}: "
                "remove rows or columns that are empty or repeated, or solve for a least-squares solution with "
                "gsparse.linalg.lsmr"
            )

    def _product(self, csr: Csr, x: Array) -> Array:
        square = SquareMatrix(self.device, csr, None)  # type: ignore[arg-type]  # only `operator_of` is used
        y = self.device.empty(self.size, self.dtype)
        square.operator_of(csr, products=1).bind(self.device, self.dtype)(x, y)
        return y

    @property
    def nnz(self) -> int:
        return self._solver.nnz()

    def solve(self, b: Array, columns: int, trans: Transposition) -> Array:
        if self.kind == "general" and self._solver.is_version_1:
            return self._solver.solve(b, columns, trans)
        # Which of A, Aᵀ, Aᴴ and conj(A) are equal depends on the kind.
        is_adjoint = self.kind == "general" and trans != "N"
        conjugate = (
            self.dtype.kind == "c"
            and {
                "general": trans == "T",
                "symmetric": trans == "H",
                "hermitian": trans == "T",
                "positive definite": trans == "T",
            }[self.kind]
        )
        solver = self._adjoint_solver() if is_adjoint else self._solver
        x = solver.solve(self.device.xp.conj(b) if conjugate else b, columns)
        return self.device.xp.conj(x) if conjugate else x

    def _adjoint_solver(self) -> CudssSolver:
        if self._adjoint is None:
            csr = self._adjoint_of(self._solver.csr)
            self._adjoint = self._factorized(csr)
        return self._adjoint

    def _adjoint_of(self, csr: Csr) -> Csr:
        transposed: Csr = kernels_of(self.device).transpose.csr_transpose(self.device, csr)
        return transposed.with_data(self.device.xp.conj(transposed.data))

    def update(self, matrix: SquareMatrix) -> None:
        self._solver = self._updated(self._solver, matrix.csr)
        if self._adjoint is not None:
            self._adjoint = self._updated(self._adjoint, self._adjoint_of(matrix.csr))

    def _updated(self, solver: CudssSolver, csr: Csr) -> CudssSolver:
        """Return the factors for other values. The analysis is reused unless pivots are too small."""
        solver.refactorize(csr.data)
        if solver.num_replaced_pivots():
            return self._factorized(csr)
        self._check(solver, csr)
        return solver

    def logdet(self) -> float:
        diagonal = np.abs(self._solver.diagonal().astype(np.result_type(self.dtype, np.float64)))
        with np.errstate(divide="ignore"):
            total = float(np.log(diagonal).sum())
        if self._solver.matching:
            total -= float(np.log(self._solver.scales().astype(np.float64)).sum())
        return 2 * total if self.kind == "positive definite" and self._has_square_roots() else total

    def _has_square_roots(self) -> bool:
        """Return True if the diagonal of Cholesky factors is the one of L in L·Lᴴ, False if it is D in L·D·Lᴴ.

        cuDSS does not document which it is. So the 1 x 1 matrix [4] is factorized: the diagonal is 2 for L, and 4 for
        D.
        """
        xp, index = self.device.xp, self._solver.csr.indices.dtype
        arrays = (np.array([0, 1], index), np.array([0], index), np.array([4], self.dtype))
        solver = self._factorized(Csr((1, 1), *(xp.asarray(array) for array in arrays)))
        return bool(abs(solver.diagonal()[0]) < 3)

    def inertia(self) -> tuple[int, int]:
        if self._solver.matching:
            raise FactorizationError(
                "the factors have no inertia, because cuDSS had to exchange columns: use eigsh, or "
                "numpy.linalg.eigvalsh for a small matrix"
            )
        return self._solver.inertia() if self.kind == "hermitian" else super().inertia()


def _obstacle(device: Device, kind: MatrixKind) -> str:
    if device.is_host:
        return "it needs a matrix on a GPU"
    if not is_nvidia(device):
        return "it needs a GPU of NVIDIA"
    bindings, problem = find_bindings()
    if bindings is None:
        return f"{problem}: {install_command('direct')}, which makes direct solves on the GPU many times faster"
    return ""


def is_nvidia(device: Device) -> bool:
    """Return whether a device is an NVIDIA GPU."""
    runtime = getattr(getattr(device.xp, "cuda", None), "runtime", None)
    return runtime is not None and not runtime.is_hip


CUDSS = FactorLibrary("cudss", "cuDSS", False, _obstacle, CudssFactors)
