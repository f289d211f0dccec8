"""Every kernel of the catalogue compiles for the GPUs of both vendors, and spills at most a few words to memory."""

from __future__ import annotations

from collections import Counter

import pytest

from gsparse.kernels.gpu.catalogue import instantiations

from . import compare_cubins, compile_amd, compile_nvidia
from .compare_cubins import Code
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


def test_spills_are_read_from_the_log_of_ptxas() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    # An array whose index is known at run time only cannot be kept in registers. The other kernel has more values at a
    # time than the registers that it may use.
    source = """
        template <int N> __global__ void __launch_bounds__(1024) crowded(const float *in, float *out) {
          float kept[N], sum = 0;
          for (int round = 0; round < 3; ++round) {
            #pragma unroll
            for (int k = 0; k < N; ++k) kept[k] = (round ? kept[k] : 1) * in[k + N * round] + sum;
            #pragma unroll
            for (int k = 0; k < N; ++k) sum = sum * kept[k] + kept[N - 1 - k];
          }
          out[threadIdx.x] = sum;
        }
        template <int N> __global__ void indexed(const int *in, int *out) {
          int kept[N] = {};
          for (int k = 0; k < N; ++k) kept[in[k] % N] += k;
          for (int k = 0; k < N; ++k) out[k] = kept[in[k + N] % N];
        }
    """
    options = ("-std=c++17", "-arch=sm_90", "--ptxas-options=-v")
    names, log = compile_nvidia.compile_cubin(source, ["indexed<64>", "crowded<128>"], options)
    found = compile_nvidia.read_log(log)
    registers, spilled, stack, _ = found[names["indexed<64>"]]
    assert registers > 0
    assert spilled == 0
    assert stack >= 64 * 4
    registers, spilled, stack, _ = found[names["crowded<128>"]]
    assert registers <= 64
    assert spilled >= 64 * 4


def test_machine_code_is_read_from_a_cubin() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    names = ("gather<float, int>", "gather<double, int>")
    first, again = (compare_cubins.measure_file("sm_90", "halo.cu", names) for _ in range(2))
    assert list(first) == [f"halo.cu: {name}" for name in names]
    assert first == again
    assert all(code.registers > 0 and code.size > 0 for code in first.values())
    assert len({code.digest for code in first.values()}) == 2


def test_a_comparison_lists_kernels_that_became_worse_or_disappeared() -> None:
    old = {"a.cu: f<1>": Code(32, 0, 1000, "x"), "a.cu: f<2>": Code(32, 0, 1000, "y"), "a.cu: g": Code(8, 0, 9, "z")}
    new = {"a.cu: f<1>": Code(32, 0, 1000, "x"), "a.cu: f<2>": Code(41, 0, 1000, "w")}
    table, notes = compare_cubins.report(old, new)
    assert table.splitlines()[1].split()[:4] == ["a.cu:", "f", "2", "1"]
    assert [note.partition(": ")[0] for note in notes] == ["only in one tree", "worse"]
    assert compare_cubins.report(new, new)[1] == []
    assert not compare_cubins.is_worse(Code(33, 0, 1000, "x"), Code(40, 0, 1020, "y"))  # as many warps fit
    assert compare_cubins.is_worse(Code(32, 0, 1000, "x"), Code(32, 4, 1000, "y"))
    assert compare_cubins.is_worse(Code(32, 0, 1000, "x"), Code(32, 0, 1040, "y"))


def test_a_compile_error_contains_the_message_of_the_compiler() -> None:
    try:
        compile_nvidia.load_nvrtc()
    except ImportError as error:
        pytest.skip(str(error))
    with pytest.raises(RuntimeError, match="undeclared"):
        compile_nvidia.compile_cubin("__global__ void broken(int *out) { *out = undeclared; }", [], ("-arch=sm_90",))
