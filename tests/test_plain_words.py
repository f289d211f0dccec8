"""Names, docstrings and the glossary: one meaning for each word, and no word that only the authors understand.

The rules concern the sources of the package. Style that ruff can check is in ``pyproject.toml``.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "gsparse").rglob("*.py"))
KERNELS = sorted((ROOT / "gsparse" / "kernels" / "gpu" / "src").glob("*.cu*"))
COMMON_WORDS = set((ROOT / "tests" / "common_words.txt").read_text().split())

# First words of docstrings that are no imperative, or that say less than "Return".
_NO_IMPERATIVES = {"A", "An", "Do", "Give", "Have", "If", "That", "The", "This", "Those", "What", "Whether"}
# Names that tell a stranger nothing, or that mean something else to everybody: other words were found for them.
_OPAQUE = {"apart", "aside", "face", "gang", "heed", "house", "multiplicand", "peek", "room", "rooms", "roster", "stay",
           "twin", "twins"}  # fmt: skip
# Backends implement the classes of the contract under the same names.
_CONTRACT = {"Arnoldi", "Decomposition", "Mailboxes", "PanelProduct"}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree. It is read once, by the first test that needs it."""
    return list(ast.walk(ast.parse(path.read_text())))


def definitions(nodes: Iterable[ast.AST], *kinds: type[ast.AST]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Yield the functions or classes of a file."""
    return (node for node in nodes if isinstance(node, kinds))  # type: ignore[misc]


def parts_of(name: str) -> list[str]:
    """Return the words of an identifier, in lower case: ``RowPartition_of`` has three."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def identifiers(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield all names that a file defines, assigns or passes."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def functions_of_properties() -> set[str]:
    """Return the names of functions that some class makes a property: ``stored = as_property(plans.stored)``."""
    return {
        argument.attr
        for path in FILES
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and "property" in ast.unparse(node.func)
        for argument in node.args
        if isinstance(argument, ast.Attribute)
    }


def begins_as_it_should(function: ast.FunctionDef) -> bool:
    """Return whether the docstring of a function begins with an imperative; that of a property may be a noun."""
    docstring = ast.get_docstring(function) or "Return"
    first = docstring.split()[0].rstrip(",.")
    is_property = any("property" in ast.unparse(decorator) for decorator in function.decorator_list)
    no_imperative = first in _NO_IMPERATIVES or re.match(r"Tell whether|(Return|Compute|Make|Find)s ", docstring)
    return is_property or not no_imperative


def test_docstrings_of_functions_begin_with_an_imperative() -> None:
    properties = functions_of_properties()
    assert {"stored", "slice_stats"} <= properties
    assert [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
        for path in FILES
        for function in definitions(nodes_of(path), ast.FunctionDef)
        if function.name not in properties and not begins_as_it_should(function)  # type: ignore[arg-type]
    ] == []


def test_a_docstring_without_an_imperative_is_found() -> None:
    text = (
        'def f():\n    """Whether it is."""\ndef g():\n    """Return it."""\n@property\ndef h():\n    """The size."""\n'
    )
    f, g, h = definitions(ast.walk(ast.parse(text)), ast.FunctionDef)
    assert [begins_as_it_should(function) for function in (f, g, h)] == [False, True, True]  # type: ignore[arg-type]


def test_no_name_is_opaque() -> None:
    names = {name for path in FILES for name in identifiers(nodes_of(path))} | {path.stem for path in FILES}
    assert len(names) > 5000
    assert sorted(name for name in names if _OPAQUE & {*parts_of(name)}) == []


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for cls in definitions(nodes_of(path), ast.ClassDef):
            places[cls.name].append(path.name)
    repeated = {name: files for name, files in places.items() if len(files) > 1 and name[0] != "_"}
    assert {name: files for name, files in repeated.items() if name not in _CONTRACT} == {}
    assert repeated.keys() == _CONTRACT


def renamed_modules(nodes: Iterable[ast.AST], modules: set[str]) -> list[str]:
    """Return the imports of a file that give a module of this repository another name."""
    imports = (
        (f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name, alias)
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )
    return [
        f"{whole} as {alias.asname}"
        for whole, alias in imports
        if alias.asname not in (None, alias.name) and whole in modules
    ]


def test_no_import_renames_a_module() -> None:
    folders = [ROOT / name for name in ("gsparse", "tests", "asv_bench", "docs", "examples")]
    files = [path for folder in folders for path in folder.rglob("*.py") if ".asv" not in path.parts]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    assert len(modules) > 400
    found = {path.relative_to(ROOT).as_posix(): renamed_modules(nodes_of(path), modules) for path in files}
    assert {file: imports for file, imports in found.items() if imports} == {}
    for text in ("from gsparse.products import storage as build", "import gsparse.products.storage as build"):
        assert renamed_modules(ast.parse(text).body, modules) == ["gsparse.products.storage as build"]


# --------------------------------------------------------------------------------------------------------- the glossary


def glossary() -> list[str]:
    """Return the terms of the glossary."""
    text = (ROOT / "docs" / "glossary.rst").read_text()
    lines = re.findall(r"^   (\S.*)$", text, re.MULTILINE)
    return [term for line in lines if not line.startswith("..") for term in line.split(", ")]


def squeezed(text: str) -> str:
    """Return a text in lower case without spaces and punctuation, in which `HostFallback` contains "host fallback"."""
    return re.sub(r"[\W_]+", "", text.lower())


def test_every_term_of_the_glossary_is_used() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.rst") if path.name != "glossary.rst"]
    sources = [*FILES, *KERNELS, *pages, *(ROOT / "examples").rglob("*.py")]
    used = squeezed(" ".join(f"{path.stem} {path.read_text()}" for path in sources))
    terms = glossary()
    assert len(terms) == len(set(terms)) > 80
    assert [term for term in terms if squeezed(term) not in used] == []
    # A short term is a part of many words, so it has to be a word of its own.
    words = {word for path in sources for word in parts_of(f"{path.stem} {path.read_text()}")}
    short = {term for term in terms if len(squeezed(term)) <= 5}
    assert sorted(term for term in short if not {*parts_of(term)} <= words) == []


def test_every_unusual_word_in_the_name_of_a_class_or_a_file_is_in_the_glossary() -> None:
    """A word that SciPy, CuPy, PyAMG, the CUDA manuals or everybody uses goes to common_words.txt instead."""
    names = {cls.name for path in FILES for cls in definitions(nodes_of(path), ast.ClassDef)}
    names |= {path.stem for path in [*FILES, *KERNELS]}
    words = {word for name in names for word in parts_of(name)}
    explained = {word for term in glossary() for word in parts_of(term)}
    unknown = {word for word in words if word not in COMMON_WORDS and not {word, word.removesuffix("s")} & explained}
    assert sorted(unknown) == [], "explain these in docs/glossary.rst"
    assert sorted(COMMON_WORDS - words) == [], "no name has these any more: remove them from common_words.txt"
    assert sorted(COMMON_WORDS & explained) == [], "the glossary explains these: remove them from common_words.txt"


# -------------------------------------------------------------------------------------------------------------- lengths


def test_no_function_is_longer_than_contributing_allows() -> None:
    """Docstrings do not count."""
    assert "A function has at most 60 lines" in (ROOT / "CONTRIBUTING.md").read_text()
    lengths = {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": length_of(function)  # type: ignore[arg-type]
        for path in FILES
        for function in definitions(nodes_of(path), ast.FunctionDef)
    }
    assert len(lengths) == sum(len(list(definitions(nodes_of(path), ast.FunctionDef))) for path in FILES) > 4000
    assert {name: lines for name, lines in lengths.items() if lines > 60} == {}


def length_of(function: ast.FunctionDef) -> int:
    """Return the lines of a function, with its signature and without its docstring."""
    assert function.end_lineno is not None
    docstring = ast.get_docstring(function, clean=False)
    return function.end_lineno - function.lineno + 1 - (docstring.count("\n") + 1 if docstring is not None else 0)


def lengths_of_cuda_functions(text: str) -> dict[str, int]:
    """Return the lines of each function and kernel of a CUDA source, without the comment before it."""
    lines = text.splitlines()
    lengths = {}
    start = re.compile(r" {0,2}(template|GS_KERNEL|__device__)")
    number = 0
    while number < len(lines):
        first, depth = number, 0
        number += 1
        if not start.match(lines[first]):
            continue
        for last in range(first, len(lines)):
            code = lines[last].partition("//")[0]
            depth += code.count("{") - code.count("}")
            if depth == 0 and code.rstrip().endswith((";", "}")):
                break
        if "struct " not in " ".join(lines[first : last + 1]).partition("{")[0]:
            lengths[f"{first + 1}: {lines[first].strip()[:60]}"] = last - first + 1
            number = last + 1
    return lengths


def test_no_cuda_function_is_longer_than_contributing_allows() -> None:
    """The products of two sparse matrices have three kernels that are longer; they are kept as they were measured."""
    found = {
        path.name: lengths_of_cuda_functions(path.read_text())
        for path in KERNELS
        if not path.name.startswith("sparse_products")
    }
    assert sum(map(len, found.values())) > 400
    assert {f"{file}:{name}": n for file, lengths in found.items() for name, n in lengths.items() if n > 60} == {}


def test_a_long_cuda_function_is_found() -> None:
    body = "  f(1);\n" * 70
    kernel = f"template <class T>\nGS_KERNEL k(const T *x,\n    int n) {{\n{body}}}\n"
    device = f"struct A {{\n  __device__ int g(int i) const {{\n{body}  }}\n}};\n"
    assert list(lengths_of_cuda_functions(kernel + device).values()) == [74, 72]


# ----------------------------------------------------------------------------------------------------- helpers of tests


def test_three_much_used_helpers_of_tests_exist_once() -> None:
    """A newcomer finds one `matrix`, one `wait_until` and one `rng`, whose seed the command line sets."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                places[node.name].append(path.relative_to(ROOT).as_posix())
    assert places["matrix"] == ["tests/linalg/problems.py"]
    assert places["wait_until"] == ["tests/ranks/groups.py"]
    assert places["rng"] == ["tests/seeds.py"]
