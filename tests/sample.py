"""The quick choice of tests, which ``pytest`` runs if the command line does not name tests.

Most of the time of a test goes into compiling its kernels for each device and each dtype. Hence a test function that
takes a device runs with a few combinations of its parameters: every value of every parameter occurs on the CPU or on
the emulated GPU, by turns, with one dtype, real on the CPU and complex on the emulated GPU if the function offers that.
With the mark `thorough` every value occurs on both, and so does a real, a complex and an integer dtype. Tests without a
device are quick and all run, unless a mark leaves them out, so the choice kills every mutant of ``tests/mutation`` that
all tests kill.

The marks `few`, `whole` and `timed` leave out more (``pyproject.toml``): slow tests, and tests of real time, which a
busy machine can make fail. If a test that is marked `timed` fails, it is repeated once. Tests that draw random examples
draw fewer (`tests.seeds`).

A path, ``-k``, ``-m`` and ``--whole``, which ``.ci/whole`` uses, run all tests that they select. The choice depends on
the tests alone, and the summary says how many tests were left out.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any
from zlib import crc32

import numpy as np
import pytest

__all__ = ["covering", "is_quick", "quick_choice"]

# Fixtures whose parameters are names of devices, and the devices that take turns.
_DEVICE_NAMES = ("device", "gpu_device", "real_device", "pretend")
_IN_TURN = ("cpu", "emulated:32")

# The device on which only thorough test functions run, and the largest number of tests of each. Kernels with 64 lanes
# are compiled from the same source as those with 32, so few errors show with 64 lanes alone.
_SELDOM, _SELDOM_COUNT = "emulated:64", 6

# Parameters that are dtypes of values, and the dtype that stands for others of its kind wherever a test offers it.
_DTYPE_NAMES = ("dtype", "stored", "compute")
_COMMON = {"real": "float64", "complex": "complex64", "integer": "int32"}

# The kinds of dtypes, preferred ones first.
_ON_CPU = ("real", "complex", "integer")
_EMULATED = ("complex", "integer", "real")

_LEFT_OUT = "left_out"  # the name under which a worker of pytest-xdist reports the number
_left_out = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run all tests instead of the quick choice")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the environment of the processes that run tests (pytest-xdist) or that tests start.

    OpenBLAS uses one thread in each of them, because its threads would wait for each other on the processors of the
    other processes: an eigenvalue problem of order 900 took 11 s instead of 1.5 s. For the quick choice, numba
    optimizes less and compiles up to a fifth faster.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if is_quick(config):
        os.environ.setdefault("NUMBA_OPT", "1")


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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without the garbage collector, which takes a quarter of the time and finds nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # Later passes of the garbage collector leave the collected tests out.


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file, exclude what remains from later passes of the garbage collector.

    Otherwise each pass reads all that earlier tests have left, most of it from compilers. What can be freed is freed
    here, where the last test's filters of warnings still apply: dask does not close the connections of requests that
    it cancels, and would warn in a test of another file.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def quick_choice(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Choose a few tests of each test function, and all tests without a device.

    Tests that need a GPU are left out if CuPy is not installed.
    """
    functions: dict[str, list[pytest.Item]] = {}
    left_out = ["whole", "timed", *(["gpu"] if find_spec("cupy") is None else [])]
    for item in items:
        if not any(map(item.get_closest_marker, left_out)):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in functions.items():
        few, is_thorough = cases[0].get_closest_marker("few"), bool(cases[0].get_closest_marker("thorough"))
        number = crc32(name.encode())
        groups: dict[str, list[pytest.Item]] = {}
        for item in cases:
            device = _device(item)
            groups.setdefault("in turn" if device in _IN_TURN and not is_thorough else device, []).append(item)
        for device, group in groups.items():
            count = few.args[0] if few else len(group)
            if device == _SELDOM:
                count = min(count, _SELDOM_COUNT) if is_thorough else 0
            yield from _spread(covering(group, number, thorough=is_thorough) if device else group, count)


def _spread(items: Sequence[pytest.Item], most: int) -> Iterator[pytest.Item]:
    """Choose at most this number of tests, spread evenly over the list."""
    count = min(most, len(items))
    return (items[number * len(items) // count] for number in range(count))


def _device(item: pytest.Item) -> str:
    """Return the name of the device with which a test is parametrized, or ""."""
    devices = (_parameters(item).get(name, "") for name in _DEVICE_NAMES)
    return next((device for device in devices if device and isinstance(device, str)), "")


def covering(items: Sequence[pytest.Item], turn: int = 0, *, thorough: bool = False) -> list[pytest.Item]:
    """Choose tests such that each value of each parameter occurs. The search is greedy: most new values first.

    Parameters
    ----------
    items : sequence of pytest.Item
        The parametrizations of one test function.
    turn : int
        A number that decides at which test and with which device the search begins. Another number chooses other
        combinations if there are several.
    thorough : bool
        Whether at least one dtype of each kind (real, complex, integer) has to occur. Otherwise one kind suffices.
    """
    values = [_values(item, with_dtypes=thorough) for item in items]
    device_of = [_device(item) for item in items]
    missing = set().union(*values)
    order = sorted(
        ((number + turn) % len(items) for number in range(len(items))),
        key=lambda number: _rank(items[number], thorough),
    )
    devices = sorted(set(device_of))
    chosen: list[int] = []
    while missing:
        device = devices[(turn + len(chosen)) % len(devices)]
        chosen.append(max(order, key=lambda n: (len(values[n] & missing), device_of[n] == device)))
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


def _rank(item: pytest.Item, thorough: bool) -> tuple[int, int]:
    """Return how far the kinds of a test's dtypes are from the preferred one, and how many dtypes are uncommon."""
    preferred = _EMULATED if _device(item).startswith("emulated") else _ON_CPU
    dtypes = {name: _kind(name, value) for name, value in _parameters(item).items()}
    kinds = {name: kind for name, kind in dtypes.items() if kind}
    place = 0 if thorough else sum(preferred.index(kind) for kind in kinds.values())
    return place, sum(np.dtype(_parameters(item)[name]) != _COMMON[kind] for name, kind in kinds.items())


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _values(item: pytest.Item, *, with_dtypes: bool) -> set[Any]:
    """Return the values of a test's parameters but the device, and its name.

    Names that are parametrized together count as one. A dtype is replaced by its kind, or left out.
    """
    parameters = _parameters(item)
    marks = (mark.args[0] for mark in item.iter_markers("parametrize"))
    together = [
        tuple(part.strip() for part in names.split(",")) if isinstance(names, str) else names for names in marks
    ]
    alone = [(name,) for name in parameters if not any(name in names for names in together)]
    kinds = {name: _kind(name, value) for name, value in parameters.items()}
    counted = {name for name in parameters if name not in _DEVICE_NAMES and (with_dtypes or not kinds[name])}
    return {item.nodeid.partition("[")[0]} | {
        tuple((name, kinds[name] or id(parameters[name])) for name in names if name in counted)
        for names in (*together, *alone)
    }
