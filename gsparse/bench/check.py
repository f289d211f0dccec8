"""Compare products row by row with a product in extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.bench.peers import LoadedMatrix


class ExactProduct:
    """A·x and |A|·|x| in extended precision on the host, computed at the first comparison.

    For several columns, the weighted sums A·(X·w) and Y·w are compared, in double precision. All weights in w differ,
    so that the sums also reveal a wrong column or two exchanged columns.

    Parameters
    ----------
    loaded : LoadedMatrix
    """

    def __init__(self, loaded: LoadedMatrix) -> None:
        self._loaded = loaded
        self._cached_products: tuple[Any, Any] | None = None

    @np.errstate(invalid="ignore")
    def compare(self, computed: Any) -> tuple[float | None, bool]:
        """Compare a computed product with the exact one.

        A matrix may hold NaN or infinity. If both the exact and the computed element of a row are not finite, its error
        counts as 0.

        Parameters
        ----------
        computed : array, shape (num_rows,) or (num_rows, k)
            An array on the host or on the device.

        Returns
        -------
        error : float or None
            The largest |computed - exact| of a row, divided by the row's eps·(|A|·|x|). None if in some row only one of
            the two is finite.
        correct : bool
            Whether the product has the dtype of the matrix, and the error of every row is at most 2·(row length + 4),
            the bound of gsparse's tests. For k columns the bound is 2·(row length + 4 + k).
        """
        loaded = self._loaded
        is_panel, dtype, xp = loaded.x.ndim == 2, computed.dtype, loaded.device.xp
        if is_panel:
            computed = xp.asarray(computed).astype(np.float64) @ self._weights()
        computed = _host(computed)
        exact, bound = self._products()
        info = np.finfo(loaded.dtype)
        unit = info.eps * bound + info.smallest_subnormal
        are_not_finite = ~(np.isfinite(computed) | np.isfinite(exact))
        error = np.where(are_not_finite, 0.0, abs(computed - exact) / unit)
        lengths = np.diff(_host(self._loaded.arrays.indptr))
        allowed = 2 * (lengths + 4 + (loaded.columns if is_panel else 0))
        correct = bool(dtype == loaded.dtype and np.all(error <= allowed))  # the comparison is false for NaN
        largest = float(np.max(error, initial=0.0))
        return (largest if np.isfinite(largest) else None), correct

    def _products(self) -> tuple[Any, Any]:
        if self._cached_products is None:
            data, indices, indptr = (_host(part) for part in self._loaded.arrays[:3])
            x, magnitudes = self._loaded.x, None
            if x.ndim == 2:
                x = x.astype(np.float64)
                x, magnitudes = x @ self._weights(), _host(abs(x) @ self._weights())
            self._cached_products = extended_product(data, indices, indptr, _host(x), magnitudes)
        return self._cached_products

    def _weights(self) -> Any:
        """Return a weight for each column. All weights differ."""
        return 0.5 + self._loaded.device.xp.arange(self._loaded.columns) / self._loaded.columns


def extended_product(data: Any, indices: Any, indptr: Any, x: Any, magnitudes: Any = None) -> tuple[Any, Any]:
    """Return A·x and |A|·magnitudes as longdouble arrays, by SciPy's product. `magnitudes` is |x| by default.

    Examples
    --------
    >>> data, indices, indptr = np.array([2.0, -3.0]), np.array([0, 1]), np.array([0, 2, 2])
    >>> exact, bound = extended_product(data, indices, indptr, np.array([1.0, 1.0]))
    >>> exact.astype(float).tolist(), bound.astype(float).tolist()
    ([-1.0, 0.0], [5.0, 0.0])
    """
    magnitudes = abs(x) if magnitudes is None else magnitudes
    S = sp.csr_array((data.astype(np.longdouble), indices, indptr), shape=(indptr.size - 1, x.size))
    exact = S @ x.astype(np.longdouble)
    np.abs(S.data, out=S.data)
    return exact, S @ magnitudes.astype(np.longdouble)


def _host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else np.asarray(array)
