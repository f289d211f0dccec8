"""The quick choice of tests leaves out no test function and no value of a parameter, and hides nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.sample import covering, is_quick, quick_choice

ROOT = Path(__file__).resolve().parents[1]
LIST = (ROOT / "tests" / "mutation" / "__main__.py").read_text()


@dataclass(eq=False)
class Item:
    """A test as pytest describes it."""

    name: str
    params: dict[str, Any] = field(default_factory=dict)
    together: tuple[str, ...] = ()
    whole: bool = False
    timed: bool = False
    gpu: bool = False
    few: int = 0
    thorough: bool = False

    @property
    def nodeid(self) -> str:
        return f"{self.name}[{'-'.join(map(str, self.params.values()))}]"

    @property
    def callspec(self) -> Any:
        return SimpleNamespace(params=self.params)

    def iter_markers(self, name: str) -> list[Any]:
        return [SimpleNamespace(args=(names,)) for names in self.together]

    def get_closest_marker(self, name: str) -> Any:
        value = getattr(self, name)
        return SimpleNamespace(args=(value,)) if value else None


def items_of(name: str = "test_it", **values: Any) -> list[Any]:
    return [Item(name, dict(zip(values, combination, strict=True))) for combination in product(*values.values())]


def config(args: tuple[str, ...] = ("tests", "gsparse"), **options: Any) -> Any:
    option = SimpleNamespace(**{"whole": False, "keyword": "", "markexpr": "not xslow", "lf": False, **options})
    return SimpleNamespace(option=option, args=list(args), getini=lambda name: ["tests", "gsparse"])


def test_each_value_of_each_parameter_occurs_in_few_combinations() -> None:
    items = items_of(format="abcdefg", dtype="wxyz", index="ij")
    chosen = covering(items)
    assert len(chosen) == 7
    for name in ("format", "dtype", "index"):
        assert {item.params[name] for item in chosen} == {item.params[name] for item in items}


def test_one_dtype_of_each_kind_is_chosen_the_common_one_if_there_is_one() -> None:
    items = items_of(dtype=("float32", "float64", "complex128", "complex64", "int8", np.int32, "bool"), index="ij")
    chosen = covering(items, thorough=True)
    assert {np.dtype(item.params["dtype"]).name for item in chosen} == {"float64", "complex64", "int32"}
    assert {item.params["index"] for item in chosen} == {"i", "j"}
    rare = covering(items_of(dtype=("float32", "complex128")), thorough=True)
    assert [item.params["dtype"] for item in rare] == ["float32", "complex128"]
    assert len(covering(items_of(index=("int32", "int64")))) == 2, "dtypes of indices all count"


def test_the_choice_is_the_same_each_time_and_in_the_same_order() -> None:
    items = items_of(format="abcdefg", dtype="wxyz")
    assert covering(items) == covering(items)
    assert [items.index(item) for item in covering(items)] == sorted(map(items.index, covering(items)))


def test_names_that_are_parametrized_together_are_one_parameter() -> None:
    items = [Item("test_it", {"a": a, "b": b}, together=("a, b",)) for a, b in product("pq", "rs")]
    assert covering(items) == items


def test_every_test_without_a_device_is_chosen() -> None:
    items = [Item("test_it"), *items_of("test_more", format="abc", dtype="xyz")]
    assert list(quick_choice(items)) == items


def test_two_devices_take_turns_and_each_value_occurs_on_one_of_them() -> None:
    chosen = list(quick_choice(items_of(device=("cpu", "emulated:32"), format="abcd", index="ij")))
    assert sorted(item.params["format"] for item in chosen) == list("abcd")
    assert {item.params["index"] for item in chosen} == {"i", "j"}
    assert sorted(item.params["device"] for item in chosen) == ["cpu", "cpu", "emulated:32", "emulated:32"]


def test_half_of_the_functions_without_parameters_run_on_either_device() -> None:
    items = [item for n in range(100) for item in items_of(f"test_{n}", real_device=("cpu", "emulated:32"))]
    chosen = [item.params["real_device"] for item in quick_choice(items)]
    assert len(chosen) == 100
    assert 30 < chosen.count("cpu") < 70


def test_one_dtype_is_chosen_for_each_device_a_complex_one_for_the_emulator() -> None:
    items = items_of(device=("cpu", "emulated:32"), dtype=("float32", "complex64", "float64", "int32"), format="ab")
    chosen = [(i.params["device"], i.params["dtype"]) for i in quick_choice(items)]
    assert chosen == [("cpu", "float64"), ("emulated:32", "complex64")]
    assert len(list(quick_choice(items_of(device=("emulated:32",), dtype=("float32", "float64"))))) == 1


def test_a_thorough_test_runs_with_each_value_and_each_kind_of_dtype_on_each_device() -> None:
    items = items_of(device=("cpu", "emulated:32"), dtype=("float32", "complex64", "float64", "int32"), format="abc")
    for item in items:
        item.thorough = True
    chosen = [item.params for item in quick_choice(items)]
    for device in ("cpu", "emulated:32"):
        on_device = [params for params in chosen if params["device"] == device]
        assert sorted(params["dtype"] for params in on_device) == ["complex64", "float64", "int32"]
        assert sorted(params["format"] for params in on_device) == list("abc")


def test_a_few_tests_of_thorough_functions_run_with_64_lanes() -> None:
    items = items_of(device=("emulated:64",), structure="abcdefghijkl")
    assert list(quick_choice(items)) == []
    for item in items:
        item.thorough = True
    assert [item.params["structure"] for item in quick_choice(items)] == list("acegik")


def test_tests_that_are_marked_whole_or_timed_are_left_out() -> None:
    assert list(quick_choice([Item("test_slow", whole=True), Item("test_soon", timed=True)])) == []


def test_tests_that_are_marked_few_are_spread_evenly_over_their_parameters() -> None:
    items = [Item("test_it", {"device": device, "n": n}, few=3) for device in ("cpu", "gpu") for n in range(9)]
    chosen = [(item.params["device"], item.params["n"]) for item in quick_choice(items)]
    assert chosen == [("cpu", 0), ("cpu", 3), ("cpu", 6), ("gpu", 0), ("gpu", 3), ("gpu", 6)]


@pytest.mark.parametrize(("found", "number"), [(None, 2), ("a package", 3)])
def test_tests_of_a_gpu_are_left_out_where_cupy_is_missing(
    monkeypatch: pytest.MonkeyPatch, found: str | None, number: int
) -> None:
    monkeypatch.setattr("tests.sample.find_spec", lambda name: found)
    items = [Item("test_it", {"device": name}, gpu=name == "gpu") for name in ("cpu", "emulated:32", "gpu")]
    assert len(list(quick_choice([*items, Item("test_other")]))) == number


def test_tests_that_mutation_testing_uses_are_not_marked() -> None:
    files = {file for files in re.findall(r"\[(.*?)\]", LIST) for file in re.findall(r'"(tests/\w+\.py)"', files)}
    assert "tests/test_plan.py" in files
    for file in files:
        assert "\npytestmark" not in (ROOT / file).read_text(), file
        for function in ast.parse((ROOT / file).read_text()).body:
            if isinstance(function, ast.FunctionDef):
                marks = " ".join(map(ast.unparse, function.decorator_list))
                is_marked = re.search(r"mark\.(few|whole|timed)\b", marks)
                assert not is_marked or "device" in ast.unparse(function.args), f"{file}: {function.name}"


@pytest.mark.parametrize(
    "asked",
    [{"whole": True}, {"keyword": "spmv"}, {"markexpr": "gpu"}, {"lf": True}, {"args": ("tests/test_plan.py",)}],
    ids=str,
)
def test_a_command_line_that_selects_tests_runs_all_of_them(asked: dict[str, Any]) -> None:
    assert is_quick(config())
    assert not is_quick(config(**asked))


@pytest.mark.whole
def test_the_quick_choice_contains_every_test_function_that_is_not_marked() -> None:
    def collected(*options: str) -> tuple[dict[str, int], str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        counts: dict[str, int] = defaultdict(int)
        for line in done.stdout.splitlines():
            if "::" in line:
                counts[line.partition("[")[0]] += 1
        return counts, done.stdout

    left_out = "xslow or whole or timed" + (" or gpu" if find_spec("cupy") is None else "")
    (unmarked, _), (quick, summary) = collected("-m", f"not ({left_out})"), collected()
    assert quick.keys() == unmarked.keys()
    count = re.search(r"quick choice: (\d+) tests were left out; pytest --whole", summary)
    assert count is not None
    assert int(count[1]) > sum(unmarked.values()) - sum(quick.values()) > 0
