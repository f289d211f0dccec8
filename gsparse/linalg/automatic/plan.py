"""The methods to try for a matrix, in order, each with a reason: pure functions of the matrix's properties."""

from __future__ import annotations

from dataclasses import dataclass

from gsparse.linalg.automatic.problem import MatrixProperties

# A matrix with at most this many rows is factorized first, which takes milliseconds.
DIRECT_SIZE = 2000


@dataclass(frozen=True)
class Trial:
    """A method to try.

    Attributes
    ----------
    method : str
        A solver of `gsparse.linalg`, or "direct".
    preconditioner : str
        Name of a preconditioner; empty for none.
    why : str
        The reason to try it.
    maxiter : int
        Limit of iterations. For GMRES, too, it counts iterations and not cycles.
    """

    method: str
    preconditioner: str
    why: str
    maxiter: int = 0

    @property
    def name(self) -> str:
        return f"{self.method} with {self.preconditioner}" if self.preconditioner else self.method


def methods_for(properties: MatrixProperties) -> tuple[Trial, ...]:
    """Return the methods to try for a square matrix, in order.

    A singular matrix is factorized only after iterative methods have failed.
    """
    if properties.is_probably_definite:
        methods = _definite(properties)
    elif properties.is_hermitian:
        methods = _indefinite(properties)
    else:
        methods = _nonsymmetric(properties)
    is_singular = properties.has_constant_null_space or properties.num_empty_rows > 0
    if properties.num_rows <= DIRECT_SIZE and not is_singular:
        why = f"{properties.num_rows} rows: a factorization takes milliseconds"
        methods = (Trial("direct", "", why), *(c for c in methods if c.method != "direct"))
    return methods


def _definite(properties: MatrixProperties) -> tuple[Trial, ...]:
    """Return the methods for a Hermitian matrix with a positive diagonal."""
    word = "Hermitian" if properties.dtype.kind == "c" else "symmetric"
    if properties.is_dominant:
        why = f"{word} with a positive, dominant diagonal: positive (semi)definite"
    else:
        why = f"{word} with a positive diagonal: probably positive definite"
    chain = (
        Trial("cg", "amg", f"{why}; multigrid", 250),
        Trial("cg", "ic0", "an incomplete factorization, which suits matrices that multigrid does not", 2000),
        Trial("minres", "jacobi", f"{word}, maybe indefinite", 2000),
        _DIRECT,
        Trial("gmres", "ilu0", "positive definiteness is not needed", 600),
        _last(properties),
    )
    if properties.is_strongly_dominant:
        jacobi = Trial("cg", "jacobi", f"{why}, and so dominant that the diagonal is a good preconditioner", 500)
        return (jacobi, *chain)
    return chain


def _indefinite(properties: MatrixProperties) -> tuple[Trial, ...]:
    """Return the methods for a Hermitian matrix whose diagonal is not positive in every row."""
    word = "Hermitian" if properties.dtype.kind == "c" else "symmetric"
    if properties.num_zero_diagonal:
        why = f"{word} with {properties.num_zero_diagonal} zeros on the diagonal: indefinite, perhaps a saddle point"
    else:
        why = f"{word} with negative numbers on the diagonal: not positive definite"
    return (
        Trial("minres", "absolute_diagonal", why, 2000),
        _DIRECT,
        Trial("gmres", "ilu0", "an incomplete factorization, for ill-conditioned matrices", 600),
        Trial("minres", "", "no preconditioner, in case the diagonal misleads", _many(properties)),
        _last(properties),
    )


def _nonsymmetric(properties: MatrixProperties) -> tuple[Trial, ...]:
    """Return the methods for a matrix that is not Hermitian."""
    ilu = Trial("gmres", "ilu0", "not symmetric: GMRES with an incomplete factorization", 600)
    tail = (
        _DIRECT,
        Trial("bicgstab", "ilu0", "many iterations, without the memory that GMRES needs", 2000),
        Trial("gmres", "gauss_seidel", "relaxation, where factors are unstable", 600),
        _last(properties),
    )
    if properties.num_zero_diagonal:
        why = f"not symmetric, {properties.num_zero_diagonal} zeros on the diagonal: a factorization exchanges rows"
        return (Trial("direct", "", why), *tail[1:])
    if properties.is_m_matrix:
        why = "not symmetric, with a dominant diagonal and negative entries beside it, as of a flow: multigrid"
        return (Trial("fgmres", "amg", why, 200), ilu, *tail)
    return (ilu, *tail)


def least_squares(properties: MatrixProperties) -> tuple[Trial, ...]:
    """Return the methods for a rectangular matrix."""
    shape = f"{properties.num_rows} equations for {properties.num_cols} unknowns"
    limit = max(4 * min(properties.num_rows, properties.num_cols), 1000)
    chain = (
        Trial("lsmr", "", f"{shape}: least squares", min(limit, 10_000)),
        Trial("lsmr", "column_norms", "columns of very different norms are scaled", min(limit, 10_000)),
        Trial("direct", "", "the augmented system, factorized"),
    )
    if max(properties.num_rows, properties.num_cols) <= DIRECT_SIZE:
        return (Trial("direct", "", f"{shape}: least squares, small enough for the host"), *chain[:2])
    return chain


def methods_for_operator(num_rows: int, num_cols: int) -> tuple[Trial, ...]:
    """Return the methods for an operator whose entries cannot be read."""
    if num_rows != num_cols:
        return (Trial("lsmr", "", "an operator that is not square: least squares", 10_000),)
    why = "the entries of an operator cannot be read: its symmetry is not known"
    return (
        Trial("gmres", "", why, 2000),
        Trial("bicgstab", "", "many iterations, without the memory that GMRES needs", 5000),
    )


def _many(properties: MatrixProperties) -> int:
    """Return the limit of iterations for a slow method that converges for every matrix."""
    return min(max(properties.num_rows, 4000), 12_000)


def _last(properties: MatrixProperties) -> Trial:
    return Trial("lsmr", "column_norms", "least squares, which also converge for singular matrices", _many(properties))


_DIRECT = Trial("direct", "", "a factorization, if it is not too expensive")
