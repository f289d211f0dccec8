"""GpuSparseMatrix: SciPy's csr_array whose arrays live on a device; nothing is computed here."""

from __future__ import annotations

import dataclasses
import warnings
from os import PathLike
from typing import Any, Self, cast

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator

from gsparse import ops
from gsparse._typing import COMPUTE_DTYPES, Array, storage_dtype
from gsparse.construct import check_dtype, device_arrays, device_of_source, read_file
from gsparse.device import Device, device_of, get_device
from gsparse.elementwise import ElementwiseOperations, is_scalar
from gsparse.errors import DeviceError, HostLoanWarning, ShapeError
from gsparse.formats import Csr, Stored
from gsparse.mirror import Mirror
from gsparse.operand import Operand, Request, make_operand
from gsparse.plan import Plan, check_request
from gsparse.stats import Stats

__all__ = ["DeviceMatrix", "GpuSparseMatrix", "TransposedMatrix"]


# Entries that SciPy prints of a matrix.
MAXPRINT = 50


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
        threads_per_block: int | None = None,
        maxprint: int | None = None,
    ) -> None:
        given = arg1 if isinstance(arg1, DeviceMatrix) else None
        source = device_of_source(arg1)
        request = given._request if given is not None else Request()
        self._request = Request(format or request.format, threads_per_block or request.threads_per_block)
        check_request(self._request.format, self._request.threads_per_block)
        home = given.device if given is not None else source
        self.device = get_device(device) if device is not None or home is None else home
        self.stats = Stats()
        self._operand: Operand | None = None
        self._warned = False
        if dtype is not None:
            check_dtype(np.dtype(dtype))
        if given is not None and given.device is self.device and shape in (None, given.shape):
            self._share(given, dtype)
        elif source is not None and source is self.device:
            self._adopt_device_arrays(device_arrays(source, arg1, shape, dtype, copy), maxprint)
        else:
            host = arg1 if source is None else _to_host(arg1)
            super().__init__(host, shape=shape, dtype=dtype, copy=copy, maxprint=maxprint)
            check_dtype(self.dtype)
            self._settle()

    def _share(self, given: DeviceMatrix, dtype: Any) -> None:
        """Take over another matrix's device arrays; whoever is written to later gets arrays of its own."""
        other = given if dtype is None else given.astype(dtype, copy=False)
        _initialize(self, given.shape)
        if other._by_columns is self._by_columns or other.ndim == 1:
            self._mirrors = {name: mirror.share() for name, mirror in other._mirrors.items()}
            self._operand = other._operand if self._request == given._request else None
        else:
            operand, conjugated = other.operand(transpose=self._by_columns)
            self._mirrors = _mirrors(self.device, operand.csr, conjugated)

    def _adopt_device_arrays(self, arrays: tuple[Any, Array, Array, Array], maxprint: int | None) -> None:
        shape, *parts = arrays
        _initialize(self, tuple(map(int, shape)), maxprint)
        self._mirrors = _mirrors(self.device, Csr(self.shape, *parts), False)
        self.operand()

    def _settle(self) -> None:
        """Bring what the constructor parsed to the device and check it there."""
        if self.dtype in COMPUTE_DTYPES or self.dtype.kind in "biu":
            for mirror in self._mirrors.values():
                mirror.settle()
            self.operand()

    # ------------------------------------------------------------------ arrays

    def _lend(self, name: str) -> np.ndarray[Any, Any]:
        mirror = self._mirrors[name]
        if not mirror.lent:
            self.stats.left_device(name)
        return mirror.lend()

    def _rebind(self, name: str, value: Any) -> None:
        mirrors = self.__dict__.setdefault("_mirrors", {})
        old = mirrors.get(name)
        if old is not None and old.frozen:
            raise ValueError(f"the matrix is frozen: {name} cannot be replaced; work on A.copy()")
        if old is None or not old.is_host(value):
            # A new mirror, not new contents of the old one: a transposed view made before keeps what it had, as in SciPy.
            self._mirrors = {**mirrors, name: Mirror(self.device, host=np.asarray(value))}

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """Values as a host array, on loan: see `freeze` and `device_data`. Synchronizes."""
        return self._lend("data")

    @data.setter
    def data(self, value: Any) -> None:
        self._rebind("data", value)

    @property
    def indices(self) -> np.ndarray[Any, Any]:
        """Column indices as a host array, on loan. Synchronizes."""
        return self._lend("indices")

    @indices.setter
    def indices(self, value: Any) -> None:
        self._rebind("indices", value)

    @property
    def indptr(self) -> np.ndarray[Any, Any]:
        """Row pointers as a host array, on loan. Synchronizes."""
        return self._lend("indptr")

    @indptr.setter
    def indptr(self, value: Any) -> None:
        self._rebind("indptr", value)

    @property
    def device_data(self) -> Array:
        """Values as the device's own array: read it, never write to it (other matrices may share it)."""
        self.operand()
        mirror = self._mirrors["data"]
        return self.device.xp.conjugate(mirror.resident()) if mirror.conjugated else mirror.resident()

    @property
    def device_indices(self) -> Array:
        """Column indices as the device's own array: read it, never write to it."""
        return self._mirrors["indices"].resident()

    @property
    def device_indptr(self) -> Array:
        """Row pointers as the device's own array: read it, never write to it."""
        return self._mirrors["indptr"].resident()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self._mirrors["data"].dtype

    @dtype.setter
    def dtype(self, newtype: Any) -> None:
        self.data = self.data.view(newtype)

    def _getnnz(self, axis: int | None = None) -> Any:
        if axis is not None:
            return self._on_host("_getnnz", axis=axis)
        # While SciPy changes the arrays one after the other, the row pointers alone say what is valid.
        lent = any(mirror.lent for mirror in self._mirrors.values())
        return int(self._mirrors["indptr"].read()[-1]) if lent else self._mirrors["indices"].size

    def freeze(self) -> Self:
        """Hand out read-only host arrays from now on, so that no loan ever costs a product anything.

        Returns
        -------
        GpuSparseMatrix
            The matrix itself. In-place operations on it raise from now on.
        """
        for mirror in self._mirrors.values():
            mirror.freeze()
        return self

    def release(self) -> None:
        """Drop converted formats, the transposed copy and idle host copies; each is made again when next needed."""
        if self._operand is not None:
            self._operand.release()
        self._operand = None
        self._twin = None
        for mirror in self._mirrors.values():
            mirror.drop_host()

    # ---------------------------------------------------------------- products

    def operand(self, *, transpose: bool = False, adjoint: bool = False) -> tuple[Operand, bool]:
        """Give what products multiply by, up to date with every write so far (see `gsparse.ops.Multiplicand`)."""
        indptr, indices, data = (self._mirrors[name].resident() for name in ("indptr", "indices", "data"))
        held = [name for name, mirror in self._mirrors.items() if mirror.lent]
        # What is held may change before the next product: a conversion would serve one.
        request = dataclasses.replace(self._request, expected_products=1) if held else self._request
        found = self._operand
        if found is None or found.source[0] is not indptr or found.source[1] is not indices:
            shape = self.shape if self.ndim == 2 else (1, *self.shape)
            shape = cast(tuple[int, int], shape[::-1] if self._by_columns else shape)
            self._operand = found = make_operand(self.device, shape, indptr, indices, data, request)
        elif found.source[2] is not data or found.request != request:
            self._operand = found = found.with_data(data, request)
        if held and not self._warned:
            self._warn_of_loans(held)
        if (transpose or adjoint) != self._by_columns:
            found = found.transposed()
        return found, self._mirrors["data"].conjugated != adjoint

    def _warn_of_loans(self, held: list[str]) -> None:
        self._warned = True
        if self.device.kind == "gpu":
            warnings.warn(
                f"A.{', A.'.join(held)} is held by somebody, so every product brings it to {self.device.name} again: "
                "drop it, or call A.freeze()",
                HostLoanWarning,
                stacklevel=5,
            )

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
        return self._product_of_vector(x, out)

    def rmatvec(self, x: Array, out: Array | None = None) -> Array:
        """Multiply the adjoint by a vector: Aᴴ·x, with x of shape (M,); see `matvec`."""
        return self._product_of_vector(x, out, adjoint=True)

    def _product_of_vector(self, x: Array, out: Array | None, **options: Any) -> Array:
        """Multiply a vector, or a column as LinearOperators hand it over."""
        x = x if device_of(x) is not None else np.asarray(x)
        if x.ndim == 2 and x.shape[1] == 1 and out is None:
            return self._product(x.reshape(-1), **options).reshape(-1, 1)
        return self._product(x, out, ndim=1, **options)

    def matmat(self, X: Array, out: Array | None = None) -> Array:
        """Multiply by k dense columns: A·X, with X of shape (N, k); see `gsparse.spmm`."""
        return self._product(X, out, ndim=2)

    def rmatmat(self, X: Array, out: Array | None = None) -> Array:
        """Multiply the adjoint by k dense columns: Aᴴ·X, with X of shape (M, k); see `gsparse.spmm`."""
        return self._product(X, out, adjoint=True, ndim=2)

    def _product(self, x: Array, out: Array | None = None, **options: Any) -> Array:
        self.stats.products += 1
        return ops.multiply(self, x, out=out, **options)

    def __matmul__(self, other: Any) -> Any:
        if is_scalar(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        return self.dot(other)

    def dot(self, other: Any) -> Any:
        """Multiply by a vector, dense columns or a sparse matrix (that one on the host), as SciPy's `dot`."""
        if is_scalar(other):
            return self._scaled(other)
        if sp.issparse(other) or self.ndim == 1:
            return self._on_host("dot", other)
        other = other if device_of(other) is not None else np.asarray(other)
        if other.ndim == 0:
            return NotImplemented  # an object that is no array: its own __rmatmul__ may know better
        if other.ndim > 2:
            raise ShapeError(f"a sparse matrix multiplies vectors and matrices, got {other.ndim} dimensions")
        if other.ndim == 2 and other.shape[1] == 1:
            return self._product(other.reshape(-1)).reshape(-1, 1)
        return self._product(other)

    def __rmatmul__(self, other: Any) -> Any:
        if is_scalar(other):
            raise ValueError("Scalar operands are not allowed, use '*' instead")
        if sp.issparse(other) or self.ndim == 1:
            return self._on_host("__rmatmul__", other)
        other = other if device_of(other) is not None else np.asarray(other)
        if other.ndim == 0:
            return NotImplemented
        return self._product(other.T, transpose=True).T

    # SciPy's private names for the same: its own code calls them on operands it knows to be sparse.
    def _matmul_vector(self, other: Any) -> Any:
        return self.dot(other)

    _matmul_multivector = _matmul_vector
    _matmul_sparse = _matmul_vector

    def host_product(self, x: Array, *, transpose: bool, adjoint: bool) -> Array:
        """Multiply through SciPy: only for dtypes that no device computes in, such as longdouble."""
        twin = self.host_twin("product")
        return (twin.T.conj() if adjoint else twin.T if transpose else twin) @ (x if isinstance(x, np.ndarray) else x.get())

    def as_linear_operator(self) -> LinearOperator:
        """Give a `scipy.sparse.linalg.LinearOperator` whose products run on the device."""
        return LinearOperator(
            self.shape, matvec=self.matvec, rmatvec=self.rmatvec, matmat=self.matmat, rmatmat=self.rmatmat, dtype=self.dtype
        )

    @property
    def plan(self) -> Plan:
        """The format chosen for A @ x with x of A's dtype, why, and the other candidates; prints as a table."""
        operand, _ = self.operand()
        dtype = self.dtype if self.dtype in COMPUTE_DTYPES else np.dtype(np.int64)
        return operand.plan(storage_dtype(dtype, dtype))

    @property
    def stored(self) -> Stored:
        """The arrays that A @ x reads, in the format the plan chose; a frozen dataclass of `gsparse.formats`."""
        dtype = self.dtype if self.dtype in COMPUTE_DTYPES else np.dtype(np.int64)
        return self.operand()[0].stored(storage_dtype(dtype, dtype))

    # ------------------------------------------------------------------- views

    def _with_mirrors(self, cls: type[Any], mirrors: dict[str, Mirror], shape: tuple[int, ...], operand: Operand | None) -> Any:
        """Make a matrix over these mirrors; nothing is copied and nothing checked."""
        new = cls.__new__(cls)
        _initialize(new, shape)
        new.device, new._request, new.stats, new._warned = self.device, self._request, Stats(), False
        new._mirrors, new._operand = mirrors, operand
        return new

    def transpose(self, axes: Any = None, copy: bool = False) -> Any:
        """Give the transpose as a view whose products run on the device; it lends the very arrays this matrix lends.

        Parameters
        ----------
        axes : None or (1, 0)
        copy : bool
            Whether writing to one leaves the other alone.
        """
        if axes is not None and axes != (1, 0):
            raise ValueError(f"axes must be None or (1, 0) for a sparse matrix, got {axes!r}")
        if self.ndim == 1:
            return self.copy() if copy else self
        mirrors = {name: mirror.share() for name, mirror in self._mirrors.items()} if copy else self._mirrors
        other = GpuSparseMatrix if self._by_columns else TransposedMatrix
        return self._with_mirrors(other, mirrors, self.shape[::-1], self._operand)

    @property
    def T(self) -> Any:
        """The transpose, a view."""
        return self.transpose()

    @property
    def H(self) -> Any:
        """The conjugate transpose; its products run on the device and share A.T's transposed copy."""
        return self.transpose().conj(copy=False)

    def copy(self) -> Self:
        """Give an independent matrix on the same device. It shares device arrays until one of the two is written."""
        mirrors = {name: mirror.share() for name, mirror in self._mirrors.items()}
        return cast(Self, self._with_mirrors(type(self), mirrors, self.shape, self._operand))

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Self:
        return self.copy()

    def conjugate(self, copy: bool = True) -> Self:
        """Give the complex conjugate: nothing is computed until its values are asked for; products conjugate as they read.

        Parameters
        ----------
        copy : bool
            Whether a real matrix, which is its own conjugate, comes back as a copy.
        """
        if self.dtype.kind != "c":
            return self.copy() if copy else self
        mirrors = {name: mirror.share(flip=name == "data") for name, mirror in self._mirrors.items()}
        return cast(Self, self._with_mirrors(type(self), mirrors, self.shape, self._operand))

    conj = conjugate

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = tuple(np.array(self._mirrors[name].read()) for name in ("data", "indices", "indptr"))
        return _rebuild, (type(self), arrays, self.shape, self.device.kind, self._request)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, on {self.device.name}>"

    def _repr_html_(self) -> str:
        rows = {
            "shape": " × ".join(map(str, self.shape)),
            "dtype": str(self.dtype),
            "stored entries": f"{self.nnz:,}",
            "device": self.device.name,
        }
        if self.ndim == 2 and self.dtype.char not in "gG":
            rows["format"] = f"{self.plan.format}: {self.plan.reason}"
        body = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items())
        return f"<table><caption>{type(self).__name__}</caption>{body}</table>"


