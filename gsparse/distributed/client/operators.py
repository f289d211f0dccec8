"""A distributed matrix, its transpose and its adjoint, as operators of SciPy: what they take and give."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed.client.products import Multiplier
from gsparse.distributed.client.vector_layout import check_factor, is_dask

__all__ = ["Products"]

Host = npt.NDArray[Any]


class Products(LinearOperator):  # type: ignore[misc]
    """Products on the workers, of a matrix as it is, transposed or adjoint."""

    _multiplier: Multiplier
    _how = "plain"

    def dot(self, x: Any) -> Any:
        """Multiply by a vector or a block of vectors.

        Parameters
        ----------
        x : ndarray or dask.array.Array, shape (N,) or (N, k)
            Of NumPy, on this host, or of dask.

        Returns
        -------
        ndarray or dask.array.Array, shape (M,) or (M, k)
            As `x`; of dask in chunks of `row_bounds`, with nothing computed yet.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLost
        """
        check_factor(self.shape, x)
        return self._multiplier.lazy(x, self._how) if is_dask(x) else super().dot(x)

    def __matmul__(self, x: Any) -> Any:
        return self.dot(x)

    def matvec(self, x: Any) -> Any:
        """Multiply by a vector.

        Parameters
        ----------
        x : ndarray, shape (N,) or (N, 1)
            Of numbers, on this host.

        Returns
        -------
        ndarray, shape (M,) or (M, 1)
            On this host.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLost
        """
        check_factor(self.shape, x)
        return super().matvec(x)

    def rmatvec(self, x: Any) -> Any:
        """Multiply the adjoint by a vector.

        Parameters
        ----------
        x : ndarray, shape (M,) or (M, 1)
            Of numbers, on this host.

        Returns
        -------
        ndarray, shape (N,) or (N, 1)
            On this host.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLost
        """
        check_factor(self.shape[::-1], x)
        return super().rmatvec(x)

    def matmat(self, X: Any) -> Any:
        """Multiply by columns.

        Parameters
        ----------
        X : ndarray, shape (N, k)
            Of numbers, on this host.

        Returns
        -------
        ndarray, shape (M, k)
            On this host.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLost
        """
        check_factor(self.shape, X)
        return super().matmat(X)

    def rmatmat(self, X: Any) -> Any:
        """Multiply the adjoint by columns.

        Parameters
        ----------
        X : ndarray, shape (M, k)
            Of numbers, on this host.

        Returns
        -------
        ndarray, shape (N, k)
            On this host.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLost
        """
        check_factor(self.shape[::-1], X)
        return super().rmatmat(X)

    def _matvec(self, x: Host) -> Host:
        return self._multiplier.host(x.reshape(-1), self._how)

    def _matmat(self, X: Host) -> Host:
        return self._multiplier.host(X, self._how)

    def _rmatvec(self, x: Host) -> Host:
        return self._rmatmat(x.reshape(-1))

    def _rmatmat(self, X: Host) -> Host:
        return self._multiplier.host(X, "adjoint")

    def _transpose(self) -> LinearOperator:
        return _Turned(self, "transposed")

    def _adjoint(self) -> LinearOperator:
        return _Turned(self, "adjoint")


class _Turned(Products):
    """The transpose or the adjoint of a distributed matrix."""

    def __init__(self, matrix: Products, how: str) -> None:
        super().__init__(matrix.dtype, matrix.shape[::-1])
        self._matrix, self._how = matrix, how

    @property
    def _multiplier(self) -> Multiplier:  # type: ignore[override]
        return self._matrix._multiplier

    def _rmatmat(self, X: Host) -> Host:
        if self._how == "adjoint":
            return self._multiplier.host(X, "plain")
        return self._multiplier.host(X.conj(), "plain").conj()

    def _adjoint(self) -> LinearOperator:
        return self._matrix if self._how == "adjoint" else LinearOperator._adjoint(self)

    def _transpose(self) -> LinearOperator:
        return self._matrix if self._how == "transposed" else LinearOperator._transpose(self)
