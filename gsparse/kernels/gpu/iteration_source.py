"""Generate CUDA C++ for whole iterations of a solver: one kernel whose blocks run at the same time (cooperative).

The generator uses the same description of the solver as `gsparse.kernels.gpu.step_source`. The kernel computes the same
as the separate kernels of steps and of products. Separate kernels read and write the vectors in each pass, and between
two kernels a GPU is idle for 1 to 2 µs, which is most of the time of a small system. In the kernel of this module, a
thread owns a few rows, and keeps their elements of all vectors in registers. All threads compute all scalars.

Blocks must wait for each other in two cases: a scalar depends on a sum over all elements, or a product reads elements
that other blocks own. Both are one operation, an *exchange* (together.cuh): it adds up sums over all blocks, and after
it all blocks can read the elements that were sent before. Two rules keep exchanges few:

- A sum is exchanged when a scalar needs it, together with all other sums that wait for an exchange.
- If another block's element has changed since the last exchange, a product may recompute it from elements that were
  sent earlier. In conjugate gradients this is ``p = r + beta * p``, so that each iteration needs two exchanges.

The example is the power method, which multiplies a vector by a matrix and scales the result. It needs one exchange per
iteration. `turn` is the number of the iteration within a launch. The first iteration reads copies of p. Later
iterations read copies of q, and compute p from them.

>>> from gsparse.kernels.steps import Multiplication, Program, Step
>>> square = Step("square", sums="qq = abs2(q)", after="iteration += 1")
>>> scale = Step("scale", before="factor = 1 / sqrt(qq)", each="p = factor * q")
>>> program = Program("power", "q p", (square, scale))
>>> print(IterationWriter(program, (Multiplication("p", "q"), square, scale)).loop.rstrip())
    // q = A * p
    if (turn == 0) {
      A.template multiply<1>(l_p, l_q, [&](int column, T &value) {
        T g_p;
        bool is_complete = true;
        is_complete &= sent_p.receive(column, g_p);
        value = g_p;
        return is_complete;
      });
    } else {
      A.template multiply<1>(l_p, l_q, [&](int column, T &value) {
        T g_q;
        bool is_complete = true;
        is_complete &= sent_q.receive(column, g_q);
        value = (t_scale_factor * g_q);
        return is_complete;
      });
    }
    // square
    if (gs_real(c_stop) != 0) break;
    w_qq = Scalar<C>::zero();
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      if (int(threadIdx.x) + e * int(blockDim.x) >= A.num_rows) continue;
      w_qq = w_qq + gs_abs2(Widen<C>::from(l_q[e]));
    }
    c_iteration = (c_iteration + Make<C>::from(1.0));
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      const int row = int(threadIdx.x) + e * int(blockDim.x);
      if (row < A.num_rows) {
        sent_q.send(begin + row, l_q[e], number + 1);
      }
    }
    {
      C sums[1] = {w_qq};
      gs_exchange<1, MOST_SUMS>(sums, words, ++number, shared);
      c_qq = sums[0];
    }
    sent_q.swap(number);
    // scale
    if (gs_real(c_stop) != 0) break;
    s_scale_factor = (Make<C>::from(1.0) / gs_sqrt(c_qq));
    t_scale_factor = Narrow<T>::from(s_scale_factor);
#pragma unroll
    for (int e = 0; e < ROWS; ++e) {
      if (int(threadIdx.x) + e * int(blockDim.x) >= A.num_rows) continue;
      l_p[e] = (t_scale_factor * l_q[e]);
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from gsparse.kernels.gpu.launch import expression
from gsparse.kernels.gpu.statements import (
    ExpressionWriter,
    Remote,
    follow,
    indented,
    names_of,
    write_after,
    write_elements,
    write_exchange,
    write_product,
)  # fmt: skip
from gsparse.kernels.steps import Multiplication, Program, Step

# A product computes another block's element from copies of at most this many vectors that the iteration changes.
# Reading more copies would take longer than another exchange.
_MOST_COPIES = 2

Operations = tuple[Step | Multiplication, ...]


@cache
def iteration_writer(program: Program, operations: Operations) -> IterationWriter:
    """Return an `IterationWriter`, whose source is complete. Results are cached."""
    return IterationWriter(program, operations)


def iteration_name(program: Program, *arguments: np.dtype[np.generic] | int) -> str:
    """Return the kernel's name expression for dtypes of vectors and indices, threads per block and rows per thread."""
    return expression(f"{program.name}_iterations", *arguments)


