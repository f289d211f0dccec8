"""The language of `gsparse.kernels.steps` as CUDA C++.

A kernel a step. Sums that the step's own `after` reads are added up by the last of its blocks to arrive. All others are
left as partial sums, one a block: whoever reads them adds them up first, each block on its own and in the same order,
which costs less than waiting for the last block where vectors are short. An `after` that needs no sum of its own step
is done by the first block at once. Where sums have to be added up over several ranks in between, a step of the first
kind is two kernels: one that leaves all its sums, and its `after`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import count

import numpy as np

from gsparse.kernels.gpu.expressions import expression
from gsparse.kernels.steps import Assignment, Program, Step, names_in

__all__ = ["finished_sums", "is_split", "pending_read", "step_names", "step_source"]

# Elements that a thread has in flight.
_ELEMENTS = 2

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Eq: "==", ast.NotEq: "!=", ast.And: "&&", ast.Or: "||",
}  # fmt: skip


@cache
def pending_read(program: Program, step: Step) -> tuple[str, ...]:
    """Give the sums of other steps that a step adds up before it begins."""
    read = step.reads("before", "each", "sums", "after")
    return tuple(name for name in read if name in program.pending and name not in step.targets("sums"))


def finished_sums(step: Step) -> bool:
    """Tell whether a step's `after` has to wait for all of the pass."""
    own = any(name in step.targets("sums") for name in step.reads("after"))
    return own or ("stop" in step.targets("after") and not step.loose)


def is_split(step: Step) -> bool:
    """Tell whether a step whose sums are added up over ranks needs a kernel for its `after`."""
    return bool(step.targets("sums")) and finished_sums(step)


@cache
def step_source(program: Program) -> str:
    """Write all steps of a program, a kernel each."""
    return f'// steps of {program.name}\n#include "steps.cuh"\n' + "\n".join(
        _kernels(program, step) for step in program.steps
    )


def step_names(program: Program, dtype: np.dtype[np.generic]) -> list[str]:
    """Give the name expressions of all kernels of a program for vectors of a dtype."""
    kinds = ((step, kind) for step in program.steps for kind in (*_kinds(step), *["_after"][: is_split(step)]))
    return [expression(f"{program.name}_{step.name}{kind}", dtype) for step, kind in kinds]


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


_CELLS = "C *cells, int num_cells, double *history, int capacity"
_WIDE = "typename Wide<T>::type *"


def _kernels(program: Program, step: Step) -> str:
    vectors, sums, pending = program.vectors_of(step), step.targets("sums"), pending_read(program, step)
    name, num_sums = f"{program.name}_{step.name}", max(len(sums), 1)
    written = [v for v in vectors if v in step.targets("each")]
    reads = [v for v in vectors if v in step.reads("each", "sums")]
    early = [c for c in program.cells_read(step, "before", "each", "sums") if c not in pending]
    spelt = {c: f"c_{c}" for c in (*early, *pending, *step.targets("before"))}
    before = _load_cells(program, early) + _scalars(step.sections["before"], spelt, {*early, *pending})
    # Scalars of elements, in the elements' type.
    scalars = {n for a in step.sections["each"] for n in names_in(a.value) if n in spelt}
    before += "".join(f"  const T t_{n} = Narrow<T>::from(c_{n});\n" for n in sorted(scalars))
    arguments = "".join(f", {'' if v in written else 'const '}T *__restrict__ v_{v}" for v in vectors)
    arguments += "".join(f", const C *p_{n}, int n_{n}" for n in pending) + "".join(f", C *o_{n}" for n in sums)
    given = "".join(f", c_{n}" for n in pending)
    totals = "".join(f"  const C c_{n} = gs_total(p_{n}, n_{n}, shared);\n" for n in pending)
    outputs = ", ".join(f"o_{n}" for n in sums) or "nullptr"
    index = f"      const long long i = {_place(step, 'place')};\n" if written else ""
    return f"""
template <class T, class C>
__device__ __forceinline__ void gs_{name}_after(const C *sum{"".join(f", C c_{n}" for n in pending)}, C *cells,
                                                double *history, int capacity) {{
{_after(program, step, pending)}}}

template <class T, bool IS_SPLIT, class C>
__device__ __forceinline__ void gs_{name}(long long n{arguments}, unsigned *arrivals, {_CELLS}, C *shared,
                                          int *is_last) {{
  cells += blockIdx.y * num_cells;
  history += static_cast<long long>(blockIdx.y) * capacity;
  if (gs_real(cells[0]) != 0) return;
{totals}{before}  C sum[{num_sums}];
  for (int s = 0; s < {num_sums}; ++s) sum[s] = Scalar<C>::zero();
  const long long first = blockIdx.y * n, step = static_cast<long long>(gridDim.x) * blockDim.x;
  (void)first;
  for (long long start = gs_thread(); start < n; start += {_ELEMENTS} * step) {{
{_loads(step, reads)}#pragma unroll
    for (int u = 0; u < {_ELEMENTS}; ++u) {{
      const long long place = start + u * step;
      if (place >= n) continue;
{index}{_element(step, vectors, reads, written, spelt)}    }}
  }}
{_ending(step, name, given, outputs)}}}
{"".join(_entry(name, kind, arguments, _passed(vectors, pending, sums), num_sums) for kind in _kinds(step))}
{_after_kernel(name, sums, pending, given) if is_split(step) else ""}"""


