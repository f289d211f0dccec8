"""CUDA sources, and their compilation at run time through NVRTC or hipRTC."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from gsparse._interrupt import uninterrupted
from gsparse.device.cache import warn_unwritable
from gsparse.device.compile_notice import COMPILE_NOTICE

SOURCE_FOLDER = Path(__file__).parent.parent / "kernels" / "gpu" / "src"


@cache
def kernel_source(name: str) -> str:
    """Return a CUDA source with its headers inlined. `name` is a file, or the text of a source made at run time.

    The keys of CuPy's disk cache contain the source and the options, but not the headers that the compiler includes.
    Because headers are inlined, a change in a header changes the source.
    """
    included: set[str] = set()

    def expand(file: str) -> str:
        included.add(file)
        lines = []
        for line in (_read(file) if file.endswith((".cu", ".cuh", ".h")) else file).splitlines():
            header = line.removeprefix('#include "').removesuffix('"') if line.startswith('#include "') else ""
            if not header or not (SOURCE_FOLDER / header).is_file():
                lines.append("" if line == "#pragma once" else line)
            elif header not in included:
                lines.append(expand(header))
        return "\n".join(lines)

    return expand(name)


@cache
def _read(file: str) -> str:
    return (SOURCE_FOLDER / file).read_text("utf-8")


def compile_options(lanes: int) -> tuple[str, ...]:
    """Return the compiler options of all kernels."""
    return ("-std=c++17", f"-DGS_WARP={lanes}")


def runs_together(source: str) -> bool:
    """Return whether the kernels of a generated source need all of their blocks to run at the same time."""
    return "GS_KERNEL_TOGETHER" in source


def compile_kernel(cupy: Any, lanes: int, source: str, expression: str) -> Callable[..., None]:
    """Compile one instantiation of a kernel for the current device. CuPy stores the result on disk, if it can."""
    module = cupy.RawModule(
        code=kernel_source(source),
        options=compile_options(lanes),
        name_expressions=[expression],
        enable_cooperative_groups=runs_together(source),
    )
    with uninterrupted(), COMPILE_NOTICE:
        try:
            kernel: Callable[..., None] = module.get_function(expression)
        except OSError as error:
            # From now on, CuPy stores no kernels in this process, also none of its own.
            os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
            warn_unwritable(error, "CUPY_CACHE_DIR")
            kernel = module.get_function(expression)
    return kernel
