"""Locally optimal block preconditioned conjugate gradients: a few extreme eigenvalues of a Hermitian matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from gsparse._typing import Array
from gsparse.device import Device, device_of
from gsparse.linalg.operators import (
    DenseOperator,
    ForeignOperator,
    MatrixOperator,
    Operator,
    as_operator,
    device_for,
)

__all__ = ["lobpcg"]

Host = npt.NDArray[Any]
Multiply = Callable[[Array], Array]

# Fewer rows than so many times the columns wanted: a dense solver is quicker, and the basis might not fit.
_MIN_ROWS_PER_COLUMN = 5


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
    A : GpuSparseMatrix, sparse array, dense array, LinearOperator or callable, shape (n, n)
        Hermitian. A callable gets a block and gives its product, both of the kind that X is.
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
    with device.active(), device.memory_guard():
        on_host = device_of(X) is None
        block, constraints = _block(device, X, "X"), None if Y is None else _block(device, Y, "Y")
        pencil = _Pencil(device, _multiplier(A, device, on_host), _multiplier(B, device, on_host), largest)
        rows, columns = block.shape
        num_constraints = 0 if constraints is None else constraints.shape[1]
        histories: list[list[Host]] = []
        if rows - num_constraints < _MIN_ROWS_PER_COLUMN * columns:
            values, vectors = _solve_dense(pencil, block, num_constraints)
        else:
            tol = np.sqrt(np.finfo(block.dtype).eps) * rows if tol is None or tol <= 0 else tol
            search = _Search(pencil, _multiplier(M, device, on_host), tol, restartControl, verbosityLevel)
            values, vectors = search.run(block, constraints, 20 if maxiter is None else maxiter)
            wanted = (retLambdaHistory, search.values), (retResidualNormsHistory, search.residuals)
            histories = [[np.squeeze(entry) for entry in history] for is_wanted, history in wanted if is_wanted]
        found = (values, device.download(vectors)) if on_host else (device.upload(values), vectors)
        return (*found, *histories)


@dataclass(eq=False)
class _Pencil:
    """A and B as products of blocks, and what is computed with them.

    Blocks are (n, k) arrays of the device, their Gram matrices and coefficients small arrays of the host.
    """

    device: Device
    A: Multiply | None
    B: Multiply | None
    largest: bool

    def multiply(self, V: Array) -> tuple[Array, Array]:
        """Give A·V and B·V."""
        return _product(self.A, V, "A"), _product(self.B, V, "B")

    def inner(self, V: Array, W: Array) -> Host:
        """Give Vᴴ·W on the host. Synchronizes."""
        return self.device.download(V.conj().T @ W)

    def combine(self, coefficients: Host, *blocks: Array) -> tuple[Array, ...]:
        """Give each block times the coefficients."""
        on_device = self.device.upload(np.ascontiguousarray(coefficients))
        return tuple(V @ on_device for V in blocks)

    def orthonormal(self, V: Array, basis: Array | None = None, B_basis: Array | None = None) -> Array:
        """Give a B-orthonormal basis of what V adds to a B-orthonormal one. Synchronizes."""
        for _ in range(2):  # twice is enough: the first pass may have lost what an ill-conditioned block allows
            if basis is not None and B_basis is not None:
                V = V - basis @ (B_basis.conj().T @ V)
            (V,) = self.combine(_whitening(self.inner(V, _product(self.B, V, "B"))), V)
        return V

    def ritz(self, gram: Host, mass: Host, count: int) -> tuple[Host, Host]:
        """Solve the small problem: the wanted values and their coefficients, which are orthonormal in `mass`."""
        whitening = _whitening(mass)
        values, vectors = eigh(_hermitian(whitening.conj().T @ gram @ whitening))
        chosen = slice(None, -count - 1, -1) if self.largest else slice(count)
        return values[chosen], whitening @ vectors[:, chosen]


@dataclass(eq=False)
class _Search:
    """The iteration, and what it has seen.

    Attributes
    ----------
    values, residuals : list of ndarray
        Ritz values, and norms of their residuals.
    """

    pencil: _Pencil
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
            R = AX - BX * pencil.device.upload(values)
            norms = self._norms(R)
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
                known.append(pencil.combine(_directions(*coefficients, active), *basis))
            W = _product(self.M, R if active.all() else R[:, pencil.device.upload(np.flatnonzero(active))], "M")
            X_P, _, B_X_P = (_side_by_side(pencil.device, parts) for parts in zip(*known, strict=True))
            if fixed is not None:
                X_P, B_X_P = (_side_by_side(pencil.device, parts) for parts in ((fixed, X_P), (B_fixed, B_X_P)))
            W = pencil.orthonormal(W, X_P, B_X_P)
            if W.shape[1] == 0:
                break  # (the residuals hold nothing new)
            known.append((W, *pencil.multiply(W)))
            basis = tuple(_side_by_side(pencil.device, parts) for parts in zip(*known, strict=True))
            mass = pencil.inner(basis[0], basis[2])
            values, C = pencil.ritz(pencil.inner(basis[0], basis[1]), mass, count)
            self.values.append(values)
            coefficients = C, mass
            X, AX, BX = pencil.combine(C, *basis)
        else:
            norms = self._norms(AX - BX * pencil.device.upload(values))
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
        return fixed, _product(self.pencil.B, fixed, "B")

    def _rayleigh_ritz(self, X: Array) -> tuple[Host, tuple[Array, ...]]:
        """Turn a block into its Ritz vectors, with products computed afresh."""
        AX, BX = self.pencil.multiply(X)
        gram, mass = self.pencil.inner(X, AX), self.pencil.inner(X, BX)
        values, coefficients = self.pencil.ritz(gram, mass, X.shape[1])
        return values, self.pencil.combine(coefficients, X, AX, BX)

    def _finish(self, best: int, X: Array, fixed: Array | None, B_fixed: Array | None) -> tuple[Host, Array]:
        """Make the best block satisfy everything exactly: constraints, orthonormality, Ritz values."""
        if fixed is not None and B_fixed is not None:
            X = X - fixed @ (B_fixed.conj().T @ X)
        values, (X, AX, BX) = self._rayleigh_ritz(X)
        norms = self._norms(AX - BX * self.pencil.device.upload(values))
        del self.values[best + 1 :], self.residuals[best + 1 :]
        self.values.append(values)
        self.residuals.append(norms)
        self._warn(norms, "Exited postprocessing", stacklevel=5)
        self._say("final", values, norms)
        return values, X

    def _norms(self, R: Array) -> Host:
        xp = self.pencil.device.xp
        return self.pencil.device.download(xp.sqrt(xp.sum(xp.abs(R) ** 2, axis=0)))

    def _warn(self, norms: Host, when: str, more: str = "", stacklevel: int = 4) -> None:
        if not norms.max() <= self.tol:
            text = f"{when} with accuracies {norms}, not reaching the requested tolerance {self.tol}{more}."
            warnings.warn(text, UserWarning, stacklevel=stacklevel)

    def _say(self, what: str, values: Host, norms: Host) -> None:
        if self.verbosity:
            print(f"{what}: eigenvalues {values}, residual norms {norms}")


def _directions(C: Host, mass: Host, active: npt.NDArray[np.bool_]) -> Host:
    """Give coefficients of what the active columns have got from outside X, orthonormal and orthogonal to the new X."""
    found = C[:, active].copy()
    found[: C.shape[1]] = 0
    for _ in range(2):
        found -= C @ (C.conj().T @ (mass @ found))
        found = found @ _whitening(found.conj().T @ mass @ found)
    return found


def _whitening(gram: Host) -> Host:
    """Give T with Tᴴ·gram·T = 1, of as many columns as the Gram matrix has directions above rounding.

    Columns are scaled to length 1 before, so their sizes do not matter.
    """
    lengths = np.sqrt(np.abs(np.diag(gram)))
    if not np.isfinite(gram).all() or not lengths.any():
        return gram[:, :0]
    scale = np.where(lengths > 0, 1 / np.where(lengths > 0, lengths, 1), 0).astype(lengths.dtype)
    values, vectors = eigh(_hermitian(scale[:, None] * gram * scale))
    kept = values > 10 * len(values) * np.finfo(values.dtype).eps * max(values[-1], 0)
    found: Host = scale[:, None] * vectors[:, kept] / np.sqrt(values[kept])
    return found


def _hermitian(gram: Host) -> Host:
    return (gram + gram.conj().T) / 2


def _solve_dense(pencil: _Pencil, X: Array, num_constraints: int) -> tuple[Host, Array]:
    rows, columns = X.shape
    warnings.warn(
        f"The problem size {rows} minus the constraints size {num_constraints} is too small relative to the block size "
        f"{columns}. Using a dense eigensolver instead of LOBPCG iterations; there is no history of them.",
        UserWarning,
        stacklevel=3,
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


# ------------------------------------------------------------------ blocks and their products


def _block(device: Device, array: Any, name: str) -> Array:
    """Bring a block of the caller's to the device, floating."""
    array = array if device_of(array) is not None else np.asarray(array)
    if array.ndim != 2:
        raise ValueError(f"expected rank-2 array for argument {name}, got shape {array.shape}")
    if array.dtype.kind not in "fc":
        text = f"Data type for argument {name} is {array.dtype}, which is not inexact, so casted to np.float32."
        warnings.warn(text, UserWarning, stacklevel=3)
        array = array.astype(np.float32)
    return array if device_of(array) is not None else device.upload(np.array(array))


