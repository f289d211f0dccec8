"""cuSPARSE's generic products through ctypes, used in the fastest way: descriptors are reused, matrices preprocessed.

CuPy's ``A @ x`` makes new descriptors in each call and never preprocesses, so it does not show cuSPARSE's full speed.

References
----------
NVIDIA, "cuSPARSE generic APIs", https://docs.nvidia.com/cuda/cusparse (12 and 13).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array

# Values of cusparseSpMVAlg_t, which are the same in CUDA 12 and 13.
ALGORITHMS = {"default": 0, "CSR_ALG1": 2, "CSR_ALG2": 3, "SELL": 5}
# Values of cusparseSpMMAlg_t.
COLUMN_ALGORITHMS = {"CSR_ALG1": 4, "CSR_ALG2": 6, "CSR_ALG3": 12}
# Values of cusparseOrder_t.
COLUMN_MAJOR, ROW_MAJOR = 1, 2
# The order of the elements within a block, for products of dense blocks, which use the default algorithm.
BLOCK_ALGORITHMS = {"BSR by rows": ROW_MAJOR, "BSR by columns": COLUMN_MAJOR}
_DEFAULT_ALGORITHM = 0

# Number of rows of a slice. Each thread of a warp multiplies one of them, so that the reads of a warp are coalesced.
SLICE_SIZE = 32

# Values of cusparseIndexType_t; of cudaDataType_t, with the ctypes of alpha and beta; of cusparseOperation_t and
# cusparseIndexBase_t; and of cusparseStatus_t.
INDEX_TYPES = {"int32": 2, "int64": 3}
VALUE_TYPES: dict[str, tuple[int, Any]] = {"float32": (0, c_float), "float64": (1, c_double)}
NON_TRANSPOSE, BASE_ZERO = 0, 0
SUCCESS, NOT_SUPPORTED = 0, 10

_P, _I64, _INT = c_void_p, c_int64, c_int
_SPMV = (_P, _INT, _P, _P, _P, _P, _P, _INT, _INT)
_SPMM = (_P, _INT, _INT, _P, _P, _P, _P, _P, _INT, _INT)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cusparseCreate": (POINTER(_P),),
    "cusparseDestroy": (_P,),
    "cusparseSetStream": (_P, _P),
    "cusparseGetVersion": (_P, POINTER(_INT)),
    # descriptor, rows, cols, nnz, offsets, columns, values, offset type, column type, index base, value type
    "cusparseCreateCsr": (POINTER(_P), _I64, _I64, _I64, _P, _P, _P, _INT, _INT, _INT, _INT),
    # descriptor, rows, cols, nnz, stored, slice size, offsets, columns, values, and the types as above
    "cusparseCreateSlicedEll": (POINTER(_P), _I64, _I64, _I64, _I64, _I64, _P, _P, _P, _INT, _INT, _INT, _INT),
    # descriptor, block rows, block cols, blocks, rows and cols of a block, offsets, columns, values, the types as
    # above, order within a block
    "cusparseCreateBsr": (POINTER(_P), _I64, _I64, _I64, _I64, _I64, _P, _P, _P, _INT, _INT, _INT, _INT, _INT),
    "cusparseCreateDnVec": (POINTER(_P), _I64, _P, _INT),
    # descriptor, rows, cols, leading dimension, values, value type, order
    "cusparseCreateDnMat": (POINTER(_P), _I64, _I64, _I64, _P, _INT, _INT),
    "cusparseDestroySpMat": (_P,),
    "cusparseDestroyDnVec": (_P,),
    "cusparseDestroyDnMat": (_P,),
    # handle, operation, alpha, A, x, beta, y, compute type, algorithm, then the buffer or a pointer to its size
    "cusparseSpMV_bufferSize": (*_SPMV, POINTER(c_size_t)),
    "cusparseSpMV_preprocess": (*_SPMV, _P),
    "cusparseSpMV": (*_SPMV, _P),
    # The same, with a second operation, for X.
    "cusparseSpMM_bufferSize": (*_SPMM, POINTER(c_size_t)),
    "cusparseSpMM_preprocess": (*_SPMM, _P),
    "cusparseSpMM": (*_SPMM, _P),
}
# Functions that exist only since CUDA 12.1 or 12.4. Older libraries are used without them.
OPTIONAL = ("cusparseCreateBsr", "cusparseCreateSlicedEll", "cusparseSpMV_preprocess", "cusparseSpMM_preprocess")


class CusparseError(RuntimeError):
    """cuSPARSE is not installed, or one of its functions failed."""


def load_library(cupy: Any) -> Any:
    """Load libcusparse, preferably the library that CuPy has loaded, and declare its functions.

    Raises
    ------
    CusparseError
        If the library is not found. The message lists the attempts.
    """
    failures: list[str] = []
    for path_of in (partial(_loaded_path, cupy), _found_path):
        try:
            return declare(ctypes.CDLL(path_of()))
        except Exception as error:  # The next attempt may find it.
            failures.append(str(error).partition("\n")[0] or type(error).__name__)
    remedy = "install nvidia-cusparse, or a CUDA toolkit"
    raise CusparseError(f"libcusparse was not found ({remedy}): {'; '.join(failures)}")


def _loaded_path(cupy: Any) -> str:
    """Return the path of the library that CuPy has loaded."""
    cupy.cuda.device.get_cusparse_handle()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split(maxsplit=5)[-1] for line in lines if "libcusparse.so" in line), "libcusparse.so.12")


def _found_path() -> str:
    """Return the path that NVIDIA's package cuda.pathfinder finds, in wheels and in toolkits."""
    return str(import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cusparse").abs_path)


def declare(library: Any) -> Any:
    """Set the argument types of each function. Without them ctypes would truncate pointers to 32 bits."""
    for name, types in SIGNATURES.items():
        if name in OPTIONAL and not hasattr(library, name):
            continue
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int
    library.cusparseGetErrorString.argtypes, library.cusparseGetErrorString.restype = (c_int,), ctypes.c_char_p
    return library


def loaded_version() -> str:
    """Return the version of the library that CuPy's current device uses, such as "12.6.3"."""
    context, number = current_context(), c_int()
    check(context.library, "cusparseGetVersion", context.handle, byref(number))
    return f"{number.value // 1000}.{number.value // 100 % 10}.{number.value % 100}"


@dataclass
class Context:
    """The library, the handle that all products on a device share, and the handle's stream."""

    library: Any
    cupy: Any
    handle: c_void_p = field(default_factory=c_void_p)
    stream: int | None = None

    def bind(self) -> None:
        """Set the handle's stream to the caller's current stream."""
        stream = int(self.cupy.cuda.get_current_stream().ptr)
        if stream != self.stream:
            check(self.library, "cusparseSetStream", self.handle, stream)
            self.stream = stream


def current_context() -> Context:
    """Return the context of CuPy's current device. Each device has one context."""
    return _context_of(import_module("cupy").cuda.runtime.getDevice())


@cache
def _context_of(device: int) -> Context:
    cupy = import_module("cupy")
    context = Context(load_library(cupy), cupy)
    check(context.library, "cusparseCreate", byref(context.handle))
    return context


def check(library: Any, name: str, *args: Any) -> None:
    """Call a function of the library. If it fails, raise an error with the library's message."""
    status = getattr(library, name)(*args)
    if status != SUCCESS:
        text = library.cusparseGetErrorString(status)
        raise CusparseError(f"{name}: {text.decode() if text else 'unknown error'} (status {status})")


def address(array: Array) -> int:
    """Return the device address of a CuPy array."""
    return int(array.data.ptr)


class CusparseProduct:
    """The product of one matrix with one x into one y, by one algorithm. All descriptors are made in advance.

    Parameters
    ----------
    arrays : tuple of CuPy arrays
        The CSR arrays (data, indices, indptr); for "SELL" the arrays that `to_sliced_ell` returns; or for
        `BLOCK_ALGORITHMS` the arrays of a `scipy.sparse.bsr_array`, whose blocks are always row-major.
    shape : (int, int)
    nnz : int
    algorithm : str
        A key of `ALGORITHMS`, of `COLUMN_ALGORITHMS` for several columns, or of `BLOCK_ALGORITHMS`.
    x, y : CuPy arrays
        The arrays that each product reads and writes: vectors, or dense columns that are contiguous in either order.
    preprocess : bool
        Whether to call the preprocessing step, if the library has one for this format.
    context : Context, optional
        The default is the context of CuPy's current device.

    Raises
    ------
    CusparseError
        If the dtype or the strides are not supported, or a function of the library fails.
    """

    def __init__(
        self,
        arrays: tuple[Array, Array, Array],
        shape: tuple[int, int],
        nnz: int,
        algorithm: str,
        x: Array,
        y: Array,
        *,
        preprocess: bool = True,
        context: Context | None = None,
    ) -> None:
        data = arrays[0]
        if data.dtype.name not in VALUE_TYPES:
            raise CusparseError(f"only {' and '.join(VALUE_TYPES)} can be measured, got {data.dtype}")
        self._context = context or current_context()
        self._library = self._context.library
        self._blocksize = data.shape[1:]
        if BLOCK_ALGORITHMS.get(algorithm) == COLUMN_MAJOR:
            arrays = (self._context.cupy.ascontiguousarray(data.transpose(0, 2, 1)), *arrays[1:])
        self._arrays = (arrays, x, y)  # the descriptors hold only addresses, so the arrays must be kept alive
        value_type, scalar = VALUE_TYPES[data.dtype.name]
        self._alpha, self._beta = scalar(1.0), scalar(0.0)
        self._descriptors: list[tuple[str, c_void_p]] = []
        self._finalizer = weakref.finalize(self, destroy, self._library, self._descriptors)
        self._finalizer.atexit = False  # at interpreter exit, the driver may have shut down already
        matrix = self._create_matrix(arrays, shape, nnz, value_type, algorithm)
        dense = [self._create_dense(array, value_type) for array in (x, y)]
        self._prepare(matrix, dense, value_type, algorithm, preprocess=preprocess)

    def _prepare(
        self, matrix: c_void_p, dense: list[c_void_p], value_type: int, algorithm: str, *, preprocess: bool
    ) -> None:
        """Set the arguments and the buffer of the product, and preprocess the matrix."""
        x, data = self._arrays[1], self._arrays[0][0]
        self._name, algorithms = ("cusparseSpMV", ALGORITHMS) if x.ndim == 1 else ("cusparseSpMM", COLUMN_ALGORITHMS)
        pointers = (byref(self._alpha), matrix, dense[0], byref(self._beta), dense[1])
        operations = (NON_TRANSPOSE,) * x.ndim
        self._arguments: tuple[Any, ...] = (
            self._context.handle,
            *operations,
            *pointers,
            value_type,
            _DEFAULT_ALGORITHM if algorithm in BLOCK_ALGORITHMS else algorithms[algorithm],
        )
        self.preprocessed = False
        self._buffer = self._make_buffer(data)
        if preprocess:
            self._preprocess()

    def launch(self) -> None:
        """Queue y = A·x on CuPy's current stream."""
        self._context.bind()
        status = self._product(*self._arguments)
        if status != SUCCESS:
            check(self._library, self._name, *self._arguments)

    def result(self) -> Any:
        """Compute the product, and return y on the host."""
        self.launch()
        return self._context.cupy.asnumpy(self._arrays[2])  # synchronizes

    def _create_matrix(
        self, arrays: tuple[Array, Array, Array], shape: tuple[int, int], nnz: int, value_type: int, algorithm: str
    ) -> c_void_p:
        data, indices, offsets = arrays
        types = (INDEX_TYPES[offsets.dtype.name], INDEX_TYPES[indices.dtype.name], BASE_ZERO, value_type)
        addresses = (address(offsets), address(indices), address(data))
        if algorithm == "SELL":
            return self._create("SlicedEll", *shape, nnz, data.size, SLICE_SIZE, *addresses, *types)
        if algorithm in BLOCK_ALGORITHMS:
            blocks = (size // block for size, block in zip(shape, self._blocksize, strict=True))
            order = BLOCK_ALGORITHMS[algorithm]
            return self._create("Bsr", *blocks, indices.size, *self._blocksize, *addresses, *types, order)
        return self._create("Csr", *shape, nnz, *addresses, *types)

    def _create_dense(self, array: Array, value_type: int) -> c_void_p:
        if array.ndim == 1:
            return self._create("DnVec", array.size, address(array), value_type)
        by_rows = bool(array.flags.c_contiguous)
        if not (by_rows or array.flags.f_contiguous):
            raise CusparseError("only contiguous columns can be measured")
        leading_dimension = array.shape[1] if by_rows else array.shape[0]
        order = ROW_MAJOR if by_rows else COLUMN_MAJOR
        return self._create("DnMat", *array.shape, leading_dimension, address(array), value_type, order)

    def _create(self, kind: str, *args: Any) -> c_void_p:
        return create(self._library, self._descriptors, kind, *args)

    def _make_buffer(self, like: Array) -> Any:
        size = c_size_t()
        self._context.bind()
        check(self._library, f"{self._name}_bufferSize", *self._arguments, byref(size))
        # The buffer is never empty, because preprocessing needs an address that is not null.
        buffer = self._context.cupy.empty(max(size.value, 16), np.uint8)
        self._arguments = (*self._arguments, address(buffer))
        self._product: Callable[..., int] = getattr(self._library, self._name)
        return buffer

    def _preprocess(self) -> None:
        name = f"{self._name}_preprocess"
        function = getattr(self._library, name, None)
        status = NOT_SUPPORTED if function is None else function(*self._arguments)
        if status not in (SUCCESS, NOT_SUPPORTED):
            check(self._library, name, *self._arguments)
        self.preprocessed = status == SUCCESS


def create(library: Any, descriptors: list[tuple[str, c_void_p]], kind: str, *args: Any) -> c_void_p:
    """Return a new descriptor of this kind, and append it to the list for `destroy`."""
    descriptor = c_void_p()
    if not hasattr(library, f"cusparseCreate{kind}"):
        raise CusparseError(f"this libcusparse has no cusparseCreate{kind}, which CUDA 12.1 introduced")
    check(library, f"cusparseCreate{kind}", byref(descriptor), *args)
    general_kind = kind if kind.startswith("Dn") else "SpMat"
    descriptors.append((f"cusparseDestroy{general_kind}", descriptor))
    return descriptor


def destroy(library: Any, descriptors: list[tuple[str, c_void_p]]) -> None:
    """Destroy the descriptors in reverse order."""
    while descriptors:
        name, descriptor = descriptors.pop()
        getattr(library, name)(descriptor)


def to_sliced_ell(xp: Any, arrays: tuple[Array, Array, Array], num_rows: int) -> tuple[Array, Array, Array]:
    """Convert CSR to cuSPARSE's sliced ELLPACK: (values, columns, slice offsets). Padding has the column -1.

    Entry j of row i is at ``offsets[i // 32] + j * 32 + i % 32``. The offsets have the dtype of the columns.

    Raises
    ------
    CusparseError
        If the number of stored entries exceeds the range of the offsets' dtype.
    """
    data, indices, indptr = arrays
    num_slices = -(-num_rows // SLICE_SIZE)
    lengths = xp.zeros(num_slices * SLICE_SIZE, np.int64)
    lengths[:num_rows] = indptr[1:] - indptr[:-1]
    offsets = xp.zeros(num_slices + 1, np.int64)
    offsets[1:] = xp.cumsum(lengths.reshape(-1, SLICE_SIZE).max(axis=1) * SLICE_SIZE)
    stored = int(offsets[-1])
    if stored > np.iinfo(indices.dtype).max:
        raise CusparseError(f"{stored} stored entries are more than {indices.dtype} slice offsets can count")
    entries = xp.arange(indices.size)
    rows = xp.searchsorted(indptr[1:], entries, side="right")
    positions = offsets[rows // SLICE_SIZE] + (entries - indptr[rows]) * SLICE_SIZE + rows % SLICE_SIZE
    columns, values = xp.full(stored, -1, indices.dtype), xp.zeros(stored, data.dtype)
    columns[positions], values[positions] = indices, data
    return values, columns, offsets.astype(indices.dtype)


def to_blocks(xp: Any, arrays: tuple[Array, Array, Array], size: int) -> tuple[Array, Array, Array]:
    """Convert CSR to BSR with square blocks, which must all be full.

    Return (values, columns, block row pointers). The columns of each row must rise. The values have the shape (number
    of blocks, size, size).
    """
    data, indices, indptr = arrays
    offsets = xp.ascontiguousarray(indptr[::size] // size**2)
    blocks = xp.arange(indices.size // size**2)
    rows = xp.searchsorted(offsets[1:], blocks, side="right")
    begins = offsets[rows]
    # For each block, the position of its first element, and the distance between the first elements of two of its rows.
    first, step = (begins * size + blocks - begins) * size, (offsets[rows + 1] - begins) * size
    within = xp.arange(size)
    places = first[:, None, None] + within[:, None] * step[:, None, None] + within
    return data[places], indices[first] // size, offsets