def _kinds(step: Step) -> tuple[str, ...]:
    return ("", "_leave") if is_split(step) else ("",)


def _entry(name: str, kind: str, arguments: str, passed: str, num_sums: int) -> str:
    """Write the kernel of a pass."""
    return f"""
template <class T>
GS_KERNEL_OF(256) {name}{kind}(long long n{arguments.replace("C *", _WIDE)}, unsigned *arrivals,
  {_CELLS.replace("C *", _WIDE)}) {{
  GS_SHARED(typename Wide<T>::type, shared, {num_sums} * GS_MAX_WARPS);
  GS_SHARED(int, is_last, 1);
  gs_{name}<T, {"true" if kind else "false"}>(n{passed}, arrivals, cells, num_cells, history, capacity, shared,
                      is_last);
}}
"""


def _after_kernel(name: str, sums: Iterable[str], pending: Iterable[str], given: str) -> str:
    """Write the kernel of a step's `after`: a block a right-hand side, which adds up the sums that it is given."""
    read = [*sums, *(n for n in pending if n not in sums)]
    arguments = "".join(f"const C *p_{n}, int n_{n}, " for n in read)
    totals = "".join(f"  const C c_{n} = gs_total(p_{n}, n_{n}, shared);\n" for n in read)
    own = ", ".join(f"c_{n}" for n in sums)
    return f"""
template <class T>
GS_KERNEL_OF(256) {name}_after({arguments.replace("C *", _WIDE)}{_CELLS.replace("C *", _WIDE)}) {{
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_MAX_WARPS);
  cells += blockIdx.y * num_cells;
  history += static_cast<long long>(blockIdx.y) * capacity;
  if (gs_real(cells[0]) != 0) return;
{totals}  const C sum[] = {{{own}}};
  if (threadIdx.x == 0) gs_{name}_after<T>(sum{given}, cells, history, capacity);
}}
"""


def _passed(vectors: Iterable[str], pending: Iterable[str], sums: Iterable[str]) -> str:
    names = (*(f"v_{v}" for v in vectors), *(f"p_{n}, n_{n}" for n in pending), *(f"o_{n}" for n in sums))
    return "".join(f", {name}" for name in names)


def _ending(step: Step, name: str, given: str, outputs: str) -> str:
    """Write what follows the elements: partial sums out, and `after` by whoever may do it."""
    num_sums = len(step.targets("sums"))
    after = f"gs_{name}_after<T>(sum{given}, cells, history, capacity);" if step.after else ""
    text = "  (void)arrivals; (void)is_last; (void)shared; (void)sum; (void)history;\n"
    if not finished_sums(step):
        if num_sums:
            text += f"  C *const outputs[] = {{{outputs}}};\n  gs_leave_sums<{num_sums}>(sum, outputs, shared);\n"
        return text + (f"  if (blockIdx.x == 0 && threadIdx.x == 0) {after}\n" if after else "")
    count = max(num_sums, 1)
    pointers = outputs if num_sums else ""
    text += f"  C *const outputs[{count}] = {{{pointers}}};\n"
    if num_sums:
        text += f"  if (IS_SPLIT) {{\n    gs_leave_sums<{num_sums}>(sum, outputs, shared);\n    return;\n  }}\n"
    return text + f"  if (gs_finish_sums<{num_sums}>(sum, outputs, arrivals, shared, is_last)) {after}\n"


