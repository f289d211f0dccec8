"""Every kernel that run time can ask for compiles for both vendors' GPUs, with next to nothing spilled to memory."""

from __future__ import annotations

from collections import Counter

import pytest

from gsparse.kernels.gpu.catalogue import instantiations

from . import compile_amd, compile_nvidia
from .emulator import SANITIZER
from .kernel_usage import KernelUsage, compilations, complaints, file_of

pytestmark = pytest.mark.skipif(bool(SANITIZER), reason="NVRTC and clang do not run under a sanitizer")


def check(usages: list[KernelUsage], lanes: int, architectures: tuple[str, ...]) -> None:
    asked = compilations(lanes, architectures)
    expected = Counter((a, file_of(source), name) for a, source, names in asked for name in names)
    assert Counter((u.architecture, u.source, u.expression) for u in usages) == expected
    assert {(u.source, u.expression) for u in usages} >= {*instantiations(lanes)}
    assert complaints(usages) == []


@pytest.mark.timeout(1200)
def test_catalogue_compiles_for_nvidia_without_spills() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    usages = compile_nvidia.compile_catalogue()
    check(usages, compile_nvidia.LANES, compile_nvidia.ARCHITECTURES)


@pytest.mark.timeout(1200)
def test_catalogue_compiles_for_amd_without_spills() -> None:
    try:
        compile_amd.find_tools()
    except ImportError as error:
        pytest.skip(str(error))
    usages = compile_amd.compile_catalogue()
    check(usages, compile_amd.LANES, compile_amd.ARCHITECTURES)


def test_spills_are_read_out_of_ptxas() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    # An array that is indexed by what is only known at run time has to live in local memory.
    source = """
        template <int N> __global__ void indexed(const int *in, int *out) {
          int kept[N] = {};
          for (int k = 0; k < N; ++k) kept[in[k] % N] += k;
          for (int k = 0; k < N; ++k) out[k] = kept[in[k + N] % N];
        }
    """
    options = ("-std=c++17", "-arch=sm_90", "--ptxas-options=-v")
    names, log = compile_nvidia.compile_cubin(source, ["indexed<64>"], options)
    registers, _, stack, _ = compile_nvidia.read_log(log)[names["indexed<64>"]]
    assert registers > 0
    assert stack >= 64 * 4


def test_compile_error_shows_the_compilers_words() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    with pytest.raises(RuntimeError, match="undeclared"):
        compile_nvidia.compile_cubin("__global__ void broken(int *out) { *out = undeclared; }", [], ("-arch=sm_90",))
