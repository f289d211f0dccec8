"""cuSPARSE's generic products through ctypes, as a caller who knows it would use it: descriptors kept, preprocessed.

CuPy's ``A @ x`` makes descriptors anew on each call and never preprocesses, so it is no measure of the library.

References
----------
NVIDIA, "cuSPARSE generic APIs", https://docs.nvidia.com/cuda/cusparse (12 and 13).
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from gsparse.device.dtypes import Array

__all__ = [
    "ALGORITHMS",
    "COLUMN_ALGORITHMS",
    "SLICE_SIZE",
    "CusparseError",
    "CusparseProduct",
    "load_library",
    "to_sliced_ell",
]

# cusparseSpMVAlg_t: the same numbers in CUDA 12 and 13.
ALGORITHMS = {"default": 0, "CSR_ALG1": 2, "CSR_ALG2": 3, "SELL": 5}
# cusparseSpMMAlg_t, and cusparseOrder_t.
COLUMN_ALGORITHMS = {"CSR_ALG1": 4, "CSR_ALG2": 6, "CSR_ALG3": 12}
COLUMN_MAJOR, ROW_MAJOR = 1, 2

# Rows of a slice: a warp's, so that its threads, a row each, read side by side.
SLICE_SIZE = 32

# cusparseIndexType_t, cudaDataType_t, cusparseOperation_t, cusparseIndexBase_t, cusparseStatus_t.
INDEX_TYPES = {"int32": 2, "int64": 3}
VALUE_TYPES: dict[str, tuple[int, Any]] = {"float32": (0, c_float), "float64": (1, c_double)}
NON_TRANSPOSE, BASE_ZERO = 0, 0
SUCCESS, NOT_SUPPORTED = 0, 10

# Of CUDA 12 and 13 alike (the library's own number is 12 in both), then what a toolkit links, then what may come.
NAMES = ("libcusparse.so.12", "libcusparse.so", "libcusparse.so.13")

# Where the wheels nvidia-cusparse (CUDA 13) and nvidia-cusparse-cu12 put it, under the namespace package `nvidia`.
WHEEL_FOLDERS = ("cu13/lib", "cusparse/lib", "cu12/lib")

_P, _I64, _INT = c_void_p, c_int64, c_int
_SPMV = (_P, _INT, _P, _P, _P, _P, _P, _INT, _INT)
_SPMM = (_P, _INT, _INT, _P, _P, _P, _P, _P, _INT, _INT)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cusparseCreate": (POINTER(_P),),
    "cusparseDestroy": (_P,),
    "cusparseSetStream": (_P, _P),
    "cusparseGetVersion": (_P, POINTER(_INT)),
    # descriptor, rows, cols, nnz, offsets, columns, values, type of offsets, of columns, index base, value type
    "cusparseCreateCsr": (POINTER(_P), _I64, _I64, _I64, _P, _P, _P, _INT, _INT, _INT, _INT),
    # descriptor, rows, cols, nnz, stored, slice size, offsets, columns, values, and the types as above
    "cusparseCreateSlicedEll": (POINTER(_P), _I64, _I64, _I64, _I64, _I64, _P, _P, _P, _INT, _INT, _INT, _INT),
    "cusparseCreateDnVec": (POINTER(_P), _I64, _P, _INT),
    # descriptor, rows, cols, leading dimension, values, value type, order
    "cusparseCreateDnMat": (POINTER(_P), _I64, _I64, _I64, _P, _INT, _INT),
    "cusparseDestroySpMat": (_P,),
    "cusparseDestroyDnVec": (_P,),
    "cusparseDestroyDnMat": (_P,),
    # handle, operation, alpha, A, x, beta, y, compute type, algorithm, then the buffer('s size)
    "cusparseSpMV_bufferSize": (*_SPMV, POINTER(c_size_t)),
    "cusparseSpMV_preprocess": (*_SPMV, _P),
    "cusparseSpMV": (*_SPMV, _P),
    # The same with an operation for X too.
    "cusparseSpMM_bufferSize": (*_SPMM, POINTER(c_size_t)),
    "cusparseSpMM_preprocess": (*_SPMM, _P),
    "cusparseSpMM": (*_SPMM, _P),
}
# From CUDA 12.1 and 12.4 on; older libraries do without.
OPTIONAL = ("cusparseCreateSlicedEll", "cusparseSpMV_preprocess", "cusparseSpMM_preprocess")


class CusparseError(RuntimeError):
    """cuSPARSE is not there, or refused a call."""


def library_paths() -> Iterator[str]:
    """Give where libcusparse may be, the copy that CuPy already loaded first."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines() if maps.is_file() else []
    yield from sorted({line.split(maxsplit=5)[-1] for line in lines if "libcusparse.so" in line})
    spec = find_spec("nvidia")
    folders = [Path(base) / sub for base in (spec and spec.submodule_search_locations) or () for sub in WHEEL_FOLDERS]
    toolkits = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME")]
    folders += [Path(root) / sub for root in (*toolkits, "/usr/local/cuda") if root for sub in ("lib64", "lib")]
    yield from (str(folder / name) for folder in folders for name in NAMES if (folder / name).is_file())
    yield from NAMES


