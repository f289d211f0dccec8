"""The names of `scipy.sparse` that make matrices from parts, for `gsparse.sparse`: results are matrices on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY
from gsparse.device.select import device_of, get_device
from gsparse.formats import Csr
from gsparse.matrix.arrays import MatrixArrays
from gsparse.matrix.constructor import matrix_over
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.matrix.matrix_flavour import CsrMatrix, MatrixFlavour
from gsparse.matrix.matrix_like import is_device_matrix
from gsparse.matrix.matrix_product import MatrixProduct
from gsparse.matrix.sparse_operations import csr_of
from gsparse.products.options import MatrixOptions
from gsparse.sparse.assembly import (
    canonical_in_own_dtype,
    from_blocks,
    from_coordinates,
    identity,
    kronecker,
    without_zeros,
)
from gsparse.sparse.selection import triangle

__all__ = ["PUBLIC_NAMES"]

_AUTO = object()


def coo_array(arg1: Any, shape: Any = None, dtype: Any = None, copy: bool = False, *, device: Any = None) -> Any:
    """Return the matrix that `scipy.sparse.coo_array` would describe, in CSR, with repeated entries added up.

    Parameters
    ----------
    arg1 : (data, (row, col)) or anything that GpuSparseMatrix takes
        Arrays of the host are copied to the device, and sorted and added up there.
    shape, dtype, copy
        As those of GpuSparseMatrix.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        Where the result lives; by default where `arg1` does.

    Returns
    -------
    GpuSparseMatrix
        In canonical form. Synchronizes.

    Examples
    --------
    >>> import gsparse.sparse as sp
    >>> sp.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2), device="cpu").toarray()
    array([[0., 3.],
           [0., 0.]])
    """
    matrix = GpuSparseMatrix(arg1, shape, dtype, copy, device=device)
    if matrix.dtype.char in HOST_ONLY or matrix.ndim != 2:
        return matrix
    home = matrix.device
    with home.active(), home.memory_guard():
        csr = canonical_in_own_dtype(home, csr_of(matrix, matrix, False))
    return _made(home, csr, None)


def diags_array(
    diagonals: Any,
    /,
    *,
    offsets: Any = 0,
    shape: Any = None,
    format: str | None = None,
    dtype: Any = _AUTO,
    device: Any = None,
) -> Any:
    """Return the matrix with the given diagonals, as `scipy.sparse.diags_array` does; see there for the parameters.

    SciPy checks the diagonals; the matrix is made on the device. `device` says where. Synchronizes.
    """
    options = {} if dtype is _AUTO else {"dtype": dtype}
    dia = sp.diags_array(diagonals, offsets=offsets, shape=shape, format="dia", **options)
    home = get_device(device)
    if dia.dtype.char in HOST_ONLY:
        return _in_format(GpuSparseMatrix(dia, device=home), format)
    with home.active(), home.memory_guard():
        xp, width = home.xp, min(dia.data.shape[1], dia.shape[1])
        order = np.argsort(dia.offsets)
        data = home.upload(np.ascontiguousarray(dia.data[order, :width]))
        columns = xp.arange(width, dtype=np.int64)
        places = home.upload(dia.offsets[order].astype(np.int64))
        rows = columns - places[:, None]
        inside = (rows >= 0) & (rows < dia.shape[0])
        columns = xp.broadcast_to(columns, rows.shape)
        csr = from_coordinates(home, dia.shape, rows[inside], columns[inside], data[inside])
        csr = without_zeros(home, csr)
    return _made(home, csr, format)


def eye_array(
    m: int, n: int | None = None, *, k: int = 0, dtype: Any = float, format: str | None = None, device: Any = None
) -> Any:
    """Return the m by n matrix with ones on diagonal `k`, as `scipy.sparse.eye_array` does, made on `device`."""
    shape = (int(m), int(m if n is None else n))
    parsed = np.dtype(dtype)
    home = get_device(device)
    if parsed.char in HOST_ONLY or min(*shape, shape[0] + k, shape[1] - k) < 0:  # (SciPy refuses the latter.)
        return _in_format(GpuSparseMatrix(sp.eye_array(*shape, k=k, dtype=parsed), device=home), format)
    with home.active(), home.memory_guard():
        csr = identity(home, shape, int(k), parsed)
    return _made(home, csr, format)


def kron(A: Any, B: Any, format: str | None = None, *, device: Any = None) -> Any:
    """Return the Kronecker product of two sparse or dense matrices, as `scipy.sparse.kron` does. Synchronizes."""
    home, (a, b) = _operands(device, A, B)
    if a is None or b is None:
        return _in_format(GpuSparseMatrix(sp.kron(_plain(A), _plain(B)), device=home), format, (A, B))
    with home.active(), home.memory_guard():
        csr = kronecker(home, a, b)
        if not csr.nnz:  # SciPy's result is then of float64.
            csr = csr.with_data(home.xp.zeros(0, np.float64))
    return _made(home, csr, format, (A, B))


def kronsum(A: Any, B: Any, format: str | None = None, *, device: Any = None) -> Any:
    """Return the Kronecker sum of two square matrices, as `scipy.sparse.kronsum` does. Synchronizes."""
    operands = A, B
    home, (A, B) = _matrices(device, operands)
    for name, matrix in (("A", A), ("B", B)):
        if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"{name} is not square")
    dtype = np.result_type(A.dtype, B.dtype)
    left = kron(eye_array(B.shape[0], dtype=dtype, device=home), A)
    return _in_format(left + kron(B, eye_array(A.shape[0], dtype=dtype, device=home)), format, operands)


def block_array(blocks: Any, *, format: str | None = None, dtype: Any = None, device: Any = None) -> Any:
    """Return the matrix of a two-dimensional grid of blocks, as `scipy.sparse.block_array` does.

    Parameters
    ----------
    blocks : sequence of sequences of matrices
        Sparse or dense, of the host or of the device; None is a block of zeros.
    format : str, optional
        CSR by default; other formats as the method `asformat` returns them.
    dtype : dtype, optional
        By default the one that NumPy gives the dtypes of the blocks.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        By default where the first block lives that is on a device.

    Raises
    ------
    ValueError
        If the blocks of a row differ in height, or those of a column in width.
    """
    grid = [list(row) for row in blocks]
    if not grid or any(len(row) != len(grid[0]) for row in grid):
        raise ValueError("blocks must be 2-D")
    home, flat = _matrices(device, [block for row in grid for block in row])
    width = len(grid[0])
    heights, widths = _block_sizes(flat, len(grid), width)
    tops, lefts = (np.concatenate(([0], np.cumsum(sizes))).tolist() for sizes in (heights, widths))
    placed = [(tops[n // width], lefts[n % width], block) for n, block in enumerate(flat) if block is not None]
    return _joined(home, (tops[-1], lefts[-1]), placed, format, dtype)


def _block_sizes(blocks: list[Any], num_rows: int, num_columns: int) -> tuple[list[int], list[int]]:
    """Return the heights of the rows of blocks and the widths of the columns: 0 where all are None, as in SciPy."""
    heights, widths = [0] * num_rows, [0] * num_columns
    for number, block in enumerate(blocks):
        if block is None:
            continue
        i, j = divmod(number, num_columns)
        for sizes, place, axis in ((heights, i, 0), (widths, j, 1)):
            if sizes[place] not in (0, block.shape[axis]):
                raise ValueError(
                    f"blocks[{f':,{j}' if axis else f'{i},:'}] has incompatible {'column' if axis else 'row'} "
                    f"dimensions: blocks[{i},{j}].shape[{axis}] is {block.shape[axis]}, expected {sizes[place]}"
                )
            sizes[place] = block.shape[axis]
    return heights, widths


def vstack(blocks: Any, format: str | None = None, dtype: Any = None, *, device: Any = None) -> Any:
    """Return the matrices one below the other, as `scipy.sparse.vstack` does."""
    parts = list(blocks)
    if not parts:
        return sp.vstack(parts)  # raises SciPy's error
    return _in_format(block_array([[part] for part in parts], dtype=dtype, device=device), format, parts)


def hstack(blocks: Any, format: str | None = None, dtype: Any = None, *, device: Any = None) -> Any:
    """Return the matrices side by side, as `scipy.sparse.hstack` does."""
    parts = list(blocks)
    if not parts:
        return sp.hstack(parts)  # raises SciPy's error
    return _in_format(block_array([parts], dtype=dtype, device=device), format, parts)


def block_diag(mats: Any, format: str | None = None, dtype: Any = None, *, device: Any = None) -> Any:
    """Return the matrix with the given blocks on its diagonal, as `scipy.sparse.block_diag` does."""
    mats = list(mats)
    if not mats:
        return sp.block_diag(mats)  # raises SciPy's error
    home, blocks = _matrices(device, mats)
    placed, row, column = [], 0, 0
    for block in blocks:
        placed.append((row, column, block))
        row, column = row + block.shape[0], column + block.shape[1]
    return _in_format(_joined(home, (row, column), placed, None, dtype), format, mats)


def tril(A: Any, k: int = 0, format: str | None = None, *, device: Any = None) -> Any:
    """Return the entries on and below diagonal `k`, as `scipy.sparse.tril` does. Synchronizes."""
    return _triangle(A, k, format, device, upper=False)


def triu(A: Any, k: int = 0, format: str | None = None, *, device: Any = None) -> Any:
    """Return the entries on and above diagonal `k`, as `scipy.sparse.triu` does. Synchronizes."""
    return _triangle(A, k, format, device, upper=True)


def _triangle(A: Any, k: int, format: str | None, device: Any, *, upper: bool) -> Any:
    home, (csr,) = _operands(device, A)
    if csr is None:
        return _in_format(GpuSparseMatrix((sp.triu if upper else sp.tril)(_plain(A), k), device=home), format, (A,))
    with home.active(), home.memory_guard():
        csr = triangle(home, canonical_in_own_dtype(home, csr), int(k), upper)
    return _made(home, csr, format, (A,))


def find(A: Any) -> Any:
    """Return rows, columns and values of the entries that are not 0, as `scipy.sparse.find` does, on the host."""
    return sp.find(_plain(A))


def random_array(shape: Any, *, format: str | None = None, device: Any = None, **options: Any) -> Any:
    """Return the random matrix of `scipy.sparse.random_array`, drawn on the host: the same numbers, on `device`."""
    return _in_format(GpuSparseMatrix(sp.random_array(shape, **options), device=device), format)


# ------------------------------------------------------------------------------------------ operands and results


def _matrices(device: Any, parts: Any) -> tuple[Device, list[Any]]:
    """Return the device of an operation, and its operands there as matrices; None stays None."""
    homes = (part.device if is_device_matrix(part) else device_of(part) for part in parts)
    found = next((home for home in homes if home is not None), None) if device is None else None
    home = get_device(device) if found is None else found
    return home, [None if part is None else _on_device(home, part) for part in parts]


def _on_device(home: Device, part: Any) -> Any:
    if is_device_matrix(part) and part.device is home and part.ndim == 2:
        return part
    if not (sp.issparse(part) or hasattr(part, "tocsr")) and device_of(part) is None:
        part = np.atleast_2d(np.asarray(part))
    elif sp.issparse(part) and part.ndim == 1:
        part = part.reshape(1, -1)
    return GpuSparseMatrix(part, device=home)


def _operands(device: Any, *parts: Any) -> tuple[Device, list[Csr | None]]:
    """Return the device of an operation and the sorted CSR arrays of its operands; None for extended precision."""
    home, matrices = _matrices(device, parts)
    return home, [_csr(home, matrix) for matrix in matrices]


def _csr(home: Device, matrix: Any, dtype: np.dtype[Any] | None = None) -> Csr | None:
    """Return sorted CSR arrays. With `dtype`, values are converted to it before repeated entries are added up."""
    if matrix.dtype.char in HOST_ONLY:
        return None
    csr = csr_of(matrix, matrix, False)
    with home.active(), home.memory_guard():
        return canonical_in_own_dtype(home, csr if dtype is None else csr.with_data(csr.data.astype(dtype, copy=False)))


def _joined(home: Device, shape: tuple[int, int], placed: list[Any], format: str | None, dtype: Any) -> Any:
    """Return the matrix of blocks at their places."""
    common = np.result_type(*(block.dtype for *_, block in placed)) if placed else np.dtype(float)
    result = common if dtype is None else np.dtype(dtype)
    if any(block.dtype.char in HOST_ONLY for *_, block in placed) or result.char in HOST_ONLY:
        return _in_format(GpuSparseMatrix(_joined_on_host(shape, placed, result), device=home), format)
    blocks = [(row, column, _csr(home, block, result)) for row, column, block in placed]
    with home.active(), home.memory_guard():
        csr = from_blocks(home, shape, blocks, result)  # type: ignore[arg-type]
    return _made(home, csr, format)


def _joined_on_host(shape: tuple[int, int], placed: list[Any], dtype: np.dtype[Any]) -> sp.csr_array:
    """Return the matrix of blocks, some of them of extended precision, at their places."""
    parts = [(_plain(block).tocoo(), row, column) for row, column, block in placed]
    rows = np.concatenate([part.row + row for part, row, _ in parts])
    columns = np.concatenate([part.col + column for part, _, column in parts])
    data = np.concatenate([part.data.astype(dtype) for part, _, _ in parts])
    return sp.coo_array((data, (rows, columns)), shape=shape).tocsr()


def _plain(part: Any) -> Any:
    """Return an operand as SciPy takes it on the host."""
    if is_device_matrix(part):
        coo: Any = part
        return coo.tocoo()
    return part.get() if device_of(part) is not None else part


def _made(home: Device, csr: Csr, format: str | None, operands: Sequence[Any] = ()) -> Any:
    """Return a matrix over new device arrays, of the flavour of the operands."""
    arrays = MatrixArrays.of_result(home, MatrixOptions(), csr)
    return _in_format(matrix_over(GpuSparseMatrix, arrays, csr.shape), format, operands)


def _in_format(matrix: Any, format: str | None, operands: Sequence[Any] = ()) -> Any:
    """Return a matrix in a format: a `CsrMatrix` if an operand is one and none is a sparse array, as in SciPy."""
    if any(isinstance(part, MatrixFlavour) for part in operands) and not any(
        isinstance(part, sp.sparray) for part in operands
    ):
        matrix = CsrMatrix(matrix)
    return matrix if format is None else matrix.asformat(format)


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