class GpuSparseMatrix(DeviceMatrix, sp.csr_array):  # type: ignore[misc]
    """A sparse matrix on a GPU (or, without one, on threaded CPU kernels) that works wherever SciPy expects one.

    Parameters
    ----------
    arg1 : object
        A SciPy sparse array or matrix, a CuPy sparse matrix, a dense array, ``(data, (row, col))``,
        ``(data, indices, indptr)``, a shape, or another GpuSparseMatrix. What lives on the host is copied to the
        device; what lives there already is used as it is (`copy`), and must not be written afterwards.
    shape : tuple of int, optional
    dtype : dtype, optional
        bool, integers, float32, float64, complex64 and complex128 live on the device; longdouble stays on the host.
    copy : bool, optional
        Whether device arrays given are copied.
    device : {"auto", "cpu", "gpu", "gpu:N"}, optional
        "auto", the default, is the GPU where there is one. The environment variable ``GSPARSE_DEVICE`` sets another
        default.
    format : str, optional
        How products read the matrix: a name out of `gsparse.FORMATS`. "auto", the default, chooses by row statistics.
    threads_per_block : {256, 128, 512}, optional

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
    def from_file(cls, path: str | PathLike[str], **options: Any) -> Self:
        """Read Matrix Market (``.mtx``, ``.mtx.gz``) or SciPy's ``.npz``.

        Parameters
        ----------
        path : path-like
        **options
            `dtype`, `device`, `format` and what else the constructor takes.

        Raises
        ------
        FileNotFoundError
        FileFormatError
            Where the file is truncated, malformed, or of another kind.
        """
        return cls(read_file(path), **options)


class TransposedMatrix(DeviceMatrix, sp.csc_array):  # type: ignore[misc]
    """The transpose of a GpuSparseMatrix: the same arrays read by columns, products on the same device."""

    _scipy_base = sp.csc_array
    _by_columns = True


def _mirrors(device: Device, csr: Csr, conjugated: bool) -> dict[str, Mirror]:
    """Give mirrors over device arrays."""
    return {
        "indptr": Mirror(device, on_device=csr.indptr),
        "indices": Mirror(device, on_device=csr.indices),
        "data": Mirror(device, on_device=csr.data, conjugated=conjugated),
    }


def _initialize(matrix: Any, shape: tuple[int, ...], maxprint: int | None = None) -> None:
    """Set what SciPy's constructor would, without its arrays: the one place that names SciPy's private attributes.

    The public way, ``csr_array.__init__(self, shape)``, allocates row pointers for a view that has its own.
    """
    matrix._shape = shape
    matrix.maxprint = MAXPRINT if maxprint is None else maxprint


def _rebuild(cls: type[Any], arrays: Any, shape: Any, kind: str, request: Request) -> Any:
    """Unpickle: on a GPU again where there is one."""
    try:
        device = get_device(kind)
    except DeviceError:
        device = get_device("cpu")
    return cls(arrays, shape=shape, device=device, format=request.format, threads_per_block=request.threads_per_block)


def _to_host(source: Any) -> Any:
    if isinstance(source, tuple):
        return tuple(_to_host(part) for part in source)
    return source.get() if hasattr(source, "get") else source
