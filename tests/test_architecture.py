"""The imports of the package: from upper rooms (top-level folders) to lower ones, and without circles.

Dynamic imports count as well.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.import_graph import ABOVE_THE_FACE, FACE, ROOMS, circles, imports_that_do_not_go_down, read_graph, room_of

ROOT = Path(__file__).parent.parent
# No room may be added without a reason that outweighs a newcomer's effort to learn it.
_MOST_ROOMS = 20


@pytest.fixture(scope="module")
def graph():
    return read_graph()


def test_no_files_import_each_other_in_a_circle(graph):
    assert circles(graph) == []


def test_imports_go_from_upper_rooms_to_lower_ones(graph):
    assert imports_that_do_not_go_down(graph) == []


def test_every_module_is_in_one_of_few_rooms(graph):
    rooms = {room_of(module) for module in graph} - {FACE}
    assert rooms == {room for rooms in ROOMS for room in rooms}
    assert len(rooms) <= _MOST_ROOMS


def test_import_linter_checks_the_same_rooms():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == "rooms")
    assert [tuple(line.split(" | ")) for line in layers] == [rooms for rooms in ROOMS if rooms != ("__main__",)]


def test_a_planted_circle_and_an_upward_import_are_found():
    graph = {
        "gsparse.plan.choice": {"gsparse.formats.csr"},
        "gsparse.formats.csr": {"gsparse.device.base", "gsparse.plan.choice"},
        "gsparse.device.base": {FACE},
        "gsparse.cli.entry": {FACE},
        FACE: set(),
    }
    assert circles(graph) == [["gsparse.formats.csr", "gsparse.plan.choice"]]
    assert imports_that_do_not_go_down(graph) == [
        ("gsparse.device.base", FACE),
        ("gsparse.formats.csr", "gsparse.plan.choice"),
    ]
    assert "cli" in ABOVE_THE_FACE


def test_dynamic_imports_are_found(tmp_path, monkeypatch):
    package = tmp_path / "gsparse"
    (package / "linalg").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "linalg" / "__init__.py").write_text("")
    (package / "errors.py").write_text(
        "from importlib import import_module\ndef f():\n    return import_module('gsparse.linalg')\n"
    )
    monkeypatch.setattr("tests.import_graph.PACKAGE", package)
    assert read_graph()["gsparse.errors"] == {"gsparse.linalg"}
