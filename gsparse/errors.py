"""What gsparse raises and warns: each error names the requirement, what came, and the remedy."""

from __future__ import annotations

__all__ = [
    "CommunicationError",
    "DeviceError",
    "DeviceMemoryError",
    "DtypeError",
    "FactorizationError",
    "FileFormatError",
    "FormatError",
    "GsparseError",
    "HostFallbackError",
    "HostLoanWarning",
    "RankLostError",
    "ShapeError",
    "StructureError",
    "WorkerLost",
]


class GsparseError(Exception):
    """Base of every error that gsparse raises on purpose."""


class ShapeError(GsparseError, ValueError):
    """Shapes do not fit together; SciPy raises ValueError here, and so does this."""


class DtypeError(GsparseError, TypeError, ValueError):
    """A dtype that cannot be held or computed with, or an `out` of another dtype than the result.

    SciPy raises TypeError for some of these and ValueError for others; this is both.
    """


class StructureError(GsparseError, ValueError):
    """`indptr` and `indices` do not describe a matrix: non-monotone, out of range, wrong length."""


class FormatError(GsparseError, ValueError):
    """A storage format that does not exist, or that does not fit this matrix."""


class FactorizationError(GsparseError, ArithmeticError):
    """A preconditioner cannot be made of this matrix: a zero pivot, or one that is not positive where it has to be."""


class FileFormatError(GsparseError, ValueError):
    """A file that is truncated, malformed, or of a kind gsparse does not read."""


class DeviceError(GsparseError, RuntimeError):
    """The device asked for is not there, or the operands live on different devices."""


class DeviceMemoryError(GsparseError, MemoryError):
    """The device ran out of memory; the message says how much was needed and how much was free."""


class CommunicationError(GsparseError, RuntimeError):
    """Ranks of a distributed matrix cannot go on together: one is silent, was stopped, or is about something else."""


class RankLostError(CommunicationError):
    """A rank is gone.

    Parameters
    ----------
    rank : int
        Its number in the communicator.
    address : str
        Where it was.
    why : str
        How that was noticed.
    """

    def __init__(self, rank: int, address: str, why: str) -> None:
        super().__init__(rank, address, why)  # (what it is pickled by)
        self.rank, self.address, self.why = rank, address, why

    def __str__(self) -> str:
        return f"rank {self.rank} at {self.address} is gone: {self.why}"


class WorkerLost(CommunicationError):  # noqa: N818  (as Python's own KeyboardInterrupt: something has happened)
    """A worker of a cluster that held rows of a distributed matrix is gone, and its rows with it.

    Parameters
    ----------
    rank : int
        Its number in the communicator.
    address : str
        Dask's, of the worker.
    """

    def __init__(self, rank: int, address: str) -> None:
        super().__init__(rank, address)  # (what it is pickled by)
        self.rank, self.address = rank, address

    def __str__(self) -> str:
        return (
            f"rank {self.rank} on {self.address} is gone, and its rows with it: A = A.repartition() makes them again "
            "on the workers that are left; on_failure='resume' does that within a solve"
        )


class HostFallbackError(GsparseError, RuntimeError):
    """Inside `gsparse.strict()`, an operation would have left the device."""


class HostLoanWarning(UserWarning):
    """A host array of the matrix is still held, so every product has to bring it to the device again."""


class MatrixProductWarning(UserWarning):
    """An operator is elementwise here that was a matrix product of the `scipy.sparse.spmatrix` the matrix came from."""
