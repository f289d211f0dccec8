"""Passes of solvers as CUDA C++ (contract: `gsparse.kernels`; language: `gsparse.kernels.steps`)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from gsparse._typing import Array
from gsparse.device import Device
from gsparse.kernels.gpu.catalogue import expression
from gsparse.kernels.steps import Assignment, Program, Step, names_in

__all__ = ["bind_step", "step_names", "step_source"]

_THREADS = 256
# Blocks of a pass at most: enough to fill any GPU; a thread then walks on, and the sums of so many blocks are quickly
# added up.
_MAX_BLOCKS = 1024
# Elements that a thread has in flight.
_ELEMENTS = 4

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Eq: "==", ast.NotEq: "!=", ast.And: "&&", ast.Or: "||",
}  # fmt: skip


class _Writer:
    """Writes expressions in one type, with names spelt as `names` says."""

    def __init__(self, type_name: str, names: Mapping[str, str]) -> None:
        self.type_name, self.names = type_name, names

    def __call__(self, node: ast.expr) -> str:  # noqa: PLR0911  (a case a node)
        match node:
            case ast.Name():
                return self.names[node.id]
            case ast.Constant():
                return f"Make<{self.type_name}>::from({float(node.value)!r})"  # type: ignore[arg-type]
            case ast.BinOp():
                return f"({self(node.left)} {_OPERATORS[type(node.op)]} {self(node.right)})"
            case ast.UnaryOp():
                return f"({'!' if isinstance(node.op, ast.Not) else '-'}{self(node.operand)})"
            case ast.Compare():
                sides = [f"gs_real({self(side)})" for side in (node.left, *node.comparators)]
                return f"({sides[0]} {_OPERATORS[type(node.ops[0])]} {sides[1]})"
            case ast.BoolOp():
                return "(" + f" {_OPERATORS[type(node.op)]} ".join(map(self, node.values)) + ")"
            case ast.IfExp():
                return f"({self(node.test)} ? {self(node.body)} : {self(node.orelse)})"
            case ast.Call(func=ast.Name(id="real")):
                return f"Make<{self.type_name}>::from(gs_real({self(node.args[0])}))"
            case ast.Call(func=ast.Name(id=function)):
                return f"gs_{function}({self(node.args[0])})"
        raise SyntaxError(ast.dump(node))


@cache
def step_source(program: Program) -> str:
    """Write all steps of a program: a kernel of the pass, and one of what comes after sums added up elsewhere."""
    return '#include "steps.cuh"\n' + "\n".join(_kernels(program, step) for step in program.steps)


def step_names(program: Program, dtype: np.dtype[Any]) -> list[str]:
    """Give the name expressions of all kernels of a program for vectors of a dtype."""
    found = []
    for step in program.steps:
        found += [expression(f"{program.name}_{step.name}", dtype, split) for split in (0, 1)]
        found.append(expression(f"{program.name}_{step.name}_after", dtype))
    return found


_KEPT = "typename Wide<T>::type *cells, double *history, int capacity"
_CELLS = "typename Wide<T>::type *cells, int num_cells, double *history, int capacity"


def _kernels(program: Program, step: Step) -> str:
    vectors, sums = program.vectors_of(step), step.targets("sums")
    name, num_sums = f"{program.name}_{step.name}", max(len(sums), 1)
    written = [v for v in vectors if v in step.targets("each")]
    pointers = "".join(f", {'' if v in written else 'const '}T *__restrict__ v_{v}" for v in vectors)
    cells_early = program.cells_read(step, "before", "each", "sums")
    spelt = {c: f"c_{c}" for c in (*cells_early, *step.targets("before"))}
    before = _load_cells(program, cells_early) + _scalars(step.sections["before"], spelt, set(cells_early))
    # Scalars of elements, in the elements' type.
    scalars = {n for a in step.sections["each"] for n in names_in(a.value) if n in spelt}
    before += "".join(f"  const T t_{n} = Narrow<T>::from(c_{n});\n" for n in sorted(scalars))
    reads = [v for v in vectors if v in step.reads("each", "sums")]
    after = f"gs_{name}_after<T>(sum, cells, history, capacity);"
    return f"""
template <class T> __device__ void gs_{name}_after(const typename Wide<T>::type *sum, {_KEPT}) {{
  typedef typename Wide<T>::type C;
{_after(program, step)}}}

template <class T, int SPLIT>
GS_KERNEL_OF(256) {name}(long long n{pointers}, typename Wide<T>::type *partials, typename Wide<T>::type *sums,
  unsigned *arrivals, {_CELLS}) {{
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, {num_sums} * GS_STEP_WARPS);
  GS_SHARED(int, is_last, 1);
  cells += blockIdx.y * num_cells;
  history += static_cast<long long>(blockIdx.y) * capacity;
  if (gs_real(cells[0]) != 0) return;
{before}  C sum[{num_sums}];
  for (int s = 0; s < {num_sums}; ++s) sum[s] = Scalar<C>::zero();
  const long long first = blockIdx.y * n, step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long start = gs_thread(); start < n; start += {_ELEMENTS} * step) {{
{_loads(reads)}#pragma unroll
    for (int u = 0; u < {_ELEMENTS}; ++u) {{
      const long long i = start + u * step;
      if (i >= n) continue;
{_element(step, vectors, reads, written, spelt)}    }}
  }}
  const bool is_finished = gs_grid_sums<{num_sums}>(sum, partials, arrivals, shared, is_last);
  if (!is_finished) return;
  if (SPLIT) {{
    for (int s = 0; s < {num_sums}; ++s) sums[blockIdx.y * {num_sums} + s] = sum[s];
  }} else {{
    {after}
  }}
}}

