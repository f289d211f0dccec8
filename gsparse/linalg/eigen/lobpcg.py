"""LOBPCG (Knyazev 2001): a few extreme eigenvalues of A·x = λ·B·x for Hermitian A and positive definite B.

Locally optimal block preconditioned conjugate gradients. With k columns, an iteration is

    R = A·X - B·X·Λ                     residuals of the Ritz pairs (X, Λ)
    W = M·R                             only columns that have not converged
    S = [X  P  W]                       made B-orthonormal; W by `BlockEigenproblem.orthonormal`
    Λ, C = eig(Sᴴ·A·S, Sᴴ·B·S)          the small Rayleigh-Ritz problem, on the host
    X = S·C                             likewise A·X and B·X, without products with A and B
    P = S·C_P                           the part of the new X that comes from P and W

and takes one product each with M and A, and three with B, two of which make W orthonormal. P is formed in the next
iteration, orthonormal and orthogonal to X (Duersch et al. 2018).
"""

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
from gsparse.linalg.eigen.krylov_space import Space
from gsparse.linalg.eigen.rayleigh_ritz import (
    BlockEigenproblem,
    BlockProduct,
    as_block_product,
    concatenate_columns,
    multiply_block,
    scaled_product,
)
from gsparse.linalg.krylov.units import times_power
from gsparse.linalg.operators import Operator, device_for
from gsparse.linalg.registry import register

Host = npt.NDArray[Any]

# If X has fewer rows per column than this, a dense solver is faster, and the basis might have more vectors than rows.
_MIN_ROWS_PER_COLUMN = 5
_MORE = "raise maxiter, or pass a preconditioner M"


def is_small(rows: int, constraints: int, columns: int) -> bool:
    """Return whether a problem is so small that a dense solver is used."""
    return rows - constraints < _MIN_ROWS_PER_COLUMN * columns


def default_tolerance(rows: int, dtype: np.dtype[Any]) -> float:
    """Return the default tolerance for the norms of the residuals."""
    return float(np.sqrt(np.finfo(dtype).eps) * rows)


def unconverged(norms: Host, tol: float, event: str = "Exited", remedy: str = _MORE) -> str:
    """Return the text of the warning for a block whose residuals exceed the tolerance."""
    return (
        f"{event}: the returned eigenpairs, the best ones found, have residual norms {norms}, above the tolerance "
        f"{tol:.3g}; {remedy}."
    )


