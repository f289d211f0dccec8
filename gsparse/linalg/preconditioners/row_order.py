"""The order in which the Gauss-Seidel method visits rows, and groups of rows that it may visit at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from gsparse._interrupt import uninterrupted
from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix

Ordering = Literal["auto", "natural", "wavefront", "multicolor"]
_ORDERINGS = get_args(Ordering)

# Largest number of groups of the ordering "wavefront" (more if a row has very many neighbours). Iterations of FGMRES to
# 1e-8 with PyAMG's smoothed aggregation, for an upwind operator on grids of n×n points with flow along the diagonal
# (tests/linalg/test_smoothers.py):
#     n                    48   64   96  128  160  192
#     natural order        13   13   37   41   83  118
#     256 wavefronts       13   13   36   42   90  131
#     128 wavefronts       13   13   43   71  112  129
#     64 wavefronts        13   31   49   68  117  111
# A grid of n×n points has 2n wavefronts along the flow, which up to n = 128 fit into 256 groups. More groups take
# longer on a GPU, because each group needs a launch or a barrier.
_WINDOW = 256


@dataclass(frozen=True, eq=False)
class OrderedMatrix:
    """A square matrix with an order in which its rows, or blocks of rows, are visited.

    Attributes
    ----------
    device : Device
    csr : Csr
        The matrix, with the columns of each row in ascending order.
    ordering : str
        One of `Ordering`, except "auto".
    levels : Levels or None
        Groups of blocks that do not depend on each other; None if the rows are visited one after the other.
    size : int
        Number of rows of a block.
    """

    device: Device
    csr: Csr
    ordering: str
    levels: Levels | None
    size: int = 1
    _rows: dict[bool, Csr] = field(default_factory=dict, repr=False)

    def with_csr(self, csr: Csr) -> OrderedMatrix:
        """Return a matrix of the same structure with the same order."""
        return OrderedMatrix(self.device, csr, self.ordering, self.levels, self.size)

    def rows(self, dtype: np.dtype[Any], *, adjoint: bool = False) -> Csr:
        """Return the matrix, or its adjoint, with the rows in the order of visits and values of `dtype`.

        Synchronizes the first time.
        """
        if adjoint not in self._rows:
            csr, device = self.csr, self.device
            if adjoint:
                csr = kernels_of(device).transpose.csr_transpose(device, csr)
                csr = csr.with_data(device.xp.conj(csr.data))
            self._rows[adjoint] = csr if self.levels is None else self._take(csr, self.levels.order)
        rows = self._rows[adjoint]
        return rows.with_data(rows.data.astype(dtype, copy=False))

    def _take(self, csr: Csr, order: Array) -> Csr:
        xp, device, size = self.device.xp, self.device, self.size
        if size > 1:
            order = (order[:, None] * order.dtype.type(size) + xp.arange(size, dtype=order.dtype)).reshape(-1)
            # If the last block has fewer than `size` rows, it is padded with empty rows.
            missing = int(order.size) - csr.num_rows
            indptr = xp.concatenate([csr.indptr, xp.full(missing, csr.nnz, csr.indptr.dtype)])
            csr = Csr((int(order.size), csr.num_cols), indptr, csr.indices, csr.data)
        taken: Csr = kernels_of(device).sparse_rows.take_rows(device, csr, order)
        return taken

    def items(self, items: Array, dtype: np.dtype[Any]) -> Array:
        """Return an array with one item for each row or block, in the order of visits and in `dtype`."""
        ordered = items if self.levels is None else items[self.levels.order]
        return ordered.astype(dtype, copy=False)


def resolve_ordering(device: Device, csr: Csr, ordering: str) -> str:
    """Return the ordering that "auto" stands for. Synchronizes.

    The ordering is "natural" if one thread visits all rows. On a GPU, it is "multicolor" if the magnitudes of the
    matrix are symmetric, and otherwise "wavefront": with convection, the method converges faster if rows are visited in
    the direction of the flow.
    """
    kernels = kernels_of(device)
    if ordering != "auto":
        return ordering
    if not kernels.triangular.NEEDS_LEVELS:
        return "natural"
    magnitudes = csr.with_data(device.xp.abs(csr.data))
    tolerance = float(np.sqrt(np.finfo(csr.dtype).eps))
    return (
        "multicolor" if kernels.transpose.is_symmetric(device, magnitudes, False, tolerance) else "wavefront"
    )  # synchronizes


def check_ordering(ordering: str) -> None:
    """Raise ValueError if `ordering` is not the name of an order of rows."""
    if ordering not in _ORDERINGS:
        raise ValueError(f"ordering must be one of {', '.join(map(repr, _ORDERINGS))}, got {ordering!r}")


def ordered_matrix(matrix: SquareMatrix, ordering: str, size: int = 1) -> OrderedMatrix:
    """Return a matrix with an order of its blocks of `size` rows. Synchronizes.

    All smoothers of the same matrix with the same ordering share the result.
    """
    key = shared_order(ordering, size)
    if key not in matrix.shared:
        resolved = resolve_ordering(matrix.device, matrix.csr, ordering)
        levels = find_levels(matrix.device, matrix.csr, resolved, size)
        matrix.shared[key] = OrderedMatrix(matrix.device, matrix.csr, resolved, levels, size)
    ordered: OrderedMatrix = matrix.shared[key]
    return ordered


def shared_order(ordering: str, size: int) -> tuple[str, str, int]:
    """Return the key of `ordered_matrix` in `SquareMatrix.shared`."""
    return ("ordered", ordering, size)


def find_levels(device: Device, csr: Csr, ordering: str, size: int = 1) -> Levels | None:
    """Return groups of rows, or of blocks of `size` rows, that do not depend on each other. Synchronizes.

    Parameters
    ----------
    device : Device
    csr : Csr
        A square matrix with ascending columns in each row. An entry (i, j) means that rows i and j depend on each
        other.
    ordering : {"natural", "wavefront", "multicolor"}
    size : int

    Returns
    -------
    Levels or None
        None if one thread visits all rows in their natural order.
    """
    kernels = kernels_of(device)
    if ordering == "natural" and not kernels.triangular.NEEDS_LEVELS:
        return None
    graph = _block_graph(device, symmetric_graph(device, csr), size)  # synchronizes
    if ordering == "multicolor":
        return _group(device, kernels.relaxation.color_rows(device, graph), csr.indptr.dtype)
    return _wavefronts(device, graph, _WINDOW if ordering == "wavefront" else max(graph.num_rows, 1))


def symmetric_graph(device: Device, csr: Csr) -> Csr:
    """Return a matrix whose structure is that of A + Aᵀ; entries may be repeated. Synchronizes."""
    kernels, pattern = kernels_of(device), csr.with_data(device.xp.ones(csr.nnz, np.float32))
    if kernels.transpose.is_symmetric(device, pattern, False):  # synchronizes
        return csr
    others = kernels.transpose.csr_transpose(device, pattern)
    rows, columns = kernels.sparse_rows.row_numbers(device, others.indptr, others.nnz), others.indices
    added = rows.astype(np.int64), columns.astype(np.int64), others.data
    return kernels.edits.insert_entries(device, pattern, *added, False)


def _block_graph(device: Device, csr: Csr, size: int) -> Csr:
    """Return a matrix with an entry (I, J) for each entry of A in block (I, J); entries may be repeated."""
    if size == 1:
        return csr
    num_blocks = -(-csr.num_rows // size)
    begins = device.xp.minimum(device.xp.arange(num_blocks + 1) * size, csr.num_rows)
    return Csr((num_blocks, num_blocks), csr.indptr[begins], csr.indices // size, csr.data)


def _group(device: Device, colors: Array, index: np.dtype[Any]) -> Levels:
    """Return the groups of rows that have the same colour. Synchronizes."""
    xp = device.xp
    num_colors = int(colors.max()) + 1 if colors.size else 0  # synchronizes
    counts = device.download(kernels_of(device).sparse_rows.count_numbers(device, colors, num_colors))  # synchronizes
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Levels(xp.argsort(colors, kind="stable").astype(index), bounds)


def _wavefronts(device: Device, graph: Csr, window: int) -> Levels:
    """Return the groups of the ordering "wavefront", found on the host and copied to the device. Synchronizes."""
    with uninterrupted():
        from gsparse.kernels.cpu.relaxation import order_wavefronts  # imports numba, so only here

    indptr, indices = (device.download(part) for part in (graph.indptr, graph.indices))  # synchronizes
    levels = order_wavefronts(Csr(graph.shape, indptr, indices, indices), window)
    return Levels(device.upload(levels.order), levels.bounds)
