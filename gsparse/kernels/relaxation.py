"""The contracts of relaxation (sweeps, projections, colours, block Jacobi) and of gradients of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr, Levels
from gsparse.kernels.steps import Call

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

    def color_rows(self, device: Device, csr: Csr, transposed: Csr | None) -> Array:
        """Return a colour for each row (int32, from 0 on): rows that are joined by an entry have different colours.

        `transposed` is the transpose of `csr` if its structure is not symmetric, else None. A row gets the smallest
        colour that no neighbour of higher priority has. Rows with more entries have higher priority, and rows with
        about as many have it by a hash of their number, so that the colours are the same on every device. Synchronizes.
        """
        ...

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
        ...

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
        ...


class DiagonalBlockKernels(Protocol):
    """Inverses of diagonal blocks, and relaxation with them."""

    def invert_blocks(
        self, device: Device, csr: Csr, size: int, fills_rows: bool, largest_error: float
    ) -> tuple[Array, Array]:
        """Return the inverses of the blocks on the diagonal, and whether each block is regular.

        Parameters
        ----------
        csr : Csr
            A square matrix of floating-point values, whose columns rise. The last block may have fewer rows than the
            others; it is filled up with the identity.
        size : int
            Number of rows of a block, at most `MAX_INVERSE`.
        fills_rows : bool
            Whether a row of a block counts as a row of the identity if all of its elements are 0.
        largest_error : float
            A block is regular if all elements of its product with its inverse are closer than this to the identity.

        Returns
        -------
        array, shape (num_blocks, size, size)
        array of uint8, shape (num_blocks,)
        """
        ...

    def bind_block_step(
        self,
        device: Device,
        weights: Array,
        omega: float,
        b: Array,
        x: Array,
        r: Array,
        columns: int,
        start: str,
        copies: bool,
    ) -> Call:
        """Return a step x_i += ω·W_i·(b_i - r_i) for all blocks i, or x_i = ω·W_i·b_i.

        Traffic in vectors, beside W: 4, or 2 from zero, and 1 more with `copies`.

        Parameters
        ----------
        weights : array, shape (num_blocks, size, size)
            The transposes of W, contiguous, so that neighbouring elements belong to neighbouring rows. The last block
            may be filled up.
        b, x, r : array
            `columns` vectors each, one after the other, all of one dtype. `b` and `x` are different arrays; so are `b`
            and `r`. From zero and without `copies`, `r` is not used.
        start : str
            `EVERY_GROUP`, or `FROM_ZERO` for x_i = ω·W_i·b_i, whatever x contains.
        copies : bool
            Whether r finally becomes b.
        """
        ...


class GradientKernels(Protocol):
    """Gradients of products.

    Dense arrays have two dimensions and are contiguous row by row. All values of a call have one floating-point or
    complex dtype.
    """

    def dot_rows(self, device: Device, rows: Array, columns: Array, left: Array, right: Array) -> Array:
        """Return the inner product of ``left[rows[e]]`` and the conjugate of ``right[columns[e]]`` for each e.

        `rows` and `columns` are of one index dtype and have equal lengths.
        """
        ...

    def product_gradients(
        self, device: Device, transposed: Csr, values: Array, gradient: Array, x: Array
    ) -> tuple[Array, Array]:
        """Return the gradients of A·x with respect to x and to the values of A, in one pass over the entries.

        It reads each row of `gradient` once for both of them. On a GPU, a few threads visit a row of the transpose, so
        no row should be much longer than the others.

        Parameters
        ----------
        transposed : Csr
            The transpose of A, with the position of each entry in `values` as its value (of the index dtype).
        values : array, shape (nnz,)
            The values of A.
        gradient : array, shape (num_rows of A, k)
        x : array, shape (num_cols of A, k)

        Returns
        -------
        array, shape (num_cols of A, k)
            Aᴴ·gradient.
        array, shape (nnz,)
            In the order of `values`.
        """
        ...
