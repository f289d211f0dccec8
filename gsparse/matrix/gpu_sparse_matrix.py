"""`GpuSparseMatrix`, which inherits its methods from one mixin for each subject, and its transposed view `A.T`."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse as sp

from gsparse.device.base import Device
from gsparse.files import read_file
from gsparse.matrix.combinations import Combinations
from gsparse.matrix.constructor import construct, rebuild
from gsparse.matrix.conversions import Conversions
from gsparse.matrix.elementwise import VALUE_FUNCTIONS, ElementWise
from gsparse.matrix.host_operations import HostFormats
from gsparse.matrix.in_place import LentArrays, Rearrangements
from gsparse.matrix.indexing import Selection
from gsparse.matrix.product_methods import Plans, Products
from gsparse.matrix.reductions import Reductions
from gsparse.matrix.shapes import Extremes, Shapes
from gsparse.matrix.upper_layers import UpperLayers, offer_writers
from gsparse.matrix.writes import Writes

# NumPy's functions, and the matrix methods that compute them: (forward, reflected).
UFUNC_METHODS = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "power": ("__pow__", "__rpow__"),
    "maximum": ("maximum", "maximum"),
    "minimum": ("minimum", "minimum"),
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
    "square": ("_square",),
    "negative": ("__neg__",),
    "absolute": ("__abs__",),
    "conjugate": ("conjugate",),
    "positive": ("copy",),
    **{name: (name,) for name in VALUE_FUNCTIONS},
}


class Ufuncs:
    """The method that NumPy's functions call with a matrix, for matrices on one device and over ranks."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        """Compute NumPy's functions with a matrix: ``np.sin(A)``, ``ndarray @ A``, ``ndarray += A``."""
        names = UFUNC_METHODS.get(ufunc.__name__)
        if method != "__call__" or names is None or options.keys() - {"axes"}:  # NumPy passes `axes` for `y @= A`.
            raise TypeError(f"unsupported operand type(s) for numpy.{ufunc.__name__} ({method}): {type(self).__name__}")
        matrix = inputs[0] if isinstance(inputs[0], Ufuncs) else inputs[-1]
        reflected = matrix is not inputs[0]
        operator = getattr(matrix, names[-1 if reflected else 0], None)
        if operator is None:
            return NotImplemented
        result = operator(*(inputs[:-1] if reflected else inputs[1:]))
        is_sparse = isinstance(result, Ufuncs) or sp.issparse(result)
        if out is None or result is NotImplemented or is_sparse or result.shape != out[0].shape:
            return result  # In place, `dense *= A` gives a sparse result, and `y @= A` another shape, as in SciPy.
        if not np.can_cast(result.dtype, out[0].dtype, "same_kind"):
            return result  # `integers += A` gives floats.
        out[0][...] = result
        return out[0]


class DeviceMatrix(
    Products,
    Plans,
    ElementWise,
    Combinations,
    Ufuncs,
    Reductions,
    Extremes,
    Selection,
    Writes,
    Rearrangements,
    Shapes,
    Conversions,
    HostFormats,
    LentArrays,
    UpperLayers,
):
    """A sparse matrix whose arrays live on a device. Its subclasses are also subclasses of SciPy's classes.

    The arrays are CSR arrays. `TransposedMatrix` reads them as CSC, which is the transpose.
    """

    def __init__(
        self,
        arg1: Any,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
        copy: bool = False,
        *,
        device: str | Device | None = None,
        format: str | None = None,
        schedule: str | None = None,
        threads_per_block: int | None = None,
        expected_products: int | None = None,
        compress: bool | Literal["columns", "values"] | None = None,
        tune: bool | Literal["lazy"] | None = None,
        symmetric: bool | Literal["hermitian"] | None = None,
        maxprint: int | None = None,
    ) -> None:
        options = {
            "format": format,
            "schedule": schedule,
            "threads_per_block": threads_per_block,
            "expected_products": expected_products,
            "compress": compress,
            "tune": tune,
            "symmetric": symmetric,
        }
        offer_writers((type(self), self._transposed_class))
        construct(self, arg1, shape, dtype, copy, device, options, maxprint)

    # The name that a TypeError about arguments shows: users never see this class.
    __init__.__qualname__ = "GpuSparseMatrix.__init__"

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = tuple(map(np.array, self._arrays.read()))
        state = (self.shape, self.device.kind, self._arrays.options, self._came_from_spmatrix, self.maxprint)
        return rebuild, (type(self), arrays, *state)


class ReadableMatrix(DeviceMatrix):
    """A matrix with the constructor `from_file`."""

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
        GPU threads of a block, 256 by default. CPU kernels ignore it.
    expected_products : int, optional
        Number of products for which the matrix will be used, 1000 by default. A conversion to another format must pay
        off within that number.
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
    """The transpose of a GpuSparseMatrix: it reads the same arrays by columns, and multiplies on the same device."""

    _scipy_base = sp.csc_array
    _by_columns = True


GpuSparseMatrix._transposed_class, TransposedMatrix._transposed_class = TransposedMatrix, GpuSparseMatrix
