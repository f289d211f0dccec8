"""Compile every instantiation of the catalogue for AMD GPUs, without a GPU or ROCm: plain clang with hip_bare.h.

``python -m tests.proof.compile_amd [gfx942 ...]`` prints registers, spills and stack, and fails if a kernel exceeds the
limits of `kernel_usage.complaints`. Needs clang++, lld, llvm-readelf and llvm-cxxfilt of one of `CLANG_VERSIONS`
(Debian: clang-19, lld-19, llvm-19); clang 15 crashes on these sources.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from shutil import which
from typing import NamedTuple

from gsparse.device.compilation import compile_options

from .emulator import PROOF_FOLDER, SOURCE_FOLDER
from .kernel_usage import KernelUsage, compilations, complaints, file_of, table

__all__ = ["ARCHITECTURES", "compile_catalogue", "compile_file", "find_tools"]

LANES = 64
ARCHITECTURES = ("gfx90a", "gfx942")  # MI200, MI300
CLANG_VERSIONS = (21, 20, 19)
CLANG_OPTIONS = (
    "-x", "hip", "--offload-device-only", "-nogpuinc", "-nogpulib", "--no-gpu-bundle-output", "-O3", "-Wall", "-Wextra",
    "-Werror", "-DGS_BARE", f"-I{SOURCE_FOLDER}", f"-I{PROOF_FOLDER}", "-c",
)  # fmt: skip


class Tools(NamedTuple):
    """The commands of one LLVM version."""

    clang: str
    readelf: str
    demangle: str


@lru_cache(maxsize=1)
def find_tools() -> Tools:
    """Return the commands of the newest LLVM that is known to work.

    Raises
    ------
    ImportError
        If no version is installed that is new enough.
    """
    for version in CLANG_VERSIONS:
        found = [which(f"{name}-{version}") for name in ("clang++", "llvm-readelf", "llvm-cxxfilt")]
        if all(found):
            return Tools(*(str(command) for command in found))
    raise ImportError("clang++-19 and llvm-readelf-19 are not installed: apt-get install clang-19 lld-19 llvm-19")


def compile_file(architecture: str, source: str, expressions: Sequence[str]) -> list[KernelUsage]:
    """Compile all of these instantiations of one source file at once."""
    tools = find_tools()
    # Taking the address of a kernel instantiates it, so that its signature is not needed here.
    uses = [f"__device__ __attribute__((used)) auto use{k} = &{name};" for k, name in enumerate(expressions)]
    with tempfile.TemporaryDirectory() as folder:
        unit, code = Path(folder, "unit.hip"), Path(folder, "unit.co")
        text = f'#include "{source}"' if source.endswith(".cu") else source
        unit.write_text("\n".join([text, *uses]))
        options = [*CLANG_OPTIONS, *compile_options(LANES), f"--offload-arch={architecture}"]
        result = subprocess.run(
            [tools.clang, *options, str(unit), "-o", str(code)], capture_output=True, text=True, check=False
        )
        if result.returncode:
            raise RuntimeError(f"{file_of(source)} does not compile for {architecture}:\n{result.stderr}")
        notes = subprocess.run([tools.readelf, "--notes", str(code)], capture_output=True, text=True, check=True).stdout
    demangled = subprocess.run([tools.demangle], input=notes, capture_output=True, text=True, check=True).stdout
    used = read_notes(demangled)
    file = file_of(source)
    return [KernelUsage(architecture, file, expression, *used[expression]) for expression in expressions]


def read_notes(notes: str) -> dict[str, tuple[int, int, int, int]]:
    """Read the demangled output of llvm-readelf --notes.

    Returns
    -------
    dict
        The number of vector registers, spilled registers, stack bytes and shared bytes by the name of the kernel.
    """
    found = {}
    kernels = notes.partition("amdhsa.kernels:")[2].partition("amdhsa.target:")[0]
    for kernel in re.split(r"^  - ", kernels, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^    \.(\w+): +(.+)$", kernel, flags=re.MULTILINE))
        expression = fields["name"].removeprefix("void ").partition("(")[0]
        spilled = int(fields["vgpr_spill_count"]) + int(fields["sgpr_spill_count"])
        stack, shared = int(fields["private_segment_fixed_size"]), int(fields["group_segment_fixed_size"])
        found[expression] = int(fields["vgpr_count"]), spilled, stack, shared
    return found


def compile_catalogue(architectures: Sequence[str] = ARCHITECTURES) -> list[KernelUsage]:
    """Compile the whole catalogue for each architecture."""
    find_tools()
    jobs = compilations(LANES, architectures)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [usage for usages in pool.map(lambda job: compile_file(*job), jobs) for usage in usages]


def main() -> None:
    usages = compile_catalogue(sys.argv[1:] or ARCHITECTURES)
    print(table(usages))
    if found := complaints(usages):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
