"""Products with a second sparse matrix on the device, and functions for all operations with two matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gsparse.device.dtypes import Array, compute_dtype
from gsparse.device.select import device_of
from gsparse.errors import ShapeError
from gsparse.formats import Csr
from gsparse.matrix.arrays import MatrixArrays
from gsparse.matrix.host_operations import multiply_sparse_on_host, run_on_host
from gsparse.matrix.matrix_like import MatrixLike, is_device_matrix
from gsparse.products.bsr import DenseBlocks
from gsparse.products.structure import SparsityPattern, Structure
from gsparse.sparse.arithmetic import combine, may_have_blocks, multiply_broadcast, product, product_of_blocks
from gsparse.sparse.reshaping import dense_of, reshaped


def shape_mismatch(first: tuple[int, ...], second: tuple[int, ...], *, broadcasts: bool) -> ShapeError:
    """Return the error for two shapes. `broadcasts` says whether the operation repeats rows or columns."""
    required = "must be equal, or 1, along each axis" if broadcasts else "must be the same"
    return ShapeError(
        f"inconsistent shapes {first} and {second}: they {required}; A[rows, columns] selects a part of A"
    )


def is_sparse(value: Any) -> bool:
    """Return whether a value is a sparse matrix of SciPy or CuPy, or one of this package."""
    return sp.issparse(value) or (device_of(value) is not None and hasattr(value, "tocsr"))


def multiply_sparse(matrix: MatrixLike, other: Any, *, reflected: bool = False) -> Any:
    """Return matrix·other, or other·matrix if `reflected`. If the first factor is stored by columns, so is the product.

    Raises
    ------
    ShapeError
        If the inner dimensions differ.
    """
    if not _is_computed_here(matrix, other):
        return multiply_sparse_on_host(matrix, other, reflected=reflected)
    first, second = (other, matrix) if reflected else (matrix, other)
    if first.shape[-1] != second.shape[0]:
        raise ShapeError(
            f"matmul: dimension mismatch with signature (n,k)x(k,m): {first.shape} @ {second.shape}: "
            "the first matrix needs as many columns as the second has rows"
        )
    by_columns = first.format == "csc"
    # An array of one dimension is a row as the first factor, and a column as the second one.
    factors = [operand_of(matrix, first, by_columns), operand_of(matrix, second, by_columns != (second.ndim == 1))]
    with matrix.device.active(), matrix.device.memory_guard():
        result, blocksize = _product(*(reversed(factors) if by_columns else factors))
    shape = (*first.shape[:-1], *second.shape[1:])
    if len(shape) == 2:
        cls = class_of_format(matrix, by_columns=by_columns)
        return matrix_of(matrix, result, shape, cls, blocksize)
    return _vector_product(matrix, result, shape)


def _product(a: Operand, b: Operand) -> tuple[Csr, tuple[int, int] | None]:
    """Return the product of two matrices, and the size of its full dense blocks if it is known. Synchronizes."""
    sizes = blocksizes(a, b)
    if sizes is None:
        return product(a.structure.sparsity.device, a.csr, b.csr), None
    return product_of_blocks(a.structure.sparsity.device, a.csr, b.csr, *sizes)


def blocksizes(a: Operand, b: Operand) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the sizes of the full dense blocks of two matrices. Synchronizes.

    Return None if the matrices are small, or if one of them has no blocks. The device must be active.
    """
    if not may_have_blocks(a.csr, b.csr):
        return None
    one, other = a.structure.part(DenseBlocks), b.structure.part(DenseBlocks)
    if one.blocksize == (1, 1) or other.blocksize == (1, 1):  # synchronizes
        return None
    return one.blocksize, other.blocksize


def _vector_product(matrix: MatrixLike, result: Csr, shape: tuple[int, ...]) -> Any:
    """Return a product with an array of one dimension: a sparse array, or for a scalar an ndarray of shape ()."""
    device = matrix.device
    with device.active(), device.memory_guard():
        if not shape:
            return device.download(dense_of(device, result)).reshape(())  # synchronizes
        result = reshaped(device, result, (1, shape[0]))
    return matrix_of(matrix, result, shape, class_of_format(matrix, by_columns=False))


def class_of_format(matrix: MatrixLike, *, by_columns: bool) -> Any:
    """Return the class, array or matrix like `matrix`, that reads CSR arrays by columns or by rows."""
    return type(matrix) if matrix._by_columns == by_columns else matrix._transposed_class


