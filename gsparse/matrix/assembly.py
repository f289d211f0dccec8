"""Functions that join or combine matrices, and the public names of `gsparse.sparse`, those of `scipy.sparse`."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.matrix_flavour import CsrMatrix
from gsparse.matrix.matrix_product import MatrixProduct
from gsparse.matrix.simple_matrices import (
    coo_array,
    csr_operands,
    diags_array,
    eye_array,
    in_format,
    made,
    matrices_of,
    on_host,
    random_array,
    sorted_csr,
)
from gsparse.sparse.canonical import canonical, from_blocks, kronecker
from gsparse.sparse.reshaping import triangle


def block_array(blocks: Any, *, format: str | None = None, dtype: Any = None, device: Any = None) -> Any:
    """Return the matrix of a two-dimensional grid of blocks, as `scipy.sparse.block_array` does.

    Parameters
    ----------
    blocks : sequence of sequences of matrices
        Sparse or dense, of the host or of a device; None is a block of zeros.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    dtype : dtype, optional
        Of the result; by default NumPy's common dtype of the blocks.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default on the device of the first block that is on one.

    Returns
    -------
    GpuSparseMatrix
        In canonical form. Synchronizes.

    Raises
    ------
    ValueError
        If the blocks of a row differ in height, or those of a column in width.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.block_array([[sp.eye_array(2, device="cpu"), None], [None, [[5.0]]]]).toarray()
    array([[1., 0., 0.],
           [0., 1., 0.],
           [0., 0., 5.]])
    """
    grid = [list(row) for row in blocks]
    if not grid or any(len(row) != len(grid[0]) for row in grid):
        raise ValueError("blocks must be 2-D")
    home, flat = matrices_of(device, [block for row in grid for block in row], none_is_zero=True)
    width = len(grid[0])
    heights, widths = _block_sizes(flat, len(grid), width)
    tops, lefts = (np.concatenate(([0], np.cumsum(sizes))).tolist() for sizes in (heights, widths))
    placed = [(tops[n // width], lefts[n % width], block) for n, block in enumerate(flat) if block is not None]
    return _joined(home, (tops[-1], lefts[-1]), placed, format, dtype)


def _block_sizes(blocks: list[Any], num_rows: int, num_columns: int) -> tuple[list[int], list[int]]:
    """Return the heights of block rows and the widths of block columns; 0 where all blocks are None, as in SciPy."""
    heights, widths = dict[int, int](), dict[int, int]()
    for number, block in enumerate(blocks):
        if block is None:
            continue
        i, j = divmod(number, num_columns)
        for sizes, place, axis in ((heights, i, 0), (widths, j, 1)):
            if sizes.setdefault(place, block.shape[axis]) != block.shape[axis]:
                raise ValueError(
                    f"blocks[{f':,{j}' if axis else f'{i},:'}] has incompatible {'column' if axis else 'row'} "
                    f"dimensions: blocks[{i},{j}].shape[{axis}] is {block.shape[axis]}, expected {sizes[place]}"
                )
    return [heights.get(i, 0) for i in range(num_rows)], [widths.get(j, 0) for j in range(num_columns)]


def vstack(blocks: Any, format: str | None = None, dtype: Any = None, *, device: Any = None) -> Any:
    """Return matrices one below the other, as `scipy.sparse.vstack` does.

    Parameters
    ----------
    blocks : sequence of matrices
        With the same number of columns.
    format, dtype, device : optional
        See `gsparse.sparse.block_array`.

    Returns
    -------
    GpuSparseMatrix
        In canonical form. Synchronizes.

    Raises
    ------
    ValueError
        If the numbers of columns differ, or if there is no block.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.vstack([sp.eye_array(2, device="cpu"), [[3.0, 4.0]]]).toarray()
    array([[1., 0.],
           [0., 1.],
           [3., 4.]])
    """
    parts = list(blocks)
    if not parts:
        return sp.vstack(parts)  # raises SciPy's error
    if hasattr(parts[0], "__gsparse_stack__"):
        return parts[0].__gsparse_stack__(parts, 0)
    return in_format(block_array([[part] for part in parts], dtype=dtype, device=device), format, parts)


def hstack(blocks: Any, format: str | None = None, dtype: Any = None, *, device: Any = None) -> Any:
    """Return matrices side by side, as `scipy.sparse.hstack` does.

    Parameters
    ----------
    blocks : sequence of matrices
        With the same number of rows.
    format, dtype, device : optional
        See `gsparse.sparse.block_array`.

    Returns
    -------
    GpuSparseMatrix
        In canonical form. Synchronizes.

    Raises
    ------
    ValueError
        If the numbers of rows differ, or if there is no block.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.hstack([sp.eye_array(2, device="cpu"), [[3.0], [4.0]]]).toarray()
    array([[1., 0., 3.],
           [0., 1., 4.]])
    """
    parts = list(blocks)
    if not parts:
        return sp.hstack(parts)  # raises SciPy's error
    if hasattr(parts[0], "__gsparse_stack__"):
        return parts[0].__gsparse_stack__(parts, 1)
    return in_format(block_array([parts], dtype=dtype, device=device), format, parts)


def block_diag(mats: Any, format: str | None = None, dtype: Any = None, *, device: Any = None) -> Any:
    """Return the matrix with the given blocks on its diagonal, as `scipy.sparse.block_diag` does.

    Parameters
    ----------
    mats : sequence of matrices
        Sparse or dense, of any shapes, of the host or of a device.
    format, dtype, device : optional
        See `gsparse.sparse.block_array`. As in SciPy, `dtype` does not change the dtype of the result.

    Returns
    -------
    GpuSparseMatrix
        In canonical form. Synchronizes.

    Raises
    ------
    ValueError
        If there is no block.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.block_diag([sp.eye_array(1, device="cpu"), [[3.0, 4.0]]]).toarray()
    array([[1., 0., 0.],
           [0., 3., 4.]])
    """
    mats = list(mats)
    if not mats:
        return sp.block_diag(mats)  # raises SciPy's error
    home, blocks = matrices_of(device, mats)
    placed, row, column = [], 0, 0
    for block in blocks:
        placed.append((row, column, block))
        row, column = row + block.shape[0], column + block.shape[1]
    return in_format(_joined(home, (row, column), placed, None, dtype), format, mats)


def _joined(home: Device, shape: tuple[int, int], placed: list[Any], format: str | None, dtype: Any) -> Any:
    """Return the matrix with the blocks `placed`, which are tuples (row, column, block)."""
    common = np.result_type(*(block.dtype for *_, block in placed)) if placed else np.dtype(float)
    result = common if dtype is None else np.dtype(dtype)
    if any(block.dtype.char in HOST_ONLY for *_, block in placed) or result.char in HOST_ONLY:
        return in_format(GpuSparseMatrix(_joined_on_host(shape, placed, result), device=home), format)
    blocks = [(row, column, sorted_csr(home, block, result)) for row, column, block in placed]
    with home.active(), home.memory_guard():
        csr = from_blocks(home, shape, blocks, result)  # type: ignore[arg-type]
    return made(home, csr, format)


def _joined_on_host(shape: tuple[int, int], placed: list[Any], dtype: np.dtype[Any]) -> sp.csr_array:
    """Return the same matrix as `_joined`, made by SciPy, because a block has extended precision."""
    parts = [(on_host(block).tocoo(), row, column) for row, column, block in placed]
    rows = np.concatenate([part.row + row for part, row, _ in parts])
    columns = np.concatenate([part.col + column for part, _, column in parts])
    data = np.concatenate([part.data.astype(dtype) for part, _, _ in parts])
    return sp.coo_array((data, (rows, columns)), shape=shape).tocsr()


def kron(A: Any, B: Any, format: str | None = None, *, device: Any = None) -> Any:
    """Return the Kronecker product of two matrices, as `scipy.sparse.kron` does.

    Parameters
    ----------
    A, B : matrix
        Sparse or dense, of the host or of a device. The result stores the products of stored entries only.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default on the device of the first operand that is on one.

    Returns
    -------
    GpuSparseMatrix
        In canonical form, in NumPy's common dtype of A and B, also if A or B has no entries (SciPy then returns
        float64). Synchronizes.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.kron(sp.eye_array(2, device="cpu"), [[1.0, 2.0]]).toarray()
    array([[1., 2., 0., 0.],
           [0., 0., 1., 2.]])
    """
    home, (a, b) = csr_operands(device, A, B)
    if a is None or b is None:
        return in_format(GpuSparseMatrix(sp.kron(on_host(A), on_host(B)), device=home), format, (A, B))
    with home.active(), home.memory_guard():
        csr = kronecker(home, a, b)
    return made(home, csr, format, (A, B))


def kronsum(A: Any, B: Any, format: str | None = None, *, device: Any = None) -> Any:
    """Return the Kronecker sum of two square matrices, as `scipy.sparse.kronsum` does.

    Parameters
    ----------
    A, B : matrix
        Square, sparse or dense, of the host or of a device.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default on the device of the first operand that is on one.

    Returns
    -------
    GpuSparseMatrix
        ``kron(I, A) + kron(B, J)``, with identities I of B's size and J of A's, in canonical form. Synchronizes.

    Raises
    ------
    ValueError
        If A or B is not square.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(30, 30), device="cpu")
    >>> sp.kronsum(line, line).shape
    (900, 900)
    """
    operands = A, B
    home, (A, B) = matrices_of(device, operands)
    for name, matrix in (("A", A), ("B", B)):
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"{name} is not square")
    dtype = np.result_type(A.dtype, B.dtype)
    left = kron(eye_array(B.shape[0], dtype=dtype, device=home), A)
    return in_format(left + kron(B, eye_array(A.shape[0], dtype=dtype, device=home)), format, operands)


def tril(A: Any, k: int = 0, format: str | None = None, *, device: Any = None) -> Any:
    """Return the entries on and below a diagonal, as `scipy.sparse.tril` does.

    Parameters
    ----------
    A : matrix
        Sparse or dense, of the host or of a device.
    k : int
        The diagonal: 0 is the main one, and positive numbers lie above it.
    format : str, optional
        By default CSR; "csc" gives a matrix in CSC on the device, and other formats give SciPy's arrays.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default where A does.

    Returns
    -------
    GpuSparseMatrix
        Of the shape of A, in canonical form. Synchronizes.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.tril([[1.0, 2.0], [3.0, 4.0]], device="cpu").toarray()
    array([[1., 0.],
           [3., 4.]])
    """
    return _triangle(A, k, format, device, upper=False)


def triu(A: Any, k: int = 0, format: str | None = None, *, device: Any = None) -> Any:
    """Return the entries on and above a diagonal, as `scipy.sparse.triu` does.

    Parameters
    ----------
    A, k, format, device : optional
        See `gsparse.sparse.tril`.

    Returns
    -------
    GpuSparseMatrix
        Of the shape of A, in canonical form. Synchronizes.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.triu([[1.0, 2.0], [3.0, 4.0]], device="cpu").toarray()
    array([[1., 2.],
           [0., 4.]])
    """
    return _triangle(A, k, format, device, upper=True)


def _triangle(A: Any, k: int, format: str | None, device: Any, *, upper: bool) -> Any:
    home, (csr,) = csr_operands(device, A)
    if csr is None:
        return in_format(GpuSparseMatrix((sp.triu if upper else sp.tril)(on_host(A), k), device=home), format, (A,))
    with home.active(), home.memory_guard():
        csr = triangle(home, canonical(home, csr), int(k), upper)
    return made(home, csr, format, (A,))


def find(A: Any) -> Any:
    """Return rows, columns and values of the entries that are not 0, as `scipy.sparse.find` does.

    Parameters
    ----------
    A : matrix
        Sparse or dense, of the host or of a device.

    Returns
    -------
    rows : ndarray of int, shape (n,)
        On the host. Synchronizes.
    columns : ndarray of int, shape (n,)
        On the host.
    values : ndarray, shape (n,)
        On the host.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> rows, columns, values = sp.find(sp.eye_array(2, k=1, n=3, device="cpu"))
    >>> columns.tolist()
    [1, 2]
    """
    return sp.find(on_host(A))


PUBLIC_NAMES: dict[str, Any] = {
    "MatrixProduct": MatrixProduct,
    "csr_array": GpuSparseMatrix,
    "csr_matrix": CsrMatrix,
    "issparse": sp.issparse,
    **{
        function.__name__: function
        for function in (
            *(coo_array, diags_array, eye_array, kron, kronsum, block_array, block_diag, hstack, vstack),
            *(tril, triu, find, random_array),
        )
    },
}
