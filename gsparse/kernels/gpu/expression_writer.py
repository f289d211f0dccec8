"""Write the Python expressions of `gsparse.kernels.steps` as CUDA C++."""

from __future__ import annotations

import ast
from collections.abc import Mapping

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Eq: "==", ast.NotEq: "!=", ast.And: "&&", ast.Or: "||",
}  # fmt: skip


class ExpressionWriter:
    """Writes Python expressions as C++.

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
