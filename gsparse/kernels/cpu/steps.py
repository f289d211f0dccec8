"""Passes of solvers as numba loops, and pseudorandom numbers.

The contract and the language of steps are in `gsparse.kernels.steps`. The source of a program's steps is written to a
file in the user's cache directory, because numba caches the compiled code only of functions whose source file exists.
All parts of a pass own the same number of consecutive chunks of elements.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gsparse.device.base import Device
from gsparse.device.cache import cache_folder, make_private, warn_unwritable
from gsparse.device.dtypes import Array
from gsparse.device.threads import is_for_one_thread, run_parts
from gsparse.formats import Csr
from gsparse.kernels.steps import Call, Multiplication, Program, Step, StepState, names_in
from gsparse.writing import replacing

# Number of elements of a chunk. Each chunk has its own sums, so that results do not depend on the number of threads.
_CHUNK = 4096

_HEAD = f'''"""Written by gsparse.kernels.cpu.steps; may be deleted."""
import numpy as np
from gsparse.kernels.cpu.compiling import compiled_loosely
from gsparse.kernels.cpu.instructions import divide_scalars
from gsparse.kernels.cpu.jit import jitted, subroutine

CHUNK = {_CHUNK}


@subroutine
def total(partials):
    result = partials.dtype.type(0)
    for chunk in range(partials.size):
        result += partials[chunk]
    return result


@jitted
def totals(partials, sums):
    for s in range(sums.size):
        sums[s, 0] = total(partials[s])
'''

# Odd factors of hashes, whose multiples modulo 2³² have pseudorandom bits (Knuth; the finalizer of MurmurHash3).
MULTIPLIERS = (2654435761, 0x85EBCA6B)


class _Writer(ast.NodeTransformer):
    """Rewrites an expression of a step with the names and functions of the generated source."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.names.get(node.id, node.id), ast.Load())

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Div):
            return ast.Call(ast.Name("divide_scalars", ast.Load()), [left, right], [])
        return ast.BinOp(left, node.op, right)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        sides: list[ast.expr] = [
            ast.Attribute(self.visit(side), "real", ast.Load()) for side in (node.left, *node.comparators)
        ]
        return ast.Compare(sides[0], node.ops, sides[1:])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        argument, function = ast.unparse(self.visit(node.args[0])), getattr(node.func, "id", "")
        patterns = {"sqrt": "np.sqrt(({}).real)", "real": "({}).real", "abs2": "(np.conj({0}) * ({0})).real"}
        text = patterns.get(function, f"np.{function}({{}})").format(argument)
        return ast.parse(text, mode="eval").body


def _write(value: ast.expr, names: Mapping[str, str]) -> str:
    return ast.unparse(_Writer(names).visit(ast.parse(ast.unparse(value), mode="eval").body))


@cache
def step_source(program: Program) -> str:
    """Return the source of a program. Each step has two functions: one for its pass, and one for its `after`."""
    return _HEAD + "".join(_functions(program, step) for step in program.steps)


def _functions(program: Program, step: Step) -> str:
    vectors, sums = program.vectors_of(step), step.targets("sums")
    early = program.cells_read(step, "before", "each", "sums")
    symbols = {name: f"c_{name}" for name in (*early, *step.targets("before"))}
    before = [f"c_{name} = cells[{program.cells[name]}]" for name in early]
    before += [f"c_{a.target} = {_write(a.value, symbols)}" for a in step.sections["before"]]
    kind = f"v_{vectors[0]}.dtype.type" if vectors else "np.float64"
    scalars = {n for a in step.sections["each"] for n in names_in(a.value) if n in symbols}
    before += [f"t_{name} = {kind}(c_{name})" for name in sorted(scalars)]
    before += [f"sum_{name} = partials.dtype.type(0)" for name in sums]
    narrow = {**{n: f"t_{n}" for n in scalars}, **{v: f"l_{v}" for v in (*vectors, *step.targets("each"))}}
    each = [f"l_{v} = v_{v}[i]" for v in vectors if v in step.reads("each", "sums")]
    for a in step.sections["each"]:
        each.append(f"l_{a.target} = {kind}({_write(a.value, narrow)})")
    each += [f"v_{v}[i] = l_{v}" for v in vectors if v in step.targets("each")]
    wide = {**symbols, **{n: f"partials.dtype.type(l_{n})" for n in (*vectors, *step.targets("each"))}}
    each += [f"sum_{a.target} += {_write(a.value, wide)}" for a in step.sections["sums"]]
    body = "\n                ".join(each) or "pass"
    closing = "".join(f"\n            partials[{s}, chunk] = sum_{name}" for s, name in enumerate(sums))
    arguments = "".join(f", v_{name}" for name in vectors)
    head = "".join(f"{line}\n            " for line in before)
    head += "for i in range(np.uint64(chunk * CHUNK), np.uint64(min((chunk + 1) * CHUNK, n))):"
    return f"""

@compiled_loosely
def pass_{step.name}(part, num_parts, n, cells, partials{arguments}):
    if cells[0].real == 0 and n > 0:
        num_chunks = (n + CHUNK - 1) // CHUNK
        for chunk in range(part * num_chunks // num_parts, (part + 1) * num_chunks // num_parts):
            {head}
                {body}{closing}


@jitted
def after_{step.name}(partials, cells, history):
    if cells[0].real != 0:
        return
    {_after(program, step)}
"""


