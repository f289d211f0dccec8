"""`factorized`, `splu`, `cholesky` and `spsolve`: SciPy's functions, by the fastest library that is available."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import MatrixRankWarning

from gsparse.device.interchange import parse_dense
from gsparse.errors import ShapeError, SingularMatrixError
from gsparse.linalg.direct.factorization import Factorization
from gsparse.linalg.direct.factors import FactorOptions
from gsparse.linalg.operators import solve_dtype
from gsparse.linalg.preconditioners.square_matrix import as_matrix
from gsparse.matrix.arrays import frames_to_the_caller
from gsparse.matrix.gpu_sparse_matrix import DeviceMatrix, GpuSparseMatrix

# Number of columns of a sparse right-hand side that are solved at the same time.
_COLUMNS_AT_ONCE = 64


def factorized(
    A: Any,
    *,
    assume_a: str | None = None,
    library: str | None = None,
    num_threads: int | None = None,
    deterministic: bool = False,
) -> Factorization:
    """Factorize a square matrix, and return the object that solves with the factors.

    ==========  ==================================================  =================================================
    library     where                                               factors
    ==========  ==================================================  =================================================
    "cudss"     on the GPU; needs NVIDIA and the extra ``direct``   LU, LDLᵀ, LDLᴴ or Cholesky's, as the kind demands
    "cholmod"   on the host; needs scikit-sparse                    Cholesky's
    "superlu"   on the host; comes with SciPy                       LU
    ==========  ==================================================  =================================================

    If factors were computed on the host, eight or more right-hand sides are solved together on the GPU of A, level by
    level, and fewer on the host.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one. Integers are converted to float64.
    assume_a : {"general", "symmetric", "hermitian", "positive definite"}, optional
        The kind of A, as for `scipy.linalg.solve`. By default, A is Hermitian if it was declared so (``symmetric=``) or
        if its values are, and positive definite if its diagonal is also positive and dominant.
    library : {"cudss", "cholmod", "superlu"}, optional
        By default, the first library of the table that can factorize A on its device.
    num_threads : int, optional
        Number of host threads with which cuDSS analyses the matrix; by default, all CPUs that the process may use.
    deterministic : bool, optional
        Whether cuDSS must return the same bits each time; it then solves right-hand sides one by one. Other libraries
        always return the same bits. False by default.

    Returns
    -------
    Factorization
        Call it, or its method `solve`, with a right-hand side.

    Raises
    ------
    SingularMatrixError
        If A is singular.
    FactorizationError
        If A is not of the kind that was declared, if it holds NaN or infinity, or if the library cannot factorize it.
    DeviceMemoryError
        If the factors do not fit into memory.
    ShapeError
        If A is not square.
    TypeError
        If A is an operator whose entries cannot be read.
    ValueError
        If there is no such `assume_a` or `library`.

    Notes
    -----
    If A is singular, rounding often leaves a tiny pivot in place of a zero, and no error is raised. The elements of x
    are then of the order of 1/eps, and norm(b - A·x) is about as large as norm(b). `gsparse.linalg.solve` checks this
    residual, and returns a least-squares solution instead.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import factorized
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> solve = factorized(S)
    >>> bool(numpy.allclose(S @ solve(numpy.ones(100)), 1))
    True
    """
    options = FactorOptions(num_threads=num_threads, deterministic=deterministic)
    return Factorization(A, assume_a=assume_a, library=library, options=options)


def splu(
    A: Any,
    permc_spec: str | None = None,
    diag_pivot_thresh: float | None = None,
    relax: int | None = None,
    panel_size: int | None = None,
    options: dict[str, Any] | None = None,
    *,
    library: str | None = None,
) -> Factorization:
    """Factorize a square matrix as L·U, with the signature of `scipy.sparse.linalg.splu`.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    permc_spec : str, optional
        As in SciPy. If this argument or one of the following four is passed, the library is SuperLU.
    diag_pivot_thresh : float, optional
        As in SciPy.
    relax, panel_size : int, optional
        As in SciPy.
    options : dict, optional
        As in SciPy.
    library : {"cudss", "superlu"}, optional
        As for `factorized`.

    Returns
    -------
    Factorization
        With SuperLU, it also has the attributes `L`, `U`, `perm_r` and `perm_c`, as SciPy's object.

    Raises
    ------
    SingularMatrixError, FactorizationError, DeviceMemoryError, ShapeError, TypeError
        As for `factorized`.
    ValueError
        As for `factorized`, or if an argument of SuperLU is passed with another library.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import splu
    >>> S = scipy.sparse.diags_array([-1.5, 3.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> x = splu(S).solve(numpy.ones(100), "T")
    >>> bool(numpy.allclose(S.T @ x, 1))
    True
    """
    passed = {
        "permc_spec": permc_spec,
        "diag_pivot_thresh": diag_pivot_thresh,
        "relax": relax,
        "panel_size": panel_size,
        "options": options,
    }
    superlu = {name: value for name, value in passed.items() if value is not None}
    if superlu and library not in (None, "superlu"):
        raise ValueError(f"{', '.join(superlu)} are options of SuperLU, got library={library!r}: leave one of them out")
    return Factorization(
        A,
        assume_a="general",
        library="superlu" if superlu else library,
        options=FactorOptions(superlu=superlu),
        name="splu",
    )


def cholesky(
    A: Any, *, library: str | None = None, num_threads: int | None = None, deterministic: bool = False
) -> Factorization:
    """Factorize a Hermitian, positive definite matrix as L·Lᴴ.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        Hermitian and positive definite, with both triangles.
    library : {"cudss", "cholmod", "superlu"}, optional
        As for `factorized`. SuperLU computes L·D·Lᴴ with the pivots on the diagonal.
    num_threads : int, optional
        As for `factorized`.
    deterministic : bool, optional
        As for `factorized`.

    Returns
    -------
    Factorization
        Call it, or its method `solve`, with a right-hand side.

    Raises
    ------
    NotPositiveDefiniteError
        If A is not positive definite.
    FactorizationError
        If A is not Hermitian.
    SingularMatrixError, DeviceMemoryError, ShapeError, TypeError, ValueError
        As for `factorized`.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import cholesky
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(5, 5))
    >>> round(float(numpy.exp(cholesky(S).logdet())), 6)  # the determinant
    6.0
    """
    options = FactorOptions(num_threads=num_threads, deterministic=deterministic)
    return Factorization(A, assume_a="positive definite", library=library, options=options, name="cholesky")


def spsolve(
    A: Any, b: Any, permc_spec: str | None = None, use_umfpack: bool = True, *, library: str | None = None
) -> Any:
    """Solve A·x = b with a factorization, with the signature of `scipy.sparse.linalg.spsolve`.

    To solve with the same matrix several times, use `factorized`, which returns the factors.

    Parameters
    ----------
    A : sparse array, shape (N, N)
        A GpuSparseMatrix, or a sparse array that can be converted to one.
    b : array_like or sparse array, shape (N,) or (N, k)
        On the host or on the device of A.
    permc_spec : str, optional
        As in SciPy. If it is passed, the library is SuperLU.
    use_umfpack : bool, optional
        For compatibility with SciPy; it has no effect.
    library : {"cudss", "cholmod", "superlu"}, optional
        As for `factorized`.

    Returns
    -------
    array or sparse array
        For a dense b, an array of the same library, on the host or device as b. As in SciPy, a column of shape (N, 1)
        gives a vector, and so does a sparse b of one column or one dimension. A sparse b of several columns gives a
        sparse array: a GpuSparseMatrix on the device of A if A is one, otherwise a `csc_array` of SciPy. If A is
        singular, all elements are NaN.

    Raises
    ------
    FactorizationError, DeviceMemoryError, TypeError, ValueError
        As for `factorized`.
    ShapeError
        If A is not square, or b does not have a row for each row of A.
    DeviceError
        If b is on another GPU than A.

    Warns
    -----
    MatrixRankWarning
        If A is singular.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.linalg import spsolve
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> bool(numpy.allclose(S @ spsolve(S, numpy.ones(100)), 1))
    True
    """
    matrix = as_matrix(A, "spsolve")
    is_sparse = sp.issparse(b) and b.ndim == 2 and b.shape[1] != 1
    right = b if is_sparse else parse_dense(b.toarray() if sp.issparse(b) else b)
    if right.ndim not in (1, 2) or right.shape[0] != matrix.shape[0]:
        raise ShapeError(f"A and b have incompatible dimensions, shapes {matrix.shape} and {right.shape}")
    wide: Any = matrix
    wide = wide.astype(_precision(matrix, right), copy=False)
    if permc_spec is not None and library not in (None, "superlu"):
        raise ValueError(f"permc_spec is an option of SuperLU, got library={library!r}: leave one of them out")
    options = FactorOptions(superlu={} if permc_spec is None else {"permc_spec": permc_spec})
    try:
        factors = Factorization(
            wide, library=library if permc_spec is None else "superlu", options=options, name="spsolve"
        )
    except SingularMatrixError as error:
        warnings.warn(f"Matrix is exactly singular: {error}", MatrixRankWarning, stacklevel=frames_to_the_caller())
        dtype = solve_dtype(wide, right)
        if is_sparse:
            return _as_sparse(sp.csc_array(np.full(right.shape, np.nan, dtype)), A)
        x = (np if right.is_on_host else matrix.device.xp).full(right.shape, np.nan, dtype)
        return right.returned(_as_vector(x))
    if is_sparse:
        return _as_sparse(_solve_sparse(factors, right), A)
    return right.returned(_as_vector(factors.solve(right)))


def _as_vector(x: Any) -> Any:
    return x.reshape(-1) if x.ndim == 2 and x.shape[1] == 1 else x


def _precision(matrix: Any, right: Any) -> np.dtype[Any]:
    """Return the dtype of the factors, which has the precision of the solution and is real if the matrix is real."""
    dtype = solve_dtype(matrix, right)
    if np.dtype(matrix.dtype).kind != "c" and dtype.kind == "c":
        return np.zeros(0, dtype).real.dtype
    return dtype


def _as_sparse(x: Any, A: Any) -> Any:
    """Return a sparse solution x as a matrix on the device of A, or unchanged if A is a SciPy array."""
    return GpuSparseMatrix(x, device=A.device) if isinstance(A, DeviceMatrix) else x


def _solve_sparse(factors: Factorization, b: Any) -> Any:
    """Solve for the columns of a sparse b, some at a time. Return the solutions as a sparse array without zeros."""
    columns = sp.csc_array(b)
    solved = [
        sp.csc_array(factors.solve(columns[:, first : first + _COLUMNS_AT_ONCE].toarray()))
        for first in range(0, columns.shape[1], _COLUMNS_AT_ONCE)
    ]
    return sp.hstack(solved, format="csc") if solved else sp.csc_array(b.shape, dtype=factors.dtype)
