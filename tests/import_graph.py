"""The import graph of the package, read from its sources: ``python -m tests.import_graph`` prints its figures.

All imports count: those at the head of a file, inside a function, under ``TYPE_CHECKING``, and dynamic ones. If a file
calls ``import_module``, each string in it that names a module of gsparse counts as an import. In an ``__init__.py``,
the string may also be relative to the package.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "ABOVE_INTERFACE",
    "INTERFACE",
    "LAYERS",
    "Graph",
    "circles",
    "imports_that_do_not_go_down",
    "read_graph",
    "subpackage_of",
]

PACKAGE = Path(__file__).parent.parent / "gsparse"

# The subpackages are the top-level modules and folders of the package. They are listed from the top down, as in the
# developer guide. Imports go from an upper line to a lower one, and those of the same line do not import each other.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("plot", "bench"),
    ("distributed", "torch", "jax"),
    ("linalg",),
    ("matrix",),
    ("sparse", "products"),
    ("plan",),
    ("kernels",),
    ("formats",),
    ("device", "files"),
    ("profiling",),
    ("errors", "_interrupt", "_version", "writing"),
)
# `gsparse/__init__.py` exports public names, some of them lazily. The command line stands above it.
INTERFACE = "gsparse"
ABOVE_INTERFACE = ("__main__", "cli", "bench")

Graph = dict[str, set[str]]


def module_of(path: Path) -> str:
    """Return the dotted module name of a source file. An ``__init__.py`` has the name of its folder."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def subpackage_of(module: str) -> str:
    """Return the top-level module or folder that a module belongs to."""
    return module.split(".")[1] if "." in module else module


def read_graph() -> Graph:
    """Return the modules of gsparse, each with the modules of gsparse that it imports."""
    paths = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {module: set(_imports(module, path, set(paths))) - {module} for module, path in paths.items()}


def _imports(module: str, path: Path, modules: set[str]) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    is_dynamic = any(
        isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) or getattr(node.func, "attr", "")) in ("import_module", "__import__")
        for node in ast.walk(tree)
    )
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
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
        elif is_dynamic and isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = (node.value, f"{module}.{node.value}")
            yield from (name for name in names if name in modules and name != "gsparse")


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of modules that import each other in a loop (Tarjan's strongly connected components)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in numbers:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], numbers[other])
        if lowest[module] == numbers[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                components.append(sorted(group))

    for module in graph:
        if module not in numbers:
            visit(module)
    return components


def imports_that_do_not_go_down(graph: Graph) -> list[tuple[str, str]]:
    """Return the imports from a lower layer to an upper one, or between two subpackages of one layer."""
    floors = {name: floor for floor, names in enumerate(LAYERS) for name in names}
    imports = []
    for module, others in graph.items():
        for other in others:
            importing, imported = subpackage_of(module), subpackage_of(other)
            if module == INTERFACE or importing == imported:
                continue
            goes_down = importing in ABOVE_INTERFACE if other == INTERFACE else floors[imported] > floors[importing]
            if not goes_down:
                imports.append((module, other))
    return sorted(imports)


def main() -> None:
    """Print the figures of the import graph."""
    graph = read_graph()
    subpackages = {subpackage_of(module) for module in graph} - {INTERFACE}
    arrows = {(subpackage_of(a), subpackage_of(b)) for a, others in graph.items() for b in others if a != INTERFACE}
    num_arrows = sum(a != b for a, b in arrows)
    print(f"{len(graph)} files, {len(subpackages)} subpackages, {num_arrows} arrows between subpackages")
    print(f"{len(circles(graph))} circles of files: {circles(graph)}")
    rising = imports_that_do_not_go_down(graph)
    print(f"{len(rising)} imports that do not go down: {rising}")


if __name__ == "__main__":
    main()
