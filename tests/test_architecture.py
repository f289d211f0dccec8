"""The imports of the package: from upper layers to lower ones, and without circles.

Dynamic imports count as well.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.import_graph import (
    ABOVE_INTERFACE,
    INTERFACE,
    LAYERS,
    circles,
    imports_that_do_not_go_down,
    read_graph,
    subpackage_of,
)

ROOT = Path(__file__).parent.parent
# No subpackage may be added without a reason that outweighs a newcomer's effort to learn it.
_MOST_SUBPACKAGES = 21


@pytest.fixture(scope="module")
def graph():
    return read_graph()


def test_no_files_import_each_other_in_a_circle(graph):
    assert circles(graph) == []


def test_imports_go_from_upper_layers_to_lower_ones(graph):
    assert imports_that_do_not_go_down(graph) == []


def test_every_module_is_in_one_of_few_subpackages(graph):
    subpackages = {subpackage_of(module) for module in graph} - {INTERFACE}
    assert subpackages == {name for names in LAYERS for name in names}
    assert len(subpackages) <= _MOST_SUBPACKAGES


def test_import_linter_checks_the_same_layers():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == "layers")
    assert [tuple(line.split(" | ")) for line in layers] == [names for names in LAYERS if names != ("__main__",)]


def test_a_planted_circle_and_an_upward_import_are_found():
    graph = {
        "gsparse.plan.choice": {"gsparse.formats.csr"},
        "gsparse.formats.csr": {"gsparse.device.base", "gsparse.plan.choice"},
        "gsparse.device.base": {INTERFACE},
        "gsparse.cli.entry": {INTERFACE},
        INTERFACE: set(),
    }
    assert circles(graph) == [["gsparse.formats.csr", "gsparse.plan.choice"]]
    assert imports_that_do_not_go_down(graph) == [
        ("gsparse.device.base", INTERFACE),
        ("gsparse.formats.csr", "gsparse.plan.choice"),
    ]
    assert "cli" in ABOVE_INTERFACE


@pytest.mark.parametrize(
    "code",
    [
        "from importlib import import_module\ndef f():\n    return import_module('gsparse.linalg')\n",
        "import importlib\ndef f():\n    return importlib.import_module('gsparse.linalg')\n",
        "from . import linalg\n",
        "from .linalg import cg\n",
    ],
)
def test_dynamic_and_relative_imports_are_found(tmp_path, monkeypatch, code):
    package = tmp_path / "gsparse"
    (package / "linalg").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "linalg" / "__init__.py").write_text("")
    (package / "errors.py").write_text(code)
    monkeypatch.setattr("tests.import_graph.PACKAGE", package)
    assert read_graph()["gsparse.errors"] == {"gsparse.linalg"}