template <class T>
GS_KERNEL_OF(256) {name}_after(const typename Wide<T>::type *sums, {_CELLS}) {{
  if (threadIdx.x) return;
  cells += blockIdx.y * num_cells;
  history += static_cast<long long>(blockIdx.y) * capacity;
  if (gs_real(cells[0]) != 0) return;
  const typename Wide<T>::type *sum = sums + blockIdx.y * {num_sums};
  {after}
}}
"""


def _load_cells(program: Program, names: Any) -> str:
    return "".join(f"  C c_{name} = cells[{program.cells[name]}];\n" for name in names)


def _scalars(assignments: tuple[Assignment, ...], spelt: dict[str, str], known: set[str]) -> str:
    """Write assignments to scalars, each declared where it first stands."""
    write, lines = _Writer("C", spelt), []
    for assignment in assignments:
        if not assignment.target:
            argument = assignment.value.args[0]  # type: ignore[attr-defined]
            lines.append(
                f"  history[static_cast<long long>(gs_real(c_iteration)) % capacity] = gs_real({write(argument)});\n"
            )
            continue
        declared = "" if assignment.target in known else "C "
        known.add(assignment.target)
        lines.append(f"  {declared}c_{assignment.target} = {write(assignment.value)};\n")
    return "".join(lines)


def _after(program: Program, step: Step) -> str:
    read = program.cells_read(step, "after")
    if any(not a.target for a in step.sections["after"]) and "iteration" not in read:
        read = (*read, "iteration")
    sums, kept = step.targets("sums"), step.targets("after")
    spelt = {name: f"c_{name}" for name in (*read, *sums, *kept)}
    text = "".join(f"  C c_{name} = sum[{i}];\n" for i, name in enumerate(sums)) + _load_cells(program, read)
    text += _scalars(step.sections["after"], spelt, {*read, *sums})
    kept = (*kept, *(name for name in sums if name in program.cells and name not in kept))
    text += "".join(f"  cells[{program.cells[name]}] = c_{name};\n" for name in kept)
    return text + "  (void)sum; (void)history; (void)capacity; (void)cells;\n"


def _loads(reads: list[str]) -> str:
    if not reads:
        return ""
    load = "".join(f"      e_{v}[u] = v_{v}[first + k];\n" for v in reads)
    return (
        "".join(f"    T e_{v}[{_ELEMENTS}];\n" for v in reads)
        + f"#pragma unroll\n    for (int u = 0; u < {_ELEMENTS}; ++u) {{\n"
        + "      const long long i = start + u * step, k = i < n ? i : start;\n"
        + load
        + "    }\n"
    )


def _element(step: Step, vectors: Any, reads: list[str], written: list[str], spelt: dict[str, str]) -> str:
    names = {**{n: f"t_{n}" for n in spelt}, **{v: f"l_{v}" for v in (*vectors, *step.targets("each"))}}
    write, known = _Writer("T", names), set(reads)
    text = "".join(f"      T l_{v} = e_{v}[u];\n" for v in reads)
    for a in step.sections["each"]:
        text += f"      {'' if a.target in known else 'T '}l_{a.target} = {write(a.value)};\n"
        known.add(a.target)
    text += "".join(f"      v_{v}[first + i] = l_{v};\n" for v in written)
    wide, used = {}, sorted({n for a in step.sections["sums"] for n in names_in(a.value)})
    for number, n in zip(count(), used):
        wide[n] = f"w_{number}" if n in known else spelt[n]
        text += f"      const C w_{number} = Widen<C>::from(l_{n});\n" if n in known else ""
    write = _Writer("C", wide)
    return text + "".join(
        f"      sum[{i}] = sum[{i}] + {write(a.value)};\n" for i, a in enumerate(step.sections["sums"])
    )


def bind_step(
    device: Device,
    program: Program,
    step: Step,
    vectors: Mapping[str, Array],
    state: Any,
    reduce: Callable[[Array], None] | None = None,
) -> Callable[[], None]:
    """Bind a pass to its arrays: what is left is one launch, or two around `reduce`."""
    names, num_sums = program.vectors_of(step), max(len(step.targets("sums")), 1)
    arrays = [vectors[name] for name in names]
    columns, size = state.columns, (arrays[0].size // state.columns if arrays else 0)
    blocks = max(1, min(-(-size // _THREADS), _MAX_BLOCKS))
    wide, dtype = state.cells.dtype, state.dtype
    partials, sums = device.empty(columns * num_sums * blocks, wide), device.empty(columns * num_sums, wide)
    arrivals = device.xp.zeros(columns, np.uint32)
    source = step_source(program)
    cells = (state.cells, np.int32(len(program.cells)), state.history, np.int32(state.capacity))
    split = int(reduce is not None)
    kernel = device.kernel(source, expression(f"{program.name}_{step.name}", dtype, split))
    args = (np.int64(size), *arrays, partials, sums, arrivals, *cells)
    grid = (blocks, columns)

    def launch() -> None:
        kernel(grid, (_THREADS,), args)

    if reduce is None:
        return launch
    after = device.kernel(source, expression(f"{program.name}_{step.name}_after", dtype))

    def launch_around() -> None:
        kernel(grid, (_THREADS,), args)
        reduce(sums)
        after((1, columns), (_THREADS,), (sums, *cells))

    return launch_around
