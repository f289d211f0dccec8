"""What left the device: counted, logged, and refused inside `strict()`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from gsparse.errors import HostFallbackError

__all__ = ["Stats", "strict"]

logger = logging.getLogger("gsparse")
_strict: ContextVar[bool] = ContextVar("gsparse_strict", default=False)


@dataclass
class Stats:
    """What a matrix did so far.

    Attributes
    ----------
    products : int
        Products that ran on the device.
    host_operations : Counter
        By name, how often an operation went through SciPy on the host; "data", "indices" and "indptr" count loans.
    """

    products: int = 0
    host_operations: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = [f"{count:7d}  {name}, on the host" for name, count in self.host_operations.most_common()]
        return "\n".join([f"{self.products:7d}  products on the device", *counts])

    def left_device(self, operation: str) -> None:
        """Note that an operation runs on the host.

        Parameters
        ----------
        operation : str
            The name it is counted by.

        Raises
        ------
        HostFallbackError
            Inside `gsparse.strict()`.
        """
        if _strict.get():
            raise HostFallbackError(
                f"{operation} has no device path and would run on the host: use a product, device_data, device_indices "
                "or device_indptr, or leave gsparse.strict()"
            )
        self.host_operations[operation] += 1
        logger.debug("%s ran on the host", operation)


@contextmanager
def strict() -> Iterator[None]:
    """Make everything that would fall back to the host raise `HostFallbackError` within the block.

    Yields
    ------
    None
        The block holds for its thread (its `contextvars` context), not for others.

    Raises
    ------
    HostFallbackError
        From what would have left the device, before it does.

    Examples
    --------
    >>> import gsparse, scipy.sparse
    >>> A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(3), device="cpu")
    >>> with gsparse.strict():
    ...     y = A @ [1.0, 2.0, 3.0]
    """
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)
