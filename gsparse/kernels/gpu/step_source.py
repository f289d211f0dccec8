"""Generate CUDA C++ from the language of `gsparse.kernels.steps`: one kernel for each step.

The step that updates the residual in conjugate gradients becomes the following. T is the type of the vectors, C the
double precision (or double complex) type of cells and sums. Blocks along y are right-hand sides.

>>> from gsparse.kernels.steps import Program, Step
>>> step = Step("update", before="alpha = rho / pq", each="r -= alpha * q", sums="rr = abs2(r)",
...             after="rho_new = rr; stop = 1 if rr < limit else 0")
>>> program = Program("example", "r q", (step,))
>>> print(_pass_function(program, step).strip())
template <class T, bool IS_SPLIT, class C>
__device__ __forceinline__ void gs_example_update(
    long long n,
    T *__restrict__ v_r, const T *__restrict__ v_q,
    C *o_rr, unsigned *arrivals,
    C *cells, int num_cells, double *history, int capacity, C *shared, int *is_last) {
  // (1) Nothing is done once the solve has stopped.
  cells += blockIdx.y * num_cells;
  history += static_cast<long long>(blockIdx.y) * capacity;
  if (gs_real(cells[0]) != 0) return;
  // (2) Scalars.
  C c_rho = cells[3];
  C c_pq = cells[4];
  C c_alpha = (c_rho / c_pq);
  const T t_alpha = Narrow<T>::from(c_alpha);
  // (3) Elements.
  C sum[1];
  for (int s = 0; s < 1; ++s) sum[s] = Scalar<C>::zero();
  const long long first = blockIdx.y * n, step = static_cast<long long>(gridDim.x) * blockDim.x;
  (void)first;
  for (long long start = gs_thread(); start < n; start += 2 * step) {
    T e_r[2];
    T e_q[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const long long place = start + u * step;
      const long long i = first + (place < n ? place : start);
      e_r[u] = v_r[i];
      e_q[u] = v_q[i];
    }
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const long long place = start + u * step;
      if (place >= n) continue;
      const long long i = first + (place);
      T l_r = e_r[u];
      T l_q = e_q[u];
      l_r = (l_r - (t_alpha * l_q));
      v_r[i] = l_r;
      const C w_0 = Widen<C>::from(l_r);
      sum[0] = sum[0] + gs_abs2(w_0);
    }
  }
  // (4) Sums and the scalars that follow from them.
  (void)arrivals; (void)is_last; (void)shared; (void)sum; (void)history;
  C *const outputs[1] = {o_rr};
  if (IS_SPLIT) {
    gs_leave_sums<1>(sum, outputs, shared);
    return;
  }
  if (gs_finish_sums<1>(sum, outputs, arrivals, shared, is_last))
    gs_example_update_after<T>(sum, cells, history, capacity);
}

1. The scalars of a program are in `cells`; number 0 is `stop`. A pass does nothing once it is set.
2. `before`: every thread loads the scalars from their cells (`c_rho`) and computes in the type C. Scalars that elements
   are computed from are also converted to T (`t_alpha`). If another pass had left partial sums of `pq`, every block
   would add them up here, always in the same order: ``const C c_pq = gs_total(p_pq, n_pq, shared);``. On short vectors,
   that costs less than waiting for the last block of the other pass.
3. `each` and `sums`: a thread owns every step-th element; neighbouring threads own neighbouring elements (coalesced).
   It first loads two elements of each vector (`e_r`), so that their loads are in flight together. Then it computes each
   element in the type T (`l_r`), stores what was assigned, and adds the terms of the sums in the type C (`w_0`).
4. `after` needs the sum over all blocks here. Therefore the last block to arrive adds the partial sums of all blocks
   up, and its first thread calls the function below. If `after` needed no sum of its own step, nor set `stop` (or if
   the step had `may_stop_early`), the first block would call it at once. Sums that only other steps read are left as
   partial sums (`gs_leave_sums`), one for each block.

>>> print(_after_function(program, step).strip())
template <class T, class C>
__device__ __forceinline__ void gs_example_update_after(
    const C *sum, C *cells, double *history, int capacity) {
  C c_rr = sum[0];
  C c_limit = cells[5];
  C c_rho_new = c_rr;
  C c_stop = ((gs_real(c_rr) < gs_real(c_limit)) ? Make<C>::from(1.0) : Make<C>::from(0.0));
  cells[2] = c_rho_new;
  cells[0] = c_stop;
  (void)sum; (void)history; (void)capacity; (void)cells; (void)c_rr;
}

It computes the scalars of `after` from the sums and stores those that are kept in their cells.

>>> print(_pass_kernel(program, step, "").strip())
template <class T>
GS_KERNEL_OF(GS_PASS_THREADS) example_update(
    long long n,
    T *__restrict__ v_r, const T *__restrict__ v_q,
    typename Wide<T>::type *o_rr, unsigned *arrivals,
    typename Wide<T>::type *cells, int num_cells, double *history, int capacity) {
  GS_SHARED(typename Wide<T>::type, shared, 1 * GS_MAX_WARPS);
  GS_SHARED(int, is_last, 1);
  gs_example_update<T, false>(
      n, v_r, v_q, o_rr, arrivals, cells, num_cells, history, capacity, shared, is_last);
}

The kernel itself declares the shared memory: one value for each warp and sum. If sums are added up over several ranks,
these must exchange the partial sums before `after`. Then the step is two kernels instead: ``example_update_leave``,
with IS_SPLIT, only leaves its partial sums; ``example_update_after``, with one block for each right-hand side, adds up
what the ranks have exchanged and calls the function of `after`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import count

import numpy as np

from gsparse.kernels.gpu.launch import expression
from gsparse.kernels.gpu.statements import ExpressionWriter
from gsparse.kernels.steps import Assignment, Program, Step, names_in

# Number of elements that a thread loads at the same time.
_ELEMENTS = 2


@cache
def deferred_read(program: Program, step: Step) -> tuple[str, ...]:
    """Return the sums of other steps whose partial sums a step adds before it begins."""
    read = step.reads("before", "each", "sums", "after")
    return tuple(name for name in read if name in program.deferred_sums and name not in step.targets("sums"))


def finished_sums(step: Step) -> bool:
    """Return whether the `after` of a step must wait until all blocks have processed their elements."""
    own = any(name in step.targets("sums") for name in step.reads("after"))
    return own or ("stop" in step.targets("after") and not step.may_stop_early)


def is_split(step: Step) -> bool:
    """Return whether a step needs a separate kernel for `after` if its sums are summed over ranks."""
    return bool(step.targets("sums")) and finished_sums(step)


@cache
def step_source(program: Program) -> str:
    """Return the source of all steps of a program."""
    kernels = (_kernels(program, step) for step in program.steps)
    return f'// steps of {program.name}\n#include "steps.cuh"\n' + "\n".join(kernels)


def step_names(program: Program, dtype: np.dtype[np.generic]) -> list[str]:
    """Return the name expressions of all kernels of a program for vectors of a dtype."""
    kinds = ((step, kind) for step in program.steps for kind in (*_kinds(step), *["_after"][: is_split(step)]))
    return [expression(f"{program.name}_{step.name}{kind}", dtype) for step, kind in kinds]


_CELLS = "C *cells, int num_cells, double *history, int capacity"
_WIDE = "typename Wide<T>::type *"


def _kernels(program: Program, step: Step) -> str:
    """Return the device functions and the kernels of one step."""
    after = _after_function(program, step) if step.after else ""
    kernels = "".join(_pass_kernel(program, step, kind) for kind in _kinds(step))
    return after + _pass_function(program, step) + kernels + (_after_kernel(program, step) if is_split(step) else "")


def _kinds(step: Step) -> tuple[str, ...]:
    """Return the suffixes of the names of the kernels that pass over the vectors."""
    return ("", "_leave") if is_split(step) else ("",)


def _pass_function(program: Program, step: Step) -> str:
    """Return the function that passes over the vectors, for both kinds of kernels."""
    vectors, num_sums, deferred = (
        program.vectors_of(step),
        max(len(step.targets("sums")), 1),
        deferred_read(program, step),
    )
    written = [v for v in vectors if v in step.targets("each")]
    reads = [v for v in vectors if v in step.reads("each", "sums")]
    from_cells = [c for c in program.cells_read(step, "before", "each", "sums") if c not in deferred]
    names = {c: f"c_{c}" for c in (*from_cells, *deferred, *step.targets("before"))}
    scalars = _load_cells(program, from_cells)
    scalars += _scalars(step.sections["before"], names, {*from_cells, *deferred})
    # Scalars that elements depend on, converted to the type of the elements.
    used = {n for a in step.sections["each"] for n in names_in(a.value) if n in names}
    scalars += "".join(f"  const T t_{n} = Narrow<T>::from(c_{n});\n" for n in sorted(used))
    index = f"      const long long i = {_index(step, 'place')};\n" if written else ""
    return f"""
