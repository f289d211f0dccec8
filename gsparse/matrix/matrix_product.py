"""The product of two sparse matrices, which can be updated when their values have changed."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gsparse.device.dtypes import HOST_ONLY
from gsparse.errors import DtypeError, ShapeError, StructureError
from gsparse.formats import Csr
from gsparse.kernels.backends import kernels_of
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.matrix_like import is_device_matrix
from gsparse.matrix.sparse_operations import Operand, blocksizes, matrix_of, operand_of, with_values
from gsparse.sparse.arithmetic import CsrProduct
from gsparse.sparse.block_products import block_patterns
from gsparse.sparse.canonical import canonical


class MatrixProduct:
    """The product of two sparse matrices, which can be updated for other values of the same structures.

    The structure of the result is computed once, in the symbolic phase. `update` then only multiplies and adds, in the
    numeric phase. On a GPU, the first update also stores to which entry of the result each product of a short row is
    added, one byte per product. Large matrices of full dense blocks are multiplied block by block.

    Parameters
    ----------
    A : GpuSparseMatrix, shape (M, K)
        The first factor.
    B : GpuSparseMatrix or sparse array, shape (K, N)
        A matrix of another library is copied to the device of A.

    Attributes
    ----------
    result : GpuSparseMatrix, shape (M, N)
        The product with the latest values, in canonical form. It has an entry wherever two entries are multiplied, even
        if the sum is 0, because for other values the sum may not be 0.

    Raises
    ------
    ShapeError
        If the inner dimensions differ.
    DtypeError
        For values of extended precision, with which no device computes.
    TypeError
        If A is not a GpuSparseMatrix.
    DeviceMemoryError
        If the device has too little memory.

    Notes
    -----
    Synchronizes, as does `update`. The same values give the same bits each time.

    References
    ----------
    .. [1] F. G. Gustavson, "Two fast algorithms for sparse matrices: multiplication and permuted transposition", ACM
       Trans. Math. Softw. 4(3), 1978.

    Examples
    --------
    >>> import numpy, scipy.sparse
    >>> from gsparse import GpuSparseMatrix
    >>> from gsparse.sparse import MatrixProduct
    >>> A = GpuSparseMatrix(scipy.sparse.eye_array(3), device="cpu")
    >>> square = MatrixProduct(A, A)
    >>> A = A.with_data(numpy.array([1.0, 2.0, 3.0]))
    >>> square.update(A, A).diagonal()
    array([1., 4., 9.])
    """

    def __init__(self, A: GpuSparseMatrix, B: Any) -> None:
        if not is_device_matrix(A):
            raise TypeError(f"A must be a GpuSparseMatrix, got {type(A).__name__}: convert it with GpuSparseMatrix(A)")
        if A.shape[1] != B.shape[0]:
            raise ShapeError(f"A of shape {A.shape} cannot be multiplied by B of shape {B.shape}: {A.shape[1]} columns "
                             f"of A meet {B.shape[0]} rows of B")  # fmt: skip
        for name, matrix in (("A", A), ("B", B)):
            if matrix.dtype.char in HOST_ONLY:
                raise DtypeError(f"{name} has {matrix.dtype}, with which no device computes: use astype(float)")
        self._like, shape = A, (A.shape[0], B.shape[1])
        first, second = (operand_of(A, part, False) for part in (A, B))
        self._structures = a, b = self._sorted(first, second)
        with A.device.active(), A.device.memory_guard():
            sizes = blocksizes(first, second)
            patterns = None if sizes is None else block_patterns(A.device, a, b, *sizes)
            self._product = CsrProduct(A.device, a, b, patterns)
        cls = A._transposed_class if A._by_columns else type(A)
        pattern = self._product.pattern
        blocksize = None if pattern is None else pattern.blocksize
        # Users get copies of the result, which share its arrays until one of them is written.
        self._result: GpuSparseMatrix = matrix_of(A, self._product.result, shape, cls, blocksize)
        self.result: GpuSparseMatrix = self._result.copy()

    @property
    def nbytes(self) -> int:
        """Bytes of the result and of the arrays that are kept for updates."""
        return self._product.nbytes

    def update(self, A: GpuSparseMatrix, B: Any) -> GpuSparseMatrix:
        """Compute `result` again for matrices with the structures of A and B but other values, and return it.

        Parameters
        ----------
        A, B : GpuSparseMatrix or sparse array
            Matrices with the structures of the constructor's A and B. Matrices from `GpuSparseMatrix.with_data` are
            compared fastest. Values are converted to the dtype of the first product, by NumPy's rule "same_kind".

        Returns
        -------
        GpuSparseMatrix
            The result, with the same structure as before. Synchronizes.

        Raises
        ------
        StructureError
            If a matrix has another shape, or entries at other places, than in the constructor.
        DtypeError
            If the conversion would lose more than digits: complex values become real, or floating-point values become
            integers.
        """
        dtype = np.result_type(A.dtype, B.dtype)
        if not np.can_cast(dtype, self.result.dtype, "same_kind"):
            raise DtypeError(
                f"the product was made for {self.result.dtype}, and cannot become {dtype}: make a new MatrixProduct"
            )
        operands = self._sorted(*(operand_of(self._like, part, False) for part in (A, B)))
        for name, known, given in zip("AB", self._structures, operands, strict=True):
            if not self._is_alike(known, given):
                raise StructureError(
                    f"{name} has another structure than the matrix that the product was made of: pass "
                    "A.with_data(values), or make a new MatrixProduct"
                )
        device = self._like.device
        with device.active(), device.memory_guard():
            values = self._product.update(*operands).data
        self._result = with_values(self._result, values)
        self.result = self._result.copy()
        return self.result

    def _sorted(self, a: Operand, b: Operand) -> tuple[Csr, Csr]:
        """Return the CSR arrays of both matrices. The rows of the second one are sorted. May synchronize."""
        with self._like.device.active(), self._like.device.memory_guard():
            return a.csr, canonical(self._like.device, b.csr)

    def _is_alike(self, known: Csr, given: Csr) -> bool:
        """Return whether two matrices have the same row pointers and columns. Synchronizes unless they share them."""
        if known.shape != given.shape or known.nnz != given.nnz:
            return False
        pairs = ((known.indptr, given.indptr), (known.indices, given.indices))
        device = self._like.device
        first_where = partial(kernels_of(device).reductions.first_where, device)
        with device.active():
            return all(a is b or first_where(a != b, "not zero") is None for a, b in pairs)  # synchronizes
