"""Facts about CuPy on which gsparse relies, checked without a GPU, so that a change of CuPy is noticed."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types
from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gsparse.device.gpu
from gsparse.device.compilation import compile_options, kernel_source
from gsparse.device.gpu import GpuDevice
from gsparse.device.launching import driver_launch
from gsparse.kernels.gpu import instantiations

from .compile_nvidia import CUPY_OPTIONS, LANES

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
if cupy.cuda.runtime.is_hip:
    pytest.skip("these are facts about CuPy on CUDA", allow_module_level=True)

SOURCE = "template <class T> __global__ void kernel(T *out) { out[0] = 1; }"


class Captured(Exception):
    """Raised instead of a compilation."""


def has_driver() -> bool:
    try:
        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


@pytest.fixture
def options_at_the_compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compile a kernel with CuPy, and return the options that it passes to NVRTC."""
    core, compiler = import_module("cupy._core.core"), import_module("cupy.cuda.compiler")
    try:
        import_module("cupy.cuda.nvrtc").getVersion()
    except Exception as error:  # the errors of the function with which CUDA's packages find libraries
        pytest.skip(f"CuPy finds no NVRTC: {type(error).__name__}")
    captured: list[str] = []

    def capture(self: Any, options: Sequence[str] = (), log_stream: Any = None) -> None:
        captured.extend(options)
        raise Captured

    # The two functions that would call the driver.
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: (f"-arch=sm_{arch}", "cubin"))
    monkeypatch.setattr(compiler, "_preprocess", lambda *args: "")
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    monkeypatch.setattr(compiler._NVRTCProgram, "compile", capture)
    with pytest.raises(Captured):
        core.compile_with_cache(
            SOURCE, compile_options(LANES), arch="90", prepend_cupy_headers=False, name_expressions=("kernel<float>",)
        )
    return captured


def test_cupy_adds_the_same_options_as_compile_nvidia(options_at_the_compiler: list[str]) -> None:
    added = [o for o in options_at_the_compiler if o not in compile_options(LANES) and not o.startswith("-I")]
    assert sorted(added) == sorted([*CUPY_OPTIONS, "-arch=sm_90"])
    assert set(compile_options(LANES)) <= set(options_at_the_compiler)


def test_import_needs_no_driver() -> None:
    # In a process of its own, which must not find a GPU.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    code = "import cupy; cupy.cuda.runtime.CUDARuntimeError; cupy.RawModule"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=environment)


def test_raw_module_is_lazy_and_compiles_only_with_a_driver() -> None:
    module = cupy.RawModule(code="not C++ at all", options=compile_options(LANES), name_expressions=["kernel<float>"])
    error = cupy.cuda.compiler.CompileException if has_driver() else cupy.cuda.runtime.CUDARuntimeError
    with pytest.raises(error):
        module.compile()


def test_the_key_of_the_disk_cache_depends_on_no_included_header() -> None:
    # CuPy's cache key depends on these arguments, not on the contents of headers. Hence `kernel_source` inlines them.
    code = inspect.getsource(cupy.cuda.compiler._compile_with_cache_cuda)
    assert "env, base, source, extra_source, _get_cupy_cache_key()" in code


@pytest.mark.parametrize("source", sorted({source for source, _ in instantiations(32)}))
def test_kernel_source_inlines_its_headers(source: str) -> None:
    text = kernel_source(source)
    assert '#include "' not in text.split("#if defined(GS_EMU)")[0]
    for header in ("port.cuh", "scalar.cuh", "entries.cuh", "long_rows.cuh"):
        assert f'#include "{header}"' not in text
    assert text.count("#define GS_MAX_THREADS") == 1


def test_hip_does_not_use_the_disk_cache_for_name_expressions() -> None:
    code = inspect.getsource(cupy.cuda.compiler._compile_with_cache_hip)
    assert "if not name_expressions:\n            binary = _kernel_cache_backend.load(name)" in code


def test_hip_does_not_support_cooperative_groups() -> None:
    code = inspect.getsource(cupy.cuda.compiler._compile_module_with_cache)
    assert "Cooperative groups is not supported in HIP." in code


def test_hip_does_not_support_relocatable_device_code() -> None:
    code = inspect.getsource(cupy.cuda.compiler._compile_with_cache_hip)
    assert "separate compilation is not supported in HIP" in code


def test_device_properties_contain_the_warp_size() -> None:
    if not has_driver():
        pytest.skip("needs a driver")
    assert cupy.cuda.runtime.getDeviceProperties(0)["warpSize"] in (32, 64)


def test_cupy_array_priority_is_below_ours() -> None:
    # GpuSparseMatrix has a priority above 100.
    assert cupy.ndarray.__array_priority__ == 100