template <class T, bool IS_SPLIT, class C>
__device__ __forceinline__ void gs_{program.name}_{step.name}(
{_parameters(program, step)}    {_CELLS}, C *shared, int *is_last) {{
  // (1) Nothing is done once the solve has stopped.
  cells += blockIdx.y * num_cells;
  history += static_cast<long long>(blockIdx.y) * capacity;
  if (gs_real(cells[0]) != 0) return;
  // (2) Scalars.
{_add_deferred(deferred)}{scalars}  // (3) Elements.
  C sum[{num_sums}];
  for (int s = 0; s < {num_sums}; ++s) sum[s] = Scalar<C>::zero();
  const long long first = blockIdx.y * n, step = static_cast<long long>(gridDim.x) * blockDim.x;
  (void)first;
  for (long long start = gs_thread(); start < n; start += {_ELEMENTS} * step) {{
{_loads(step, reads)}#pragma unroll
    for (int u = 0; u < {_ELEMENTS}; ++u) {{
      const long long place = start + u * step;
      if (place >= n) continue;
{index}{_element(step, vectors, reads, written, names)}    }}
  }}
{_ending(program, step)}}}
"""


def _parameters(program: Program, step: Step, pointer: str = "C *") -> str:
    """Return the parameters of a pass before its cells: vectors, sums of other steps, and its own partial sums."""
    written = step.targets("each")
    vectors = [f"{'' if v in written else 'const '}T *__restrict__ v_{v}" for v in program.vectors_of(step)]
    deferred = [f"const {pointer}p_{name}, int n_{name}" for name in deferred_read(program, step)]
    outputs = [f"{pointer}o_{name}" for name in step.targets("sums")]
    groups = (["long long n"], vectors, deferred, [*outputs, "unsigned *arrivals"])
    return "".join(f"    {', '.join(group)},\n" for group in groups if group)


def _pass_kernel(program: Program, step: Step, kind: str) -> str:
    """Return a kernel of a pass: it declares shared memory, and calls the function."""
    sums, deferred = step.targets("sums"), deferred_read(program, step)
    vectors = (f"v_{v}" for v in program.vectors_of(step))
    arguments = ", ".join(("n", *vectors, *(f"p_{n}, n_{n}" for n in deferred), *(f"o_{n}" for n in sums)))
    return f"""
