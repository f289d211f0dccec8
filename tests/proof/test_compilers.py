"""Every kernel of the catalogue compiles for the GPUs of both vendors, and spills at most a few words to memory."""

from __future__ import annotations

from collections import Counter

import pytest

from gsparse.kernels.gpu import instantiations

from . import compare_cubins, compile_amd, compile_nvidia
from .emulator import SANITIZER
from .kernel_usage import KernelUsage, compilations, complaints, file_of

pytestmark = pytest.mark.skipif(bool(SANITIZER), reason="NVRTC and clang do not run under a sanitizer")


def check(usages: list[KernelUsage], lanes: int, architectures: tuple[str, ...]) -> None:
    asked = compilations(lanes, architectures)
    expected = Counter((a, file_of(source), name) for a, source, names in asked for name in names)
    assert Counter((u.architecture, u.source, u.expression) for u in usages) == expected
    assert {(u.source, u.expression) for u in usages} >= {*instantiations(lanes)}
    assert complaints(usages) == []


@pytest.mark.whole
@pytest.mark.timeout(1200)
def test_the_catalogue_compiles_for_nvidia_and_spills_a_few_words_at_most() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    usages = compile_nvidia.compile_catalogue()
    check(usages, compile_nvidia.LANES, compile_nvidia.ARCHITECTURES)


@pytest.mark.whole
@pytest.mark.timeout(1200)
def test_the_catalogue_compiles_for_amd_and_spills_a_few_words_at_most() -> None:
    try:
        compile_amd.find_tools()
    except ImportError as error:
        pytest.skip(str(error))
    usages = compile_amd.compile_catalogue()
    check(usages, compile_amd.LANES, compile_amd.ARCHITECTURES)


def test_machine_code_is_read_from_a_cubin() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    names = ("gather<float, int>", "gather<double, int>")
    first, again = (compare_cubins.measure_file("sm_90", "exchange.cu", names) for _ in range(2))
    assert list(first) == [f"exchange.cu: {name}" for name in names]
    assert first == again
    assert all(code.registers > 0 and code.size > 0 for code in first.values())
    assert len({code.digest for code in first.values()}) == 2


def test_a_compile_error_contains_the_message_of_the_compiler() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    with pytest.raises(RuntimeError, match="undeclared"):
        compile_nvidia.compile_cubin("__global__ void broken(int *out) { *out = undeclared; }", [], ("-arch=sm_90",))
