"""The contract of relaxation: sweeps, projections, and colours of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels

# The largest number of rows of the blocks that `invert_blocks` inverts. A GPU has a lane for each column of a block.
MAX_INVERSE = 32

# How a sweep begins: with the first group; with the second one, because the sweep before it ended with the first; or
# with x = 0, whatever x contains.
EVERY_GROUP, NOT_THE_FIRST, FROM_ZERO = "every group", "not the first", "from zero"

# ``sweep(x, b)`` updates x in place.
Sweep = Callable[[Array, Array], None]
# ``project(v, b)`` updates v in place, or ``project(v, y)`` updates both.
Project = Callable[[Array, Array], None]


class RelaxationKernels(Protocol):
    """Methods that update unknowns with the newest values of the others.

    Common to `bind_sweep` and `bind_projections`: `rows` is a square matrix with its rows in the order of `levels`, and
    with columns as they were. `columns` vectors lie one after the other. `levels` are None where `NEEDS_LEVELS` is
    false and all rows are to be visited one after the other. With `backward`, the groups (or all rows) are visited in
    the reverse order. The functions that are returned neither wait nor allocate.
    """

    def color_rows(self, device: Device, graph: Csr) -> Array:
        """Return a colour for each row (int32, from 0 on): rows that are joined by an entry have different colours.

        The structure of `graph` is symmetric; entries may be there several times. A row gets the smallest colour that
        no neighbour of higher priority has. Rows with more entries have higher priority, and rows with about as many
        have it by a hash of their number, so that the colours are the same on every device. Synchronizes.
        """

    def bind_sweep(
        self,
        device: Device,
        rows: Csr,
        levels: Levels | None,
        weights: Array,
        columns: int,
        backward: bool,
        start: str,
    ) -> Sweep:
        """Return a Gauss-Seidel sweep: for each block of rows i, x_i += W_i·(b_i - (A·x)_i).

        Parameters
        ----------
        rows : Csr
            The last block may have fewer rows than the others. In the order of `levels`, empty rows take the places
            that it leaves.
        levels : Levels or None
            The groups of blocks: ``order`` numbers blocks of rows, and the rows of a block follow each other in `rows`.
        weights : array, shape (num_blocks, size, size)
            W, the inverses of the diagonal blocks, in the order of the blocks. For blocks of one row, ω over the
            diagonal.
        start : str
            `EVERY_GROUP`, `NOT_THE_FIRST` or `FROM_ZERO`.
        """

    def bind_projections(
        self,
        device: Device,
        rows: Csr,
        levels: Levels | None,
        weights: Array,
        columns: int,
        backward: bool,
        of_residual: bool,
    ) -> Project:
        """Return projections on the rows g of a matrix G: ``project(v, b)``, or ``project(v, y)`` if `of_residual`.

        Rows of one group have no column in common. `weights` has an element w for each row. They compute
        δ = w·(b_i - g·v) and v += δ·conj(g): with v = x, this is a sweep of Kaczmarz's method. With `of_residual`, b is
        zero and y_i -= δ: with v = b - A·x, y = x and G = Aᴴ, this is a sweep of Gauss-Seidel's method for AᴴA·x = Aᴴb.
        """
