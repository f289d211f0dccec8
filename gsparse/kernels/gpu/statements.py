"""CUDA C++ for expressions of `gsparse.kernels.steps`, and for the statements of a kernel of whole iterations.

In the text of an iteration (`gsparse.kernels.gpu.iteration_source`), `l_x` are the thread's own elements of a vector x,
and `sent_x` the copies that other blocks read. `c_s` is the scalar s of the program, `w_s` is a thread's contribution
to the sum s, `s_step_s` is the scalar s of the step `step`, and `t_step_s` is that scalar in the type of the vectors.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gsparse.kernels.steps import Assignment, Multiplication, Program, Step, names_in

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Eq: "==", ast.NotEq: "!=", ast.And: "&&", ast.Or: "||",
}  # fmt: skip


class ExpressionWriter:
    """Returns the C++ text of Python expressions.

    Parameters
    ----------
    type_name : str
        The type of constants: T for elements, C for cells and sums.
    names : mapping
        The C++ name of each Python name.
    """

    def __init__(self, type_name: str, names: Mapping[str, str]) -> None:
        self.type_name, self.names = type_name, names

    def __call__(self, node: ast.expr) -> str:  # noqa: PLR0911  (one case for each kind of node)
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


@dataclass(frozen=True)
class Remote:
    """The way in which a block computes another block's element of a vector: an expression, and the copies it reads."""

    text: str
    copies: frozenset[str]
    exchange: int  # number of the exchange, within the iteration, that made the copies visible

    @classmethod
    def copy(cls, vector: str, exchange: int) -> Remote:
        """Return the `Remote` of an element that is read from a copy of the vector itself."""
        return cls(f"g_{vector}", frozenset([vector]), exchange)


def follow(remotes: dict[str, Remote | None], step: Step, narrow: dict[str, str], program: Program) -> None:
    """Update `remotes`, in place, for the elements that a step assigns."""
    known = dict(remotes)
    for assignment in step.sections["each"]:
        read = [name for name in names_in(assignment.value) if name not in narrow]
        parts = {name: known.get(name) for name in read}
        if all(part is not None for part in parts.values()):
            texts = {name: part.text for name, part in parts.items() if part is not None}
            copies = frozenset().union(*(part.copies for part in parts.values() if part is not None))
            exchange = max((part.exchange for part in parts.values() if part is not None), default=0)
            text = ExpressionWriter("T", {**narrow, **texts})(assignment.value)
            known[assignment.target] = Remote(text, copies, exchange)
        else:
            known[assignment.target] = None
    remotes.update({name: known[name] for name in step.targets("each") if name in program.vector_names})


def write_product(product: Multiplication, remote: Remote) -> str:
    """Return the text of the product of the matrix and a vector. Other blocks' elements are computed by `remote`."""
    copies = sorted(remote.copies)
    declared = f"      T {', '.join(f'g_{name}' for name in copies)};\n" if copies else ""
    received = "".join(f"      is_complete &= sent_{name}.receive(column, g_{name});\n" for name in copies)
    return f"""    A.template multiply<{max(len(copies), 1)}>(l_{product.source}, l_{product.target}, [&](int column, T &value) {{
{declared}      bool is_complete = true;
{received}      value = {remote.text};
      return is_complete;
    }});
"""  # noqa: E501  (a line of CUDA)


def write_elements(program: Program, step: Step, scalars: dict[str, str], narrow: dict[str, str]) -> str:
    """Return a thread's loop over its elements: `each` in the type T of the vectors, then `sums` in the type C."""
    if not step.sections["each"] and not step.sections["sums"]:
        return ""
    elements = {name: f"l_{name}[e]" for name in program.vector_names}
    text, known = "", {*elements}
    names = {**narrow, **elements, **{n: f"l_{n}" for n in step.targets("each") if n not in elements}}
    write = ExpressionWriter("T", names)
    for assignment in step.sections["each"]:
        declaration = "" if assignment.target in known else "T "
        known.add(assignment.target)
        text += f"      {declaration}{names[assignment.target]} = {write(assignment.value)};\n"
    wide = {n: f"Widen<C>::from({names[n]})" if n in known else scalars[n] for n in names_of(step.sections["sums"])}
    write = ExpressionWriter("C", wide)
    for a in step.sections["sums"]:
        text += f"      w_{a.target} = w_{a.target} + {write(a.value)};\n"
    return f"""#pragma unroll
    for (int e = 0; e < ROWS; ++e) {{
      if (int(threadIdx.x) + e * int(blockDim.x) >= A.num_rows) continue;
{text}    }}
"""


def write_after(assignment: Assignment, names: dict[str, str]) -> str:
    """Return the text of an assignment to a scalar, or of the record of a residual."""
    names = {**names, **{n: f"c_{n}" for n in names_in(assignment.value)}, assignment.target: f"c_{assignment.target}"}
    write = ExpressionWriter("C", names)
    if assignment.target:
        return f"    c_{assignment.target} = {write(assignment.value)};\n"
    argument = assignment.value.args[0]  # type: ignore[attr-defined]
    return (
        "    if (blockIdx.x == 0 && threadIdx.x == 0)\n"
        f"      history[static_cast<long long>(gs_real(c_iteration)) % capacity] = gs_real({write(argument)});\n"
    )


def write_exchange(sums: Sequence[str], copies: Sequence[str], indent: str = "    ") -> str:
    """Return the text that copies a thread's elements for other blocks, and exchanges sums to make them visible."""
    count = max(len(sums), 1)
    text = ""
    if copies:
        stores = "".join(f"{indent}    sent_{name}.send(begin + row, l_{name}[e], number + 1);\n" for name in copies)
        text += f"""#pragma unroll
{indent}for (int e = 0; e < ROWS; ++e) {{
{indent}  const int row = int(threadIdx.x) + e * int(blockDim.x);
{indent}  if (row < A.num_rows) {{
{stores}{indent}  }}
{indent}}}
"""
    brought = ", ".join(f"w_{name}" for name in sums) or "Scalar<C>::zero()"
    text += f"{indent}{{\n{indent}  C sums[{count}] = {{{brought}}};\n"
    text += f"{indent}  gs_exchange<{count}, MOST_SUMS>(sums, words, ++number, shared);\n"
    text += "".join(f"{indent}  c_{name} = sums[{i}];\n" for i, name in enumerate(sums)) + f"{indent}}}\n"
    for name in copies:
        text += f"{indent}sent_{name}.swap(number);\n"
    return text


def indented(text: str) -> str:
    """Return statements with one more level of indentation."""
    return "".join(line if line.startswith("#") else f"  {line}" for line in text.splitlines(keepends=True))


def names_of(assignments: Sequence[Assignment]) -> set[str]:
    """Return the names that assignments read."""
    return {name for assignment in assignments for name in names_in(assignment.value)}