@dataclass
class _Progress:
    """The part of an iteration that has been written, and the state after it."""

    lines: list[str]
    # For each vector, how another block can compute its elements; None if it cannot. After the first exchange of an
    # iteration, the list has one dictionary. Before it, the list may have two: for the first iteration of a launch, and
    # for later iterations (once the state at the end of an iteration is known).
    remotes: list[dict[str, Remote | None]]
    changed: set[str]  # vectors that have changed since they were last copied
    waiting: list[str] = field(default_factory=list)  # sums that the next exchange must add up
    num_exchanges: int = 0
    has_product: bool = False  # whether a product has been written since the last exchange


class IterationWriter:
    """Generator of the kernel for whole iterations.

    Parameters
    ----------
    program : Program
    operations : tuple of Step and Multiplication
        The steps and products of one iteration, in order. Each step occurs once.

    Attributes
    ----------
    vectors : tuple of str
        The vectors that the iteration uses, in the order of the program.
    copied : tuple of str
        Vectors whose elements are copied in exchanges, so that other blocks can read them.
    carried : tuple of str
        Sums that an iteration reads before it computes them. The kernel gets them as partial sums of the iteration
        before.
    num_words : int
        Largest number of 64-bit words that a block sends in one exchange, for real sums. Complex sums need twice as
        many.
    source : str
        The kernel in CUDA C++.
    loop : str
        The statements of one iteration, which `source` contains.
    """

    def __init__(self, program: Program, operations: Operations) -> None:
        self.program, self.operations = program, operations
        self.steps = [each for each in operations if isinstance(each, Step)]
        products = [each for each in operations if isinstance(each, Multiplication)]
        used = {name for step in self.steps for name in program.vectors_of(step)}
        used |= {name for product in products for name in (product.source, product.target)}
        self.vectors = tuple(name for name in program.vector_names if name in used)
        self._assigned = {name for step in self.steps for name in step.targets("each") if name in program.vector_names}
        self._assigned |= {product.target for product in products}
        self._cells = _cells_used(program, self.steps)
        self._sums = tuple(dict.fromkeys(name for step in self.steps for name in step.targets("sums")))
        self.carried = self._carried_sums()
        self._most_sums = 1
        # The vectors that each exchange of an iteration must copy. Exchange 0 is before the first iteration. The text
        # after an exchange decides which vectors are needed, so the loop is written again until no vector is added.
        self._copies: dict[int, set[str]] = {0: set()}
        # How other blocks can compute elements at the end of an iteration, and so at the start of the following
        # iteration.
        self._end: dict[str, Remote | None] | None = None
        self.loop = ""
        while True:
            known = {number: set(copies) for number, copies in self._copies.items()}, self._end
            self.loop = self._write_loop()
            if known == (self._copies, self._end):
                break
        copied = set().union(*self._copies.values())
        self.copied = tuple(name for name in self.vectors if name in copied)
        self.num_words = 2 * self._most_sums
        self.source = self._write_kernel()

    def _carried_sums(self) -> tuple[str, ...]:
        known: set[str] = set()
        names: dict[str, None] = {}
        for step in self.steps:
            read = step.reads("before", "each", "sums", "after")
            own = step.targets("sums")
            names.update(dict.fromkeys(n for n in read if n in self.program.deferred_sums and n not in {*known, *own}))
            known |= {*own}
        return tuple(names)

    # ---------------------------------------------------------------- the loop

    def _write_loop(self) -> str:
        """Return the text of one iteration. Also find the vectors to copy, and the state after the iteration."""
        start: dict[str, Remote | None] = {name: Remote.copy(name, 0) for name in self.vectors}
        remotes = [start] if self._end is None else [start, dict(self._end)]
        progress = _Progress([], remotes, set(self._assigned))
        for operation in self.operations:
            if isinstance(operation, Step):
                self._write_step(progress, operation)
            else:
                self._write_product(progress, operation)
        if progress.waiting or progress.has_product or not progress.num_exchanges:
            self._write_exchange(progress)
        self._end = progress.remotes[0]
        return "".join(progress.lines)

    def _write_product(self, progress: _Progress, product: Multiplication) -> None:
        """Write a product. Write an exchange first if other blocks' elements of x cannot be computed from copies."""
        remotes = [remote[product.source] for remote in progress.remotes]
        if progress.has_product or any(r is None or len(r.copies & self._assigned) > _MOST_COPIES for r in remotes):
            self._write_exchange(progress)
        progress.has_product = True
        ways = []
        for known in progress.remotes:
            remote = known[product.source]
            assert remote is not None
            self._copies.setdefault(remote.exchange, set()).update(remote.copies)
            ways.append(write_product(product, remote))
            known[product.target] = None
        text = ways[0]
        if len(ways) > 1 and ways[0] != ways[1]:
            text = f"    if (turn == 0) {{\n{indented(ways[0])}    }} else {{\n{indented(ways[1])}    }}\n"
        progress.lines.append(f"    // {product.target} = A * {product.source}\n{text}")
        progress.changed.add(product.target)

    def _write_step(self, progress: _Progress, step: Step) -> None:
        """Write a step: `before`, then this thread's part of `each` and `sums`, then `after`."""
        program, lines = self.program, progress.lines
        if any(name in progress.waiting for name in step.reads("before", "each", "sums")):
            self._write_exchange(progress)
        lines.append(f"    // {step.name}\n    if (gs_real(c_stop) != 0) break;\n")
        names = {name: f"c_{name}" for name in (*self._cells, *program.deferred_sums)}
        names |= {name: f"s_{step.name}_{name}" for name in step.targets("before")}
        write = ExpressionWriter("C", names)
        for assignment in step.sections["before"]:
            lines.append(f"    {names[assignment.target]} = {write(assignment.value)};\n")
        narrow = {name: f"t_{step.name}_{name}" for name in self._scalars_of_elements(step)}
        lines.extend(f"    {narrow[name]} = Narrow<T>::from({names[name]});\n" for name in narrow)
        for remotes in progress.remotes:
            follow(remotes, step, narrow, program)
        lines.extend(f"    w_{name} = Scalar<C>::zero();\n" for name in step.targets("sums"))
        lines.append(write_elements(program, step, names, narrow))
        progress.changed |= {name for name in step.targets("each") if name in program.vector_names}
        progress.waiting.extend(name for name in step.targets("sums") if name not in progress.waiting)
        if any(name in progress.waiting for name in step.reads("after")):
            self._write_exchange(progress)
        lines.extend(write_after(assignment, names) for assignment in step.sections["after"])

    def _write_exchange(self, progress: _Progress) -> None:
        """Write an exchange of all waiting sums, and of the vectors that are read as copies afterwards."""
        progress.num_exchanges += 1
        number = progress.num_exchanges
        copies = [name for name in self.vectors if name in self._copies.setdefault(number, set()) & progress.changed]
        progress.lines.append(write_exchange(progress.waiting, copies))
        self._most_sums = max(self._most_sums, len(progress.waiting))
        progress.changed -= {*copies}
        progress.waiting.clear()
        progress.has_product = False
        progress.remotes = [{name: Remote.copy(name, number) for name in self.vectors}]

    # ---------------------------------------------------------------- the kernel

    def _write_kernel(self) -> str:
        vectors, pointers = self.vectors, ", ".join(f"T *__restrict__ v_{name}" for name in self.vectors)
        wide = "typename Wide<T>::type *"
        carried = "".join(f"    {wide}p_{name}, int n_{name},\n" for name in self.carried)
        first_copies = self._copies[0] | ({*self.copied} - self._assigned)
        load = "".join(f"    l_{name}[e] = exists ? v_{name}[begin + row] : Scalar<T>::zero();\n" for name in vectors)
        store = "".join(f"      v_{name}[begin + row] = l_{name}[e];\n" for name in vectors if name in self._assigned)
        exchange = write_exchange([], [name for name in vectors if name in first_copies], indent="  ")
        return f"""// iterations of {self.program.name}
#include "together.cuh"

template <class T, class Index, int THREADS, int ROWS>
GS_KERNEL_TOGETHER(THREADS) {self.program.name}_iterations(
    int n, int rows_per_block, int width,
    const Index *__restrict__ indptr, const Index *__restrict__ indices, const T *__restrict__ data,
    {pointers},
    unsigned long long *copies, unsigned long long *words, unsigned *num_exchanges,
{carried}    {wide}cells, double *history, int capacity, int turns) {{
  typedef typename Wide<T>::type C;
  enum {{ MOST_SUMS = {self._most_sums} }};
  GS_DYN_SHARED(unsigned char, memory);
  GS_SHARED(C, shared, 2 * MOST_SUMS * GS_MAX_WARPS);
  // (1) Nothing is done once the solve has stopped. Otherwise load the block's rows of the matrix, vectors and scalars.
  if (gs_real(cells[0]) != 0) return;
  unsigned number = *num_exchanges;
  const int begin = int(blockIdx.x) * rows_per_block;
  OwnRows<T, ROWS> A;
  A.num_rows = n - begin < rows_per_block ? n - begin : rows_per_block;
  A.copy(indptr, indices, data, begin, width, memory);
{self._declarations()}  T {", ".join(f"l_{name}[ROWS]" for name in vectors)};
#pragma unroll
  for (int e = 0; e < ROWS; ++e) {{
    const int row = int(threadIdx.x) + e * int(blockDim.x);
    const bool exists = row < A.num_rows;
{load}  }}
{exchange}  // (2) Iterations.
  for (int turn = 0; turn < turns && gs_real(c_stop) == 0; ++turn) {{
{self.loop}  }}
  // (3) Store vectors and scalars.
#pragma unroll
  for (int e = 0; e < ROWS; ++e) {{
    const int row = int(threadIdx.x) + e * int(blockDim.x);
    if (row < A.num_rows) {{
{store}    }}
  }}
  if (blockIdx.x != 0) return;
{self._stores_of_scalars()}}}
"""

    def _declarations(self) -> str:
        """Return the declarations of scalars and of copied vectors. Every thread has all scalars."""
        program = self.program
        scalars = [f"c_{name}" for name in (*self._cells, *self._sums, *self.carried)]
        scalars += [f"w_{name}" for name in self._sums]
        narrow: list[str] = []
        for step in self.steps:
            scalars += [f"s_{step.name}_{name}" for name in step.targets("before")]
            narrow += [f"t_{step.name}_{name}" for name in self._scalars_of_elements(step)]
        text = f"  C {', '.join(f'{name} = Scalar<C>::zero()' for name in dict.fromkeys(scalars))};\n"
        if narrow:
            text += f"  T {', '.join(f'{name} = Scalar<T>::zero()' for name in narrow)};\n"
        for i, name in enumerate(self.copied):
            text += f"  Copies<T> sent_{name}(copies + {2 * i}ll * Copies<T>::WORDS * n, n);\n"
        text += "".join(f"  c_{name} = cells[{program.cells[name]}];\n" for name in self._cells)
        return text + "".join(f"  c_{name} = gs_total(p_{name}, n_{name}, shared);\n" for name in self.carried)

    def _stores_of_scalars(self) -> str:
        """Return the code with which the first block stores `carried` sums, cells and the number of exchanges."""
        stored = dict.fromkeys(name for step in self.steps for name in step.targets("after"))
        text = "".join(
            f"  for (int j = threadIdx.x; j < n_{name}; j += blockDim.x) "
            f"p_{name}[j] = j == 0 ? c_{name} : Scalar<C>::zero();\n"
            for name in self.carried
        )
        text += "  if (threadIdx.x != 0) return;\n  *num_exchanges = number;\n"
        return text + "".join(f"  cells[{self.program.cells[name]}] = c_{name};\n" for name in stored)

    def _scalars_of_elements(self, step: Step) -> list[str]:
        """Return the names of scalars that `step.each` reads."""
        known = {*self._cells, *self.program.deferred_sums, *step.targets("before")}
        return sorted({*names_of(step.sections["each"])} & known)


def _cells_used(program: Program, steps: Sequence[Step]) -> list[str]:
    """Return the cells that an iteration reads or writes, without sums that are stored as partial sums."""
    names = {"stop", "iteration"}
    for step in steps:
        names |= {*program.cells_read(step, "before", "each", "sums", "after"), *step.targets("after")}
    return [name for name in program.cells if name in names - program.deferred_sums]
