"""Products of a rank's two blocks with vectors, during which the ranks exchange the vectors' entries at ghosts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.distributed.ranks.halo import HaloExchange
from gsparse.kernels.backends import kernels_of
from gsparse.linalg.operators import MatrixOperator


class _BoundProduct:
    """The products of both blocks of a `RankOperator`, bound to buffers, and the exchange of ghosts."""

    def __init__(
        self, matrix: Any, dtype: np.dtype[Any], columns: int, alpha: float, beta: float, *, adjoint: bool
    ) -> None:
        device = self._device = matrix.device
        self._diagonal, self._off_diagonal = (
            MatrixOperator(part).bind(device, dtype, columns, adjoint=adjoint, alpha=alpha, beta=factor)
            for part, factor in ((matrix.diagonal, beta), (matrix.off_diagonal, 0))
        )
        self._exchange = HaloExchange(matrix.halo, matrix.communicator, device, dtype, columns)
        # The positions of the boundary rows in vectors that are stored one after the other, and a buffer for the values
        # at these positions.
        numbers = matrix.shape[0] * np.arange(columns)[:, None] + matrix.boundary
        index_dtype = np.int32 if columns * matrix.shape[0] < 2**31 else np.int64
        self._boundary = device.upload(numbers.astype(index_dtype).reshape(-1))
        self._boundary_values = device.empty(self._boundary.size, dtype)


class RankProduct(_BoundProduct):
    """Computes y = alpha·A·x + beta·y as an `Apply`.

    The diagonal block is multiplied during the exchange of ghosts. With a second stream, the off-diagonal block is also
    multiplied at the same time:

        one stream       gather and send → diagonal block → receive → off-diagonal block → add to y

        two streams      diagonal block ---------------------------------+
                                                                         +-> add to y
                         gather and send → receive → off-diagonal block -+

    If the kernels support it, the product also stores partial sums of conj(x)·y.

    Attributes
    ----------
    num_dots : int
        Number of the partial sums; 0 if the kernels do not support partial sums.
    """

    def __init__(self, matrix: Any, dtype: np.dtype[Any], columns: int, alpha: float, beta: float) -> None:
        super().__init__(matrix, dtype, columns, alpha, beta, adjoint=False)
        self._uses_second_stream = matrix.communicator.uses_second_stream
        self._num_diagonal_dots: int = getattr(self._diagonal, "num_dots", 0)
        self.num_dots = self._num_diagonal_dots
        if self.num_dots:
            self.num_dots += kernels_of(self._device).exchange.num_scatter_dots(self._boundary_values.size)

    def __call__(self, x: Array, y: Array, dots: Array | None = None) -> None:
        if self._uses_second_stream:
            wait = self._device.alongside(lambda: self._multiply_ghosts(self._exchange.gather(x)))
        else:
            wait = partial(self._multiply_ghosts, self._exchange.gather(x))
        diagonal_arguments: tuple[Any, ...] = ()
        scatter_arguments: tuple[Any, ...] = ()
        if dots is not None:
            diagonal_arguments = (dots[: self._num_diagonal_dots],)
            scatter_arguments = (x, dots[self._num_diagonal_dots :])
        diagonal: Any = self._diagonal
        diagonal(x, y, *diagonal_arguments)
        wait()
        kernels = kernels_of(self._device)
        kernels.exchange.scatter_add(self._device, self._boundary_values, self._boundary, y, *scatter_arguments)

    def _multiply_ghosts(self, wait_for_ghosts: Callable[[], Array]) -> None:
        self._off_diagonal(wait_for_ghosts(), self._boundary_values)


class RankAdjointProduct(_BoundProduct):
    """Computes y = alpha·Aᴴ·x + beta·y as an `Apply`.

    The off-diagonal block is multiplied first. Its results are sent to their owners during the product with the
    diagonal block.
    """

    def __init__(self, matrix: Any, dtype: np.dtype[Any], columns: int, alpha: float, beta: float) -> None:
        super().__init__(matrix, dtype, columns, alpha, beta, adjoint=True)
        self._ghost_values = self._device.empty(columns * matrix.halo.num_ghosts, dtype)

    def __call__(self, x: Array, y: Array) -> None:
        kernels_of(self._device).exchange.gather(self._device, x, self._boundary, self._boundary_values)
        self._off_diagonal(self._boundary_values, self._ghost_values)
        add_to = self._exchange.scatter_add(self._ghost_values)
        self._diagonal(x, y)
        add_to(y)