@register("eigensolver", vectors=(1,), start="X")
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

    Most of the time is spent in products with k columns and in dense products of blocks (cuBLAS on a GPU). The
    Rayleigh-Ritz problem of 3k unknowns is solved on the host.

    Parameters
    ----------
    A : GpuSparseMatrix, sparse array, dense array, LinearOperator, DistributedMatrix or callable, shape (n, n)
        Hermitian. A callable gets a block and returns its product, both the same kind of array as X. With a
        DistributedMatrix, the blocks stay on its workers. If B is passed too, or an M that was not made from the
        DistributedMatrix, only the products run on the workers.
    X : array, shape (n, k)
        Initial approximations to the k eigenvectors: NumPy or CuPy, linearly independent. A random block is sufficient.
    B : like A, optional
        Hermitian and positive definite; the identity by default.
    M : like A, optional
        Preconditioner: approximates the inverse of A. `gsparse.linalg.jacobi` and its siblings return one.
    Y : array, shape (n, m), optional
        Constraints: the eigenvectors are sought in the B-orthogonal complement of these columns.
    tol : float, optional
        The largest norm that each residual A·x - λ·B·x may have. As in SciPy, n·sqrt(eps) by default or if `tol` is not
        positive.
    maxiter : int, optional
        Maximum number of iterations; 20 by default.
    largest : bool, optional
        Whether the largest eigenvalues are wanted, or the smallest.
    verbosityLevel : int, optional
        Whether to print each iteration.
    retLambdaHistory, retResidualNormsHistory : bool, optional
        Whether to return these histories too.
    restartControl : int, optional
        If the mean residual norm exceeds ``2**restartControl`` times the smallest one so far, A·X and B·X are computed
        again and the search directions P are dropped.

    Returns
    -------
    eigenvalues : array, shape (k,)
        In descending order if the largest are wanted, otherwise ascending.
    eigenvectors : array, shape (n, k)
        The block with the smallest residuals: NumPy or CuPy, as X.
    lambdaHistory, residualNormsHistory : list of ndarray
        If requested: host arrays, one for each iteration up to the best one, and one for the final block. They are not
        returned if the problem is solved as a dense one.

    Raises
    ------
    ValueError
        If the columns of X, or of Y, are linearly dependent, X or Y does not have two dimensions, or a product has
        another shape than its block.
    NotImplementedError
        If Y is passed and the problem is so small that it is solved as a dense one: ``n - m < 5 * k``.
    ShapeError
        If X or Y does not have as many rows as A, or if ranks share a problem with ``n - m < 5 * k``.
    TypeError
        If A, B or M is no matrix, operator or callable.
    DtypeError, DeviceError, DeviceMemoryError

    Warns
    -----
    UserWarning
        If tol was not reached, or if the problem is so small that it is solved as a dense one.

    Notes
    -----
    The iterates are the same as SciPy's, except for rounding. The basis of each iteration is orthonormalized with the
    eigenvectors of its Gram matrix [2]_, and linearly dependent directions are dropped, so an ill-conditioned block
    does not end the iteration. Converged columns are soft-locked: they are left out of the search directions, but stay
    in the basis.

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
        products = [as_block_product(part, device, on_host, name) for part, name in zip((A, B, M), "ABM", strict=True)]
        if constraints is not None and constraints.shape[0] != block.shape[0]:
            raise ShapeError(f"Y must have as many rows as X, {block.shape[0]}, got shape {constraints.shape}")
        rows, columns = block.shape if ranks is None else (A.whole_shape[0], block.shape[1])
        first = 0 if ranks is None else A.first_index
        space = Space(device, block.dtype, block.shape[0], rows, first, ranks)
        (product, a), (mass, b), (preconditioner, _) = (scaled_product(part, space) for part in products)
        problem = BlockEigenproblem(space, product, mass, largest, a - b, a - b // 2)
        num_constraints = 0 if constraints is None else constraints.shape[1]
        histories: list[list[Host]] = []
        if is_small(rows, num_constraints, columns):
            values, vectors = _solve_dense(problem, block, num_constraints)
        else:
            tol = default_tolerance(rows, block.dtype) if tol is None or tol <= 0 else tol
            loop = _LobpcgLoop(problem, preconditioner, tol, restartControl, verbosityLevel)
            values, vectors = loop.run(block, constraints, 20 if maxiter is None else maxiter)
            eigenvalues = [times_power(entry, a - b) for entry in loop.values]
            options = (retLambdaHistory, eigenvalues), (retResidualNormsHistory, loop.residuals)
            histories = [[np.squeeze(entry) for entry in history] for is_wanted, history in options if is_wanted]
        values, vectors = times_power(values, a - b), times_power(vectors, -b // 2)
        eigenpairs = (values, device.download(vectors)) if on_host else (device.upload(values), vectors)
        return (*eigenpairs, *histories)


@dataclass(eq=False)
class _LobpcgLoop:
    """The iteration of LOBPCG and its history.

    Attributes
    ----------
    values, residuals : list of ndarray
        The Ritz values of each iteration, and the norms of their residuals in the caller's problem.
    """

    problem: BlockEigenproblem
    M: BlockProduct | None
    tol: float
    restart_control: int
    verbosity: int
    values: list[Host] = field(default_factory=list)
    residuals: list[Host] = field(default_factory=list)

    def run(self, X: Array, Y: Array | None, maxiter: int) -> tuple[Host, Array]:
        problem, count = self.problem, X.shape[1]
        fixed, B_fixed = self._constraints(Y)
        X = problem.orthonormal(X, fixed, B_fixed)
        if X.shape[1] < count:
            raise ValueError("Linearly dependent initial approximations: give X of full rank")
        values, (X, AX, BX) = self._rayleigh_ritz(X)
        self.values.append(values)
        best, best_X, smallest = 0, X, np.inf
        basis, coefficients = None, None
        for number in range(maxiter + 1):
            if problem.space.ranks is not None:
                problem.space.ranks.observe(self)
            R = AX - BX * problem.device.upload(values)
            norms = self.problem.norms(R)
            self.residuals.append(norms)
            if norms.mean() < smallest:
                best, best_X, smallest = number, X, norms.mean()
            elif norms.mean() > 2.0**self.restart_control * smallest:
                basis, (AX, BX) = None, problem.multiply(X)
            active = norms > self.tol
            self._print(f"iteration {number}, {active.sum()} active", values, norms)
            if not active.any():
                break
            # P is the part of the new X that the last step added, made orthonormal and orthogonal to X.
            basis_parts = [(X, AX, BX)]
            if basis is not None and coefficients is not None:
                basis_parts.append(problem.combine(problem.implicit_directions(*coefficients, active), *basis))
            W = multiply_block(self.M, R if active.all() else R[:, problem.device.upload(np.flatnonzero(active))], "M")
            X_P, _, B_X_P = (concatenate_columns(problem.device, parts) for parts in zip(*basis_parts, strict=True))
            if fixed is not None:
                X_P, B_X_P = (concatenate_columns(problem.device, parts) for parts in ((fixed, X_P), (B_fixed, B_X_P)))
            W = problem.orthonormal(W, X_P, B_X_P)
            if W.shape[1] == 0:
                break  # the residuals lie in the span of the basis
            basis_parts.append((W, *problem.multiply(W)))
            basis = tuple(concatenate_columns(problem.device, parts) for parts in zip(*basis_parts, strict=True))
            mass = problem.inner(basis[0], basis[2])
            values, C = problem.ritz(problem.inner(basis[0], basis[1]), mass, count)
            self.values.append(values)
            coefficients = C, mass
            X, AX, BX = problem.combine(C, *basis)
        else:
            norms = self.problem.norms(AX - BX * problem.device.upload(values))
            if norms.mean() < smallest:
                best, best_X, smallest = maxiter + 1, X, norms.mean()
                self.residuals.append(norms)
        values, X, norms = self._finish(best, best_X, fixed, B_fixed)
        if not norms.max() <= self.tol:
            remedy = _MORE if number == maxiter else "raise tol, because rounding errors leave nothing to improve"
            text = unconverged(norms, self.tol, f"Exited at iteration {number}", remedy)
            warnings.warn(text, UserWarning, stacklevel=4)
        return values, X

    def _constraints(self, Y: Array | None) -> tuple[Array | None, Array | None]:
        if Y is None:
            return None, None
        fixed = self.problem.orthonormal(Y)
        if fixed.shape[1] < Y.shape[1]:
            raise ValueError("Linearly dependent constraints: give Y of full rank")
        return fixed, multiply_block(self.problem.B, fixed, "B")

    def _rayleigh_ritz(self, X: Array) -> tuple[Host, tuple[Array, ...]]:
        """Return the Ritz values and Ritz vectors of a block, and new products of A and B with them."""
        AX, BX = self.problem.multiply(X)
        gram, mass = self.problem.inner(X, AX), self.problem.inner(X, BX)
        values, coefficients = self.problem.ritz(gram, mass, X.shape[1])
        return values, self.problem.combine(coefficients, X, AX, BX)

    def _finish(self, best: int, X: Array, fixed: Array | None, B_fixed: Array | None) -> tuple[Host, Array, Host]:
        """Project the best block and solve its Rayleigh-Ritz problem once more, to remove rounding errors."""
        if fixed is not None and B_fixed is not None:
            X = self.problem.project_out(X, fixed, B_fixed)
        values, (X, AX, BX) = self._rayleigh_ritz(X)
        norms = self.problem.norms(AX - BX * self.problem.device.upload(values))
        del self.values[best + 1 :], self.residuals[best + 1 :]
        self.values.append(values)
        self.residuals.append(norms)
        self._print("final", values, norms)
        return values, X, norms

    def _print(self, title: str, values: Host, norms: Host) -> None:
        if self.verbosity:
            values = times_power(values, self.problem.value_exponent)
            print(f"{title}: eigenvalues {values}, residual norms {norms}")


def _solve_dense(problem: BlockEigenproblem, X: Array, num_constraints: int) -> tuple[Host, Array]:
    rows, columns = X.shape
    if problem.space.ranks is not None:
        raise ShapeError(
            f"ranks that share a matrix need {_MIN_ROWS_PER_COLUMN} rows for each of the {columns} columns of X, and "
            "one for each of Y: solve such a small problem on one rank"
        )
    warnings.warn(
        f"The problem size {rows} minus the constraints size {num_constraints} is too small relative to the block size "
        f"{columns}. Using a dense eigensolver instead of LOBPCG iterations; there is no history of them.",
        UserWarning,
        stacklevel=4,
    )
    if num_constraints:
        raise NotImplementedError(
            "The dense eigensolver does not support constraints: leave Y out, or use fewer columns in X"
        )
    identity = problem.device.upload(np.eye(rows, dtype=X.dtype))
    A, B = (problem.device.download(product) for product in problem.multiply(identity))
    count = min(rows, columns)
    if count == 0:
        return np.empty(0, X.real.dtype), X
    first = rows - count if problem.largest else 0
    values, vectors = eigh(A, None if problem.B is None else B, subset_by_index=(first, first + count - 1))
    order = slice(None, None, -1 if problem.largest else 1)
    return values[order], problem.device.upload(np.ascontiguousarray(vectors[:, order]))


def _block(device: Device, array: Any, name: str) -> Array:
    """Return the caller's block as a floating-point array on the device."""
    array = array if device_of(array) is not None else np.asarray(array)
    if array.ndim != 2:
        raise ValueError(f"expected rank-2 array for argument {name}, got shape {array.shape}")
    if array.dtype.kind not in "fc":
        text = f"Data type for argument {name} is {array.dtype}, which is not inexact, so casted to np.float32."
        warnings.warn(text, UserWarning, stacklevel=4)
        array = array.astype(np.float32)
    return array if device_of(array) is not None else device.upload(np.array(array))
