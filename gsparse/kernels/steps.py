"""The language of solver steps: what one fused pass over vectors does, written once for every backend.

A Krylov method is a handful of passes over vectors of one length. Each computes a few scalars, walks over all elements
once, adds some products of them up, and computes a few scalars more:

>>> from gsparse.kernels.steps import Step
>>> Step("update", before="alpha = rho / pq", each="x += alpha * p; r -= alpha * q", sums="rr = abs2(r)",
...      after="iteration += 1; record(sqrt(rr)); stop = 1 if rr < tolerance else 0").name
'update'

The text is Python: assignments, ``+ - * /``, comparisons, ``and or not``, ``a if c else b``, numbers, and the functions
`sqrt`, `abs2`, `conj`, `real`, `isnan`. Comparisons and `sqrt` look at real parts. `gsparse.kernels.gpu.steps` turns it
into CUDA C++, `gsparse.kernels.cpu.steps` into numba.

Scalars live in *cells* on the device, in double precision (complex where the vectors are): nothing comes to the host
in between. Two are always there: a pass does nothing once `stop` is not 0, and ``record(value)`` writes the history at
`iteration`. A pass that no element may miss had to wait for its last block before it sets `stop`: it may set a cell
`verdict` instead, which means the same to the host, and which the next pass makes `stop`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import Any, Protocol

import numpy as np

from gsparse.device.dtypes import Array

__all__ = ["FUNCTIONS", "SYSTEM_CELLS", "Program", "Step", "StepState"]

FUNCTIONS = ("sqrt", "abs2", "conj", "real", "isnan", "record")
SYSTEM_CELLS = ("stop", "iteration")

_EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Call, ast.Name, ast.Constant, ast.Load, ast.Store,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.Not, ast.And, ast.Or,
    ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
)  # fmt: skip


@dataclass(frozen=True)
class Assignment:
    """``target = value``; without a target, a call of `record`."""

    target: str
    value: ast.expr


def parse(text: str) -> tuple[Assignment, ...]:
    """Parse statements, one a line or with semicolons between.

    Raises
    ------
    SyntaxError
        Where the text is not of this language.
    """
    found = []
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
        found.append(Assignment(target, value))
    return tuple(found)


def _called(node: ast.AST) -> str:
    """Give the name of the function that an expression calls."""
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
    """Give the names of vectors and scalars that an expression reads."""
    called = {id(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)}
    return (node.id for node in ast.walk(value) if isinstance(node, ast.Name) and id(node) not in called)


@dataclass(frozen=True, eq=False)
class Step:
    """One pass.

    Parameters
    ----------
    name : str
    before : str
        Scalars that all elements use; forgotten after the pass.
    each : str
        What is done to each element; vectors keep what is assigned to them, other names are the element's own.
    sums : str
        ``name = term``: terms of all elements, added up in double precision.
    after : str
        Scalars, computed once from these sums and kept. The pass must not read one of them before.
    loose : bool
        Whether elements of this pass may stay as they were where its own `after` sets `stop`: then that need not wait
        for the last of them.
    backward : bool
        Whether to walk from the last element to the first: what the pass or product before it touched last is then
        still in the cache. Sums come out the same every time, but in another order.
    """

    name: str
    before: str = ""
    each: str = ""
    sums: str = ""
    after: str = ""
    loose: bool = False
    backward: bool = False

    @cached_property
    def sections(self) -> dict[str, tuple[Assignment, ...]]:
        return {name: parse(getattr(self, name)) for name in ("before", "each", "sums", "after")}

    @cache  # noqa: B019  (programs are few and stay)
    def targets(self, section: str) -> tuple[str, ...]:
        """Give what a section assigns, each name once."""
        return tuple(dict.fromkeys(a.target for a in self.sections[section] if a.target))

    @cache  # noqa: B019  (programs are few and stay)
    def reads(self, *sections: str) -> tuple[str, ...]:
        """Give what sections read before they assign it, each name once."""
        known: set[str] = set()
        found: dict[str, None] = {}
        for assignment in chain.from_iterable(self.sections[section] for section in sections):
            found.update(dict.fromkeys(name for name in names_in(assignment.value) if name not in known))
            known.add(assignment.target)
        return tuple(found)


@dataclass(frozen=True, eq=False)
class Program:
    """The steps of one method: what is compiled together and shares scalars.

    Parameters
    ----------
    name : str
    vectors : str
        Names of vectors, with spaces between.
    steps : tuple of Step
    """

    name: str
    vectors: str
    steps: tuple[Step, ...] = field(default=())

    @cached_property
    def vector_names(self) -> tuple[str, ...]:
        return tuple(self.vectors.split())

    @cached_property
    def pending(self) -> frozenset[str]:
        """Sums that other steps read and no step assigns: a backend may leave it to those to add them up."""
        sums = {name for step in self.steps for name in step.targets("sums")}
        assigned = {name for step in self.steps for name in step.targets("after")}
        return frozenset(
            name
            for step in self.steps
            for name in step.reads("before", "each", "sums", "after")
            if name in sums - assigned and name not in step.targets("sums")
        )

    @cached_property
    def cells(self) -> dict[str, int]:
        """Place of each scalar that is kept or comes from outside."""
        found = dict.fromkeys(SYSTEM_CELLS)
        for step in self.steps:
            found.update(dict.fromkeys(step.targets("after")))
            found.update(dict.fromkeys(self.cells_read(step, "before", "each", "sums", "after")))
        return {name: place for place, name in enumerate(found)}

    @cache  # noqa: B019  (programs are few and stay)
    def cells_read(self, step: Step, *sections: str) -> tuple[str, ...]:
        """Give the scalars that these sections of a step take from cells."""
        own = {*self.vector_names, *step.targets("sums")} if "after" in sections else {*self.vector_names}
        return tuple(name for name in step.reads(*sections) if name not in own)

    @cache  # noqa: B019  (programs are few and stay)
    def vectors_of(self, step: Step) -> tuple[str, ...]:
        """Give the vectors a step reads or writes, in the program's order."""
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


class StepState(Protocol):
    """What steps ask of the scalars of a running program.

    Attributes
    ----------
    program : Program
    dtype : dtype
        Of the vectors.
    columns : int
        Right-hand sides. All vectors hold them one after the other.
    capacity : int
        Residuals in the ring of recent ones, for each right-hand side.
    pending : dict
        Partial sums by name, in whatever form the backend leaves them for the steps that add them up.
    """

    program: Program
    dtype: np.dtype[Any]
    columns: int
    capacity: int
    pending: dict[str, Any]

    @property
    def cells(self) -> Array:
        """The scalars, those of one right-hand side next to each other, in double precision."""
        ...

    @property
    def history(self) -> Array:
        """The recent residuals of each right-hand side."""
        ...

    @property
    def reduce(self) -> Callable[[Array], None] | None:
        """Adds sums up over all ranks, in place; None where there is one rank."""
        ...
