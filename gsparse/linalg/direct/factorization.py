"""The object that users hold: the factors of a matrix, computed by the fastest suitable library."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.interchange import parse_dense
from gsparse.errors import DeviceError, DtypeError, FactorizationError, NotPositiveDefiniteError
from gsparse.formats import Csr
from gsparse.linalg.direct.cudss import CUDSS
from gsparse.linalg.direct.factors import (
    FactorLibrary,
    FactorOptions,
    Factors,
    MatrixKind,
    Transposition,
    find_kind,
    includes,
    is_symmetric,
    parse_kind,
    solved,
)
from gsparse.linalg.direct.host_factors import CHOLMOD, SUPERLU
from gsparse.linalg.operators import Apply, Operator, solve_dtype
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix, as_matrix

_TRANSPOSITIONS = ("N", "T", "H")
# From name to library, in the order in which they are tried: the fastest first.
LIBRARIES: dict[str, FactorLibrary] = {library.name: library for library in (CUDSS, CHOLMOD, SUPERLU)}


def choose_library(name: str | None, device: Device, kind: MatrixKind) -> tuple[FactorLibrary, str]:
    """Return the library, and the reason why faster libraries cannot factorize the matrix.

    If `name` is None, return the fastest library that can factorize it.

    Raises
    ------
    ValueError
        If no library has this name.
    FactorizationError
        If the library cannot factorize such a matrix; if `name` is None, if no library can.
    """
    if name is not None:
        if name not in LIBRARIES:
            raise ValueError(f"library must be one of {', '.join(map(repr, LIBRARIES))} or None, got {name!r}")
        obstacle = LIBRARIES[name].obstacle(device, kind)
        if obstacle:
            raise FactorizationError(f"{LIBRARIES[name].title} cannot factorize this matrix: {obstacle}")
        return LIBRARIES[name], ""
    obstacles: list[str] = []
    for library in LIBRARIES.values():
        obstacle = library.obstacle(device, kind)
        if not obstacle:
            return library, "; ".join(obstacles)
        obstacles.append(f"{library.title}: {obstacle}")
    raise FactorizationError(f"no library can factorize this matrix: {'; '.join(obstacles)}")


class Factorization(Operator):
    """The factors of a square sparse matrix A, for solves with any number of right-hand sides.

    `factorized`, `splu` and `cholesky` of `gsparse.linalg` return it. It is also an operator, for instance for ``M=``:
    its product is a solve with A.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    assume_a : str, optional
        As for `factorized`.
    library : str, optional
        As for `factorized`.
    options : FactorOptions, optional
        Options of individual libraries, which these functions set.
    name : str
        The function that was called, for error messages.

    Attributes
    ----------
    shape : (int, int)
    dtype : dtype
        The dtype of the factors.
    device : Device
        The device of A.
    library : str
        Name of the library that computed the factors.
    kind : {"general", "symmetric", "hermitian", "positive definite"}
        The kind of matrix as which A was factorized.
    reason : str
        Why faster libraries were not used; empty if no library is faster, and for a matrix on a CPU.

    Raises
    ------
    FactorizationError, DeviceMemoryError, ShapeError, TypeError, ValueError
        As for `factorized`.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import factorized
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> factors = factorized(A)
    >>> bool(numpy.allclose(A @ factors.solve(numpy.ones(100)), 1))
    True
    >>> factors.update(A.with_data(2 * A.device_data))  # the order of elimination is kept
    >>> bool(numpy.allclose(A @ factors.solve(numpy.ones((100, 3))), 0.5))
    True
    """

    is_resident = False

    def __init__(
        self,
        A: Any,
        *,
        assume_a: str | None = None,
        library: str | None = None,
        options: FactorOptions | None = None,
        name: str = "factorized",
    ) -> None:
        self._name, self._library, self._options = name, library, options or FactorOptions()
        with SquareMatrix.of(A, name) as matrix:
            self.device, self.dtype, self.shape = matrix.device, matrix.dtype, (matrix.size, matrix.size)
            self._declared = parse_kind(assume_a, is_complex=matrix.dtype.kind == "c")
            self._check_declaration(matrix)
            self._factorize(matrix)

    def _check_declaration(self, matrix: SquareMatrix) -> None:
        """Raise an error if the matrix is not of the declared kind, because libraries read only one triangle."""
        kind = self._declared
        is_as_declared = kind is None or kind == "general"
        if kind in ("hermitian", "positive definite"):
            is_as_declared = matrix.is_roughly_hermitian()
        elif kind == "symmetric":
            is_as_declared = is_symmetric(matrix)
        if not is_as_declared:
            word = "symmetric" if matrix.dtype.kind != "c" or kind == "symmetric" else "Hermitian"
            raise FactorizationError(
                f"{self._name} was told that the matrix is {kind}, but it is not {word}: add the other triangle, or "
                "use factorized(A) without assume_a"
            )

    def _factorize(self, matrix: SquareMatrix) -> None:
        """Compute the factors. If Cholesky's method fails and no kind was declared, factorize as Hermitian."""
        kind = self._declared or find_kind(matrix)
        try:
            self._factorize_as(matrix, kind)
        except NotPositiveDefiniteError:
            if self._declared:
                raise
            self._factorize_as(matrix, "hermitian")

    def _factorize_as(self, matrix: SquareMatrix, kind: MatrixKind) -> None:
        library, reason = choose_library(self._library, matrix.device, kind)
        self._factors: Factors | None = None  # frees the memory of the old factors before an update
        if matrix.size:
            self._factors = library.factorize(matrix, kind, self._options)
        self.library, self.kind = library.name, kind
        self.reason = reason if not matrix.device.is_host else ""
        self._csr: Csr = matrix.csr
        self._error: Exception | None = None

    # ------------------------------------------------------------------------------------------------------ results

    @property
    def nnz(self) -> int:
        """Number of entries of the factors."""
        return 0 if self._factors is None else self._factors.nnz

    def __repr__(self) -> str:
        text = (
            f"<{LIBRARIES[self.library].title} factors of a {self.kind} matrix of shape {self.shape}, dtype "
            f"{self.dtype}, {self.nnz} entries, on {self.device.name}>"
        )
        return f"{text[:-1]}; {self.reason}>" if self.reason else text

    def logdet(self) -> float:
        """Return the logarithm of the absolute value of the determinant of A. Synchronizes.

        Returns
        -------
        float
            -inf if a pivot is zero.
        """
        return self._usable().logdet() if self.shape[0] else 0.0

    def inertia(self) -> tuple[int, int]:
        """Return the numbers of positive and of negative eigenvalues of a Hermitian A. Synchronizes.

        Returns
        -------
        (int, int)
            Their sum is N, because A is regular.

        Raises
        ------
        FactorizationError
            If the factors do not contain this information, because A is not Hermitian or because rows were exchanged.
        """
        return self._usable().inertia() if self.shape[0] else (0, 0)

    def __getattr__(self, name: str) -> Any:
        # Attributes of SciPy's SuperLU objects, for programs that were written for `scipy.sparse.linalg.splu`.
        factors: Any = self.__dict__.get("_factors")
        if name in ("perm_r", "perm_c"):
            if hasattr(factors, name):
                return getattr(factors, name)
        elif name in ("L", "U") and hasattr(factors, "superlu"):
            return getattr(factors.superlu, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ------------------------------------------------------------------------------------------------------- solves

    def solve(self, b: Any, trans: Transposition = "N") -> Any:
        """Solve A·x = b, Aᵀ·x = b or Aᴴ·x = b.

        Parameters
        ----------
        b : array_like, shape (N,) or (N, k)
            The right-hand side, on the host or on the device of A.
        trans : {"N", "T", "H"}
            Whether to solve with A, with its transpose, or with its conjugate transpose.

        Returns
        -------
        array, shape (N,) or (N, k)
            On the host or device, as b, and of the same library. The call usually synchronizes.

        Raises
        ------
        FactorizationError
            If an update has failed, so that there are no factors.
        ValueError
            If `trans` has another value.
        DeviceError
            If b is on another GPU than A.
        ShapeError, DeviceMemoryError
        """
        if trans not in _TRANSPOSITIONS:
            raise ValueError(f"trans must be 'N', 'T' or 'H', got {trans!r}")
        right = parse_dense(b)
        return solved(right, self.device, self.shape[0], solve_dtype(right, self), partial(self._solved, trans=trans))

    __call__ = solve

    def bind(self, device: Device, dtype: np.dtype[Any], columns: int = 1, *, adjoint: bool = False) -> Apply:
        if device is not self.device:
            raise DeviceError(
                f"the factors live on {self.device.name}, the vectors on {device.name}: bring one to the other"
            )
        if self.dtype.kind == "c" and dtype.kind != "c":
            raise DtypeError(f"{self.dtype} factors need complex vectors, got {dtype}: solve in complex128")

        def apply(x: Array, y: Array) -> None:
            y[...] = self._solved(x, columns, "H" if adjoint else "N")

        return apply

    def home(self) -> Device:
        return self.device

    def _usable(self) -> Factors:
        if self._error is not None:
            raise FactorizationError(f"an update has failed, and the factors are lost: {self._error}") from self._error
        assert self._factors is not None
        return self._factors

    def _solved(self, b: Array, columns: int, trans: Transposition) -> Array:
        """Return the solutions in b's dtype. Real factors solve for the real and imaginary parts of a complex b."""
        xp = self.device.xp
        if not b.size:
            return b
        factors = self._usable()
        if b.dtype.kind == "c" and self.dtype.kind != "c":
            parts = xp.concatenate([b.real, b.imag]).astype(self.dtype, copy=False)
            solution = factors.solve(parts, 2 * columns, trans)
            x = xp.empty_like(b)
            x.real, x.imag = solution[: b.size], solution[b.size :]
            return x
        return factors.solve(b.astype(self.dtype, copy=False), columns, trans).astype(b.dtype, copy=False)

    # ------------------------------------------------------------------------------------------------------- update

    def update(self, A: Any) -> None:
        """Factorize a matrix of the same structure, with the same order of elimination, in place. Synchronizes.

        If no kind was declared and the matrix is not of the current `kind`, it is factorized from scratch as a matrix
        of its own kind.

        Parameters
        ----------
        A : sparse array, shape (N, N)
            On the device of the first matrix, and with entries at the same positions: ``A.with_data(values)``. Its
            dtype must not be wider.

        Raises
        ------
        FactorizationError
            If the matrix is singular, or not positive definite although that was declared; later solves then raise an
            error too. If the matrix is not Hermitian or symmetric as declared, or has a value that is not finite; the
            old factors then remain.
        StructureError, DeviceError, DtypeError
            If A does not fit the first matrix. The old factors then remain.
        """
        if as_matrix(A, self._name).device is not self.device:
            raise DeviceError(f"the factors live on {self.device.name}: bring the new matrix to it")
        with SquareMatrix.of(A, self._name) as unchecked:
            matrix = self._checked(unchecked)
            self._check_declaration(matrix)
            try:
                if self._factors is None or not includes(self.kind, self._declared or find_kind(matrix)):
                    self._factorize(matrix)
                else:
                    self._factors.update(matrix)
            except Exception as error:
                self._error = error
                raise
            self._csr, self._error = matrix.csr, None

    def _checked(self, matrix: SquareMatrix) -> SquareMatrix:
        """Return the matrix in the dtype of the factors. Raise an error if its structure is not the factorized one."""
        matrix.check_places(self._csr, self._name)
        if not np.can_cast(matrix.dtype, self.dtype):
            raise DtypeError(f"the factors are {self.dtype}, got a matrix of {matrix.dtype}: make new ones")
        if matrix.dtype == self.dtype:
            return matrix
        return SquareMatrix(matrix.device, matrix.csr.with_data(matrix.csr.data.astype(self.dtype)), matrix.operator)
