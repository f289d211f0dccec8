"""The plan of a matrix: the format that products read, the launch for several columns, and the stored arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.device.dtypes import COMPUTE_DTYPES
from gsparse.formats import Stored
from gsparse.formats.launch import Panel
from gsparse.matrix.matrix_like import MatrixLike, method
from gsparse.plan.choice import Plan
from gsparse.plan.columns import ColumnsPlan

__all__ = ["plan", "plan_for", "stored"]


def plan(self: MatrixLike) -> Plan:
    """The format chosen for A @ x with x of A's dtype, why, and the other candidates; prints as a table."""
    return self._prepared()[0].plan(*_own_types(self))


@method
def plan_for(self: MatrixLike, columns: int) -> ColumnsPlan:
    """Return how ``A @ X`` with a row-major X runs on a GPU, and why. Synchronizes at first.

    Parameters
    ----------
    columns : int
        Of X, which has the matrix's dtype.

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
    dtype = _own_types(self)[1]
    pack = next((n for n in (4, 2) if n * dtype.itemsize <= 16 and columns % n == 0), 1)
    return self._prepared()[0].columns_plan(Panel(columns, pack), *_own_types(self))


def stored(self: MatrixLike) -> Stored:
    """The arrays that A @ x reads, in the format the plan chose; a frozen dataclass of `gsparse.formats`."""
    return self._prepared()[0].product(*_own_types(self)).stored


def _own_types(matrix: MatrixLike) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return the dtypes in which a product with a vector of the matrix's dtype reads values and computes."""
    dtype = matrix.dtype if matrix.dtype in COMPUTE_DTYPES else np.dtype(np.int64)
    return dtype, dtype
