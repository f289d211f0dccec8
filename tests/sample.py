"""The quick choice of tests, which ``pytest`` runs if the command line does not name tests.

A test function that takes a device runs with a few combinations of its parameters on each device, such that every value
of each parameter occurs. Of dtypes, one real, one complex and one integer dtype occur, because most of the time goes
into compiling kernels for each dtype. Tests without a device are quick and all run, so the choice kills every mutant of
``tests/mutation`` that all tests kill. The marks `few`, `whole` and `timed` leave out more (``pyproject.toml``): slow
tests, and tests of real time, which a busy machine can make fail. If one of those fails in a whole run, it is repeated
once.

A path, ``-k``, ``-m`` and ``--whole``, which CI uses, run all tests that they select. The choice depends on the tests
alone, and the summary says how many tests were left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any
from zlib import crc32

import numpy as np
import pytest

__all__ = ["covering", "is_quick", "quick_choice"]

# On these devices, one of this number of test functions runs: kernels of 64 lanes differ little from those of 32.
_SELDOM = {"emulated:64": 40}

# Parameters that are dtypes of values, and the dtype that stands for others of its kind wherever a test offers it.
_DTYPE_NAMES = ("dtype", "stored", "compute")
_COMMON = {"real": "float64", "complex": "complex64", "integer": "int32"}

_LEFT_OUT = "left_out"  # the name under which a worker of pytest-xdist reports the number
_left_out = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run all tests instead of the quick choice")


def is_quick(config: pytest.Config) -> bool:
    """Return whether the command line selects neither certain tests nor all of them."""
    option = config.option
    selects = option.whole or option.keyword or option.markexpr != "not xslow" or getattr(option, "lf", False)
    return not selects and config.args == config.getini("testpaths")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timed") and config.pluginmanager.hasplugin("rerunfailures"):
            item.add_marker(pytest.mark.flaky(reruns=1))
    if is_quick(config):
        chosen = set(quick_choice(items))
        left_out = [item for item in items if item not in chosen]
        items[:] = [item for item in items if item in chosen]
        config.stash[_left_out] = len(left_out)
        config.hook.pytest_deselected(items=left_out)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT_OUT] = session.config.stash.get(_left_out, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_left_out] = getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(_left_out, 0)
    if count:
        terminalreporter.write_line(f"quick choice: {count} tests were left out; pytest --whole -n auto runs them all")


def quick_choice(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Choose a few tests of each test function for each device, and all tests without a device."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not (item.get_closest_marker("whole") or item.get_closest_marker("timed")):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in functions.items():
        for turn, (device, group) in enumerate(groupby(sorted(cases, key=_device), key=_device)):
            if crc32(name.encode()) % _SELDOM.get(device, 1) == 0:
                yield from _few(covering(list(group), turn) if device else list(group))


def _few(items: Sequence[pytest.Item]) -> Sequence[pytest.Item]:
    """Return as many tests as the mark `few` allows, spread evenly over the list."""
    mark = items[0].get_closest_marker("few")
    count = min(mark.args[0], len(items)) if mark else len(items)
    return [items[number * len(items) // count] for number in range(count)]


def _device(item: pytest.Item) -> str:
    """Return the name of the device with which a test is parametrized, or ""."""
    device = _parameters(item).get("device", "")
    return device if isinstance(device, str) else ""


def covering(items: Sequence[pytest.Item], turn: int = 0) -> list[pytest.Item]:
    """Choose tests such that each value of each parameter occurs. The search is greedy: most new values first.

    Parameters
    ----------
    items : sequence of pytest.Item
        The parametrizations of one test function.
    turn : int
        The position at which the search begins. Another turn chooses other combinations if there are several.
    """
    values = [_values(item) for item in items]
    missing = set().union(*values)
    order = [(number + turn) % len(items) for number in range(len(items))]
    order.sort(key=lambda number: _uncommon(items[number]))
    chosen = []
    while missing:
        chosen.append(max(order, key=lambda number: len(values[number] & missing)))
        missing -= values[chosen[-1]]
    return [items[number] for number in sorted(chosen)]


def _kind(name: str, value: Any) -> str | None:
    """Return the kind of a dtype: "real", "complex" or "integer"; None for another parameter."""
    if name not in _DTYPE_NAMES or not isinstance(value, str | type | np.dtype):
        return None
    try:
        kind = np.dtype(value).kind
    except TypeError:
        return None
    return {"f": "real", "c": "complex"}.get(kind, "integer")


def _uncommon(item: pytest.Item) -> int:
    """Return how many of a test's dtypes are not those that stand for their kind."""
    kinds = {name: _kind(name, value) for name, value in _parameters(item).items()}
    return sum(kind is not None and np.dtype(_parameters(item)[name]) != _COMMON[kind] for name, kind in kinds.items())


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _values(item: pytest.Item) -> set[Any]:
    """Return the values of a test's parameters, and its name. Names that are parametrized together count as one."""
    parameters = _parameters(item)
    marks = (mark.args[0] for mark in item.iter_markers("parametrize"))
    together = [
        tuple(part.strip() for part in names.split(",")) if isinstance(names, str) else names for names in marks
    ]
    alone = [(name,) for name in parameters if not any(name in names for names in together)]
    return {item.nodeid.partition("[")[0]} | {
        tuple((name, _kind(name, parameters[name]) or id(parameters[name])) for name in names)
        for names in (*together, *alone)
    }
