"""Mutation testing of the choice and of the formats: ``python -m tests.mutation [MODULE …]``, with the extra ``dev``.

A mutant is one of the modules in `MODULES` with one operator, number or comparison changed; Cosmic Ray makes it. The
tests of that module are run against each mutant, except those that need a device, and so are its doctests. A mutant
that passes all of them has survived. Survivors that do no harm are listed in `accepted.toml` with a reason. The command
prints every other survivor as lines for that file, and also every entry of the file that no longer survives. It fails
if there are any. No file is changed: each mutant is imported by a process of its own.

Fifteen hundred mutants take a quarter of an hour on two cores, which is too long for CI; those of ``gsparse/formats``
take four minutes. (mutmut 3 mutates no properties, of which formats mostly consist, and mutatest has had no release
since 2022. Cosmic Ray's own runs start Python, SciPy and pytest for each mutant, which takes several times as long.)
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
import scipy.sparse.linalg  # noqa: F401  (imported here so that the forked processes need not import it)
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec
from tqdm import tqdm

# The tests of each module.
_CHOICE = ["tests/test_plan.py", "tests/test_prediction.py", "tests/test_storage_formats.py"]
_COLUMNS = ["tests/test_columns_plan.py", "tests/test_columns.py"]
_FORMATS = ["tests/test_formats.py", "tests/test_format_descriptions.py", *_CHOICE]
MODULES = {
    "gsparse/plan/choice.py": _CHOICE,
    "gsparse/plan/columns.py": _COLUMNS,
    **{str(path): _FORMATS for path in sorted(Path("gsparse/formats").glob("[!_]*.py"))},
    "gsparse/formats/launch.py": [*_FORMATS, *_COLUMNS],
}
# Operators of which no mutants are made. Every | belongs to a type. The operators & ^ << >> % ** mostly raise an error
# for floats; elsewhere, + - * / // are as wrong. For numbers and names, `is` depends on which objects Python reuses.
_POINTLESS = re.compile(
    r"core/ReplaceBinaryOperator_(BitOr_.*|.*_(BitAnd|BitOr|BitXor|LShift|RShift|Mod|Pow))"
    r"|core/ReplaceComparisonOperator_(Eq|NotEq|Lt|LtE|Gt|GtE)_Is(Not)?"
)
_TIMEOUT = 60  # seconds
# With --assert=plain, pytest imports the module through `get_code`. With its rewriting of asserts, it would read the
# unchanged file instead.
_OPTIONS = [
    "-x",
    "--noconftest",
    "-p",
    "tests.seeds",
    "--assert=plain",
    "-pno:cacheprovider",
    "-pno:unraisableexception",
    "-ppytest_timeout",
]

Change = tuple[str, str, str]  # module, line before, line after


class PureTests:
    """A plugin of pytest that leaves out the tests that need a device."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not {"device", "gpu_device"} & set(getattr(item, "fixturenames", ()))]


def passes(module: str, source: str) -> bool:
    """Return whether the tests of a module pass with this source of it. Call it in a process of its own."""
    signal.alarm(_TIMEOUT)
    plain, name = SourceFileLoader.get_code, module.removesuffix(".py").replace("/", ".")

    def get_code(loader: SourceFileLoader, fullname: str) -> Any:
        return compile(source, module, "exec") if fullname == name else plain(loader, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    options = [*_OPTIONS, f"--timeout={_TIMEOUT}"]
    return pytest.main([*options, *MODULES[module], module], plugins=[PureTests()]) == pytest.ExitCode.OK


def mutants_of(modules: Iterable[str]) -> list[MutationSpec]:
    """Return every mutant that Cosmic Ray makes of these modules, except pointless and exempt ones."""
    with tempfile.TemporaryDirectory() as folder, use_db(f"{folder}/session.sqlite", WorkDB.Mode.create) as session:
        init(map(Path, modules), session, {})
        specs = [mutation for item in session.pending_work_items for mutation in item.mutations]
    return [spec for spec in specs if not (_POINTLESS.fullmatch(spec.operator_name) or is_exempt(spec))]


def is_exempt(spec: MutationSpec) -> bool:
    """Return whether a mutant changes a measured constant of a format, or a declaration that only mypy reads."""
    return any(first <= spec.start_pos[0] <= last for first, last in _exempt_lines(str(spec.module_path)))


@cache
def _exempt_lines(module: str) -> list[tuple[int, int]]:
    """Return the first and last line of each call of `KernelModel` and `TypeVar` and of each protocol."""
    nodes = list(ast.walk(ast.parse(Path(module).read_text())))
    calls = [node for node in nodes if isinstance(node, ast.Call) and _names(node.func) & {"KernelModel", "TypeVar"}]
    classes = (node for node in nodes if isinstance(node, ast.ClassDef))
    protocols = [node for node in classes if any("Protocol" in _names(base) for base in node.bases)]
    return [(node.lineno, node.end_lineno or node.lineno) for node in (*calls, *protocols)]


def _names(tree: ast.expr) -> set[str]:
    """Return all names in an expression."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def mutated(spec: MutationSpec) -> str:
    """Return the source of a mutant."""
    return mutate_code(Path(spec.module_path).read_text(), get_operator(spec.operator_name)(), spec.occurrence)


def survivors(specs: Iterable[MutationSpec], jobs: int) -> Iterator[MutationSpec]:
    """Run the tests against every mutant, in this number of processes, and return the mutants that pass."""
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
    """Start a process that runs a module's tests against this source without output, and exits with 0 if they pass."""
    if pid := os.fork():
        return pid
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(1, 2)
    os._exit(not passes(module, source))


def change_of(spec: MutationSpec) -> Change:
    """Return what a mutant changes, without the line number, so that it is recognized after other lines have moved."""
    sources = Path(spec.module_path).read_text(), mutated(spec)
    lines = [*unified_diff(*(source.splitlines() for source in sources), n=0)][2:]
    before, after = (" ".join("".join(x[1:] + " " for x in lines if x[0] == sign).split()) for sign in "-+")
    return str(spec.module_path), before, after


def accepted() -> Counter[Change]:
    """Return the survivors that `accepted.toml` lists."""
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
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants that are tested at the same time")
    options = parser.parse_args()
    modules = [module for module in MODULES if any(Path(module).is_relative_to(given) for given in options.modules)]
    for given in options.modules:
        if not any(Path(module).is_relative_to(given) for module in modules):
            parser.error(f"no tests are listed for {given}; choose from {', '.join(MODULES)}")
    specs = mutants_of(modules)
    for module in modules:
        if os.waitpid(start(module, Path(module).read_text()), 0)[1]:
            sys.exit(
                f"{module} fails its own tests before any mutation: run pytest {' '.join(MODULES[module])} {module}"
            )
    found = Counter(change_of(spec) for spec in survivors(specs, options.jobs))
    known = Counter({change: n for change, n in accepted().items() if change[0] in modules})
    for title, changes in (("new survivor", found - known), ("accepted, but does not survive", known - found)):
        for module, before, after in sorted(changes.elements()):
            print(f"{title}: {module}\n- {before}\n+ {after}")
    for module in modules:
        count = sum(str(spec.module_path) == module for spec in specs)
        lived = sum(n for change, n in found.items() if change[0] == module)
        print(f"{module}: {count} mutants, {count - lived} killed")
    print(f"{len(specs)} mutants, {len(specs) - found.total()} killed, {(found & known).total()} survive with a reason")
    return found != known


if __name__ == "__main__":
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading the plugins would take two thirds of each run
    sys.exit(main())
