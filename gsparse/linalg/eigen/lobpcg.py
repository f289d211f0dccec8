"""Locally optimal block preconditioned conjugate gradients: a few extreme eigenvalues of a Hermitian matrix."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.select import device_of
from gsparse.errors import ShapeError
from gsparse.linalg.eigen.rayleigh_ritz import Multiply, Pencil, multiplier, product, side_by_side
from gsparse.linalg.operators import Operator, device_for
from gsparse.linalg.registry import register

__all__ = ["default_tolerance", "is_small", "lobpcg"]

Host = npt.NDArray[Any]

# Fewer rows than so many times the columns wanted: a dense solver is quicker, and the basis might not fit.
_MIN_ROWS_PER_COLUMN = 5


def is_small(rows: int, constraints: int, columns: int) -> bool:
    """Tell whether a problem is solved as a dense one."""
    return rows - constraints < _MIN_ROWS_PER_COLUMN * columns


def default_tolerance(rows: int, dtype: np.dtype[Any]) -> float:
    """Give what norms of residuals are to reach where a caller does not say."""
    return float(np.sqrt(np.finfo(dtype).eps) * rows)


@register("eigensolver", vectors=(1,))
def lobpcg(
    A: Any,
    X: Array,
    B: Any = None,
    M: Any = None,
    Y: Array | None = None,
    tol: float | None = None,
    maxiter: int | None = None,
    largest: bool = True,
    verbosityLevel: int = 0,
    retLambdaHistory: bool = False,
    retResidualNormsHistory: bool = False,
    restartControl: int = 20,
) -> Any:
    """Find the largest or smallest eigenvalues of A·x = λ·B·x, with blocks of vectors that stay on the device.

    Products with k columns, and products of blocks by the array module (cuBLAS on a GPU), are all that takes time; the
    Rayleigh-Ritz problem of 3k unknowns is solved on the host.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array, LinearOperator, DistributedMatrix or callable, shape (n, n)
        Hermitian. A callable gets a block and gives its product, both of the kind that X is. With a DistributedMatrix
        blocks stay on its workers; with a B, or with an M that was not made of it, only products run there.
    X : array, shape (n, k)
        NumPy or CuPy: approximations to the k eigenvectors, linearly independent; random ones will do.
    B : like A, optional
        Hermitian and positive definite; the identity by default.
    M : like A, optional
        Preconditioner: approximates the inverse of A. `gsparse.linalg.jacobi` and its siblings will do.
    Y : array, shape (n, m), optional
        Constraints: the eigenvectors are sought in the B-orthogonal complement of these columns.
    tol : float, optional
        Norm of each residual A·x - λ·B·x to reach; n·sqrt(eps) by default.
    maxiter : int, optional
        20 by default.
    largest : bool, optional
        Whether the largest eigenvalues are wanted, or the smallest.
    verbosityLevel : int, optional
        Whether to print each iteration.
    retLambdaHistory, retResidualNormsHistory : bool, optional
        Whether to return them too.
    restartControl : int, optional
        Products are computed afresh, and search directions dropped, when the residual is ``2**restartControl`` times
        the smallest so far.

    Returns
    -------
    eigenvalues : array, shape (k,)
        Falling where the largest are wanted, else rising.
    eigenvectors : array, shape (n, k)
        The best block seen. NumPy or CuPy, as X is.
    lambdaHistory, residualNormsHistory : list of ndarray
        Where asked for: host arrays, one an iteration up to the best, and those of the final block.

    Raises
    ------
    ValueError
        Where columns of X, or of Y, are linearly dependent.
    ShapeError, DtypeError, DeviceError, DeviceMemoryError

    Warns
    -----
    UserWarning
        Where tol was not reached, and where the problem is so small that it is solved as a dense one.

    Notes
    -----
    The iterates are SciPy's up to rounding. The basis of each iteration is made orthonormal by the eigenvectors of its
    Gram matrix [2]_, and directions that hold nothing new are dropped, so an ill-conditioned block ends nothing.
    Converged columns are locked softly: they leave the search directions and stay in the basis.

    References
    ----------
    .. [1] A. V. Knyazev, "Toward the optimal preconditioned eigensolver: locally optimal block preconditioned
       conjugate gradient method", SIAM J. Sci. Comput. 23(2), 2001.
    .. [2] J. A. Duersch, M. Shao, C. Yang, M. Gu, "A robust and efficient implementation of LOBPCG", SIAM J. Sci.
       Comput. 40(5), 2018.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.linalg import lobpcg
    >>> A = GpuSparseMatrix(scipy.sparse.diags_array(numpy.arange(1.0, 101.0)), device="cpu")
    >>> X = numpy.random.default_rng(1).standard_normal((100, 2))
    >>> eigenvalues, eigenvectors = lobpcg(A, X, tol=1e-6, maxiter=80)
    >>> eigenvalues.round(6)
    array([100.,  99.])
    """
    device = device_for(A, B, M, X, Y)
    ranks: Any = A.ranks if isinstance(A, Operator) else None
    with device.active(), device.memory_guard():
        on_host = device_of(X) is None
        block, constraints = _block(device, X, "X"), None if Y is None else _block(device, Y, "Y")
        pencil = Pencil(device, multiplier(A, device, on_host), multiplier(B, device, on_host, "B"), largest, ranks)
        rows, columns = block.shape if ranks is None else (A.whole_shape[0], block.shape[1])
        num_constraints = 0 if constraints is None else constraints.shape[1]
        histories: list[list[Host]] = []
        if is_small(rows, num_constraints, columns):
            values, vectors = _solve_dense(pencil, block, num_constraints)
        else:
            tol = default_tolerance(rows, block.dtype) if tol is None or tol <= 0 else tol
            search = _Search(pencil, multiplier(M, device, on_host, "M"), tol, restartControl, verbosityLevel)
            values, vectors = search.run(block, constraints, 20 if maxiter is None else maxiter)
            wanted = (retLambdaHistory, search.values), (retResidualNormsHistory, search.residuals)
            histories = [[np.squeeze(entry) for entry in history] for is_wanted, history in wanted if is_wanted]
        found = (values, device.download(vectors)) if on_host else (device.upload(values), vectors)
        return (*found, *histories)


@dataclass(eq=False)
class _Search:
    """The iteration, and what it has seen.

    Attributes
    ----------
    values, residuals : list of ndarray
        Ritz values, and norms of their residuals.
    """

    pencil: Pencil
    M: Multiply | None
    tol: float
    restart_control: int
    verbosity: int
    values: list[Host] = field(default_factory=list)
    residuals: list[Host] = field(default_factory=list)

    def run(self, X: Array, Y: Array | None, maxiter: int) -> tuple[Host, Array]:
        pencil, count = self.pencil, X.shape[1]
        fixed, B_fixed = self._constraints(Y)
        X = pencil.orthonormal(X, fixed, B_fixed)
        if X.shape[1] < count:
            raise ValueError("Linearly dependent initial approximations: give X of full rank")
        values, (X, AX, BX) = self._rayleigh_ritz(X)
        self.values.append(values)
        best, best_X, smallest = 0, X, np.inf
        basis, coefficients = None, None
        for number in range(maxiter + 1):
            if pencil.ranks is not None:
                pencil.ranks.look(self)
            R = AX - BX * pencil.device.upload(values)
            norms = self.pencil.norms(R)
            self.residuals.append(norms)
            if norms.mean() < smallest:
                best, best_X, smallest = number, X, norms.mean()
            elif norms.mean() > 2.0**self.restart_control * smallest:
                basis, (AX, BX) = None, pencil.multiply(X)
            active = norms > self.tol
            self._say(f"iteration {number}, {active.sum()} active", values, norms)
            if not active.any():
                break
            # The directions of [1]: what the last step added to X, here orthonormal and orthogonal to X.
            known = [(X, AX, BX)]
            if basis is not None and coefficients is not None:
                known.append(pencil.combine(pencil.directions(*coefficients, active), *basis))
            W = product(self.M, R if active.all() else R[:, pencil.device.upload(np.flatnonzero(active))], "M")
            X_P, _, B_X_P = (side_by_side(pencil.device, parts) for parts in zip(*known, strict=True))
            if fixed is not None:
                X_P, B_X_P = (side_by_side(pencil.device, parts) for parts in ((fixed, X_P), (B_fixed, B_X_P)))
            W = pencil.orthonormal(W, X_P, B_X_P)
            if W.shape[1] == 0:
                break  # (the residuals hold nothing new)
            known.append((W, *pencil.multiply(W)))
            basis = tuple(side_by_side(pencil.device, parts) for parts in zip(*known, strict=True))
            mass = pencil.inner(basis[0], basis[2])
            values, C = pencil.ritz(pencil.inner(basis[0], basis[1]), mass, count)
            self.values.append(values)
            coefficients = C, mass
            X, AX, BX = pencil.combine(C, *basis)
        else:
            norms = self.pencil.norms(AX - BX * pencil.device.upload(values))
            if norms.mean() < smallest:
                best, best_X, smallest = maxiter + 1, X, norms.mean()
                self.residuals.append(norms)
        self._warn(norms, f"Exited at iteration {number}", f"; iteration {best} is used, with {smallest}")
        return self._finish(best, best_X, fixed, B_fixed)

    def _constraints(self, Y: Array | None) -> tuple[Array | None, Array | None]:
        if Y is None:
            return None, None
        fixed = self.pencil.orthonormal(Y)
        if fixed.shape[1] < Y.shape[1]:
            raise ValueError("Linearly dependent constraints: give Y of full rank")
        return fixed, product(self.pencil.B, fixed, "B")

    def _rayleigh_ritz(self, X: Array) -> tuple[Host, tuple[Array, ...]]:
        """Turn a block into its Ritz vectors, with products computed afresh."""
        AX, BX = self.pencil.multiply(X)
        gram, mass = self.pencil.inner(X, AX), self.pencil.inner(X, BX)
        values, coefficients = self.pencil.ritz(gram, mass, X.shape[1])
        return values, self.pencil.combine(coefficients, X, AX, BX)

    def _finish(self, best: int, X: Array, fixed: Array | None, B_fixed: Array | None) -> tuple[Host, Array]:
        """Make the best block satisfy everything exactly: constraints, orthonormality, Ritz values."""
        if fixed is not None and B_fixed is not None:
            X = self.pencil.without(X, fixed, B_fixed)
        values, (X, AX, BX) = self._rayleigh_ritz(X)
        norms = self.pencil.norms(AX - BX * self.pencil.device.upload(values))
        del self.values[best + 1 :], self.residuals[best + 1 :]
        self.values.append(values)
        self.residuals.append(norms)
        self._warn(norms, "Exited postprocessing", stacklevel=6)
        self._say("final", values, norms)
        return values, X

    def _warn(self, norms: Host, when: str, more: str = "", stacklevel: int = 5) -> None:
        if not norms.max() <= self.tol:
            text = f"{when} with accuracies {norms}, not reaching the requested tolerance {self.tol}{more}."
            warnings.warn(text, UserWarning, stacklevel=stacklevel)

    def _say(self, what: str, values: Host, norms: Host) -> None:
        if self.verbosity:
            print(f"{what}: eigenvalues {values}, residual norms {norms}")


def _solve_dense(pencil: Pencil, X: Array, num_constraints: int) -> tuple[Host, Array]:
    rows, columns = X.shape
    if pencil.ranks is not None:
        raise ShapeError(
            f"ranks that share a matrix need {_MIN_ROWS_PER_COLUMN} rows for each of the {columns} columns of X, and "
            "one for each of Y: solve so small a problem on one"
        )
    warnings.warn(
        f"The problem size {rows} minus the constraints size {num_constraints} is too small relative to the block size "
        f"{columns}. Using a dense eigensolver instead of LOBPCG iterations; there is no history of them.",
        UserWarning,
        stacklevel=4,
    )
    if num_constraints:
        raise NotImplementedError(
            "The dense eigensolver does not support constraints: leave Y out, or take a smaller X"
        )
    identity = pencil.device.upload(np.eye(rows, dtype=X.dtype))
    A, B = (pencil.device.download(product) for product in pencil.multiply(identity))
    count = min(rows, columns)
    if count == 0:
        return np.empty(0, X.real.dtype), X
    first = rows - count if pencil.largest else 0
    values, vectors = eigh(A, None if pencil.B is None else B, subset_by_index=(first, first + count - 1))
    order = slice(None, None, -1 if pencil.largest else 1)
    return values[order], pencil.device.upload(np.ascontiguousarray(vectors[:, order]))


def _block(device: Device, array: Any, name: str) -> Array:
    """Bring a block of the caller's to the device, floating."""
    array = array if device_of(array) is not None else np.asarray(array)
    if array.ndim != 2:
        raise ValueError(f"expected rank-2 array for argument {name}, got shape {array.shape}")
    if array.dtype.kind not in "fc":
        text = f"Data type for argument {name} is {array.dtype}, which is not inexact, so casted to np.float32."
        warnings.warn(text, UserWarning, stacklevel=4)
        array = array.astype(np.float32)
    return array if device_of(array) is not None else device.upload(np.array(array))