def test_the_drivers_launch_function_has_the_parameters_that_launching_passes() -> None:
    # It is private. If it moves, launches take CuPy's own way again, which is several times slower (launching.py).
    launch = driver_launch(cupy)
    assert launch is not None
    parameters = (
        "intptr_t f, unsigned int grid_dim_x, unsigned int grid_dim_y, unsigned int grid_dim_z, "
        "unsigned int block_dim_x, unsigned int block_dim_y, unsigned int block_dim_z, "
        "unsigned int shared_mem_bytes, intptr_t stream, intptr_t kernel_params, intptr_t extra"
    )
    assert (launch.__doc__ or "").partition("\n")[0] == f"launchKernel({parameters})"
    with pytest.raises(TypeError):
        launch(*range(10))
    if not cupy.cuda.runtime.driverGetVersion():  # an installed driver would launch what these numbers point at
        with pytest.raises(RuntimeError, match="CuPy failed to load"):
            launch(*range(11))


def test_launching_finds_what_else_it_needs() -> None:
    assert issubclass(cupy.cuda.driver.CUDADriverError, RuntimeError)
    assert "get_current_stream(int device_id=-1)" in (cupy.cuda.get_current_stream.__doc__ or "")
    assert (cupy.cuda.Stream.null.ptr, cupy.cuda.Stream.ptds.ptr) == (0, 2)
    for cls, name in ((cupy.RawKernel, "kernel"), (cupy.cuda.Function, "ptr"), (cupy.cuda.MemoryPointer, "ptr")):
        assert isinstance(getattr(cls, name), types.GetSetDescriptorType)


def array_over(host: np.ndarray[Any, Any], index: int = 0) -> Any:
    """Return a CuPy array that takes the memory of a contiguous host array for that of a GPU. Nothing reads it."""
    memory = cupy.cuda.UnownedMemory(host.ctypes.data, host.nbytes, host, index)
    return cupy.ndarray(host.shape, host.dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> GpuDevice:
    """Return the second GPU of a stand-in for CuPy with CuPy's arrays."""
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 2,
        getDevice=lambda: 1,
        getDeviceProperties=lambda index: {"warpSize": 32, "multiProcessorCount": 1, "name": b"stand-in"},
        streamPerThread=2,
    )
    cuda = SimpleNamespace(
        runtime=runtime,
        Device=lambda index: SimpleNamespace(pci_bus_id="0"),
        get_current_stream=None,
        memory=cupy.cuda.memory,
    )
    stand_in = SimpleNamespace(ndarray=cupy.ndarray, cuda=cuda)
    monkeypatch.setattr(gsparse.device.gpu, "import_cupy", lambda: stand_in)
    return GpuDevice(1)


def test_vectors_are_read_in_place_only_if_they_are_as_kernels_read_them(device: Any) -> None:
    rows, columns, dtype = 40, 60, np.dtype(float)
    shape = (rows, columns)
    base, other = array_over(np.zeros(1000), 1), array_over(np.zeros(1000), 1)
    x, y = base[:columns], other[:rows]
    assert device.can_read_vectors(x, None, shape, dtype)
    assert device.can_read_vectors(x, y, shape, dtype)
    assert device.can_read_vectors(x, y, shape, dtype.newbyteorder("="))  # an equal dtype, but another object
    for wrong in (
        base[: columns + 1], base[: 2 * columns : 2], base[:columns][::-1], base[:columns].reshape(1, -1),
        base[:columns].reshape(-1, 1), array_over(np.zeros(columns, np.float32), 1),
        array_over(np.zeros(columns, int), 1), array_over(np.zeros(columns), 0), np.zeros(columns), None, 3.0,
        [0.0] * columns,
    ):  # fmt: skip
        assert not device.can_read_vectors(wrong, None, shape, dtype)
        assert not device.can_read_vectors(wrong, y, shape, dtype)
        if wrong is not None:
            assert not device.can_read_vectors(y, wrong, (columns, rows), dtype)


def test_a_result_must_not_overlap_its_vector(device: Any) -> None:
    rows, columns, dtype = 40, 60, np.dtype(np.complex64)
    base = array_over(np.zeros(1000, dtype), 1)
    x = base[500 : 500 + columns]
    for first in range(440, 580):
        overlaps = first < 500 + columns and first + rows > 500
        assert device.can_read_vectors(x, base[first : first + rows], (rows, columns), dtype) != overlaps


def test_the_current_device_must_be_the_matrixs(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = array_over(np.zeros(5), 1)
    assert device.can_read_vectors(x, None, (5, 5), np.dtype(float))
    monkeypatch.setattr(device, "_current_device", lambda: 0)
    assert not device.can_read_vectors(x, None, (5, 5), np.dtype(float))


@pytest.mark.skipif(not has_driver(), reason="needs a GPU")
def test_python_scalars_are_passed_as_64_bit_numbers() -> None:
    kernel = cupy.RawKernel(
        'extern "C" __global__ void keep(long long a, double b, double *out) { *out = a + b; }', "keep"
    )
    out = cupy.zeros(1)
    kernel((1,), (1,), (1, 2.0, out))
    assert float(out[0]) == 3.0
    kernel((1,), (1,), (np.int64(1), np.float64(2), out))
    assert float(out[0]) == 3.0


def test_graphs_have_handles_for_the_driver() -> None:
    """What `gsparse.device.gpu_streams` uses."""
    assert isinstance(inspect.getattr_static(cupy.cuda.Graph, "graph"), types.GetSetDescriptorType)
    for name in ("graphLaunch", "graphExecDestroy"):
        assert callable(getattr(cupy.cuda.runtime, name))