def _side_by_side(device: Device, blocks: tuple[Array, ...]) -> Array:
    return blocks[0] if len(blocks) == 1 else device.xp.concatenate(blocks, axis=1)


def _product(multiply: Multiply | None, V: Array, name: str) -> Array:
    if multiply is None:
        return V
    found = multiply(V)
    if found.shape != V.shape:
        raise ValueError(f"{name} must keep the shape {V.shape} of a block, its product has shape {found.shape}")
    return found


def _multiplier(A: Any, device: Device, on_host: bool) -> Multiply | None:
    """Give the product of blocks for whatever a caller has."""
    if A is None:
        return None
    if callable(A) and not hasattr(A, "shape"):
        return _hosted(A, device) if on_host else A
    operator = as_operator(A, device)
    if isinstance(operator, MatrixOperator):
        matmat: Multiply = operator.matrix.matmat
        return matmat
    if isinstance(operator, DenseOperator):
        array = operator.array if device.owns(operator.array) else device.upload(np.asarray(operator.array))
        return lambda V: array @ V
    if isinstance(operator, ForeignOperator) and hasattr(operator.operator, "matmat"):
        matmat = operator.operator.matmat
        return matmat if operator.takes_device_arrays else _hosted(matmat, device)
    return lambda V: _by_columns(operator, device, V)


def _hosted(function: Multiply, device: Device) -> Multiply:
    """Give a function of host arrays as one of device arrays. Synchronizes."""
    if device.kind == "cpu":
        return lambda V: np.asarray(function(V))
    return lambda V: device.upload(np.asarray(function(device.download(V))))


def _by_columns(operator: Operator, device: Device, V: Array) -> Array:
    """Apply an operator, which knows vectors only, to one column after the other."""
    columns = device.xp.ascontiguousarray(V.T)
    return device.xp.stack([operator.matvec(x) for x in columns], axis=1)
