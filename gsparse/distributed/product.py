"""Products of a matrix of which each rank has a block of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.communicator import Communicator
from gsparse.distributed.halo import Halo, split_columns
from gsparse.distributed.partition import RowPartition
from gsparse.matrix import GpuSparseMatrix

__all__ = ["BlockProduct"]


class BlockProduct:
    """One rank's share of a matrix. All ranks make theirs, and multiply, at the same time.

    Parameters
    ----------
    block : csr_array, shape (rows of the rank, N)
    columns : RowPartition
        Of the N columns, and of the vectors that are multiplied.
    communicator : Communicator
    device : str, optional
        Of the rank's two blocks.

    Attributes
    ----------
    diagonal, off_diagonal : GpuSparseMatrix
    halo : Halo

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse.distributed import BlockProduct, RowPartition, run_ranks
    >>> S = scipy.sparse.diags_array([1.0, 2.0, 3.0], offsets=[-1, 0, 1], shape=(10, 10)).tocsr()
    >>> partition = RowPartition.by_nnz(S.indptr, 3)
    >>> def multiply(communicator):
    ...     own = partition.rows(communicator.rank)
    ...     return BlockProduct(S[own], partition, communicator, device="cpu").matvec(numpy.ones(own.stop - own.start))
    >>> numpy.concatenate(run_ranks(multiply, 3))
    array([5., 6., 6., 6., 6., 6., 6., 6., 6., 3.])
    """

    def __init__(
        self, block: sp.csr_array, columns: RowPartition, communicator: Communicator, device: str = "auto"
    ) -> None:
        parts = split_columns(sp.csr_array(block), columns.rows(communicator.rank))
        self.diagonal = GpuSparseMatrix(parts.diagonal, device=device)
        self.off_diagonal = GpuSparseMatrix(parts.off_diagonal, device=device)
        self.halo = Halo(parts.ghosts, columns, communicator)

    def matvec(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Multiply: the rank's part of x in, its part of A·x out; its own columns first, while ghosts travel."""
        x = np.ascontiguousarray(x)
        ghosts = self.halo.gather(x)
        y = self.diagonal @ x
        return y + self.off_diagonal @ ghosts()  # type: ignore[no-any-return]

    def rmatvec(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Multiply by the adjoint: the rank's part of x, by rows of A, in; its part of Aᴴ·x, by columns, out."""
        x = np.ascontiguousarray(x)
        add_to = self.halo.scatter_add(self.off_diagonal.rmatvec(x))
        y = self.diagonal.rmatvec(x)
        add_to(y)
        return y  # type: ignore[no-any-return]