def multiply_entries(matrix: MatrixLike, other: Any) -> Any:
    """Return the elementwise product of two sparse matrices.

    If one matrix has a single row, column or element, it is repeated.

    Raises
    ------
    ValueError
        If the shapes do not match.
    """
    if not _is_computed_here(matrix, other):
        return run_on_host(matrix, "multiply", other)
    if matrix.shape == other.shape:
        return combined(matrix, combine_sparse(matrix, "times", other))
    try:
        shape = np.broadcast_shapes(matrix.shape, other.shape)
    except ValueError:
        raise shape_mismatch(matrix.shape, other.shape, broadcasts=True) from None
    a, b = (csr_of(matrix, part, matrix._by_columns) for part in (matrix, other))
    if matrix.shape in ((1,), (1, 1)):  # As in SciPy, its entries are added up, and the other matrix's shape is kept.
        a, shape = a.with_data(a.data.astype(np.sum(np.empty(0, a.dtype)).dtype, copy=False)), other.shape
    with matrix.device.active(), matrix.device.memory_guard():
        result = multiply_broadcast(matrix.device, a, b)
    return matrix_of(matrix, result, shape, type(matrix))


def combine_sparse(matrix: MatrixLike, operation: str, other: Any, *, reflected: bool = False) -> Any:
    """Return the CSR arrays of an operation on two matrices of the same shape (`gsparse.sparse.arithmetic.combine`).

    If `matrix` is stored by columns, the arrays describe the transpose of the result. Return None if SciPy has to
    compute the result.
    """
    if not _is_computed_here(matrix, other):
        return None
    own, others = (csr_of(matrix, part, matrix._by_columns) for part in (matrix, other))
    first, second = (others, own) if reflected else (own, others)
    with matrix.device.active(), matrix.device.memory_guard():
        return combine(matrix.device, operation, first, second)


def combined(matrix: MatrixLike, csr: Csr) -> Any:
    """Return a matrix with the CSR arrays that `combine_sparse` returned."""
    if _has_structure_of(matrix, csr):
        return with_values(matrix, csr.data)  # Statistics of the structure remain known.
    return matrix_of(matrix, csr, matrix.shape, type(matrix))


def _has_structure_of(matrix: MatrixLike, csr: Csr) -> bool:
    """Return whether CSR arrays share the row pointers and columns of a matrix."""
    arrays = matrix._arrays
    return csr.indices is arrays.indices.on_device and csr.indptr is arrays.indptr.on_device


def _is_computed_here(matrix: MatrixLike, other: Any) -> bool:
    """Return whether kernels support the dtypes of both matrices: neither has extended precision."""
    return compute_dtype(matrix.dtype) is not None and compute_dtype(other.dtype) is not None


class Operand(NamedTuple):
    """The CSR arrays of a matrix or of its transpose, and their structure with its statistics."""

    csr: Csr
    structure: Structure


def csr_of(matrix: MatrixLike, other: Any, transposed: bool) -> Csr:
    """Return the CSR arrays of `other`, or of its transpose, on the device of `matrix`."""
    return operand_of(matrix, other, transposed).csr


def operand_of(matrix: MatrixLike, other: Any, transposed: bool) -> Operand:
    """Return the CSR arrays of `other`, or of its transpose, and their structure, on the device of `matrix`."""
    if not (is_device_matrix(other) and other.device is matrix.device):
        # The constructor parses and checks matrices of other classes or devices.
        cls: Any = matrix._transposed_class if matrix._by_columns else type(matrix)
        other = cls(other, device=matrix.device)
    prepared, conjugated = other._prepared(transpose=transposed)
    csr: Csr = prepared.csr
    if conjugated:
        with matrix.device.active(), matrix.device.memory_guard():
            csr = csr.with_data(matrix.device.xp.conjugate(csr.data))
    return Operand(csr, prepared.structure)


def matrix_of(
    matrix: MatrixLike, csr: Csr, shape: tuple[int, ...], cls: Any, blocksize: tuple[int, int] | None = None
) -> Any:
    """Return a matrix with new device arrays and the options of `matrix`, except a declared symmetry.

    `blocksize` is the size of the new matrix's full dense blocks, or None if it is not known.
    """
    options = matrix._arrays.options
    if options.symmetric is not None:
        options = replace(options, symmetric=None)
    structure = None
    if blocksize is not None:
        structure = Structure(SparsityPattern(matrix.device, csr, known_blocksize=blocksize))
    arrays = MatrixArrays.of_result(matrix.device, options, csr, structure=structure)
    return matrix._with_arrays(arrays, shape, cls)


def with_values(matrix: MatrixLike, values: Array, symmetries: tuple[bool | str, ...] = ()) -> Any:
    """Return a matrix of the same structure with other device values. Only the declared `symmetries` are kept."""
    arrays = matrix._arrays.with_values(values, matrix._stored_shape, symmetries=symmetries)
    return matrix._with_arrays(arrays, matrix.shape)
