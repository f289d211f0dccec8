"""A distributed matrix, its transpose and its adjoint as linear operators of SciPy."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed.client.products import WorkerProducts
from gsparse.distributed.client.vector_layout import check_operand, is_dask

__all__ = ["DistributedOperator"]

HostArray = npt.NDArray[Any]


class DistributedOperator(LinearOperator):  # type: ignore[misc]
    """A linear operator whose products are computed on the workers: a matrix, its transpose or its adjoint."""

    _worker_products: WorkerProducts
    _operation = "plain"

    def dot(self, x: Any) -> Any:
        """Multiply by a vector or a block of vectors.

        Parameters
        ----------
        x : ndarray or dask.array.Array, shape (N,) or (N, k)
            One or several vectors of numbers, in a NumPy array on this host or in a dask array.

        Returns
        -------
        ndarray or dask.array.Array, shape (M,) or (M, k)
            An array of the same library as `x`. A dask array has chunks of `row_bounds` and is not computed yet.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLostError
        """
        check_operand(self.shape, x)
        return self._worker_products.multiply_lazily(x, self._operation) if is_dask(x) else super().dot(x)

    def __matmul__(self, x: Any) -> Any:
        return self.dot(x)

    def matvec(self, x: Any) -> Any:
        """Multiply by a vector.

        Parameters
        ----------
        x : ndarray, shape (N,) or (N, 1)
            A vector of numbers, on this host.

        Returns
        -------
        ndarray, shape (M,) or (M, 1)
            The product, on this host.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLostError
        """
        check_operand(self.shape, x)
        return super().matvec(x)

    def rmatvec(self, x: Any) -> Any:
        """Multiply the adjoint by a vector.

        Parameters
        ----------
        x : ndarray, shape (M,) or (M, 1)
            A vector of numbers, on this host.

        Returns
        -------
        ndarray, shape (N,) or (N, 1)
            The product, on this host.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLostError
        """
        check_operand(self.shape[::-1], x)
        return super().rmatvec(x)

    def matmat(self, X: Any) -> Any:
        """Multiply by several vectors.

        Parameters
        ----------
        X : ndarray, shape (N, k)
            The vectors, as columns of an array of numbers on this host.

        Returns
        -------
        ndarray, shape (M, k)
            The products, on this host.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLostError
        """
        check_operand(self.shape, X)
        return super().matmat(X)

    def rmatmat(self, X: Any) -> Any:
        """Multiply the adjoint by several vectors.

        Parameters
        ----------
        X : ndarray, shape (M, k)
            The vectors, as columns of an array of numbers on this host.

        Returns
        -------
        ndarray, shape (N, k)
            The products, on this host.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLostError
        """
        check_operand(self.shape[::-1], X)
        return super().rmatmat(X)

    def _matvec(self, x: HostArray) -> HostArray:
        return self._worker_products.multiply(x.reshape(-1), self._operation)

    def _matmat(self, X: HostArray) -> HostArray:
        return self._worker_products.multiply(X, self._operation)

    def _rmatvec(self, x: HostArray) -> HostArray:
        return self._rmatmat(x.reshape(-1))

    def _rmatmat(self, X: HostArray) -> HostArray:
        return self._worker_products.multiply(X, "adjoint")

    def _transpose(self) -> LinearOperator:
        return _TransposedOperator(self, "transposed")

    def _adjoint(self) -> LinearOperator:
        return _TransposedOperator(self, "adjoint")


class _TransposedOperator(DistributedOperator):
    """The transpose or the adjoint of a distributed matrix."""

    def __init__(self, matrix: DistributedOperator, operation: str) -> None:
        super().__init__(matrix.dtype, matrix.shape[::-1])
        self._matrix, self._operation = matrix, operation

    @property
    def _worker_products(self) -> WorkerProducts:  # type: ignore[override]
        return self._matrix._worker_products

    def _rmatmat(self, X: HostArray) -> HostArray:
        if self._operation == "adjoint":
            return self._worker_products.multiply(X, "plain")
        return self._worker_products.multiply(X.conj(), "plain").conj()

    def _adjoint(self) -> LinearOperator:
        return self._matrix if self._operation == "adjoint" else LinearOperator._adjoint(self)

    def _transpose(self) -> LinearOperator:
        return self._matrix if self._operation == "transposed" else LinearOperator._transpose(self)
