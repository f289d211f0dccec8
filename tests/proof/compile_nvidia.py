"""Compile every instantiation of the catalogue for NVIDIA GPUs, without a GPU, a driver or CuPy.

``python -m tests.proof.compile_nvidia [sm_90 ...]`` prints registers, spills and local memory, and fails if a kernel
exceeds the limits of `kernel_usage.complaints`. Needs the PyPI package nvidia-cuda-nvrtc (`pip install
nvidia-cuda-nvrtc`), the compiler that CuPy uses.
"""

from __future__ import annotations

import ctypes
import os
import re
import site
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from gsparse.device.compilation import compile_options, kernel_source

from .kernel_usage import KernelUsage, compilations, complaints, file_of, table

__all__ = ["ARCHITECTURES", "CUPY_OPTIONS", "compile_catalogue", "compile_cubin", "load_nvrtc"]

LANES = 32
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")  # A100, H100/H200, B200
# Options that CuPy adds for every kernel (test_cupy_facts.py checks that). -ftz changes results.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")

_ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)'")
_MEMORY = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill"
)
_REGISTERS = re.compile(r"Used (?P<registers>\d+) registers")
_SHARED = re.compile(r"(?P<shared>\d+) bytes smem")


@lru_cache(maxsize=1)
def load_nvrtc() -> ctypes.CDLL:
    """Load NVRTC from the PyPI package.

    Raises
    ------
    ImportError
        If it is not installed.
    """
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        for path in sorted(Path(folder, "nvidia").glob("**/libnvrtc.so.*")):
            if ".alt." not in path.name:
                return ctypes.CDLL(str(path))
    raise ImportError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")


def compile_cubin(source: str, expressions: Sequence[str], options: Sequence[str]) -> tuple[dict[str, str], str]:
    """Compile to machine code, and return the mangled name of each expression and the compiler's log."""
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()

    def check(status: int) -> None:
        if status:
            raise RuntimeError(f"NVRTC failed with status {status}:\n{_log(nvrtc, program)}")

    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None))
    try:
        for expression in expressions:
            check(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        options = (*options, *_caching_options(nvrtc))
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        check(nvrtc.nvrtcCompileProgram(program, len(options), encoded))
        names = {}
        for expression in expressions:
            mangled = ctypes.c_char_p()
            check(nvrtc.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(mangled)))
            names[expression] = (mangled.value or b"").decode()
        return names, _log(nvrtc, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _caching_options(nvrtc: ctypes.CDLL) -> tuple[str, ...]:
    """Return options that let NVRTC compile again what it has compiled before, because only a compilation has a log.

    NVRTC 13 has a cache, which it uses where NVIDIA's driver is installed.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return ("--no-cache",) if major.value >= 13 else ()


def _log(nvrtc: ctypes.CDLL, program: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(max(1, size.value))
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.value.decode()


def read_log(log: str) -> dict[str, tuple[int, int, int, int]]:
    """Read the log of ptxas -v.

    Returns
    -------
    dict
        The number of registers, spilled bytes, stack bytes and shared bytes by the mangled name of the kernel.
    """
    found: dict[str, tuple[int, int, int, int]] = {}
    name, spilled, stack = "", 0, 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name, spilled, stack = entry["name"], 0, 0
        elif memory := _MEMORY.search(line):
            spilled, stack = int(memory["stores"]) + int(memory["loads"]), int(memory["stack"])
        elif used := _REGISTERS.search(line):
            shared = _SHARED.search(line)
            found[name] = int(used["registers"]), spilled, stack, int(shared["shared"]) if shared else 0
    return found


def compile_file(architecture: str, source: str, expressions: Sequence[str]) -> list[KernelUsage]:
    """Compile all of these instantiations of one source file at once, with the options of run time."""
    options = (*compile_options(LANES), *CUPY_OPTIONS, f"-arch={architecture}", "--ptxas-options=-v")
    names, log = compile_cubin(kernel_source(source), expressions, options)
    used = read_log(log)
    file = file_of(source)
    return [KernelUsage(architecture, file, expression, *used[name]) for expression, name in names.items()]


def compile_catalogue(architectures: Sequence[str] = ARCHITECTURES) -> list[KernelUsage]:
    """Compile the whole catalogue for each architecture."""
    load_nvrtc()
    # The longest come first, so that no processor is idle at the end. NVRTC compiles one program at a
    # time in a process, hence several processes.
    jobs = sorted(compilations(LANES, architectures), key=lambda job: -len(job[2]))
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        return [usage for usages in pool.map(compile_file, *zip(*jobs, strict=True)) for usage in usages]


def main() -> None:
    usages = compile_catalogue(sys.argv[1:] or ARCHITECTURES)
    print(table(usages))
    if found := complaints(usages):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