template <class T>
GS_KERNEL_OF(GS_PASS_THREADS) {program.name}_{step.name}{kind}(
{_parameters(program, step, _WIDE)}    {_CELLS.replace("C *", _WIDE)}) {{
  GS_SHARED(typename Wide<T>::type, shared, {max(len(sums), 1)} * GS_MAX_WARPS);
  GS_SHARED(int, is_last, 1);
  gs_{program.name}_{step.name}<T, {"true" if kind else "false"}>(
      {arguments}, arrivals, cells, num_cells, history, capacity, shared, is_last);
}}
"""


def _after_function(program: Program, step: Step) -> str:
    """Return the function that computes the scalars of `after` from the sums."""
    deferred = "".join(f", C c_{name}" for name in deferred_read(program, step))
    return f"""
template <class T, class C>
__device__ __forceinline__ void gs_{program.name}_{step.name}_after(
    const C *sum{deferred}, C *cells, double *history, int capacity) {{
{_after(program, step)}}}
"""


def _after_kernel(program: Program, step: Step) -> str:
    """Return the kernel of `after`. It has one block per right-hand side, which adds the sums that ranks exchanged."""
    sums, deferred = step.targets("sums"), deferred_read(program, step)
    read = [*sums, *(name for name in deferred if name not in sums)]
    parameters = "".join(f"    const C *p_{name}, int n_{name},\n" for name in read) + f"    {_CELLS}"
    return f"""
