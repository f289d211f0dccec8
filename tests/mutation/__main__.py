"""Mutation testing of the choice and of the formats: ``python -m tests.mutation [MODULE …]``, with the extra ``dev``.

Cosmic Ray makes the mutants: each is one of `MODULES` with one operator, number, comparison, … changed. Each meets the
tests that claim to prove its module, as far as they need no device, and its doctests; what still passes has survived.
Survivors that may are in `accepted.toml`, each with its reason: the command prints the others as lines for that file,
and what stands there in vain, and then fails. No file is changed: a process of its own imports each mutant.

Eleven hundred mutants take ten minutes of processor time, too long for CI; ``gsparse/formats`` alone takes one.
(mutmut 3 mutates no properties, and a format is little else; mutatest has not moved since 2022. Cosmic Ray's own runs
start Python, SciPy and pytest anew for each mutant, which takes several times as long.)
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import unified_diff
from functools import cache
from importlib.machinery import SourceFileLoader
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import scipy.sparse.linalg  # noqa: F401  (so that no process imports it again)
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec
from tqdm import tqdm

# The tests that prove each module.
_CHOICE = ["tests/test_plan.py", "tests/test_prediction.py"]
_FORMATS = ["tests/test_formats.py", "tests/test_format_descriptions.py"]
MODULES = {
    "gsparse/plan/choice.py": [*_CHOICE, "tests/test_storage_formats.py"],
    "gsparse/plan/columns.py": ["tests/test_columns_plan.py", "tests/test_columns.py"],
    **{str(path): [*_FORMATS, *_CHOICE] for path in sorted(Path("gsparse/formats").glob("[!_]*.py"))},
    "gsparse/formats/registry.py": [*_FORMATS, *_CHOICE, "tests/test_storage_formats.py"],
}
# Every | is of a type; & ^ << >> % ** mostly raise on floats, or are as far off as one of + - * / // is; of numbers and
# names, `is` asks what the interpreter keeps.
_POINTLESS = re.compile(
    r"core/ReplaceBinaryOperator_(BitOr_.*|.*_(BitAnd|BitOr|BitXor|LShift|RShift|Mod|Pow))"
    r"|core/ReplaceComparisonOperator_(Eq|NotEq|Lt|LtE|Gt|GtE)_Is(Not)?"
)
_TIMEOUT = 60  # seconds
# (pytest's rewriting of asserts would read modules given to it past `get_code`)
_OPTIONS = [
    "-x",
    "--noconftest",
    "--assert=plain",
    "-pno:cacheprovider",
    "-pno:unraisableexception",
    "-ppytest_timeout",
]

Change = tuple[str, str, str]  # module, line before, line after


class PureTests:
    """Has pytest pass over the tests that need a device."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "device" not in getattr(item, "fixturenames", ())]


def passes(module: str, source: str) -> bool:
    """Tell whether the tests of a module pass with this source of it; for a process of its own."""
    signal.alarm(_TIMEOUT)
    plain, name = SourceFileLoader.get_code, module.removesuffix(".py").replace("/", ".")

    def get_code(loader: SourceFileLoader, fullname: str) -> Any:
        return compile(source, module, "exec") if fullname == name else plain(loader, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    options = [*_OPTIONS, f"--timeout={_TIMEOUT}"]
    return pytest.main([*options, *MODULES[module], module], plugins=[PureTests()]) == pytest.ExitCode.OK


def mutants_of(modules: Iterable[str]) -> list[MutationSpec]:
    """List every change that Cosmic Ray has for these modules, but for operators that say nothing and measurements."""
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/session.sqlite", WorkDB.Mode.create) as session:
        init(map(Path, modules), session, {})
        specs = [mutation for item in session.pending_work_items for mutation in item.mutations]
    return [spec for spec in specs if not (_POINTLESS.fullmatch(spec.operator_name) or is_measured(spec))]


def is_measured(spec: MutationSpec) -> bool:
    """Tell whether a mutant changes a measured constant of a format, which no test should hold up."""
    models = _kernel_models(str(spec.module_path))
    return any(first <= spec.start_pos[0] <= last for first, last in models)


@cache
def _kernel_models(module: str) -> list[tuple[int, int]]:
    """Find the lines of each call of `KernelModel`."""
    nodes = ast.walk(ast.parse(Path(module).read_text()))
    calls = (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name))
    return [(call.lineno, call.end_lineno or call.lineno) for call in calls if call.func.id == "KernelModel"]