def _load_cells(program: Program, names: Iterable[str]) -> str:
    return "".join(f"  C c_{name} = cells[{program.cells[name]}];\n" for name in names)


def _scalars(assignments: tuple[Assignment, ...], spelt: dict[str, str], known: set[str]) -> str:
    """Write assignments to scalars, each declared where it first stands."""
    write, lines = _Writer("C", spelt), []
    for assignment in assignments:
        if not assignment.target:
            argument = assignment.value.args[0]  # type: ignore[attr-defined]
            place = "history[static_cast<long long>(gs_real(c_iteration)) % capacity]"
            lines.append(f"  {place} = gs_real({write(argument)});\n")
            continue
        declared = "" if assignment.target in known else "C "
        known.add(assignment.target)
        lines.append(f"  {declared}c_{assignment.target} = {write(assignment.value)};\n")
    return "".join(lines)


def _after(program: Program, step: Step, pending: tuple[str, ...]) -> str:
    read = [name for name in program.cells_read(step, "after") if name not in pending]
    if any(not a.target for a in step.sections["after"]) and "iteration" not in read:
        read.append("iteration")
    sums, kept = step.targets("sums"), step.targets("after")
    spelt = {name: f"c_{name}" for name in (*read, *pending, *sums, *kept)}
    text = "".join(f"  C c_{name} = sum[{i}];\n" for i, name in enumerate(sums)) + _load_cells(program, read)
    text += _scalars(step.sections["after"], spelt, {*read, *pending, *sums})
    text += "".join(f"  cells[{program.cells[name]}] = c_{name};\n" for name in kept)
    unused = "".join(f" (void)c_{name};" for name in (*pending, *sums))
    return text + f"  (void)sum; (void)history; (void)capacity; (void)cells;{unused}\n"


def _place(step: Step, walked: str) -> str:
    return f"first + n - 1 - ({walked})" if step.backward else f"first + ({walked})"


def _loads(step: Step, reads: list[str]) -> str:
    if not reads:
        return ""
    load = "".join(f"      e_{v}[u] = v_{v}[i];\n" for v in reads)
    return (
        "".join(f"    T e_{v}[{_ELEMENTS}];\n" for v in reads)
        + f"#pragma unroll\n    for (int u = 0; u < {_ELEMENTS}; ++u) {{\n"
        + "      const long long place = start + u * step;\n"
        + f"      const long long i = {_place(step, 'place < n ? place : start')};\n"
        + load
        + "    }\n"
    )


def _element(step: Step, vectors: tuple[str, ...], reads: list[str], written: list[str], spelt: dict[str, str]) -> str:
    names = {**{n: f"t_{n}" for n in spelt}, **{v: f"l_{v}" for v in (*vectors, *step.targets("each"))}}
    write, known = _Writer("T", names), set(reads)
    text = "".join(f"      T l_{v} = e_{v}[u];\n" for v in reads)
    for a in step.sections["each"]:
        text += f"      {'' if a.target in known else 'T '}l_{a.target} = {write(a.value)};\n"
        known.add(a.target)
    text += "".join(f"      v_{v}[i] = l_{v};\n" for v in written)
    wide, used = {}, sorted({n for a in step.sections["sums"] for n in names_in(a.value)})
    for number, n in zip(count(), used, strict=False):
        wide[n] = f"w_{number}" if n in known else spelt[n]
        text += f"      const C w_{number} = Widen<C>::from(l_{n});\n" if n in known else ""
    write = _Writer("C", wide)
    return text + "".join(
        f"      sum[{i}] = sum[{i}] + {write(a.value)};\n" for i, a in enumerate(step.sections["sums"])
    )
