"""One matrix in cuDSS: its handles, phases and results, through the bindings of the C interface."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.device.memory import address_of
from gsparse.device.threads import available_cpus
from gsparse.errors import DeviceMemoryError, FactorizationError
from gsparse.formats import Csr
from gsparse.linalg.direct.factors import FactorOptions, MatrixKind, Transposition

# cuDSS's names for NumPy's dtypes, and for the kinds of real and of complex matrices.
_DTYPES = {
    "float32": "R_32F",
    "float64": "R_64F",
    "complex64": "C_32F",
    "complex128": "C_64F",
    "int32": "R_32I",
    "int64": "R_64I",
}
_REAL_KINDS = {"general": "GENERAL", "symmetric": "SYMMETRIC", "hermitian": "SYMMETRIC", "positive definite": "SPD"}
_COMPLEX_KINDS = {"general": "GENERAL", "symmetric": "SYMMETRIC", "hermitian": "HERMITIAN", "positive definite": "HPD"}
_DEFAULT_STREAM = 0
# Parameters of cuDSS 1.0, which the bindings of nvmath-python 1.0 do not name.
_NEW_PARAMETERS = {"FORCE_NONSYMMETRIC_MATCHING": 27}
# Values of cudssSolveMode_t. cuDSS refuses conjugate transposes of real matrices.
_COMPLEX_MODES: dict[Transposition, int] = {"N": 0, "T": 1, "H": 2}
_REAL_MODES: dict[Transposition, int] = {"N": 0, "T": 1, "H": 1}
# Number of values that cuDSS returns as estimates of memory, and the index of the peak on the device.
_NUM_ESTIMATES, _PEAK = 16, 1
# Number of the library property that holds the major version.
_MAJOR_VERSION = 0
# cuDSS analyses a matrix with several host threads if it finds a threading library, which is part of its package. The
# environment variable contains the path of this library; nvmath-python reads it, too.
_LAYER_VARIABLE, _LAYER_FILES = "CUDSS_THREADING_LIB", "*/lib/libcudss_mtlayer_gomp.so*"


@cache
def find_bindings() -> tuple[Any, str]:
    """Return (module, ""), the bindings of cuDSS; or (None, reason) if they cannot be used."""
    try:
        bindings = import_module("nvmath.bindings.cudss")
    except ImportError as error:
        return None, f"nvmath-python is not installed ({error})"
    try:
        bindings.get_property(0)  # loads the library
    except Exception as error:  # the error types belong to cuda-pathfinder
        return None, f"nvmath-python does not find the library ({str(error).splitlines()[0]})"
    return bindings, ""


@cache
def find_threading_layer() -> str | None:
    """Return the path of the threading library for cuDSS's host threads; None if there is none."""
    named = os.environ.get(_LAYER_VARIABLE)
    if named:
        return named if Path(named).is_file() else None
    package = find_spec("nvidia")  # the namespace of NVIDIA's packages
    folders = [] if package is None else package.submodule_search_locations or []
    layers = [path for folder in folders for path in sorted(Path(folder).glob(_LAYER_FILES))]
    return str(layers[0]) if layers else None


