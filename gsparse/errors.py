"""Exceptions and warnings of gsparse. Each message names the requirement, the value received, and the remedy."""

from __future__ import annotations

from numpy.linalg import LinAlgError

__all__ = [
    "CoarseningWarning",
    "CommunicationError",
    "ConvergenceWarning",
    "DeviceError",
    "DeviceMemoryError",
    "DtypeError",
    "FactorizationError",
    "FileFormatError",
    "FormatError",
    "GsparseError",
    "HostFallbackError",
    "HostLoanWarning",
    "MatrixProductWarning",
    "NotPositiveDefiniteError",
    "RankLostError",
    "SettingsError",
    "ShapeError",
    "SingularMatrixError",
    "SmootherWarning",
    "StructureError",
    "WorkerLostError",
]

_REPARTITION = (
    "A = A.repartition() makes them again on the workers that are left; on_failure='resume' does that within a solve"
)


class GsparseError(Exception):
    """Base class of every error that gsparse raises on purpose."""


class ShapeError(GsparseError, ValueError):
    """The shape or memory layout of an argument does not fit. It is a ValueError, as in SciPy."""


class DtypeError(GsparseError, TypeError, ValueError):
    """A dtype cannot be stored or computed with, or `out` has another dtype than the result.

    SciPy raises TypeError in some of these cases and ValueError in others. This error is both.
    """


class StructureError(GsparseError, ValueError):
    """What was passed does not describe a matrix, or a matrix lacks the structure that an operation needs.

    For example, `indptr` decreases, a column is out of range, or an array has the wrong length or dtype.
    """


class FormatError(GsparseError, ValueError):
    """The storage format does not exist, the matrix cannot be stored in it, or an option of a matrix is invalid."""


class FactorizationError(GsparseError, ArithmeticError):
    """The factors or the preconditioner cannot be made for this matrix, for example because a pivot is zero."""


class SingularMatrixError(FactorizationError, RuntimeError, LinAlgError):
    """The matrix is singular, so that it has no inverse.

    SciPy raises RuntimeError in some of these cases and LinAlgError in others. This error is both.
    """


class NotPositiveDefiniteError(FactorizationError):
    """The matrix is not positive definite, as Cholesky factors need it."""


class FileFormatError(GsparseError, ValueError):
    """A file is truncated or malformed, or gsparse does not read files of this kind."""


class DeviceError(GsparseError, RuntimeError):
    """The requested device does not exist, does not offer the operation, or does not hold all operands."""


class DeviceMemoryError(GsparseError, MemoryError):
    """The device ran out of memory, or the host while it read a file or factorized. The message says what to do."""


class SettingsError(GsparseError, ValueError):
    """An environment variable has a value that gsparse cannot use."""


class CommunicationError(GsparseError, RuntimeError):
    """The ranks of a distributed matrix cannot continue: a rank is silent, was stopped, or runs another operation."""


class RankLostError(CommunicationError):
    """A rank is gone: its process ended, or its connection broke.

    Parameters
    ----------
    rank : int
        The number of the rank in the communicator.
    address : str
        The address at which the rank was reached.
    why : str
        How the loss was noticed.
    """

    def __init__(self, rank: int, address: str, why: str) -> None:
        super().__init__(rank, address, why)  # `args` must equal the parameters: unpickling calls __init__(*args).
        self.rank, self.address, self.why = rank, address, why

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.address} is gone: {self.why}"


class WorkerLostError(CommunicationError):
    """A worker that held rows of a distributed matrix is gone, and its rows are lost.

    Parameters
    ----------
    rank : int
        The number of the worker's rank in the communicator.
    address : str
        The worker's address in dask.
    remedy : str, optional
        What makes the rows again; by default `repartition`.
    """

    def __init__(self, rank: int, address: str, remedy: str = "") -> None:
        super().__init__(rank, address, remedy)  # `args` must equal the parameters: unpickling calls __init__(*args).
        self.rank, self.address, self.remedy = rank, address, remedy or _REPARTITION

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.address} is gone, and its rows with it: {self.remedy}"


class HostFallbackError(GsparseError, RuntimeError):
    """Inside `gsparse.strict()`, an operation would have run on the host."""


class HostLoanWarning(UserWarning):
    """The caller still holds a host array of the matrix, so every product uploads it to the device again."""


class ConvergenceWarning(UserWarning):
    """A solve has ended without having converged.

    `gsparse.linalg.solve` always emits it. Other solvers emit it only without ``full_output=True``. The text names the
    reason and what to try next.
    """


class SmootherWarning(UserWarning):
    """The requested smoother of multigrid diverges, or no device can run it, so another smoother replaces it.

    The `repr` of the preconditioner names the smoother that is used.
    """


class CoarseningWarning(UserWarning):
    """Multigrid could not make a coarser level. Its cycle only smooths a large matrix, which converges slowly."""


class MatrixProductWarning(UserWarning):
    """`*` or `**` is elementwise for this matrix, but a matrix product for the `spmatrix` from which it was made.

    For a `gsparse.sparse.csr_matrix`, both operators are matrix products.
    """
