"""What gsparse takes for granted about CuPy, checked without a GPU: loud when CuPy moves."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from gsparse.device.compilation import compile_options, kernel_source
from gsparse.kernels.gpu.catalogue import instantiations

from .compile_nvidia import CUPY_OPTIONS, LANES

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
if cupy.cuda.runtime.is_hip:
    pytest.skip("these are facts about CuPy on CUDA", allow_module_level=True)

SOURCE = "template <class T> __global__ void kernel(T *out) { out[0] = 1; }"


class Captured(Exception):
    """Thrown in place of a compilation."""


def has_driver() -> bool:
    try:
        return bool(cupy.cuda.runtime.getDeviceCount() > 0)
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


@pytest.fixture
def options_at_the_compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Send a kernel through all of CuPy's own layers, and give the options that arrive at NVRTC."""
    core, compiler = import_module("cupy._core.core"), import_module("cupy.cuda.compiler")
    try:
        import_module("cupy.cuda.nvrtc").getVersion()
    except Exception as error:  # whichever CUDA's own finder of libraries raises
        pytest.skip(f"CuPy finds no NVRTC: {type(error).__name__}")
    captured: list[str] = []

    def capture(self: Any, options: Sequence[str] = (), log_stream: Any = None) -> None:
        captured.extend(options)
        raise Captured

    # The two places that would ask the driver.
    monkeypatch.setattr(compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: (f"-arch=sm_{arch}", "cubin"))
    monkeypatch.setattr(compiler, "_preprocess", lambda *args: "")
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    monkeypatch.setattr(compiler._NVRTCProgram, "compile", capture)
    with pytest.raises(Captured):
        core.compile_with_cache(
            SOURCE, compile_options(LANES), arch="90", prepend_cupy_headers=False, name_expressions=("kernel<float>",)
        )
    return captured


def test_cupy_adds_just_the_options_that_our_own_compilation_adds(options_at_the_compiler: list[str]) -> None:
    added = [o for o in options_at_the_compiler if o not in compile_options(LANES) and not o.startswith("-I")]
    assert sorted(added) == sorted([*CUPY_OPTIONS, "-arch=sm_90"])
    assert set(compile_options(LANES)) <= set(options_at_the_compiler)


def test_import_needs_no_driver() -> None:
    # In a process of its own, which must find no GPU even where there is one.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    code = "import cupy; cupy.cuda.runtime.CUDARuntimeError; cupy.RawModule"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, env=environment)


def test_raw_module_is_lazy_and_compiles_only_with_a_driver() -> None:
    module = cupy.RawModule(code="not C++ at all", options=compile_options(LANES), name_expressions=["kernel<float>"])
    error = cupy.cuda.compiler.CompileException if has_driver() else cupy.cuda.runtime.CUDARuntimeError
    with pytest.raises(error):
        module.compile()


def test_disk_cache_key_holds_no_header_that_the_source_includes() -> None:
    # Hence `kernel_source` inlines the headers. The key is made of what is named here and of nothing else.
    code = inspect.getsource(cupy.cuda.compiler._compile_with_cache_cuda)
    assert "env, base, source, extra_source, _get_cupy_cache_key()" in code


@pytest.mark.parametrize("source", sorted({source for source, _ in instantiations(32)}))
def test_kernel_source_holds_its_headers(source: str) -> None:
    text = kernel_source(source)
    assert '#include "' not in text.split("#if defined(GS_EMU)")[0]
    for header in ("port.cuh", "scalar.cuh", "entries.cuh", "long_rows.cuh"):
        assert f'#include "{header}"' not in text
    assert text.count("#define GS_MAX_THREADS") == 1


def test_hip_reads_no_name_expressions_from_the_disk_cache() -> None:
    code = inspect.getsource(cupy.cuda.compiler._compile_with_cache_hip)
    assert "if not name_expressions:\n            binary = _kernel_cache_backend.load(name)" in code


def test_hip_takes_no_cooperative_groups() -> None:
    code = inspect.getsource(cupy.cuda.compiler._compile_module_with_cache)
    assert "Cooperative groups is not supported in HIP." in code


def test_hip_takes_no_relocatable_device_code() -> None:
    code = inspect.getsource(cupy.cuda.compiler._compile_with_cache_hip)
    assert "separate compilation is not supported in HIP" in code


def test_properties_tell_the_lanes_of_a_warp() -> None:
    assert callable(cupy.cuda.runtime.getDeviceProperties)
    if has_driver():
        assert cupy.cuda.runtime.getDeviceProperties(0)["warpSize"] in (32, 64)


def test_cupy_array_priority_is_below_ours() -> None:
    # The design gives GpuSparseMatrix a priority above 100.
    assert cupy.ndarray.__array_priority__ == 100


@pytest.mark.skipif(not has_driver(), reason="needs a GPU")
def test_python_scalars_are_widened_so_kernels_get_sized_ones() -> None:
    kernel = cupy.RawKernel(
        'extern "C" __global__ void keep(long long a, double b, double *out) { *out = a + b; }', "keep"
    )
    out = cupy.zeros(1)
    kernel((1,), (1,), (1, 2.0, out))
    assert float(out[0]) == 3.0
    kernel((1,), (1,), (np.int64(1), np.float64(2), out))
    assert float(out[0]) == 3.0
