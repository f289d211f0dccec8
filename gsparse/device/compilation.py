"""CUDA sources and how they are compiled at run time, through NVRTC or hipRTC."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["SOURCE_FOLDER", "compile_kernel", "compile_options", "kernel_source"]

SOURCE_FOLDER = Path(__file__).parent.parent / "kernels" / "gpu" / "src"


@cache
def kernel_source(name: str) -> str:
    """Read a CUDA source with its headers inlined: a file's name, or the text of one written at run time.

    CuPy's disk cache keys on source and options, not on headers found through -I: inlined, a changed header is a
    changed source.
    """
    seen: set[str] = set()

    def expand(file: str) -> str:
        seen.add(file)
        lines = []
        text = (SOURCE_FOLDER / file).read_text() if file.endswith((".cu", ".cuh", ".h")) else file
        for line in text.splitlines():
            header = line.removeprefix('#include "').removesuffix('"') if line.startswith('#include "') else ""
            if not (SOURCE_FOLDER / header).is_file():
                lines.append("" if line == "#pragma once" else line)
            elif header not in seen:
                lines.append(expand(header))
        return "\n".join(lines)

    return expand(name)


def compile_options(lanes: int) -> tuple[str, ...]:
    """Give the compiler options all kernels share."""
    return ("-std=c++17", f"-DGS_WARP={lanes}")


def compile_kernel(cupy: Any, lanes: int, source: str, expression: str) -> Callable[..., None]:
    """Compile one instantiation for the current device through NVRTC or hipRTC; CuPy keeps it on disk."""
    module = cupy.RawModule(code=kernel_source(source), options=compile_options(lanes), name_expressions=[expression])
    kernel: Callable[..., None] = module.get_function(expression)
    return kernel
