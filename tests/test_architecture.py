"""The imports of the package go from upper layers to lower ones and without circles; files and functions are short.

`lint-imports` checks the same layers, which ``pyproject.toml`` lists. These tests also see dynamic imports: if a file
calls ``import_module``, each string in it that names a module of gsparse counts as an import. In an ``__init__.py``,
the string may also be relative to the package.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gsparse"
_CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
# The top-level modules and folders of the package, from the top down. Those of one line do not import each other.
LAYERS = [("__main__",), *(tuple(line.split(" | ")) for line in _CONTRACTS[0]["layers"])]
# `gsparse/__init__.py` exports public names, some of them lazily. The command line stands above it.
INTERFACE = "gsparse"
ABOVE_INTERFACE = ("__main__", "cli", "bench")

Graph = dict[str, set[str]]


def read_graph(package: Path = PACKAGE) -> Graph:
    """Return the modules of gsparse, each with the modules of gsparse that it imports."""
    parts = {path: path.relative_to(package.parent).with_suffix("").parts for path in sorted(package.rglob("*.py"))}
    paths = {".".join(p[:-1] if p[-1] == "__init__" else p): path for path, p in parts.items()}
    return {module: {*_imports(module, path, {*paths})} - {module} for module, path in paths.items()}


def _imports(module: str, path: Path, modules: set[str]) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    called = {ast.unparse(node.func).rpartition(".")[2] for node in nodes if isinstance(node, ast.Call)}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            if node.level:
                parents = package.split(".")[: package.count(".") + 2 - node.level]
                name = ".".join([*parents, *([name] if name else [])])
            if name in modules:
                wholes = (f"{name}.{alias.name}" for alias in node.names)
                yield from (whole if whole in modules else name for whole in wholes)
        elif called & {"import_module", "__import__"} and isinstance(node, ast.Constant):
            names = (node.value, f"{module}.{node.value}")
            yield from (name for name in names if name in modules and name != INTERFACE)


def circle(graph: Graph) -> list[str]:
    """Return modules that import each other in a circle; none if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imports_that_do_not_go_down(graph: Graph) -> list[tuple[str, str]]:
    """Return the imports from a lower layer to an upper one, or between two subpackages of one layer."""
    floors = {name: floor for floor, names in enumerate(LAYERS) for name in names}
    return sorted(
        (module, other)
        for module, others in graph.items()
        for other in others
        if module != INTERFACE and not goes_down(*(name.split(".")[1:2] for name in (module, other)), floors)
    )


def goes_down(importing: list[str], imported: list[str], floors: dict[str, int]) -> bool:
    if not imported:  # the interface
        return importing[0] in ABOVE_INTERFACE
    return importing == imported or floors[imported[0]] > floors[importing[0]]


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(read_graph()) == []


def test_imports_go_from_upper_layers_to_lower_ones() -> None:
    assert imports_that_do_not_go_down(read_graph()) == []


def test_a_planted_circle_and_an_upward_import_are_found() -> None:
    graph = {
        "gsparse.plan.choice": {"gsparse.formats.csr"},
        "gsparse.formats.csr": {"gsparse.device.base", "gsparse.plan.choice"},
        "gsparse.device.base": {INTERFACE},
        "gsparse.cli.entry": {INTERFACE},
        INTERFACE: set[str](),
    }
    assert {*circle(graph)} == {"gsparse.formats.csr", "gsparse.plan.choice"}
    assert imports_that_do_not_go_down(graph) == [
        ("gsparse.device.base", INTERFACE),
        ("gsparse.formats.csr", "gsparse.plan.choice"),
    ]


@pytest.mark.parametrize(
    "code",
    [
        "from importlib import import_module\ndef f():\n    return import_module('gsparse.linalg')\n",
        "import importlib\ndef f():\n    return importlib.import_module('gsparse.linalg')\n",
        "from . import linalg\n",
        "from .linalg import cg\n",
    ],
)
def test_dynamic_and_relative_imports_are_found(tmp_path: Path, code: str) -> None:
    package = tmp_path / "gsparse"
    (package / "linalg").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "linalg" / "__init__.py").write_text("")
    (package / "errors.py").write_text(code)
    assert read_graph(package)["gsparse.errors"] == {"gsparse.linalg"}


def test_no_function_has_more_than_60_lines_and_no_file_more_than_400() -> None:
    """The lines of a docstring do not count for its function."""
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    lengths = {
        f"{name}: {node.name}": node.end_lineno
        - node.lineno
        + 1
        - len((ast.get_docstring(node, clean=False) or "").splitlines())
        for name, text in texts.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    }
    assert [name for name, length in lengths.items() if length > 60] == []
    assert [name for name, text in texts.items() if text.count("\n") > 400] == []
