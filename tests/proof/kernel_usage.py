"""The registers and memory that a compiled kernel uses; compile_nvidia.py and compile_amd.py read them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import walk_packages

import numpy as np

from gsparse.kernels.steps import Multiplication, Program, Step

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
        Number of vector registers of a thread.
    spilled : int
        Number of bytes (NVIDIA) or registers (AMD) that are kept in memory because registers did not suffice.
    local_bytes : int
        Bytes of the stack of a thread, which cause memory traffic.
    shared_bytes : int
        Bytes of static shared memory of a block.
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
    """Group the catalogue by source file, and add the sources that solvers generate at run time."""
    from gsparse.kernels.gpu import instantiations
    from gsparse.kernels.gpu.iteration_source import iteration_name, iteration_writer
    from gsparse.kernels.gpu.step_source import step_names, step_source

    grouped: dict[str, list[str]] = defaultdict(list)
    for source, expression in instantiations(lanes):
        grouped[source].append(expression)
    for program in solver_programs():
        names = (name for dtype in STEP_DTYPES for name in step_names(program, np.dtype(dtype)))
        grouped[step_source(program)] = list(names)
        if program.name in ITERATIONS:
            operations = operations_of(program)
            grouped[iteration_writer(program, operations).source] = [
                iteration_name(program, np.dtype(dtype), np.dtype(np.int32), 512, rows)
                for dtype in STEP_DTYPES
                for rows in (1, 2)
            ]
    return dict(grouped)


# The iterations of solvers that run as one kernel: steps, and products "source>target".
ITERATIONS = {
    "cg": "p>q curvature update direction",
    "cg_single_reduction": "r>w weigh advance",
    "bicgstab": "half r>t stabilize update p>v project",
    "chebyshev": "d>q update advance",
}


def operations_of(program: Program) -> tuple[Step | Multiplication, ...]:
    """Return the operations of a solver's iteration."""
    steps = {step.name: step for step in program.steps}
    names = ITERATIONS[program.name].split()
    return tuple(Multiplication(*name.split(">")) if ">" in name else steps[name] for name in names)


def compilations(lanes: int, architectures: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """List (architecture, source, expressions) of all compilations.

    Products that also compute partial sums of conj(x)·y differ little from the others, and are compiled for the last
    architecture only.
    """
    from gsparse.kernels.gpu.launch import leaves_dots

    jobs = []
    for source, expressions in sources_and_expressions(lanes).items():
        plain = [name for name in expressions if not leaves_dots(name)]
        jobs += [(architecture, source, plain) for architecture in architectures[:-1]]
        jobs.append((architectures[-1], source, expressions))
    return jobs


def solver_programs() -> list[Program]:
    """Return the program of every solver, for which kernels are generated."""
    import gsparse.linalg as package

    names = (found.name for found in walk_packages(package.__path__, f"{package.__name__}."))
    found = {id(p): p for name in names for p in vars(import_module(name)).values() if isinstance(p, Program)}
    return sorted(found.values(), key=lambda program: program.name)


def file_of(source: str) -> str:
    """Return a readable name of a source: its file, or the method for which it was generated."""
    return source if source.endswith(".cu") else source.partition("\n")[0].removeprefix("// ")


# Bytes per thread, stored and loaded (of AMD's compiler, spilled registers). ptxas spills a few words if another block
# can then run on the same multiprocessor; NVRTC 13.5 spills up to eight. Launch bounds of one block for each
# multiprocessor prevent all spills, with 56 to 64 registers instead of 32 to 40, but made 7-point products 15 to 60 %
# slower on an H200. An array in local memory would take hundreds of bytes.
MAX_SPILLED, MAX_LOCAL = 128, 40
# At the end of a solver's pass, one thread computes scalars. LLVM keeps some complex ones in memory.
MAX_STEP_LOCAL = 96
# Kernels of whole iterations hold all scalars and vectors of a solve. Complex ones spill some of them, and so does
# BiCGStab in float64 with four rows a thread, which is faster on an H200 than a CUDA graph nevertheless.
MAX_ITERATION_SPILLED, MAX_ITERATION_LOCAL = 1024, 224


def complaints(usages: Iterable[KernelUsage]) -> list[str]:
    """Return a message for each kernel that exceeds the limits of spilled words or of local memory."""
    return [
        f"{u.architecture} {u.expression} ({u.source}): {u.spilled} spilled, {u.local_bytes} bytes of local memory"
        for u in usages
        for most_spilled, most_local in [_limits(u)]
        if u.spilled > most_spilled or u.local_bytes > most_local
    ]


def _limits(usage: KernelUsage) -> tuple[int, int]:
    """Return how much a kernel may spill, and how much local memory it may have."""
    if usage.template.endswith("_iterations"):
        return MAX_ITERATION_SPILLED, MAX_ITERATION_LOCAL
    return MAX_SPILLED, MAX_LOCAL if usage.source.endswith(".cu") else MAX_STEP_LOCAL


def table(usages: Iterable[KernelUsage]) -> str:
    """Return a table with a line for each kernel template and architecture, of the largest number of each kind."""
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
