"""GpuSparseMatrix: SciPy's csr_array whose arrays live on a device; nothing is computed here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from os import PathLike
from typing import Any, Literal, Self, cast

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from gsparse.device.base import Device
from gsparse.device.counters import Stats
from gsparse.device.dense import DenseInput, parse_dense
from gsparse.device.dtypes import COMPUTE_DTYPES, HOST_ONLY, Array
from gsparse.device.select import device_of, get_device
from gsparse.errors import DeviceError, DtypeError, ShapeError, StructureError
from gsparse.formats import Csr, Stored
from gsparse.formats.launch import Panel
from gsparse.formats.registry import name_of
from gsparse.matrix.anndata_writer import offer_writers
from gsparse.matrix.arrays import initialize, mirrors_of
from gsparse.matrix.elementwise import ElementwiseOperations, is_scalar
from gsparse.matrix.upper_rooms import UPPER_ROOMS
from gsparse.plan.choice import Plan
from gsparse.plan.columns import ColumnsPlan
from gsparse.products import multiply as ops
from gsparse.products.request import Request
from gsparse.sparse.construction import (
    check_dtype,
    check_index_kinds,
    check_source,
    device_arrays,
    device_of_source,
    is_spmatrix,
    read_file,
)

__all__ = ["DeviceMatrix", "GpuSparseMatrix", "TransposedMatrix"]


# Methods for other modules of this package, which `dir` does not list.
_INTERNAL = {"operand", "current_operand", "resident_operand", "host_product", "host_twin"}

# What a product of two sparse matrices, on the host, is counted as.
_SPARSE_PRODUCT = "sparse @ sparse"


class DeviceMatrix(ElementwiseOperations):
    """What a matrix on a device and its transposed view have in common: arrays, loans and products.

    The arrays are those of CSR; `TransposedMatrix` reads them as CSC, which is the transpose.
    """

    _by_columns = False  # whether the arrays describe the transpose

    # Above CuPy's 100: `cupy_array @ A` comes here.
    __array_priority__ = 1000.0

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
        compress: bool | None = None,
        tune: bool | Literal["lazy"] | None = None,
        symmetric: bool | Literal["hermitian"] | None = None,
        maxprint: int | None = None,
    ) -> None:
        offer_writers((type(self), TransposedMatrix))
        check_source(arg1)
        given = arg1 if isinstance(arg1, DeviceMatrix) else None
        source = device_of_source(arg1)
        self._came_from_spmatrix = is_spmatrix(arg1) or (given is not None and given._came_from_spmatrix)
        options: dict[str, Any] = {
            "format": format if schedule is None else name_of(format or "auto", schedule),
            "threads_per_block": threads_per_block,
            "expected_products": expected_products,
            "compress": compress,
            "tune": tune,
            "symmetric": symmetric,
        }
        request = self._request = dataclasses.replace(
            given._request if given is not None else Request(),
            **{name: option for name, option in options.items() if option is not None},
        )
        home = given.device if given is not None else source
        self.device = get_device(device) if device is not None or home is None else home
        self.stats = Stats()
        if dtype is not None:
            check_dtype(np.dtype(dtype))
        if given is not None and given.device is self.device and shape in (None, given.shape):
            self._share(given, dtype, maxprint)
        elif source is not None and source is self.device:
            with source.active(), source.memory_guard():
                arrays = device_arrays(source, arg1, shape, dtype, copy)
            self._adopt_device_arrays(arrays, maxprint)
        else:
            host = arg1 if source is None else _to_host(arg1)
            check_index_kinds(host)
            try:
                self._scipy_base.__init__(self, host, shape=shape, dtype=dtype, copy=copy, maxprint=maxprint)
            except ValueError as error:
                kind = DtypeError if "dtype" in str(error) else StructureError
                raise kind(f"no matrix can be made of what came: {error}") from error
            check_dtype(self.dtype)
            self._settle()
        if request.symmetric and len(set(self.shape)) > 1:
            raise ShapeError(f"symmetric={request.symmetric!r} takes a square matrix, got shape {self.shape}")
        if format is not None:
            self._check_format()

    # What a TypeError about arguments names: users never see this class.
    __init__.__qualname__ = "GpuSparseMatrix.__init__"

    def _share(self, given: DeviceMatrix, dtype: Any, maxprint: int | None) -> None:
        """Take over another matrix's device arrays; whoever is written to later gets arrays of its own."""
        other = given if dtype is None else given.astype(dtype, copy=False)
        initialize(self, given.shape, maxprint)
        if other._by_columns is self._by_columns or other.ndim == 1:
            self._mirrors = other._mirrors.share()
            if self._request != given._request:
                self._mirrors.operand = None
        else:
            operand, conjugated = other.operand(transpose=self._by_columns)
            self._mirrors = mirrors_of(self.device, operand.csr, conjugated)

    def _check_format(self) -> None:
        """Refuse a format that was asked for by name and that the matrix does not fit."""
        if self._by_columns or self.dtype.char in HOST_ONLY:
            return
        refusal = self.current_operand().refusal()
        if refusal is not None:
            raise refusal

    def _adopt_device_arrays(self, arrays: tuple[Any, Array, Array, Array], maxprint: int | None) -> None:
        shape, *parts = arrays
        check_dtype(parts[-1].dtype)
        initialize(self, shape, maxprint)
        self._mirrors = mirrors_of(self.device, Csr(cast(tuple[int, int], shape), *parts), False)
        self.operand()

    def _settle(self) -> None:
        """Bring what the constructor parsed to the device and check it there."""
        if self.dtype.char not in HOST_ONLY:
            for mirror in self._mirrors.values():
                mirror.settle()
            self.operand()

    # ---------------------------------------------------------------- products

    def matvec(self, x: Array, out: Array | None = None) -> Array:
        """Multiply by a vector: A·x.

        Parameters
        ----------
        x : array_like, shape (N,) or (N, 1)
            NumPy, or CuPy on this matrix's GPU.
        out : array, shape (M,), optional
            See `gsparse.spmv`.

        Returns
        -------
        array, shape (M,) or (M, 1)
            NumPy for NumPy (synchronizes), CuPy for CuPy (queued on the current stream).

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError

        Examples
        --------
        >>> import gsparse, scipy.sparse
        >>> gsparse.GpuSparseMatrix(scipy.sparse.diags_array([2.0, 3.0]), device="cpu").matvec([1.0, 1.0])
        array([2., 3.])
        """
        found = ops.multiply_quickly(self, x, out)
        return self._product_of_vector(x, out) if found is None else found

    def rmatvec(self, x: Array, out: Array | None = None) -> Array:
        """Multiply the adjoint by a vector: Aᴴ·x.

        Parameters
        ----------
        x : array_like, shape (M,) or (M, 1)
            As for `matvec`.
        out : array, shape (N,), optional
            See `gsparse.spmv`.

        Returns
        -------
        array, shape (N,) or (N, 1)
            As from `matvec`.

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
        """
        return self._product_of_vector(x, out, adjoint=True)

    def _product_of_vector(self, x: Array, out: Array | None, **options: Any) -> Array:
        """Multiply a vector, or one column, as `LinearOperator` passes it."""
        vector = parse_dense(x)
        if vector.ndim == 2 and vector.shape[1] == 1 and out is None:
            product = self._product(DenseInput(vector.array.reshape(-1), vector.home), **options)
            return vector.returned(product.reshape(-1, 1))
        return self._product(vector, out, ndim=1, **options)

    def matmat(self, X: Array, out: Array | None = None) -> Array:
        """Multiply by k dense columns: A·X.

        Parameters
        ----------
        X : array_like, shape (N, k)
            As for `gsparse.spmm`.
        out : array, shape (M, k), optional
            See `gsparse.spmm`.

        Returns
        -------
        array, shape (M, k)
            NumPy for NumPy (synchronizes), CuPy for CuPy (queued on the current stream).

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
        """
        found = ops.multiply_columns_quickly(self, X) if out is None else None
        return self._product(X, out, ndim=2) if found is None else found

    def rmatmat(self, X: Array, out: Array | None = None) -> Array:
        """Multiply the adjoint by k dense columns: Aᴴ·X.

        Parameters
        ----------
        X : array_like, shape (M, k)
            As for `gsparse.spmm`.
        out : array, shape (N, k), optional
            See `gsparse.spmm`.

        Returns
        -------
        array, shape (N, k)
            As from `matmat`.

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
        """
        return self._product(X, out, adjoint=True, ndim=2)

    def _product(self, x: Array, out: Array | None = None, **options: Any) -> Array:
        return ops.multiply(self, x, out=out, **options)

    def __matmul__(self, other: Any) -> Any:
        found = ops.multiply_quickly(self, other)
        if found is None:
            found = ops.multiply_columns_quickly(self, other)
        if found is not None:
            return found
        if is_scalar(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        if sp.issparse(other):
            return self._sparse_product(other)
        if device_of(other) is not None and hasattr(other, "tocsr"):  # on GPUs only
            raise DeviceError("sparse times sparse is computed on the host: pass the CuPy matrix as other.get()")
        return self._dense_product(parse_dense(other))

    def _dense_product(self, x: DenseInput) -> Any:
        if x.ndim == 0:
            if x.dtype == object:
                return NotImplemented  # The object is no array: its own __rmatmul__ may know how to multiply.
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        if self.ndim == 1:
            return x.returned(self._on_host("dot", x.array))
        if x.ndim > 2:
            raise ShapeError(f"a sparse matrix multiplies vectors and matrices, got {x.ndim} dimensions")
        if x.ndim == 2 and x.shape[1] == 1:
            return self._product_of_vector(x, None)
        return self._product(x)

    def _sparse_product(self, other: Any, *, reflected: bool = False) -> Any:
        """Multiply by a sparse matrix, on the host."""
        twin, other = self.host_twin(_SPARSE_PRODUCT), self._plain(_SPARSE_PRODUCT, other)
        return self._like(other @ twin if reflected else twin @ other)

    def dot(self, other: Any) -> Any:
        """Multiply by a scalar, a vector, dense columns or a sparse matrix, as SciPy's `dot`.

        Parameters
        ----------
        other : scalar, array_like or sparse array, shape (N,) or (N, k)
            Sparse by sparse is computed on the host.

        Returns
        -------
        array or GpuSparseMatrix, shape (M,) or (M, k)
            Sparse where `other` is sparse or a scalar; otherwise as from `matvec` and `matmat`.

        Raises
        ------
        ShapeError, DtypeError, DeviceError, DeviceMemoryError
        """
        return self._scaled(other) if is_scalar(other) else self @ other

    def __rmatmul__(self, other: Any) -> Any:
        if is_scalar(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        if sp.issparse(other):
            return self._sparse_product(other, reflected=True)
        x = parse_dense(other)
        if self.ndim == 1:
            return x.returned(self._on_host("__rmatmul__", x.array))
        if x.ndim == 0:
            return NotImplemented
        rows = self.shape[0]
        if x.ndim > 2 or x.shape[-1] != rows:
            required = f"({rows},) or (k, {rows})"
            raise ShapeError(
                f"dimension mismatch: X @ A with A of shape {self.shape} takes X of shape {required}, got {x.shape}"
            )
        return x.returned(self._product(x.array.T, transpose=True).T)

    # SciPy's private names for the same: its own code calls them on operands it knows to be sparse.
    def _matmul_vector(self, other: Any) -> Any:
        return self.dot(other)

    _matmul_multivector = _matmul_vector
    _matmul_sparse = _matmul_vector

    def host_product(self, x: Array, *, transpose: bool, adjoint: bool) -> Array:
        """Multiply through SciPy: only for dtypes that no device computes in, such as longdouble."""
        twin = self.host_twin("product")
        operator = twin.T.conj() if adjoint else twin.T if transpose else twin
        return operator @ (x if isinstance(x, np.ndarray) else self.device.download(x))

    def with_data(self, data: Any) -> Self:
        """Give a matrix of the same structure with other values.

        What depends on the structure alone (statistics, where entries are stored, encoded columns, row patterns) is not
        done again.

        Parameters
        ----------
        data : array_like, shape (nnz,)
            NumPy, or CuPy on this matrix's GPU, in the order of `data`. A device array is used as it is and must not be
            written afterwards.

        Returns
        -------
        GpuSparseMatrix
            On the same device, with the dtype of `data`.

        Raises
        ------
        ShapeError, DtypeError, DeviceError

        Examples
        --------
        >>> import gsparse, scipy.sparse
        >>> A = gsparse.GpuSparseMatrix(scipy.sparse.diags_array([2.0, 3.0]), device="cpu")
        >>> A.with_data([5.0, 7.0]) @ [1.0, 1.0]
        array([5., 7.])
        """
        home = device_of(data)
        if home is not None and home is not self.device:  # on GPUs only
            raise DeviceError(
                f"the matrix lives on {self.device.name}, the values on {home.name}: bring one to the other"
            )
        values = np.array(data) if home is None else data
        if values.shape != (self.nnz,):
            raise ShapeError(f"a matrix with {self.nnz} stored entries takes as many values, got shape {values.shape}")
        check_dtype(values.dtype)
        if HOST_ONLY.find(self.dtype.char) >= 0 or values.dtype.char in HOST_ONLY:
            raise DtypeError(f"{values.dtype} has no device arithmetic: use astype(float)")
        return cast(Self, self._with_values(values if home is not None else self.device.upload(values)))

    def distribute(self, **options: Any) -> Any:
        """Spread this matrix over the workers of a dask cluster.

        Parameters
        ----------
        **options
            Of `gsparse.distributed.distribute`.

        Returns
        -------
        gsparse.distributed.DistributedMatrix
            A block of rows a worker.
        """
        return UPPER_ROOMS["distribute"](self, **options)

    def as_linear_operator(self) -> LinearOperator:
        """Give an operator whose products run on the device, for code that takes nothing else.

        Returns
        -------
        scipy.sparse.linalg.LinearOperator
            Of this matrix: it sees what is written to it later.
        """
        products = {name: getattr(self, name) for name in ("matvec", "rmatvec", "matmat", "rmatmat")}
        return LinearOperator(self.shape, dtype=self.dtype, **products)

    def accelerated(
        self, method: str | Callable[..., Any] = "auto", M: Any = None, rtol: float | None = None, **options: Any
    ) -> LinearOperator:
        """Give this matrix to SciPy's own solvers, unmodified, at the speed of the device.

        Parameters
        ----------
        method : {"auto", "cg", "minres", "bicgstab", "gmres"} or callable, optional
            What runs on the device, out of `gsparse.linalg`.
        M : operator, optional
            Preconditioner for `method`.
        rtol : float, optional
            The residual of a solve on the device, by its right-hand side.
        **options
            Other arguments of `method`.

        Returns
        -------
        gsparse.linalg.AcceleratedOperator
            Where it is all described.

        Raises
        ------
        ShapeError
            Where the matrix is not square.
        """
        return cast(LinearOperator, UPPER_ROOMS["accelerated"](self, method, M, rtol, **options))

    @property
    def plan(self) -> Plan:
        """The format chosen for A @ x with x of A's dtype, why, and the other candidates; prints as a table."""
        return self.operand()[0].plan(*self._own_types())

    def plan_for(self, columns: int) -> ColumnsPlan:
        """Tell how ``A @ X`` with a row-major X of so many columns runs on a GPU, and why. Synchronizes at first.

        Parameters
        ----------
        columns : int
            Of X, of the matrix's own dtype.

        Returns
        -------
        ColumnsPlan
            Prints as text.

        Examples
        --------
        >>> import gsparse, scipy.sparse
        >>> A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(5, format="csr"), device="cpu")
        >>> A.plan_for(8).launch.columns_per_load
        2
        """
        dtype = self._own_types()[1]
        pack = next((n for n in (4, 2) if n * dtype.itemsize <= 16 and columns % n == 0), 1)
        return self.operand()[0].columns_plan(Panel(columns, pack), *self._own_types())

    @property
    def stored(self) -> Stored:
        """The arrays that A @ x reads, in the format the plan chose; a frozen dataclass of `gsparse.formats`."""
        return self.operand()[0].product(*self._own_types()).stored

    def _own_types(self) -> tuple[np.dtype[Any], np.dtype[Any]]:
        """Give the dtypes in which values are read, and computed with, by a product with a vector of their dtype."""
        dtype = self.dtype if self.dtype in COMPUTE_DTYPES else np.dtype(np.int64)
        return dtype, dtype

    # ------------------------------------------------------------------- views

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Give the transpose as a view whose products run on the device; it lends the very arrays this matrix lends.

        Parameters
        ----------
        axes : None or (1, 0)
            What NumPy's `transpose` takes; a matrix has one order to turn into.
        copy : bool
            Whether writing to one leaves the other alone.

        Returns
        -------
        sparse array, shape (N, M)
            In CSC, on the same device; the transpose of that is a GpuSparseMatrix again.
        """
        if axes is not None and axes != (1, 0):
            raise ValueError(f"axes must be None or (1, 0) for a sparse matrix, got {axes!r}")
        if self.ndim == 1:
            return self.copy() if copy else self
        mirrors = self._mirrors.share() if copy else self._mirrors
        other = GpuSparseMatrix if self._by_columns else TransposedMatrix
        return self._with_mirrors(other, mirrors, self.shape[::-1])

    @property
    def T(self) -> Any:
        """The transpose, a view."""
        return self.transpose()

    @property
    def H(self) -> Any:
        """The conjugate transpose; its products run on the device and share A.T's transposed copy."""
        if self.dtype.char not in HOST_ONLY:
            self.current_operand()  # which keeps the transposed copy: each A.H takes it from there
        return self.transpose().conj()

    def conjugate(self, copy: bool = True) -> Self:
        """Give the complex conjugate: computed when its values are asked for, products conjugate as they read.

        Parameters
        ----------
        copy : bool
            Whether a real matrix, which is its own conjugate, comes back as a copy.

        Returns
        -------
        GpuSparseMatrix
            On the same device, of the same structure and dtype.
        """
        if self.dtype.kind != "c":
            return self.copy() if copy else self
        return cast(Self, self._with_mirrors(type(self), self._mirrors.share(flip=True), self.shape))

    conj = conjugate

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = tuple(np.array(self._mirrors[name].read()) for name in ("data", "indices", "indptr"))
        flavour = self._came_from_spmatrix
        return _rebuild, (type(self), arrays, self.shape, self.device.kind, self._request, flavour)

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - _INTERNAL)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {super().__repr__()[1:-1]}, on {self.device.name}>"

    def _repr_html_(self) -> str:
        return cast(str, UPPER_ROOMS["html"](self))


class GpuSparseMatrix(DeviceMatrix, sp.csr_array):  # type: ignore[misc]
    """A sparse matrix on a GPU (or, without one, on threaded CPU kernels) that works wherever SciPy expects one.

    Parameters
    ----------
    arg1 : object
        A SciPy sparse array or matrix, a CuPy sparse matrix, a dense array, ``(data, (row, col))``,
        ``(data, indices, indptr)``, a shape, or another GpuSparseMatrix. What lives on the host is copied to the
        device; what lives there already is used as it is (`copy`), and must not be written afterwards.
    shape : tuple of int, optional
        (M, N), or (N,) for a sparse vector; by default what `arg1` says.
    dtype : dtype, optional
        Of the values. The device holds bool, integers, float32, float64, complex64 and complex128; longdouble stays on
        the host.
    copy : bool, optional
        Whether device arrays given are copied.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        "auto", the default, is the GPU where there is one. The environment variable ``GSPARSE_DEVICE`` sets another
        default.
    format : {"auto", "csr", "ellpack", "blocked_ellpack", "row_pattern"}, optional
        The storage format that products read. "auto", the default, chooses by row statistics, and "csr" chooses among
        its schedules. The names in `gsparse.FORMATS` are accepted too: "csr_vector" is "csr" with the schedule
        "vector". A format that does not fit the matrix is refused. A slice, a sum or a transpose that it does not fit,
        or the matrix itself once it has been changed, is left to "auto".
    schedule : {"scalar", "vector", "adaptive", "split"}, optional
        How GPU threads share the work of ``format="csr"``: a thread for each row, several threads for each row, a block
        of threads for a block of rows, or equal shares of the entries.
    threads_per_block : {128, 256, 512}, optional
        GPU threads a block, 256 by default.
    expected_products : int, optional
        How many products the matrix is expected to serve, 1000 by default: what a conversion is worth.
    compress : bool, optional
        Whether products may read less than CSR holds, without loss: narrower columns, row patterns, dictionaries of
        values, float32 where every value survives. True by default.
    tune : bool or "lazy", optional
        Time the two to four best candidates when the first product is asked for, or ("lazy") in the first products,
        each of which then may round differently. What is found is remembered on disk (``GSPARSE_CACHE_DIR``) for
        matrices of the same features. False by default.
    symmetric : bool or "hermitian", optional
        Whether the matrix equals its transpose, or its conjugate transpose, so that transposed products need no copy.
        It is believed where given, of this matrix, its copies, views and real multiples, and not of slices, sums, or
        other values. It ends when the matrix is written to, or may have been: when one of the host arrays is replaced
        or lent (see `freeze`). Then, and by default, an exact check on the device decides when a transposed product is
        first asked for.
    maxprint : int, optional
        Entries that ``print(A)`` shows, 50 by default.

    Attributes
    ----------
    device : Device
    stats : Stats
        Products run, and what fell back to the host.

    Raises
    ------
    StructureError
        Where `indptr` or `indices` do not describe a matrix of this shape; nothing is kept then.
    DeviceError, DeviceMemoryError, FormatError, DtypeError

    Notes
    -----
    The device copy is never stale. `data`, `indices` and `indptr` are host arrays on loan: while one of them or a view
    of it is held, each product brings it to the device again; when the last is dropped, the device rules.

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
            `dtype`, `device`, `format` and what else the constructor takes.

        Returns
        -------
        GpuSparseMatrix
            What the file holds.

        Raises
        ------
        FileNotFoundError
        FileFormatError
            Where the file is truncated, malformed, or of another kind.
        """
        return cls(read_file(path, name), **options)


class TransposedMatrix(DeviceMatrix, sp.csc_array):  # type: ignore[misc]
    """The transpose of a GpuSparseMatrix: the same arrays read by columns, products on the same device."""

    _scipy_base = sp.csc_array
    _by_columns = True


def _rebuild(cls: type[Any], arrays: Any, shape: Any, kind: str, request: Request, came_from_spmatrix: bool) -> Any:
    """Unpickle: on a GPU again where there is one."""
    try:
        device = get_device(kind)
    except DeviceError:
        device = get_device("cpu")
    new = cls(arrays, shape=shape, device=device)
    # The constructor would refuse a format that does not fit, which the result of an operation may have inherited.
    new._request, operand = request, new._mirrors.operand
    if operand is not None:
        new._mirrors.operand = operand.with_data(operand.source[2], request)
    new._came_from_spmatrix = came_from_spmatrix
    return new


def _to_host(source: Any) -> Any:  # on GPUs only
    if isinstance(source, tuple):
        return tuple(_to_host(part) for part in source)
    home = device_of(source)
    if home is not None and home.owns(source):
        return home.download(source)
    return source.get() if hasattr(source, "get") else source
