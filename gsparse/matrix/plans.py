"""The plan of a matrix: the format that products read, the launch for several columns, and the stored arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES, HOST_ONLY
from gsparse.errors import DtypeError
from gsparse.formats import StoredMatrix
from gsparse.formats.launch import Panel
from gsparse.matrix.matrix_like import MatrixLike
from gsparse.plan.choice import Plan
from gsparse.plan.columns import ColumnsPlan
from gsparse.products.bsr import DenseBlocks

# The property is not called `blocksize` as in SciPy, because methods of SciPy such as `resize` and `sum` take a matrix
# that has an attribute of this name for one in BSR.


def declared_block_shape(self: MatrixLike) -> tuple[int, int] | None:
    """Return the size of the blocks of the BSR matrix from which a matrix was made, if it still consists of them.

    Synchronizes.
    """
    declared = self._arrays.options.block_shape
    if declared is None:
        return None
    declared = declared[::-1] if self._by_columns else declared
    is_divided = all(size % block == 0 for size, block in zip(_found_block_shape(self), declared, strict=True))
    return declared if is_divided else None


def _found_block_shape(matrix: MatrixLike) -> tuple[int, int]:
    if matrix.dtype.char in HOST_ONLY:
        return 1, 1
    structure, device = matrix._arrays.current(matrix._stored_shape).structure, matrix.device
    with device.active(), device.memory_guard():
        rows, columns = structure.part(DenseBlocks).blocksize
    return (columns, rows) if matrix._by_columns else (rows, columns)


def _own_types(matrix: MatrixLike) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the dtypes in which a product with a vector of the matrix's dtype reads values and computes."""
    if matrix.dtype.char in HOST_ONLY:
        raise DtypeError(f"no device multiplies values of {matrix.dtype}, SciPy does it: use astype(float)")
    dtype = matrix.dtype if matrix.dtype in COMPUTE_DTYPES else np.dtype(np.int64)
    return dtype, dtype


class Plans(MatrixLike):
    """The chosen format, and why."""

    @property
    def plan(self) -> Plan:
        """The format chosen for A @ x with x of A's dtype, why, and the other candidates; prints as a table.

        Raises
        ------
        DtypeError
            If no device multiplies values of the matrix's dtype.
        """
        types = _own_types(self)
        return self._prepared()[0].plan(*types)

    def plan_for(self, columns: int) -> ColumnsPlan:
        """Return how ``A @ X`` with a row-major X runs here and on a GPU, and why. Synchronizes at first.

        Parameters
        ----------
        columns : int
            Number of columns of X, which has the matrix's dtype.

        Returns
        -------
        ColumnsPlan
            Prints as text.

        Examples
        --------
        >>> import gsparse, scipy.sparse
        >>> A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(5, format="csr"), device="cpu")
        >>> A.plan_for(8).launch.columns_per_load
        2
        """
        types = _own_types(self)
        pack = next((n for n in (4, 2) if n * types[1].itemsize <= 16 and columns % n == 0), 1)
        return self._prepared()[0].columns_plan(Panel(columns, pack), *types)

    @property
    def stored(self) -> StoredMatrix:
        """The arrays that A @ x reads, in the format the plan chose; a frozen dataclass of `gsparse.formats`."""
        types = _own_types(self)
        stored: StoredMatrix = self._prepared()[0].product(*types).stored
        return stored

    @property
    def block_shape(self) -> tuple[int, int]:
        """Rows and columns of the full dense blocks of which the matrix consists, SciPy's `blocksize`. Synchronizes.

        These are the largest ones up to 8 x 8, or those of the BSR matrix that it was made from, if the largest ones
        consist of them. (1, 1) stands for no blocks, and for values that stay on the host.
        """
        return declared_block_shape(self) or _found_block_shape(self)
