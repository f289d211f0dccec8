"""The contract of the kernels of gradients: what a product's derivatives by its operands need.

Let Y = A·X, with k columns, and let G be the gradient of a number with respect to Y. The gradient with respect to X is
Aᴴ·G. That with respect to the value of entry (i, j) is the inner product of row i of G and row j of X, so it takes the
product of two dense matrices at the places of the entries only:

    values      gradient of entry (i, j) = sum over columns c of G[i, c] · conj(X[j, c])

Gradients are as in PyTorch: a small change dv of a value changes the number by the real part of conj(gradient) · dv.
"""

from __future__ import annotations

from typing import Protocol

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr


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