def _after(program: Program, step: Step) -> str:
    sums = step.targets("sums")
    read = dict.fromkeys((*program.cells_read(step, "after"), "iteration"))
    results = dict.fromkeys((*step.targets("after"), *sums))
    symbols = {name: f"c_{name}" for name in (*read, *results)}
    lines = [f"c_{name} = total(partials[{s}])" for s, name in enumerate(sums)]
    lines += [f"c_{name} = cells[{program.cells[name]}]" for name in read]
    for a in step.sections["after"]:
        if a.target:
            lines.append(f"c_{a.target} = cells.dtype.type({_write(a.value, symbols)})")
        else:
            argument = a.value.args[0]  # type: ignore[attr-defined]
            lines.append(f"history[np.int64(c_iteration.real) % history.size] = ({_write(argument, symbols)}).real")
    lines += [f"cells[{program.cells[name]}] = c_{name}" for name in results if name in program.cells]
    return "\n    ".join(lines)


@cache
def _module(program: Program) -> Any:
    """Write the loops of a program to a file, and return them as a module."""
    source = step_source(program)
    name = f"gsparse_{program.name}_{sha256(source.encode()).hexdigest()[:16]}"
    module = sys.modules[name] = ModuleType(name)
    exec(compile(source, _written(f"{name}.py", source), "exec"), vars(module))
    return module


def _written(name: str, source: str) -> str:
    """Write a file to the cache directory, and return its path. If this fails, warn, and return an invented name."""
    try:
        return str(_write_once(make_private(cache_folder() / "steps") / name, source))
    except OSError as error:
        warn_unwritable(error)
        return f"<{name}>"


def _write_once(path: Path, source: str) -> Path:
    """Write a file unless it has this content. Another process may write the same file at the same time."""
    if not path.exists() or path.read_text("utf-8") != source:
        with replacing(path) as file:
            file.write(source.encode())
    return path


def compile_steps(device: Device, program: Program, dtype: np.dtype[Any]) -> None:
    """Do nothing, because numba compiles each loop at its first call."""


def bind_step(
    device: Device,
    program: Program,
    step: Step,
    vectors: Mapping[str, Array],
    state: StepState,
) -> Call:
    """Return a call that runs a step for all right-hand sides."""
    module, names = _module(program), program.vectors_of(step)
    pass_over, after = getattr(module, f"pass_{step.name}"), getattr(module, f"after_{step.name}")
    num_sums, columns = len(step.targets("sums")), state.columns
    size = vectors[names[0]].size // columns if names else 0
    partials = device.empty((num_sums, -(-size // _CHUNK)), state.cells.dtype)
    # With several ranks, `reduce` adds up the sums of all ranks, for all columns in one call.
    reduce = state.reduce if num_sums else None
    sums = device.empty((columns, num_sums, 1), state.cells.dtype)
    cells, history = state.cells.reshape(columns, -1), state.history.reshape(columns, -1)
    arrays = [[vectors[name].reshape(columns, -1)[column] for name in names] for column in range(columns)]
    cost = size * max(1, len(names)) // 2
    is_alone = is_for_one_thread(pass_over, cost)
    run_pass = partial(pass_over, 0, 1) if is_alone else partial(run_parts, pass_over, cost)
    of_columns = list(zip(sums, cells, history, arrays, strict=True))

    def run() -> None:
        for column_sums, column_cells, column_history, column_arrays in of_columns:
            run_pass(size, column_cells, partials, *column_arrays)
            if reduce is None:
                after(partials, column_cells, column_history)
            else:
                module.totals(partials, column_sums)
        if reduce is not None:
            reduce(sums)
            for column_sums, column_cells, column_history, _ in of_columns:
                after(column_sums, column_cells, column_history)

    return run


def bind_iterations(
    device: Device,
    program: Program,
    operations: tuple[Step | Multiplication, ...],
    csr: Csr,
    width: int,
    vectors: Mapping[str, Array],
    state: StepState,
    turns: int,
) -> Call | None:
    """Return None, because a single kernel would not be faster on a CPU."""
    return None


def bind_dots(device: Device, state: StepState, name: str, num_dots: int) -> tuple[Array, Call | None]:
    """Return an array for partial sums, and a call that adds them up and stores the sum in the cell `name`."""
    dots = device.empty(num_dots, state.cells.dtype)
    place = state.program.cells[name]
    total = state.cells[place : place + 1]

    def add_up() -> None:
        total[0] = dots.sum()
        if state.reduce is not None:
            state.reduce(total)

    return dots, add_up


def fill_hashes(device: Device, out: Array, offset: int) -> None:
    """Write the pseudorandom number of each element, with NumPy."""
    hashes = np.arange(1, out.size + 1, dtype=np.uint32)
    hashes += np.uint32(offset % 2**32)
    for multiplier in MULTIPLIERS:
        hashes *= np.uint32(multiplier)
        hashes ^= hashes >> np.uint32(16)
    out[...] = hashes * np.float64(2.0**-32) - 0.5