template <class T>
GS_KERNEL_OF(GS_PASS_THREADS) {program.name}_{step.name}_after(
{parameters.replace("C *", _WIDE)}) {{
  typedef typename Wide<T>::type C;
  GS_SHARED(C, shared, GS_MAX_WARPS);
  cells += blockIdx.y * num_cells;
  history += static_cast<long long>(blockIdx.y) * capacity;
  if (gs_real(cells[0]) != 0) return;
{_add_deferred(read)}  const C sum[] = {{{", ".join(f"c_{name}" for name in sums)}}};
  if (threadIdx.x == 0) {_call_after(program, step)}
}}
"""


def _add_deferred(names: Iterable[str]) -> str:
    return "".join(f"  const C c_{name} = gs_total(p_{name}, n_{name}, shared);\n" for name in names)


def _call_after(program: Program, step: Step) -> str:
    deferred = "".join(f", c_{name}" for name in deferred_read(program, step))
    return f"gs_{program.name}_{step.name}_after<T>(sum{deferred}, cells, history, capacity);"


def _ending(program: Program, step: Step) -> str:
    """Return the text after the elements: the partial sums, and `after`, which one thread executes."""
    sums = step.targets("sums")
    after = _call_after(program, step) if step.after else ""
    text = "  // (4) Sums and the scalars that follow from them.\n"
    text += "  (void)arrivals; (void)is_last; (void)shared; (void)sum; (void)history;\n"
    if sums or finished_sums(step):
        text += f"  C *const outputs[{max(len(sums), 1)}] = {{{', '.join(f'o_{name}' for name in sums)}}};\n"
    if not finished_sums(step):
        if sums:
            text += f"  gs_leave_sums<{len(sums)}>(sum, outputs, shared);\n"
        return text + (f"  if (blockIdx.x == 0 && threadIdx.x == 0) {after}\n" if after else "")
    if sums:
        text += f"  if (IS_SPLIT) {{\n    gs_leave_sums<{len(sums)}>(sum, outputs, shared);\n    return;\n  }}\n"
    return text + f"  if (gs_finish_sums<{len(sums)}>(sum, outputs, arrivals, shared, is_last))\n    {after}\n"


def _load_cells(program: Program, names: Iterable[str]) -> str:
    return "".join(f"  C c_{name} = cells[{program.cells[name]}];\n" for name in names)


def _scalars(assignments: tuple[Assignment, ...], names: dict[str, str], known: set[str]) -> str:
    """Return assignments to scalars. Names that are not in `known` are declared at their first assignment."""
    write, lines = ExpressionWriter("C", names), []
    for assignment in assignments:
        if not assignment.target:
            argument = assignment.value.args[0]  # type: ignore[attr-defined]
            slot = "history[static_cast<long long>(gs_real(c_iteration)) % capacity]"
            lines.append(f"  {slot} = gs_real({write(argument)});\n")
            continue
        declaration = "" if assignment.target in known else "C "
        known.add(assignment.target)
        lines.append(f"  {declaration}c_{assignment.target} = {write(assignment.value)};\n")
    return "".join(lines)


def _after(program: Program, step: Step) -> str:
    """Return the statements of `after`: load cells, compute, and store the cells that are assigned."""
    deferred = deferred_read(program, step)
    read = [name for name in program.cells_read(step, "after") if name not in deferred]
    if any(not a.target for a in step.sections["after"]) and "iteration" not in read:
        read.append("iteration")
    sums, stored = step.targets("sums"), step.targets("after")
    names = {name: f"c_{name}" for name in (*read, *deferred, *sums, *stored)}
    text = "".join(f"  C c_{name} = sum[{i}];\n" for i, name in enumerate(sums)) + _load_cells(program, read)
    text += _scalars(step.sections["after"], names, {*read, *deferred, *sums})
    text += "".join(f"  cells[{program.cells[name]}] = c_{name};\n" for name in stored)
    unused = "".join(f" (void)c_{name};" for name in (*deferred, *sums))
    return text + f"  (void)sum; (void)history; (void)capacity; (void)cells;{unused}\n"


def _index(step: Step, place: str) -> str:
    """Return the index of the element with number `place` in the pass, which may go from the last to the first."""
    return f"first + n - 1 - ({place})" if step.backward else f"first + ({place})"


def _loads(step: Step, reads: list[str]) -> str:
    """Return the loads of a thread's elements, which all precede the first use."""
    if not reads:
        return ""
    load = "".join(f"      e_{v}[u] = v_{v}[i];\n" for v in reads)
    return (
        "".join(f"    T e_{v}[{_ELEMENTS}];\n" for v in reads)
        + f"#pragma unroll\n    for (int u = 0; u < {_ELEMENTS}; ++u) {{\n"
        + "      const long long place = start + u * step;\n"
        + f"      const long long i = {_index(step, 'place < n ? place : start')};\n"
        + load
        + "    }\n"
    )


def _element(
    step: Step, vectors: tuple[str, ...], reads: list[str], written: list[str], scalars: dict[str, str]
) -> str:
    """Return the text for one element: `each` in the type T of the vectors, then `sums` in the type C."""
    names = {**{n: f"t_{n}" for n in scalars}, **{v: f"l_{v}" for v in (*vectors, *step.targets("each"))}}
    write, known = ExpressionWriter("T", names), set(reads)
    text = "".join(f"      T l_{v} = e_{v}[u];\n" for v in reads)
    for a in step.sections["each"]:
        text += f"      {'' if a.target in known else 'T '}l_{a.target} = {write(a.value)};\n"
        known.add(a.target)
    text += "".join(f"      v_{v}[i] = l_{v};\n" for v in written)
    wide, used = {}, sorted({n for a in step.sections["sums"] for n in names_in(a.value)})
    for number, n in zip(count(), used, strict=False):
        wide[n] = f"w_{number}" if n in known else scalars[n]
        text += f"      const C w_{number} = Widen<C>::from(l_{n});\n" if n in known else ""
    write = ExpressionWriter("C", wide)
    return text + "".join(
        f"      sum[{i}] = sum[{i}] + {write(a.value)};\n" for i, a in enumerate(step.sections["sums"])
    )
