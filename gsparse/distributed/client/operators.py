"""A distributed matrix, its transpose and its adjoint as linear operators of SciPy, with sparse algebra."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from gsparse.distributed.client.algebra import elementwise, multiply, stack, transpose
from gsparse.distributed.client.products import WorkerProducts, check_operand, is_dask
from gsparse.distributed.ranks.elementwise import ElementWise

HostArray = npt.NDArray[Any]


class DistributedOperator(ElementWise, LinearOperator):  # type: ignore[misc]
    """A linear operator whose products are computed on the workers: a matrix, its transpose or its adjoint."""

    _operation = "plain"

    @property
    @abstractmethod
    def _worker_products(self) -> WorkerProducts:
        """The products with vectors, and where their parts are."""

    def tomatrix(self) -> Any:
        """Return the operator as a distributed matrix on the same workers.

        Returns
        -------
        DistributedMatrix
            For a matrix, the matrix itself. For its transpose ``A.T`` or its adjoint ``A.H``, a new matrix that the
            workers compute. Each worker owns the rows of the result that were its columns of A.

        Raises
        ------
        CommunicationError, WorkerLostError

        Examples
        --------
        >>> import scipy.sparse
        >>> from distributed import Client
        >>> from gsparse.distributed import distribute
        >>> S = scipy.sparse.diags_array([1.0, 2.0], offsets=[0, 1], shape=(5, 5))
        >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
        ...     with distribute(S, client=client, device="cpu") as A, A.T.tomatrix() as T:
        ...         bool((T.tocsr() != S.T).nnz == 0)
        True
        """
        return self

    def vector(self, x: Any, axis: int = 0) -> Any:
        """Put a vector on the workers, where it stays while something refers to the result.

        Products and solves with the result send no vector from this process, and their results stay on the workers too.

        Parameters
        ----------
        x : ndarray or dask.array.Array, shape (n,) or (n, k)
            One or several vectors, in any chunks.
        axis : {0, 1}, optional
            0, the default, is for vectors with an entry for each row, such as the right-hand side of a solve. Each
            worker gets the entries of its rows. 1 is for vectors with an entry for each column, which are multiplied by
            the matrix. For a square matrix, both are the same. If rows were permuted (`permutation` is not None), the
            vector keeps the original order, so each product and solve moves entries between the workers.

        Returns
        -------
        dask.array.Array
            The same values. For axis 0, or axis 1 of a transpose or an adjoint, the chunks begin at the matrix's
            `row_bounds`. The chunks of a dask array are computed on the workers, and this method waits for them. If a
            worker is lost, its chunk is lost with it.

        Raises
        ------
        ValueError
            If there is no such axis.
        ShapeError, DtypeError, CommunicationError, WorkerLostError

        Examples
        --------
        >>> import numpy, scipy.sparse
        >>> from distributed import Client
        >>> from gsparse.distributed import distribute
        >>> from gsparse.linalg import cg
        >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(50, 50))
        >>> with Client(n_workers=1, processes=False, dashboard_address=None) as client:
        ...     with distribute(S, client=client, device="cpu") as A:
        ...         x, info = cg(A, A.vector(numpy.ones(50)), rtol=1e-10)
        ...         type(x).__name__, bool(numpy.allclose(S @ x.compute(), 1))
        ('Array', True)
        """
        if axis not in (0, 1):
            raise ValueError(f"axis must be 0 or 1, got {axis!r}")
        return self._worker_products.persist(x, of_rows=(axis == 0) == (self._operation == "plain"))

    def dot(self, x: Any) -> Any:
        """Multiply by vectors, by another distributed matrix, or by a number.

        Parameters
        ----------
        x : ndarray or dask.array.Array of shape (N,) or (N, k), distributed matrix of shape (N, K), or number
            Vectors are in a NumPy array on this host or in a dask array. A matrix is on the same workers.

        Returns
        -------
        ndarray, dask.array.Array or DistributedMatrix
            For vectors, an array of the same library. A dask array has chunks of `row_bounds` and is not computed yet.
            For a matrix or a number, a matrix on the same workers.

        Raises
        ------
        ShapeError, DtypeError, CommunicationError, WorkerLostError
        """
        if isinstance(x, DistributedOperator):
            return multiply(self.tomatrix(), x.tomatrix())
        if sp.issparse(x):
            raise TypeError(
                f"a distributed matrix cannot be multiplied by {type(x).__name__} of this process: distribute it "
                "first, B = distribute(S, workers=A.workers)"
            )
        check_operand(self.shape, x)
        if np.isscalar(x):
            return self.multiply(x)
        if is_dask(x):
            return self._worker_products.multiply_lazily(x, self._operation)
        return self._worker_products.multiply(x, self._operation) if type(x) is np.ndarray else super().dot(x)

    def __matmul__(self, x: Any) -> Any:
        if np.isscalar(x):
            check_operand(self.shape, x)
            raise ValueError("scalar operands are not allowed, use '*' instead")
        return self.dot(x)

    def __rmatmul__(self, x: Any) -> Any:  # SciPy's method calls `__rmul__`, which is element-wise here
        return (self.T @ x.T).T

    def elementwise(self, name: str, *operands: Any, **options: Any) -> Any:
        """Return the result of an element-wise operation, as a matrix on the same workers.

        Parameters
        ----------
        name : str
            The method of SciPy's sparse arrays, such as "multiply" or "__abs__".
        *operands : number, distributed matrix, or array
            A matrix must have the same shape, workers and `row_bounds`. Only "multiply" and "__truediv__" take an array
            of NumPy or dask: a row of shape (N,) or (1, N), a column of shape (M, 1), or an array of shape (M, N).
        **options
            Further arguments of the method.

        Returns
        -------
        DistributedMatrix
            The result. It has the dtype that SciPy's result has.

        Raises
        ------
        ShapeError, CommunicationError, WorkerLostError
        TypeError
            If the result would not be sparse.
        """
        operand = operands[0] if operands else None
        if sp.issparse(operand):
            raise TypeError(
                f"a distributed matrix cannot be combined with {type(operand).__name__} of this process: distribute it "
                "first, B = distribute(S, workers=A.workers, partition=A.row_bounds)"
            )
        if isinstance(operand, DistributedOperator):
            return elementwise(self.tomatrix(), name, operand.tomatrix(), **options)
        if isinstance(operand, list | tuple):
            operands = (np.asarray(operand), *operands[1:])
        return elementwise(self.tomatrix(), name, *operands, **options)

    def __gsparse_stack__(self, matrices: list[Any], axis: int) -> Any:
        """Stack distributed matrices vertically (axis 0) or horizontally (axis 1), for `gsparse.sparse`."""
        if not all(isinstance(matrix, DistributedOperator) for matrix in matrices):
            raise TypeError("distributed matrices are stacked with distributed matrices only: use distribute(S)")
        return stack([matrix.tomatrix() for matrix in matrices], axis)

    def __add__(self, x: Any) -> Any:
        return LinearOperator.__add__(self, x) if _is_other_operator(x) else self.elementwise("__add__", x)

    def __sub__(self, x: Any) -> Any:
        return LinearOperator.__sub__(self, x) if _is_other_operator(x) else self.elementwise("__sub__", x)

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


def _is_other_operator(x: Any) -> bool:
    """Return whether x is a linear operator that is not distributed."""
    return isinstance(x, LinearOperator) and not isinstance(x, DistributedOperator)


class _TransposedOperator(DistributedOperator):
    """The transpose or the adjoint of a distributed matrix. Sparse algebra first computes the transposed matrix."""

    def __init__(self, matrix: Any, operation: str) -> None:
        super().__init__(matrix.dtype, matrix.shape[::-1])
        self._matrix, self._operation = matrix, operation

    def tomatrix(self) -> Any:
        return transpose(self._matrix, "adjoint" if self._operation == "adjoint" else "transpose")

    @property
    def _worker_products(self) -> WorkerProducts:
        products: WorkerProducts = self._matrix._worker_products
        return products

    def _rmatmat(self, X: HostArray) -> HostArray:
        if self._operation == "adjoint":
            return self._worker_products.multiply(X, "plain")
        return self._worker_products.multiply(X.conj(), "plain").conj()

    def _adjoint(self) -> LinearOperator:
        return self._matrix if self._operation == "adjoint" else LinearOperator._adjoint(self)

    def _transpose(self) -> LinearOperator:
        return self._matrix if self._operation == "transposed" else LinearOperator._transpose(self)
