"""What products with several dense columns read: CSR, row patterns that share values, or dense blocks.

Blocks may be stored for these products alone, beside the format that products with a vector read. They then take about
as much memory as the values of CSR once more.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from gsparse.formats import Bsr, Csr, RowPattern
from gsparse.formats.bsr import BSR
from gsparse.formats.registry import Encoding
from gsparse.formats.row_pattern import ROW_PATTERN
from gsparse.kernels.backends import kernels_of
from gsparse.plan.choice import Plan
from gsparse.plan.columns import seconds_per_columns
from gsparse.plan.cost_model import MACHINE_MODELS
from gsparse.products.planning import Planner
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import Structure

# Bytes of a block's column, at most.
_COLUMN_BYTES = 4


def may_read_other_formats(structure: Structure) -> bool:
    """Return whether a plan may find something else than CSR for products with several columns. Synchronizes.

    At most, it searches for blocks, which takes less time than two products. A plan takes longer, so the caller makes
    one only if this function returns True.
    """
    formats = kernels_of(structure.device).spmm.FORMATS
    return ROW_PATTERN.name in formats or (BSR.name in formats and _square_blocks(structure) > 1)


def _square_blocks(structure: Structure) -> int:
    """Return the number of rows of square blocks, or 1 if there are none that are larger."""
    rows, columns = structure.blocksize
    return rows if rows == columns else 1


def can_multiply_columns(stored: Any, compute: np.dtype[Any]) -> TypeGuard[RowPattern | Bsr]:
    """Return whether products with several columns can read a stored matrix.

    They read row patterns that share values, and square blocks of plain values of the same kind as the compute dtype.
    """
    if isinstance(stored, Bsr):
        rows, columns = stored.blocksize
        return rows == columns > 1 and stored.values.table is None and stored.dtype.kind == compute.kind
    return isinstance(stored, RowPattern) and stored.pattern_values is not None


def blocks_for_columns(
    planner: Planner, plan: Plan, csr: Csr, other: Csr | RowPattern, compute: np.dtype[Any]
) -> Bsr | None:
    """Store blocks for products with several columns, if that pays. Synchronizes.

    Parameters
    ----------
    planner : Planner
    plan : Plan
        The plan for products with a vector. Blocks are considered if they are a candidate in it.
    csr : Csr
        The arrays, with the values that the products are to read.
    other : Csr or RowPattern
        What the products read without blocks.
    compute : dtype

    Returns
    -------
    Bsr or None
        None if the matrix has no square blocks, or if all expected products gain less than the set-up takes.
    """
    structure = planner.structure
    candidate = next((c for c in plan.candidates if c.format == BSR.name), None)
    if candidate is None or BSR.name not in kernels_of(structure.device).spmm.FORMATS or csr.dtype.kind != compute.kind:
        return None
    size = _square_blocks(structure)
    if size == 1:
        return None
    positions, model = candidate.num_stored, MACHINE_MODELS[structure.device.kind]
    nbytes = positions * (csr.dtype.itemsize + _COLUMN_BYTES / size**2)
    threads = structure.device.num_threads
    with_blocks = seconds_per_columns(model, nbytes, positions / size, compute.itemsize, threads)
    without = seconds_per_columns(model, other.nbytes, csr.nnz, compute.itemsize, threads)
    if (without - with_blocks) * planner.expected_products <= candidate.setup_seconds:
        return None
    encoding = Encoding(columns=planner.encoding.columns, values=False)
    blocks = MatrixPreparation(structure, csr, compute, encoding).stored(BSR.name)
    assert isinstance(blocks, Bsr)
    return blocks