def mutated(spec: MutationSpec) -> str:
    """Give the source of a mutant."""
    return mutate_code(Path(spec.module_path).read_text(), get_operator(spec.operator_name)(), spec.occurrence)


def survivors(specs: Iterable[MutationSpec], jobs: int) -> Iterator[MutationSpec]:
    """Let the tests meet every mutant, so many at a time."""
    running: dict[int, MutationSpec] = {}
    for spec in chain(tqdm(specs, unit=" mutants"), [None] * jobs):
        if running and (spec is None or len(running) == jobs):
            pid, status = os.wait()
            mutant = running.pop(pid)
            if status == 0:
                yield mutant
        if spec is not None:
            running[start(str(spec.module_path), mutated(spec))] = spec


def start(module: str, source: str) -> int:
    """Fork a process that meets a module with its tests, says nothing, and exits with 0 where they pass."""
    if pid := os.fork():
        return pid
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    os._exit(not passes(module, source))


def change_of(spec: MutationSpec) -> Change:
    """Say what a mutant changes: a line, apart from its place, so that it is known again when others move."""
    sources = Path(spec.module_path).read_text(), mutated(spec)
    lines = [*unified_diff(*(source.splitlines() for source in sources), n=0)][2:]
    before, after = (" ".join(" ".join(x[1:].split()) for x in lines if x[0] == sign) for sign in "-+")
    return str(spec.module_path), before, after


def accepted() -> Counter[Change]:
    """Read which survivors are known."""
    text = Path(__file__).with_name("accepted.toml").read_text()
    return Counter(
        (group["module"], before.strip(), after.strip())
        for group in tomllib.loads(text)["survivors"]
        for before, after in re.findall(r"^-(.*)\n\+(.*)$", group["changes"], re.MULTILINE)
    )


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.split("\n\n")[1])
    parser.add_argument(
        "modules", nargs="*", default=["gsparse"], metavar="MODULE", help="a folder, or one of " + ", ".join(MODULES)
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants that are tested at a time")
    options = parser.parse_args()
    modules = [module for module in MODULES if any(Path(module).is_relative_to(given) for given in options.modules)]
    for given in options.modules:
        if not any(Path(module).is_relative_to(given) for module in modules):
            parser.error(f"no tests are listed for {given}, but for {', '.join(MODULES)}")
    specs = mutants_of(modules)
    for module in modules:
        if os.waitpid(start(module, Path(module).read_text()), 0)[1]:
            sys.exit(
                f"{module} has to pass its tests as it is, and does not: pytest {' '.join(MODULES[module])} {module}"
            )
    found = Counter(change_of(spec) for spec in survivors(specs, options.jobs))
    known = Counter({change: n for change, n in accepted().items() if change[0] in modules})
    for title, changes in (("new survivors", found - known), ("accepted, but no survivors", known - found)):
        for module, before, after in sorted(changes.elements()):
            print(f"{title}: {module}\n- {before}\n+ {after}")
    for module in modules:
        count = sum(str(spec.module_path) == module for spec in specs)
        lived = sum(n for change, n in found.items() if change[0] == module)
        print(f"{module}: {count} mutants, {count - lived} killed")
    print(f"{len(specs)} mutants, {len(specs) - found.total()} killed, {(found & known).total()} survive with a reason")
    return found != known


if __name__ == "__main__":
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # (two thirds of a run would go into loading them)
    sys.exit(main())
