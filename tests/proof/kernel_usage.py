"""What a compiled kernel uses of its processor, read by compile_nvidia.py and compile_amd.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import walk_packages

import numpy as np

from gsparse.kernels.steps import Program

__all__ = [
    "KernelUsage",
    "compilations",
    "complaints",
    "file_of",
    "solver_programs",
    "sources_and_expressions",
    "table",
]

STEP_DTYPES = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class KernelUsage:
    """Resources of one instantiation on one architecture.

    Attributes
    ----------
    architecture : str
        "sm_90", "gfx942".
    source, expression : str
        As in the catalogue.
    registers : int
        Vector registers a thread.
    spilled : int
        Bytes (NVIDIA) or registers (AMD) that did not fit and go through memory.
    local_bytes : int
        Stack a thread: memory traffic that nobody asked for.
    shared_bytes : int
        Static shared memory a block.
    """

    architecture: str
    source: str
    expression: str
    registers: int
    spilled: int
    local_bytes: int
    shared_bytes: int

    @property
    def template(self) -> str:
        return self.expression.partition("<")[0]


def sources_and_expressions(lanes: int) -> dict[str, list[str]]:
    """Group the catalogue by source file, and add what solvers write at run time, by its text."""
    from gsparse.kernels.gpu.catalogue import instantiations
    from gsparse.kernels.gpu.step_source import step_names, step_source

    grouped: dict[str, list[str]] = defaultdict(list)
    for source, expression in instantiations(lanes):
        grouped[source].append(expression)
    for program in solver_programs():
        names = (name for dtype in STEP_DTYPES for name in step_names(program, np.dtype(dtype)))
        grouped[step_source(program)] = list(names)
    return dict(grouped)


def compilations(lanes: int, architectures: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """Give (architecture, source, expressions) of all that is compiled, products with dots for the last one only."""
    jobs = []
    for source, expressions in sources_and_expressions(lanes).items():
        wanted = architectures[-1:] if source.endswith("_dots.cu") else architectures
        jobs += [(architecture, source, expressions) for architecture in wanted]
    return jobs


def solver_programs() -> list[Program]:
    """Give the program of every solver there is."""
    import gsparse.linalg as package

    names = (found.name for found in walk_packages(package.__path__, f"{package.__name__}."))
    found = {id(p): p for name in names for p in vars(import_module(name)).values() if isinstance(p, Program)}
    return sorted(found.values(), key=lambda program: program.name)


def file_of(source: str) -> str:
    """Name a source for people: a file, or the method whose passes were written at run time."""
    return source if source.endswith(".cu") else source.partition("\n")[0].removeprefix("// ")


# Bytes a thread. ptxas spills a word or two where that lets another block run beside; launch bounds that forbid it (one
# block a multiprocessor: no spill anywhere, 56 to 64 registers instead of 32 to 40) made 7-point products 15 to 60 %
# slower on an H200. An array in local memory would be hundreds of bytes.
MAX_SPILLED, MAX_LOCAL = 64, 32
# A solver's pass ends with scalars that one thread computes; LLVM keeps some complex ones in memory.
MAX_STEP_LOCAL = 96


def complaints(usages: Iterable[KernelUsage]) -> list[str]:
    """Name the kernels that spill, or keep local memory, more than a few words."""
    return [
        f"{u.architecture} {u.expression} ({u.source}): {u.spilled} spilled, {u.local_bytes} bytes of local memory"
        for u in usages
        if u.spilled > MAX_SPILLED or u.local_bytes > (MAX_LOCAL if u.source.endswith(".cu") else MAX_STEP_LOCAL)
    ]


def table(usages: Iterable[KernelUsage]) -> str:
    """Write a line for each kernel template and architecture, with the most that any instantiation uses."""
    grouped: dict[tuple[str, str, str], list[KernelUsage]] = defaultdict(list)
    for usage in usages:
        grouped[usage.source, usage.template, usage.architecture].append(usage)
    columns = "{:<18} {:<22} {:<8} {:>5} {:>9} {:>7} {:>7} {:>7}"
    lines = [columns.format("source", "kernel", "arch", "count", "registers", "spilled", "local", "shared")]
    for key, members in grouped.items():
        most = [
            max(getattr(u, name) for u in members) for name in ("registers", "spilled", "local_bytes", "shared_bytes")
        ]
        lines.append(columns.format(*key, len(members), *most))
    return "\n".join(lines)
