"""Statistics of products on the device and of operations on the host; `strict()` forbids operations on the host."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from gsparse.errors import HostFallbackError

logger = logging.getLogger("gsparse")
_strict: ContextVar[bool] = ContextVar("gsparse_strict", default=False)
# While a CUDA graph is being recorded, the statistics of the matrix of each recorded product; else None.
_recorded: ContextVar[list[Stats] | None] = ContextVar("gsparse_recorded", default=None)


@dataclass
class Stats:
    """Statistics of one matrix (`GpuSparseMatrix.stats`) or of all matrices of a process (`gsparse.total_stats`).

    Each matrix has its own counts. The counts of a copy, a slice, or a view such as ``A.T`` start at zero, even if a
    library makes it.

    Attributes
    ----------
    products : int
        Number of products that ran on the device, including those within the solvers of `gsparse.linalg`. A product
        with several columns counts once. Products that were still in a GPU's queue when a solve ended count as well.
    host_operations : Counter
        The number of times that SciPy ran each operation on the host, by the name of the operation. "data", "indices"
        and "indptr" count the loans of these arrays.
    name : str or None
        The name that the user has given to the matrix (`GpuSparseMatrix.name`).
    """

    products: int = 0
    host_operations: Counter[str] = field(default_factory=Counter)
    name: str | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        counts = [f"{count:7d}  {name}, on the host" for name, count in self.host_operations.most_common()]
        return "\n".join([f"{self.products:7d}  products on the device", *counts])

    def count_product(self) -> None:
        """Count a product. A product that is recorded in a CUDA graph counts at each launch (`recorded_products`)."""
        recorded = _recorded.get()
        if recorded is None:
            self.products += 1
            TOTAL.products += 1
        else:
            recorded.append(self)

    def left_device(self, operation: str) -> None:
        """Count an operation that runs on the host.

        Parameters
        ----------
        operation : str
            The name of the operation in `host_operations`.

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
        TOTAL.host_operations[operation] += 1
        logger.debug("%s ran on the host", operation)


# Counts of all matrices of this process.
TOTAL = Stats()


def total_stats() -> Stats:
    """Return the current counts of all matrices of this process.

    The matrices include copies that libraries make, views such as ``A.T``, and the matrices inside of preconditioners.

    Returns
    -------
    Stats
        A copy: later products do not change it.

    Examples
    --------
    >>> import gsparse, scipy.sparse
    >>> A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(3), device="cpu")
    >>> before = gsparse.total_stats()
    >>> y = A.copy() @ [1.0, 2.0, 3.0]
    >>> gsparse.total_stats().products - before.products
    1
    """
    return Stats(TOTAL.products, TOTAL.host_operations.copy())


@contextmanager
def recorded_products() -> Iterator[Callable[[], None]]:
    """Collect the products of the block without counting them: a CUDA graph records them, but does not run them.

    Yields
    ------
    callable
        A function that counts each collected product once. Call it at each launch of the graph.
    """
    recorded: list[Stats] = []
    token = _recorded.set(recorded)
    by_matrix: list[tuple[Stats, int]] = []

    def count() -> None:
        for stats, number in by_matrix:
            stats.products += number
            TOTAL.products += number

    try:
        yield count
    finally:
        _recorded.reset(token)
    numbers = Counter(map(id, recorded))
    by_matrix.extend({id(stats): (stats, numbers[id(stats)]) for stats in recorded}.values())


def is_strict() -> bool:
    """Return whether the current thread is inside `strict()`."""
    return _strict.get()


@contextmanager
def strict() -> Iterator[None]:
    """Make every operation that would run on the host raise `HostFallbackError` within the block.

    Yields
    ------
    None
        Only the current thread (its `contextvars` context) is affected, and what it lets the workers of distributed
        matrices compute meanwhile; not tasks of dask.

    Raises
    ------
    HostFallbackError
        From each such operation, before it begins.

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
