"""The language of solver steps: a step is one fused pass over vectors, written once for all backends."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import Any, Protocol

import numpy as np

from gsparse.device.base import Device
from gsparse.device.dtypes import Array
from gsparse.formats import Csr

Call = Callable[[], None]


def queue(calls: Sequence[Call], times: int = 1) -> None:
    """Make all calls in order, `times` times."""
    for _ in range(times):
        for call in calls:
            call()


FUNCTIONS = ("sqrt", "abs2", "conj", "real", "isnan", "record")
SYSTEM_CELLS = ("stop", "iteration")

_EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Call, ast.Name, ast.Constant, ast.Load, ast.Store,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.Not, ast.And, ast.Or,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
)  # fmt: skip


@dataclass(frozen=True)
class Assignment:
    """The statement ``target = value``, or a call of `record` if `target` is empty."""

    target: str
    value: ast.expr


def parse(text: str) -> tuple[Assignment, ...]:
    """Parse assignments that are separated by newlines or semicolons.

    Raises
    ------
    SyntaxError
        If the text is not in this language.
    """
    assignments = []
    for node in ast.parse("\n".join(line.strip() for line in text.strip().splitlines())).body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            target, value = node.targets[0].id, node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            target = node.target.id
            value = ast.BinOp(ast.Name(target, ast.Load()), node.op, node.value)
        elif isinstance(node, ast.Expr) and _called(node.value) == "record":
            target, value = "", node.value
        else:
            raise SyntaxError(f"a step is made of assignments: {ast.unparse(node)}")
        for part in ast.walk(value):
            if not _is_known(part) or (_called(part) == "record" and (target or part is not value)):
                raise SyntaxError(f"not of the language of steps: {ast.unparse(part)}")
        assignments.append(Assignment(target, value))
    return tuple(assignments)


def _called(node: ast.AST) -> str:
    """Return the name of the function that an expression calls, or an empty string."""
    return getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""


def _is_known(node: ast.AST) -> bool:
    match node:
        case ast.Call():
            return _called(node) in FUNCTIONS and len(node.args) == 1 and not node.keywords
        case ast.Compare():
            return len(node.ops) == 1
        case ast.Constant():
            return isinstance(node.value, int | float)
    return isinstance(node, _EXPRESSIONS)


def names_in(value: ast.expr) -> Iterator[str]:
    """Yield the names of the vectors and scalars that an expression reads."""
    called = {id(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)}
    return (node.id for node in ast.walk(value) if isinstance(node, ast.Name) and id(node) not in called)


@dataclass(frozen=True, eq=False)
class Step:
    """One pass over all elements.

    Parameters
    ----------
    name : str
    before : str
        Assignments of scalars that are computed once before the elements; they are not stored in cells.
    each : str
        Assignments for each element. Values of vectors are stored, those of other names are temporary.
    sums : str
        ``name = term``: the term of each element is added up in double precision.
    after : str
        Assignments of scalars, computed once after the sums and stored in cells. The other sections of this step must
        not read these scalars.
    may_stop_early : bool
        Whether elements may remain unchanged if the `after` of the same pass sets `stop`. Then `after` need not wait
        for the last element.
    backward : bool
        Whether to proceed from the last element to the first, so that the elements that the previous pass or product
        accessed last are still in the cache. Sums are reproducible, but their order differs from a forward pass.
    """

    name: str
    before: str = ""
    each: str = ""
    sums: str = ""
    after: str = ""
    may_stop_early: bool = False
    backward: bool = False

    @cached_property
    def sections(self) -> dict[str, tuple[Assignment, ...]]:
        return {name: parse(getattr(self, name)) for name in ("before", "each", "sums", "after")}

    @cache  # noqa: B019  (there are few programs, and they are never freed)
    def targets(self, section: str) -> tuple[str, ...]:
        """Return the names that a section assigns, without repetitions."""
        return tuple(dict.fromkeys(a.target for a in self.sections[section] if a.target))

    @cache  # noqa: B019  (there are few programs, and they are never freed)
    def reads(self, *sections: str) -> tuple[str, ...]:
        """Return the names that sections read before they assign them, without repetitions."""
        known: set[str] = set()
        names: dict[str, None] = {}
        for assignment in chain.from_iterable(self.sections[section] for section in sections):
            names.update(dict.fromkeys(name for name in names_in(assignment.value) if name not in known))
            known.add(assignment.target)
        return tuple(names)


@dataclass(frozen=True, eq=False)
class Program:
    """The steps of one method, which are compiled together and share scalars.

    Parameters
    ----------
    name : str
    vectors : str
        Names of vectors, separated by spaces.
    steps : tuple of Step
    exported : tuple of str, optional
        Sums that other kernels read in addition to the steps, for example the kernels of `gsparse.kernels.basis`.
    """

    name: str
    vectors: str
    steps: tuple[Step, ...] = field(default=())
    exported: tuple[str, ...] = ()

    @cached_property
    def vector_names(self) -> tuple[str, ...]:
        return tuple(self.vectors.split())

    @cached_property
    def deferred_sums(self) -> frozenset[str]:
        """Sums that no step assigns to a scalar. A backend may keep partial sums, which each reader adds up."""
        sums = {name for step in self.steps for name in step.targets("sums")}
        assigned = {name for step in self.steps for name in step.targets("after")}
        return frozenset(
            name
            for step in self.steps
            for name in step.reads("before", "each", "sums", "after")
            if name in sums - assigned and name not in step.targets("sums")
        ) | {*self.exported}

    @cached_property
    def cells(self) -> dict[str, int]:
        """The index of the cell of each scalar that a step stores or that the caller sets."""
        names = dict.fromkeys(SYSTEM_CELLS)
        for step in self.steps:
            names.update(dict.fromkeys(step.targets("after")))
            names.update(dict.fromkeys(self.cells_read(step, "before", "each", "sums", "after")))
        names.update(dict.fromkeys(self.exported))
        return {name: place for place, name in enumerate(names)}

    @cache  # noqa: B019  (there are few programs, and they are never freed)
    def cells_read(self, step: Step, *sections: str) -> tuple[str, ...]:
        """Return the scalars that these sections of a step read from cells."""
        own = {*self.vector_names, *step.targets("sums")} if "after" in sections else {*self.vector_names}
        return tuple(name for name in step.reads(*sections) if name not in own)

    @cache  # noqa: B019  (there are few programs, and they are never freed)
    def vectors_of(self, step: Step) -> tuple[str, ...]:
        """Return the vectors that a step reads or writes, in the order of the program."""
        used = {*step.reads("before", "each", "sums"), *step.targets("each")}
        return tuple(name for name in self.vector_names if name in used)

    def __post_init__(self) -> None:
        for step in self.steps:
            early = {*self.cells_read(step, "before", "each", "sums")} & {*step.targets("after"), *step.targets("sums")}
            if early:
                raise SyntaxError(f"{self.name}.{step.name} reads {sorted(early)} in the pass that assigns them")
            scalars = {name for section in ("before", "sums", "after") for name in step.targets(section)}
            if scalars & {*self.vector_names}:
                raise SyntaxError(f"{self.name}.{step.name} assigns a scalar to a vector outside of `each`")
            if any(not a.target for section in ("before", "each", "sums") for a in step.sections[section]):
                raise SyntaxError(f"{self.name}.{step.name} calls record outside of `after`")


@dataclass(frozen=True)
class Multiplication:
    """The product target = A·source of a matrix and a vector of a program, as an operation of an iteration."""

    source: str
    target: str


class StepState(Protocol):
    """The scalars of a running program, in the form that steps need.

    Attributes
    ----------
    program : Program
    dtype : dtype
        Dtype of the vectors.
    columns : int
        Number of right-hand sides. Each vector holds the columns of all right-hand sides one after the other.
    capacity : int
        Number of residuals, for each right-hand side, in the ring buffer `history`.
    partial_sums : dict
        From the name of each of `Program.deferred_sums` to its partial sums, in a form private to the backend. Steps
        that read such a sum add up its partial sums.
    """

    program: Program
    dtype: np.dtype[Any]
    columns: int
    capacity: int
    partial_sums: dict[str, Any]

    @property
    def cells(self) -> Array:
        """The scalars in double precision. The scalars of one right-hand side are contiguous."""

    @property
    def history(self) -> Array:
        """The recent residuals of each right-hand side."""

    @property
    def reduce(self) -> Callable[[Array], None] | None:
        """A function that sums an array over all ranks, in place; None if there is only one rank."""


class StepKernels(Protocol):
    """Steps of solvers, and the vectors that they begin with."""

    def compile_steps(self, device: Device, program: Program, dtype: np.dtype[Any]) -> None:
        """Begin to compile the passes of a program for vectors of this dtype, if this can be done on other threads."""

    def bind_step(
        self, device: Device, program: Program, step: Step, vectors: Mapping[str, Array], state: StepState
    ) -> Call:
        """Return a call that runs one step of a program on these vectors."""

    def bind_iterations(
        self,
        device: Device,
        program: Program,
        operations: tuple[Step | Multiplication, ...],
        csr: Csr,
        width: int,
        vectors: Mapping[str, Array],
        state: StepState,
        turns: int,
    ) -> Call | None:
        """Return a call that runs up to `turns` iterations in one kernel, and fewer if the program sets `stop`.

        An iteration consists of `operations` in this order. Products are with the square matrix `csr`, and each step
        occurs once. There is one right-hand side, values and vectors have one dtype, and `width` is the number of
        entries of the longest row. Return None if the device has no such kernel, or if the matrix is too large for it.
        """

    def bind_dots(self, device: Device, state: StepState, name: str, num_dots: int) -> tuple[Array, Call | None]:
        """Return an array for the partial sums of a product, and a call to make after the product; None if not needed.

        Steps that are bound later read the sum under `name`. `num_dots` is `Multiply.num_dots`, and is not 0.
        """

    def fill_hashes(self, device: Device, out: Array, offset: int) -> None:
        """Write pseudorandom numbers between -1/2 and 1/2. Element i is a hash of i + 1 + offset, modulo 2³².

        For h = i + 1 + offset and each of two odd numbers, h becomes h·odd, and then its upper 16 bits are folded into
        the lower ones by an exclusive or. The element is h / 2³² - 1/2.
        """
