"""Products compared row by row with one in extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from gsparse.bench.peers import Loaded

__all__ = ["Exact"]

# Rows are taken together up to this many entries, which bounds the memory of the extended products.
CHUNK_ENTRIES = 4_000_000


class Exact:
    """A·x and |A|·|x| in extended precision on the host, computed when first asked for.

    Parameters
    ----------
    loaded : Loaded
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._found: tuple[Any, Any] | None = None

    def compare(self, got: Any) -> tuple[float, bool]:
        """Compare a product with the exact one.

        Parameters
        ----------
        got : array, shape (num_rows,)
            Of the host or of the device.

        Returns
        -------
        error : float
            The largest |got - exact| over eps·(|A|·|x|) of its row.
        correct : bool
            Whether every row is within 2·(its entries + 4) of that, the tests' own bound.
        """
        got, dtype = _host(got), self._loaded.dtype
        exact, bound = self._products()
        info = np.finfo(dtype)
        unit = info.eps * bound + info.smallest_subnormal
        error = abs(got - exact) / unit
        lengths = np.diff(_host(self._loaded.arrays.indptr))
        correct = bool(got.dtype == dtype and np.all(error <= 2 * (lengths + 4)))  # (a NaN is not)
        return float(np.max(error, initial=0.0)), correct

    def _products(self) -> tuple[Any, Any]:
        if self._found is None:
            data, indices, indptr = (_host(part) for part in self._loaded.arrays[:3])
            self._found = extended_product(data, indices, indptr, _host(self._loaded.x))
        return self._found


def extended_product(data: Any, indices: Any, indptr: Any, x: Any) -> tuple[Any, Any]:
    """Give A·x and |A|·|x| as longdouble, chunk by chunk of rows.

    Examples
    --------
    >>> data, indices, indptr = np.array([2.0, -3.0]), np.array([0, 1]), np.array([0, 2, 2])
    >>> exact, bound = extended_product(data, indices, indptr, np.array([1.0, 1.0]))
    >>> exact.astype(float).tolist(), bound.astype(float).tolist()
    ([-1.0, 0.0], [5.0, 0.0])
    """
    num_rows = indptr.size - 1
    exact, bound = (np.zeros(num_rows, np.longdouble) for _ in range(2))
    begin = 0
    while begin < num_rows:
        reach = np.searchsorted(indptr, indptr[begin] + CHUNK_ENTRIES, side="right") - 1
        end = max(begin + 1, int(reach))
        first, last = int(indptr[begin]), int(indptr[end])
        terms = data[first:last].astype(np.longdouble) * x[indices[first:last]]
        starts = indptr[begin:end].astype(np.int64) - first
        filled = np.flatnonzero(np.diff(indptr[begin : end + 1]))  # reduceat takes no empty rows
        if filled.size:
            exact[begin + filled] = np.add.reduceat(terms, starts[filled])
            bound[begin + filled] = np.add.reduceat(abs(terms), starts[filled])
        begin = end
    return exact, bound


def _host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else np.asarray(array)
