"""GpuSparseMatrix: SciPy's csr_array whose arrays live on a device, and the transposed view that `A.T` returns.

    GpuSparseMatrix -----+                    +--> scipy.sparse.csr_array
                         +--> DeviceMatrix ---+
    TransposedMatrix ----+                    +--> scipy.sparse.csc_array

Nothing is computed here. `DeviceMatrix` holds what both classes have in common. `matrix_flavour.py` has the same two
classes for `scipy.sparse.csr_matrix`.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Self

import scipy.sparse as sp

from gsparse.files import read_file
from gsparse.matrix.device_matrix import DeviceMatrix


class ReadableMatrix(DeviceMatrix):
    """A matrix that users can read from a file."""

    @classmethod
    def from_file(cls, path: str | PathLike[str], *, name: str | None = None, **options: Any) -> Self:
        """Read Matrix Market (``.mtx``, ``.gz``, ``.bz2``), SciPy's ``.npz``, Harwell–Boeing, or MATLAB's ``.mat``.

        Parameters
        ----------
        path : path-like
            As in `gsparse.files.read_file`.
        name : str, optional
            The variable of a ``.mat`` file that holds several.
        **options
            Arguments of the constructor, such as `dtype`, `device` and `format`.

        Returns
        -------
        GpuSparseMatrix
            The matrix in the file.

        Raises
        ------
        FileNotFoundError
        FileFormatError
            If the file is truncated, malformed, or of another kind.
        """
        return cls(read_file(path, name), **options)


class GpuSparseMatrix(ReadableMatrix, sp.csr_array):  # type: ignore[misc]
    """A sparse matrix on a GPU (or, without one, on threaded CPU kernels) that works wherever SciPy expects one.

    Parameters
    ----------
    arg1 : object
        A SciPy sparse array or matrix, a CuPy sparse matrix, a dense array, ``(data, (row, col))``,
        ``(data, indices, indptr)``, a shape, or another GpuSparseMatrix. Arrays on the host are copied to the device.
        Arrays on the device are used as they are unless `copy` is True, and must not be written afterwards.
    shape : tuple of int, optional
        (M, N), or (N,) for a sparse vector; by default the shape of `arg1`.
    dtype : dtype, optional
        Dtype of the values. The device holds bool, integers, float32, float64, complex64 and complex128; longdouble
        stays on the host.
    copy : bool, optional
        Whether arrays that are on the device already are copied.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        "auto" is the GPU where there is one; the environment variable ``GSPARSE_DEVICE`` may say otherwise. By default,
        arrays of a GPU and matrices of gsparse stay where they are, and anything else goes to "auto".
    format : {"auto", "csr", "ellpack", "blocked_ellpack", "row_lanes", "row_pattern", "bsr"}, optional
        The storage format that products read. "auto", the default, chooses by row statistics, and "csr" chooses among
        its schedules. The names in `gsparse.FORMATS` are accepted too: "csr_vector" is "csr" with the schedule
        "vector". A format that cannot store the matrix, or its dtype, is refused. Slices, sums and transposes inherit
        the format; if it does not fit them, or no longer fits a matrix that was written to, they use "auto".
    schedule : {"scalar", "vector"}, optional
        How GPU threads share the work of ``format="csr"``: a thread for each row, or several.
    threads_per_block : {128, 256, 512}, optional
        GPU threads of a block, 256 by default. CPU kernels have no use for it.
    expected_products : int, optional
        How many products the matrix is expected to serve, 1000 by default. A conversion of the format has to pay off
        within that number.
    compress : bool, "columns" or "values", optional
        Whether products may read less than CSR holds, without loss: narrower columns and row patterns ("columns"),
        tables of distinct values and float32 where every value survives ("values"), or both (True, the default). With
        ``format="auto"``, a part is compressed only if that is predicted to be faster; with the name of a single format
        ("csr" has four), always.
    tune : bool or "lazy", optional
        Time the two to four best candidates when the first product is asked for. With "lazy", time them in the first
        products, each of which may then round differently. The times are stored on disk (``GSPARSE_CACHE_DIR``) for
        matrices of the same features. False by default.
    symmetric : bool or "hermitian", optional
        Whether the matrix equals its transpose, or its conjugate transpose, so that transposed products need no copy.
        The declaration is not checked. It holds for this matrix, its copies, views and real multiples, but not for
        slices, sums, or matrices with other values. It ends when one of the host arrays is replaced or lent (see
        `freeze`), because the matrix may then have been written to. From then on, and by default, an exact check on
        the device decides when a transposed product is first asked for.
    maxprint : int, optional
        Entries that ``print(A)`` shows, 50 by default.

    Attributes
    ----------
    device : Device
        Where the arrays live.
    stats : Stats
        Counts of products and of operations that ran on the host.

    Raises
    ------
    StructureError
        If `indptr` or `indices` do not describe a matrix of this shape. No memory is kept then.
    ShapeError
        If `shape` is not a shape, or the matrix is not square although `symmetric` is set.
    DtypeError
        If a sparse matrix cannot have values of this dtype.
    FormatError
        If an option is unknown, or the format cannot store the matrix.
    DeviceError, DeviceMemoryError
        If there is no such device, or it has too little memory.

    Notes
    -----
    The device copy is never stale. `data`, `indices` and `indptr` are host arrays on loan: while anything refers to one
    of them or to a view of it, each product uploads it again. Once the last reference is gone, no product does.

    Examples
    --------
    >>> import numpy, scipy.sparse, scipy.sparse.linalg
    >>> from gsparse import GpuSparseMatrix
    >>> S = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(100, 100))
    >>> A = GpuSparseMatrix(S, device="cpu")
    >>> x, info = scipy.sparse.linalg.cg(A, numpy.ones(100))
    >>> info
    0
    """

    _scipy_base = sp.csr_array


class TransposedMatrix(DeviceMatrix, sp.csc_array):  # type: ignore[misc]
    """The transpose of a GpuSparseMatrix: the same arrays read by columns, products on the same device."""

    _scipy_base = sp.csc_array
    _by_columns = True


GpuSparseMatrix._transposed_class, TransposedMatrix._transposed_class = TransposedMatrix, GpuSparseMatrix
