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

    Of several columns a weighted sum is compared, A·(X·w) with Y·w in double precision: one column that is wrong, or
    stands in another's place, is as far off as it would be alone.

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
        got : array, shape (num_rows,) or (num_rows, k)
            Of the host or of the device.

        Returns
        -------
        error : float
            The largest |got - exact| over eps·(|A|·|x|) of its row.
        correct : bool
            Whether every row is within 2·(its entries + 4) of that, the tests' own bound; plus 2 a column.
        """
        loaded = self._loaded
        is_panel, dtype, xp = loaded.x.ndim == 2, got.dtype, loaded.device.xp
        if is_panel:
            got = xp.asarray(got).astype(np.float64) @ self._weights()
        got = _host(got)
        exact, bound = self._products()
        info = np.finfo(loaded.dtype)
        unit = info.eps * bound + info.smallest_subnormal
        error = abs(got - exact) / unit
        lengths = np.diff(_host(self._loaded.arrays.indptr))
        allowed = 2 * (lengths + 4 + (loaded.columns if is_panel else 0))
        correct = bool(dtype == loaded.dtype and np.all(error <= allowed))  # (a NaN is not)
        return float(np.max(error, initial=0.0)), correct

    def _products(self) -> tuple[Any, Any]:
        if self._found is None:
            data, indices, indptr = (_host(part) for part in self._loaded.arrays[:3])
            x, sizes = self._loaded.x, None
            if x.ndim == 2:
                x = x.astype(np.float64)
                x, sizes = x @ self._weights(), _host(abs(x) @ self._weights())
            self._found = extended_product(data, indices, indptr, _host(x), sizes)
        return self._found

    def _weights(self) -> Any:
        """Give a number for each column, no two alike."""
        return 0.5 + self._loaded.device.xp.arange(self._loaded.columns) / self._loaded.columns


def extended_product(data: Any, indices: Any, indptr: Any, x: Any, sizes: Any = None) -> tuple[Any, Any]:
    """Give A·x and |A|·sizes (|x| where left out) as longdouble, chunk by chunk of rows.

    Examples
    --------
    >>> data, indices, indptr = np.array([2.0, -3.0]), np.array([0, 1]), np.array([0, 2, 2])
    >>> exact, bound = extended_product(data, indices, indptr, np.array([1.0, 1.0]))
    >>> exact.astype(float).tolist(), bound.astype(float).tolist()
    ([-1.0, 0.0], [5.0, 0.0])
    """
    sizes = abs(x) if sizes is None else sizes
    num_rows = indptr.size - 1
    exact, bound = (np.zeros(num_rows, np.longdouble) for _ in range(2))
    begin = 0
    while begin < num_rows:
        reach = np.searchsorted(indptr, indptr[begin] + CHUNK_ENTRIES, side="right") - 1
        end = max(begin + 1, int(reach))
        first, last = int(indptr[begin]), int(indptr[end])
        values, places = data[first:last].astype(np.longdouble), indices[first:last]
        terms, magnitudes = values * x[places], abs(values) * sizes[places]
        starts = indptr[begin:end].astype(np.int64) - first
        filled = np.flatnonzero(np.diff(indptr[begin : end + 1]))  # reduceat takes no empty rows
        if filled.size:
            exact[begin + filled] = np.add.reduceat(terms, starts[filled])
            bound[begin + filled] = np.add.reduceat(magnitudes, starts[filled])
        begin = end
    return exact, bound


def _host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else np.asarray(array)