def load_library(cupy: Any = None) -> Any:
    """Open libcusparse and declare what is used of it.

    Parameters
    ----------
    cupy : module, optional
        Asked to load its own copy first.

    Raises
    ------
    CusparseError
        Listing what was tried.
    """
    if cupy is not None:
        try:
            cupy.cuda.device.get_cusparse_handle()
        except Exception as error:  # then the library is looked for elsewhere, and says itself what it lacks
            tried = [f"through CuPy: {error}"]
        else:
            tried = []
    else:
        tried = []
    for path in library_paths():
        try:
            return declare(ctypes.CDLL(path))
        except (OSError, AttributeError) as error:
            tried.append(str(error))
    try:
        return declare(ctypes.CDLL(import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cusparse").abs_path))
    except Exception as error:  # not installed, or finds nothing
        tried.append(str(error).splitlines()[0] if str(error) else type(error).__name__)
    raise CusparseError("libcusparse was not found (install nvidia-cusparse, or a CUDA toolkit): " + "; ".join(tried))


def declare(library: Any) -> Any:
    """Give each function its argument types, without which ctypes would cut pointers to 32 bits."""
    for name, types in SIGNATURES.items():
        if name in OPTIONAL and not hasattr(library, name):
            continue
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int
    library.cusparseGetErrorString.argtypes, library.cusparseGetErrorString.restype = (c_int,), ctypes.c_char_p
    return library


@dataclass
class Context:
    """The library, a handle that all products of a device share, and the stream it is bound to."""

    library: Any
    cupy: Any
    handle: c_void_p = field(default_factory=c_void_p)
    stream: int | None = None

    def bind(self) -> None:
        """Let the handle follow the caller's stream."""
        stream = int(self.cupy.cuda.get_current_stream().ptr)
        if stream != self.stream:
            check(self.library, "cusparseSetStream", self.handle, stream)
            self.stream = stream


def current_context() -> Context:
    """Give the context of CuPy's current device; made once."""
    return _context_of(import_module("cupy").cuda.runtime.getDevice())


@cache
def _context_of(device: int) -> Context:
    cupy = import_module("cupy")
    context = Context(load_library(cupy), cupy)
    check(context.library, "cusparseCreate", byref(context.handle))
    return context


def check(library: Any, name: str, *args: Any) -> None:
    """Call a function and raise what it says went wrong."""
    status = getattr(library, name)(*args)
    if status != SUCCESS:
        text = library.cusparseGetErrorString(status)
        raise CusparseError(f"{name}: {text.decode() if text else 'unknown error'} (status {status})")


def address(array: Array) -> int:
    """Give the device address of a CuPy array."""
    return int(array.data.ptr)


class CusparseProduct:
    """One matrix, one algorithm, one x and y: everything kept that can be, ready to be launched.

    Parameters
    ----------
    arrays : tuple of CuPy arrays
        CSR's (data, indices, indptr), or of `to_sliced_ell` for "SELL".
    shape : (int, int)
    nnz : int
    algorithm : str
        A name out of `ALGORITHMS`, for several columns out of `COLUMN_ALGORITHMS`.
    x, y : CuPy arrays
        Read and written by each product: vectors, or dense columns, both row-major or both column-major.
    preprocess : bool
        Whether to call the preprocessing step, where the library has it for this format.
    context : Context, optional
        That of CuPy's current device by default.
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
            raise CusparseError(f"only {' and '.join(VALUE_TYPES)} are measured, got {data.dtype}")
        self._context = context or current_context()
        self._library = self._context.library
        self._kept = (arrays, x, y)
        value_type, scalar = VALUE_TYPES[data.dtype.name]
        self._alpha, self._beta = scalar(1.0), scalar(0.0)
        self._descriptors: list[tuple[str, c_void_p]] = []
        self._finalizer = weakref.finalize(self, _destroy, self._library, self._descriptors)
        self._finalizer.atexit = False  # by then the driver may be gone
        matrix = self._create_matrix(arrays, shape, nnz, value_type, algorithm)
        self._name, algorithms = ("cusparseSpMV", ALGORITHMS) if x.ndim == 1 else ("cusparseSpMM", COLUMN_ALGORITHMS)
        dense = [self._create_dense(array, value_type) for array in (x, y)]
        pointers = (byref(self._alpha), matrix, dense[0], byref(self._beta), dense[1])
        operations = (NON_TRANSPOSE,) * x.ndim
        self._arguments: tuple[Any, ...] = (
            self._context.handle,
            *operations,
            *pointers,
            value_type,
            algorithms[algorithm],
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
        """Launch, and give y on the host."""
        self.launch()
        return self._context.cupy.asnumpy(self._kept[2])  # synchronizes

    def _create_matrix(
        self, arrays: tuple[Array, Array, Array], shape: tuple[int, int], nnz: int, value_type: int, algorithm: str
    ) -> c_void_p:
        data, indices, offsets = arrays
        types = (INDEX_TYPES[offsets.dtype.name], INDEX_TYPES[indices.dtype.name], BASE_ZERO, value_type)
        addresses = (address(offsets), address(indices), address(data))
        if algorithm == "SELL":
            return self._create("SlicedEll", *shape, nnz, data.size, SLICE_SIZE, *addresses, *types)
        return self._create("Csr", *shape, nnz, *addresses, *types)

    def _create_dense(self, array: Array, value_type: int) -> c_void_p:
        if array.ndim == 1:
            return self._create("DnVec", array.size, address(array), value_type)
        by_rows = bool(array.flags.c_contiguous)
        if not (by_rows or array.flags.f_contiguous):
            raise CusparseError("only contiguous columns are measured")
        leading = array.shape[1] if by_rows else array.shape[0]
        order = ROW_MAJOR if by_rows else COLUMN_MAJOR
        return self._create("DnMat", *array.shape, leading, address(array), value_type, order)

    def _create(self, kind: str, *args: Any) -> c_void_p:
        descriptor = c_void_p()
        if not hasattr(self._library, f"cusparseCreate{kind}"):
            raise CusparseError(f"this libcusparse has no cusparseCreate{kind}: it came with CUDA 12.1")
        check(self._library, f"cusparseCreate{kind}", byref(descriptor), *args)
        destroyed = kind if kind.startswith("Dn") else "SpMat"
        self._descriptors.append((f"cusparseDestroy{destroyed}", descriptor))
        return descriptor

    def _make_buffer(self, like: Array) -> Any:
        size = c_size_t()
        self._context.bind()
        check(self._library, f"{self._name}_bufferSize", *self._arguments, byref(size))
        # Never of size 0: an address that is not null, as the preprocessing step wants one.
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


def _destroy(library: Any, descriptors: list[tuple[str, c_void_p]]) -> None:
    while descriptors:
        name, descriptor = descriptors.pop()
        getattr(library, name)(descriptor)


def to_sliced_ell(xp: Any, arrays: tuple[Array, Array, Array], num_rows: int) -> tuple[Array, Array, Array]:
    """Convert CSR to cuSPARSE's sliced ELLPACK: (values, columns, slice offsets), padding as column -1.

    Entry j of row i is at ``offsets[i // 32] + j * 32 + i % 32``; offsets are of the columns' type.

    Raises
    ------
    CusparseError
        Where int32 cannot count what would be stored.
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
    places = offsets[rows // SLICE_SIZE] + (entries - indptr[rows]) * SLICE_SIZE + rows % SLICE_SIZE
    columns, values = xp.full(stored, -1, indices.dtype), xp.zeros(stored, data.dtype)
    columns[places], values[places] = indices, data
    return values, columns, offsets.astype(indices.dtype)
