"""The contract of relaxation: sweeps, projections, and colours of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels

# Maximum number of rows of the blocks that `invert_blocks` inverts. A GPU has a lane for each column of a block.
MAX_INVERSE = 32

# Where a sweep starts: with the first group; with the second group, because the previous sweep ended with the first
# group; or with the first group and x = 0, whatever x contains.
EVERY_GROUP, NOT_THE_FIRST, FROM_ZERO = "every group", "not the first", "from zero"

# ``sweep(x, b)`` updates x in place.
Sweep = Callable[[Array, Array], None]
# ``project(v, b)`` updates v in place. ``project(v, y)`` updates both in place.
Project = Callable[[Array, Array], None]


class RelaxationKernels(Protocol):
    """Methods that update some unknowns with the newest values of the other unknowns.

    Common to `bind_sweep` and `bind_projections`: `rows` is a square matrix with its rows permuted to the order of
    `levels`; its columns are not permuted. Vectors have `columns` columns, stored one after the other. `levels` are
    None if all rows are visited one after the other, which is possible if `NEEDS_LEVELS` is false. If `backward`, the
    groups (or rows) are visited in reverse order. The returned functions neither wait nor allocate.
    """

    def color_rows(self, device: Device, graph: Csr) -> Array:
        """Return a colour for each row (int32, from 0): if entry (i, j) exists, rows i and j have different colours.

        The structure of `graph` is symmetric; entries may be repeated. A row gets the smallest colour that no neighbour
        of higher priority has. Rows with more entries have higher priority. Among rows of similar length, a hash of the
        row number decides, so that colours are the same on every device. Synchronizes.
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
            The last block may have fewer rows than the other blocks. With `levels`, it is padded with empty rows.
        levels : Levels or None
            The groups of blocks: ``order`` holds numbers of blocks. The rows of a block are adjacent in `rows`.
        weights : array, shape (num_blocks, size, size)
            W, in the order of the blocks: ω times the inverses of the diagonal blocks.
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

        The rows of one group have no column in common. `weights` holds a number w for each row. A projection computes
        δ = w·(b_i - g·v) and v += δ·conj(g). With v = x, this is a sweep of Kaczmarz's method. If `of_residual`, b is
        zero, and y_i -= δ. With v = b - A·x, y = x and G = Aᴴ, this is a Gauss-Seidel sweep for AᴴA·x = Aᴴb.
        """
