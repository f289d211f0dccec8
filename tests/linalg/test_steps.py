"""The language of steps: the errors that it raises, and that every backend computes the same."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest

import gsparse
from gsparse.device.base import Device
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import Program, Step, parse
from gsparse.linalg.krylov.solve_state import SolveState
from tests.support import host, on_device, random_values

VECTORS = "a b c d"
SCALARS = ("s", "t")


# ------------------------------------------------------------------------------------------------ what it refuses

NOT_OF_THE_LANGUAGE = [
    "x = y ** 2", "x **= 2", "x = y // 2", "x = y[0]", "x = y.real", "x = [y]", "x = 'y'", "x = None", "x = 2j",
    "x = exp(y)", "x = abs(y)", "x = sqrt(y, z)", "x = sqrt()", "x = sqrt(x=y)", "x = y < z < w", "x = y in z",
    "x = lambda: y", "x = (z := y)", "x, y = z, w", "x = y = z", "x[0] = y", "x.real = y", "x: float = y", "x = *y,",
    "sqrt(x)", "x", "x = record(y)", "record(record(y))", "if x: y = z", "for x in y: z = x", "import x", "del x",
    "pass", "x = y @ z", "x = +y", "x = ~y", "x = f'{y}'", "x = y =",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_OF_THE_LANGUAGE)
def test_the_language_refuses_unsupported_syntax(text: str) -> None:
    with pytest.raises(SyntaxError):
        parse(text)


HAZARDS = {
    "kept scalar read before": Step("f", before="k = rho", each="a = k * a", after="rho = 1"),
    "kept scalar read by elements": Step("f", each="a = rho * a", after="rho = 1"),
    "kept scalar read by sums": Step("f", sums="total = rho * a", after="rho = 1"),
    "sum read before": Step("f", before="k = total", each="a = k * a", sums="total = a"),
    "sum read by elements": Step("f", each="a = total * a", sums="total = a"),
    "iteration read and counted": Step("f", each="a = iteration * a", after="iteration += 1"),
    "scalar assigned to a vector before": Step("f", before="a = 1"),
    "scalar assigned to a vector afterwards": Step("f", after="a = 1"),
    "sum assigned to a vector": Step("f", sums="a = b"),
    "history written by elements": Step("f", each="record(a)"),
    "history written before": Step("f", before="record(s)"),
}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_program_with_a_data_hazard_is_refused(hazard: str) -> None:
    with pytest.raises(SyntaxError, match=r"test\.f "):
        Program("test", VECTORS, (HAZARDS[hazard],))


# ------------------------------------------------------------------------------------------- what backends compute


class Bound:
    """A program with arrays and scalars on a device."""

    def __init__(self, device: Device, program: Program, arrays: dict[str, Any], columns: int, **scalars: Any) -> None:
        dtype = next(iter(arrays.values())).dtype
        self.state = SolveState(device, program, dtype, columns)
        self.state.set(**scalars)
        self.arrays = {name: on_device(device, array) for name, array in arrays.items()}
        bind = kernels_of(device).steps.bind_step
        self.steps = {s.name: bind(device, program, s, self.arrays, self.state) for s in program.steps}

    def run(self, *names: str) -> Any:
        for name in names:
            self.steps[name]()
        return self.state.read()


def draw_expression(rng: np.random.Generator, names: list[str], depth: int) -> str:
    if depth == 0:
        return str(rng.choice([*names, "0.5", "2"]))
    left, right, other = (draw_expression(rng, names, depth - 1) for _ in range(3))
    return str(rng.choice([
        f"({left} + {right})", f"({left} - {right})", f"{left} * {right}", f"-{left}", f"conj({left})",
        f"real({left})", f"{left} / (3 + abs2({right}))", f"sqrt(abs2({left}) + abs2({right}))",
        f"({left} if {right} < {other} else -{left})", f"(1 if {left} > 0 and not {right} >= {other} else {right})",
    ]))  # fmt: skip


def draw_program(seed: int) -> Program:
    """Draw two steps; the second reads scalars and sums of the first."""
    rng = np.random.default_rng(seed)
    names = [*VECTORS.split(), *SCALARS]
    steps = []
    for number, extra in enumerate(([], ["kept", "total"])):
        before = f"k = {draw_expression(rng, [*SCALARS, *extra], 2)}"
        each = f"e = {draw_expression(rng, [*names, 'k'], 2)}"
        for vector in rng.choice(VECTORS.split(), 2, replace=False):
            each += f"; {vector} = k * e + {draw_expression(rng, [*names, 'k', 'e'], 2)}"
        total = "total" if number == 0 else "last"
        sums = f"{total} = {draw_expression(rng, [*names, 'e'], 2)}; own = a * conj(b)"
        # Means, so that sizes do not matter.
        after = f"{'kept' if number == 0 else 'end'} = {draw_expression(rng, ['own', *SCALARS], 1)} / count"
        after += "" if number == 0 else "; final = last; iteration += 1; record(abs2(own))"
        steps.append(Step(f"step{number}", before, each, sums, after))
    return Program(f"random{seed}", VECTORS, tuple(steps))


class Vectorized(ast.NodeTransformer):
    """The meaning of an expression for NumPy arrays: choices element by element, comparisons of real parts."""

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return ast.Call(ast.Name("where"), [self.visit(n) for n in (node.test, node.body, node.orelse)], [])

    def visit_Compare(self, node: ast.Compare) -> Any:
        sides = [ast.Call(ast.Name("real"), [self.visit(n)], []) for n in (node.left, *node.comparators)]
        return ast.Compare(sides[0], node.ops, sides[1:])

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        return ast.Call(ast.Name(name), [self.visit(n) for n in node.values], [])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        return (
            ast.Call(ast.Name("logical_not"), [operand], [])
            if isinstance(node.op, ast.Not)
            else ast.UnaryOp(node.op, operand)
        )


def interpret(step: Step, vectors: dict[str, Any], cells: dict[str, Any]) -> float:
    """Compute a step with NumPy in double precision; return the size of the terms of its sums."""
    functions = {name: getattr(np, name) for name in ("conj", "real", "where", "logical_and", "logical_not")}
    functions |= {"sqrt": lambda z: np.sqrt(np.real(z)), "abs2": lambda z: np.real(np.conj(z) * z)}

    def evaluate(value: ast.expr, names: dict[str, Any]) -> Any:
        tree = Vectorized().visit(ast.parse(ast.unparse(value), mode="eval"))
        return eval(ast.unparse(tree), functions, names)

    local, size = {**cells, **vectors}, 0.0
    for a in (*step.sections["before"], *step.sections["each"]):
        local[a.target] = evaluate(a.value, local)
    for name, array in vectors.items():
        array[...] = local[name]
    for a in step.sections["sums"]:
        terms = np.broadcast_to(evaluate(a.value, {**local, **vectors}), vectors["a"].shape)
        cells[a.target], size = terms.sum(), size + abs(terms).sum()
    for a in step.sections["after"]:
        if a.target:
            cells[a.target] = evaluate(a.value, cells)
    return size


@pytest.mark.parametrize(("seed", "dtype"), [(0, "float64"), (1, "complex128"), (2, "float32"), (3, "complex64")])
@pytest.mark.thorough
@pytest.mark.few(1)
def test_backends_compute_random_programs_correctly(device: Device, seed: int, dtype: str) -> None:
    program, rng, columns = draw_program(seed), np.random.default_rng(seed), 2
    for size in (0, 1, 5000):
        arrays = {name: random_values(rng, columns * size, dtype) for name in program.vector_names}
        scalars = {name: rng.uniform(0.5, 1.5, columns) for name in SCALARS}
        bound = Bound(device, program, arrays, columns, count=size + 1, **scalars)
        seen = bound.run("step0", "step1")
        for column in range(columns):
            wide = np.result_type(dtype, float)
            vectors = {n: v.reshape(columns, -1)[column].astype(wide) for n, v in arrays.items()}
            cells = {"count": size + 1, **{name: values[column] for name, values in scalars.items()}}
            cells |= {name: 0.0 for name in program.cells if name not in cells}
            terms = sum(interpret(step, vectors, cells) for step in program.steps)
            rounding = 1e4 * np.finfo(dtype).eps
            for name, expected in vectors.items():
                got = host(bound.arrays[name]).reshape(columns, -1)[column]
                np.testing.assert_allclose(got, expected, rtol=rounding, atol=rounding)
            # "kept" and "end" are means, of size + 1 terms.
            for name, size_of_terms in (("kept", terms / (size + 1)), ("end", terms / (size + 1)), ("final", terms)):
                limit = rounding * (size_of_terms + 1)
                np.testing.assert_allclose(seen[name][column], cells[name], rtol=rounding, atol=limit)
        np.testing.assert_array_equal(seen.iterations, 1)


UPDATE = Program(
    "update",
    VECTORS,
    (
        Step("update", each="a += s * b", sums="aa = abs2(a); ab = conj(a) * b", after="iteration += 1; record(aa)"),
        Step("scale", before="k = 1 / ab", each="a = k * a", after="stop = 1 if iteration >= most else 0"),
        Step("divide", each="c = a / d", sums="cc = c", after="ratio = cc / zero; root = sqrt(-1)"),
    ),
)


def test_steps_do_nothing_once_a_column_has_stopped(device: Device) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: random_values(rng, 2 * 300, float) for name in VECTORS.split()}
    bound = Bound(device, UPDATE, arrays, 2, s=0.5, most=[1, 3], stop=[0, 0])
    for _ in range(2):
        seen = bound.run("update", "scale")
    assert seen.stop.tolist() == [1, 0]
    assert seen.iterations.tolist() == [1, 2]
    first = host(bound.arrays["a"])[:300].copy()
    for _ in range(3):
        seen = bound.run("update", "scale")
    assert seen.stop.tolist() == [1, 1]
    assert seen.iterations.tolist() == [1, 3]
    np.testing.assert_array_equal(host(bound.arrays["a"])[:300], first)
    once = arrays["a"][:300] + 0.5 * arrays["b"][:300]
    np.testing.assert_allclose(seen.history[0, 1], once @ once, rtol=1e-13)


def test_sums_have_the_same_bits_every_time(device: Device) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: random_values(rng, 20_000, float) for name in VECTORS.split()}
    found = set()
    for _ in range(3):
        seen = Bound(device, UPDATE, arrays, 1, s=0.3, most=9).run("update", "scale")
        found.add((seen["ab"].tobytes(), seen.history.tobytes()))
    assert len(found) == 1


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    rng, device = np.random.default_rng(0), gsparse.device.get_device("cpu")
    arrays = {name: random_values(rng, 300_001, float) for name in VECTORS.split()}
    before, found = gsparse.get_num_threads(), set()
    try:
        for threads in (1, 2, 3, 7):
            gsparse.set_num_threads(threads)
            bound = Bound(device, UPDATE, arrays, 1, s=0.3, most=9)
            seen = bound.run("update", "scale")
            found.add((seen["ab"].tobytes(), seen.history.tobytes(), bound.arrays["a"].tobytes()))
    finally:
        gsparse.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_division_by_zero_gives_no_error(device: Device, dtype: str) -> None:
    arrays = {name: np.ones(5, dtype) for name in VECTORS.split()}
    arrays["d"][2] = 0
    bound = Bound(device, UPDATE, arrays, 1, zero=0.0)
    seen = bound.run("divide")
    got = host(bound.arrays["c"])
    assert not np.isfinite(got[2])
    np.testing.assert_array_equal(got[[0, 1, 3, 4]], 1)
    assert not np.isfinite(seen["ratio"][0])
    assert np.isnan(seen["root"][0])