class CudssSolver:
    """A matrix with its factors in cuDSS.

    Parameters
    ----------
    device : Device
    csr : Csr
        The row pointers and columns of this array are used without a copy. The values are copied.
    kind : str
    options : FactorOptions
    matching : bool
        Whether columns are permuted, and rows and columns scaled, so that the diagonal has large entries. Then cuDSS
        factorizes a symmetric matrix as a general one.
    """

    def __init__(
        self, device: Device, csr: Csr, kind: MatrixKind, options: FactorOptions, *, matching: bool = False
    ) -> None:
        self._device, self._options, self._size = device, options, csr.num_rows
        self._api, self.matching = find_bindings()[0], matching
        # Since version 1.0, cuDSS can solve with the transpose of a general matrix.
        self.is_version_1 = bool(self._api.get_property(_MAJOR_VERSION) >= 1)
        index = np.promote_types(csr.indptr.dtype, csr.indices.dtype)
        # cuDSS uses these arrays by address. `refactorize` writes to the values.
        self.csr = Csr(
            csr.shape,
            csr.indptr.astype(index, copy=False),
            csr.indices.astype(index, copy=False),
            csr.data.copy(),
        )
        self._type = self._type_of(csr.dtype)
        stack = ExitStack()
        # When this object is deleted, the handles are released, the last one first.
        self._release = weakref.finalize(self, _release, device, stack)
        self._own(stack, kind)

    def _own(self, stack: ExitStack, kind: MatrixKind) -> None:
        """Create cuDSS's handles, and register them for release."""
        api = self._api
        self._handle = self._call(api.create)
        stack.callback(api.destroy, self._handle)
        self._call(api.set_stream, self._handle, _DEFAULT_STREAM)
        self._set_up_host_threads()
        pool = _memory_pool(self._device)
        if pool:
            api.set_async_workspace_allocator(self._handle, pool)
        self._config = self._call(api.config_create)
        stack.callback(api.config_destroy, self._config)
        self._data = self._call(api.data_create, self._handle)
        stack.callback(api.data_destroy, self._handle, self._data)
        self._configure()
        kinds = _COMPLEX_KINDS if self.csr.dtype.kind == "c" else _REAL_KINDS
        index = self._type_of(self.csr.indices.dtype)
        self._matrix = self._call(
            api.matrix_create_csr,
            self._size,
            self._size,
            self.csr.nnz,
            address_of(self.csr.indptr),
            0,
            address_of(self.csr.indices),
            address_of(self.csr.data),
            index,
            index,
            self._type,
            int(api.MatrixType[kinds[kind]]),
            int(api.MatrixViewType.FULL),
            int(api.IndexBase.ZERO),
        )
        stack.callback(api.matrix_destroy, self._matrix)
        # Descriptions of the solutions and of the right-hand sides, by their number of columns.
        self._dense: dict[int, tuple[int, int]] = {}
        self._dense_stack = stack.enter_context(ExitStack())
        self._placeholder = self._device.xp.zeros(self._size, self.csr.dtype)

    def _type_of(self, dtype: npt.DTypeLike) -> int:
        return int(self._api.DataType[_DTYPES[np.dtype(dtype).name]])

    def _set_up_host_threads(self) -> None:
        layer = find_threading_layer()
        self.num_threads = 1
        if layer is None or self._options.num_threads == 1:
            return
        try:
            self._api.set_threading_layer(self._handle, layer)
        except self._api.cuDSSError:  # without libgomp, for instance: the analysis takes longer
            return
        self.num_threads = self._options.num_threads or available_cpus()

    def _configure(self) -> None:
        if self.num_threads > 1:
            self._set("HOST_NTHREADS", self.num_threads)
        if self._options.deterministic:
            self._set("DETERMINISTIC_MODE", 1)
        # Choose explicitly, because the defaults of cuDSS 0.8 (no matching) and 1.0 differ.
        algorithm = self._api.MatchingAlg.MAX_DIAG_PRODUCT if self.matching else self._api.MatchingAlg.NONE
        self._set("MATCHING_ALG", int(algorithm))
        if self.matching and self.is_version_1:
            self._set("FORCE_NONSYMMETRIC_MATCHING", 1)

    def _set(self, name: str, value: int) -> None:
        parameter = _NEW_PARAMETERS[name] if name in _NEW_PARAMETERS else int(self._api.ConfigParam[name])
        array = np.array([value], np.int32)
        self._call(self._api.config_set, self._config, parameter, array.ctypes.data, array.nbytes)

    def refine(self, steps: int) -> None:
        """Make each solve end with this number of steps of iterative refinement."""
        self._set("IR_N_STEPS", steps)

    # ------------------------------------------------------------------------------------------------------- phases

    def analyse(self) -> None:
        """Find the order of elimination and the structure of the factors. Synchronizes."""
        self._execute("ANALYSIS", *self._described(1, self._placeholder, self._placeholder))

    def factorize(self) -> None:
        """Compute the factors. Synchronizes."""
        self._execute("FACTORIZATION", *self._described(1, self._placeholder, self._placeholder))

    def refactorize(self, values: Array) -> None:
        """Compute the factors for other values, with the same order of elimination. Synchronizes."""
        self.csr.data[...] = values
        self._execute("REFACTORIZATION", *self._described(1, self._placeholder, self._placeholder))

    def solve(self, b: Array, columns: int, trans: Transposition = "N") -> Array:
        """Return the solutions for right-hand sides. Both arrays hold one column after the other. Synchronizes."""
        if trans == "N":
            return self._solve(b, columns)
        self._set("SOLVE_MODE", (_COMPLEX_MODES if b.dtype.kind == "c" else _REAL_MODES)[trans])
        try:
            return self._solve(b, columns)
        finally:
            self._set("SOLVE_MODE", _REAL_MODES["N"])

    def _solve(self, b: Array, columns: int) -> Array:
        x = self._device.empty(b.size, b.dtype)
        at_once = 1 if self._options.deterministic else columns  # the deterministic mode solves one column at a time
        step = self._size * at_once
        for first in range(0, b.size, step):
            part = slice(first, first + step)
            self._execute("SOLVE", *self._described(at_once, x[part], b[part]))
        return x

    def _described(self, columns: int, x: Array, b: Array) -> tuple[int, int]:
        """Return cuDSS's descriptions of the arrays x and b, the solutions and the right-hand sides."""
        if columns not in self._dense:
            self._dense_stack.close()
            self._dense.clear()
            descriptions = []
            for array in (x, b):
                shape = self._size, columns, self._size, address_of(array)
                layout = int(self._api.Layout.COL_MAJOR)
                descriptions.append(self._call(self._api.matrix_create_dn, *shape, self._type, layout))
                self._dense_stack.callback(self._api.matrix_destroy, descriptions[-1])
            self._dense[columns] = descriptions[0], descriptions[1]
        pair = self._dense[columns]
        for description, array in zip(pair, (x, b), strict=True):
            self._call(self._api.matrix_set_values, description, address_of(array))
        return pair

    def _execute(self, phase: str, x: int, b: int) -> None:
        """Run a phase, always on the default stream. Synchronizes.

        Solvers use their own streams. Instead of changing cuDSS's stream, wait until the GPU is idle before and after:
        unfinished work of cuDSS may belong to its previous stream.
        """
        api = self._api
        _wait_for_all_streams(self._device)
        args = self._handle, int(api.Phase[phase]), self._config, self._data, self._matrix, x, b
        try:
            api.execute(*args)
        except api.cuDSSError as error:
            if error.status != api.Status.ALLOC_FAILED:
                raise self._translated(error, phase) from error
            _free_unused_memory(self._device)
            try:
                api.execute(*args)
            except api.cuDSSError as second:
                raise self._translated(second, phase) from second
        _wait_for_all_streams(self._device)

    # ------------------------------------------------------------------------------------------------------ results

    def nnz(self) -> int:
        """Return the number of entries of the factors."""
        return int(self._get("LU_NNZ", 1, np.int64)[0])

    def info(self) -> int:
        """Return cuDSS's code of an error on the device, or 0 for none. Synchronizes."""
        return int(self._get("INFO", 1, np.int32)[0])

    def num_replaced_pivots(self) -> int:
        """Return the number of pivots that were too small and have been replaced. Synchronizes."""
        return int(self._get("NPIVOTS", 1, self.csr.indices.dtype)[0])

    def inertia(self) -> tuple[int, int]:
        """Return the numbers of positive and of negative pivots. Synchronizes."""
        positive, negative = self._get("INERTIA", 2, self.csr.indices.dtype)
        return int(positive), int(negative)

    def diagonal(self) -> npt.NDArray[Any]:
        """Return the diagonal of the factors (with a matching, of the scaled matrix) on the host. Synchronizes."""
        return self._get("DIAG", self._size, self.csr.dtype)

    def scales(self) -> npt.NDArray[Any]:
        """Return one host array: the row scales of a matching, followed by its column scales. Synchronizes."""
        real = self.csr.data.real.dtype
        return np.concatenate([self._get(name, self._size, real) for name in ("SCALE_ROW", "SCALE_COL")])

    def _get(self, name: str, count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        values, written = np.zeros(count, dtype), np.zeros(1, np.uint64)
        parameter = int(self._api.DataParam[name])
        place = values.ctypes.data, values.nbytes, written.ctypes.data
        self._call(self._api.data_get, self._handle, self._data, parameter, *place)
        return values

    # ------------------------------------------------------------------------------------------------------- errors

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._api.cuDSSError as error:
            raise self._translated(error, getattr(function, "__name__", "a call")) from error

    def _translated(self, error: Any, what: str) -> Exception:
        """Return gsparse's error for an error of cuDSS. `what` names the phase or the call."""
        if error.status != self._api.Status.ALLOC_FAILED:
            return FactorizationError(f"cuDSS: {what} failed with {error}: use library='superlu'")
        free = _free_memory(self._device)
        needed = f"{self._estimated_peak() / 1e9:.2f} GB" if what != "ANALYSIS" else "more memory"
        return DeviceMemoryError(
            f"cuDSS needs {needed} of {self._device.name} for the factors of {self._size} rows, {free / 1e9:.2f} GB "
            "are free: use float32, an iterative solver such as cg with amg, or library='superlu', which factorizes "
            "on the host"
        )

    def _estimated_peak(self) -> int:
        try:
            return int(self._get("MEMORY_ESTIMATES", _NUM_ESTIMATES, np.int64)[_PEAK])
        except FactorizationError:
            return 0


def _release(device: Device, stack: ExitStack) -> None:
    with device.active():
        device.synchronize()  # synchronizes: queued work still reads the factors
        stack.close()


def _wait_for_all_streams(device: Device) -> None:
    """Wait until the GPU is idle."""
    cuda = getattr(device.xp, "cuda", None)
    if cuda is not None:
        cuda.Device(getattr(device, "index", 0)).synchronize()  # synchronizes


def _memory_pool(device: Device) -> int:
    """Return the handle of the driver's memory pool, whose allocations do not wait for the GPU; 0 if there is none."""
    runtime = getattr(getattr(device.xp, "cuda", None), "runtime", None)
    find = getattr(runtime, "deviceGetDefaultMemPool", None)
    return 0 if find is None else int(find(getattr(device, "index", 0)))


def _free_unused_memory(device: Device) -> None:
    """Free the unused memory of CuPy's pool, so that cuDSS can allocate it."""
    pool = getattr(device.xp, "get_default_memory_pool", None)
    if pool is not None:  # on GPUs only
        pool().free_all_blocks()


def _free_memory(device: Device) -> int:
    """Return the number of bytes that are free on a GPU."""
    runtime = getattr(getattr(device.xp, "cuda", None), "runtime", None)
    return 0 if runtime is None else int(runtime.memGetInfo()[0])
