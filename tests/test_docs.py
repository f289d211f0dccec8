"""The site has a page for every public name, guide and example, and none of its links is broken."""

from __future__ import annotations

import dataclasses
import html
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from inspect import ismodule
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import gsparse
from gsparse.matrix.host_operations import HOST_OPERATIONS

ROOT = Path(__file__).resolve().parents[1]
MODULES = [
    "gsparse",
    "gsparse.sparse",
    "gsparse.linalg",
    "gsparse.torch",
    "gsparse.jax",
    "gsparse.distributed",
    "gsparse.plot",
    "gsparse.files",
    "gsparse.errors",
]
MADE_BY_FUNCTIONS = ("DistributedMatrix",)
RENDERERS = ("sphinx", "sphinx_gallery", "myst_parser", "numpydoc", "pydata_sphinx_theme")


def public_names(module: str) -> set[str]:
    """Return the public names of a module, with those that gsparse.distributed loads lazily from dask."""
    imported = importlib.import_module(module)
    lazy = dir(imported) if "__dir__" in vars(imported) else []
    names = (*getattr(imported, "__all__", ()), *lazy)
    return {name for name in names if name[0] != "_" and not ismodule(getattr(imported, name))}


def listed_names(module: str) -> set[str]:
    """Return the names that a module's page lists, in autosummary tables and in data directives."""
    text = (ROOT / "docs" / "api" / f"{module}.rst").read_text()
    return set(re.findall(r"^(?:   |\.\. data:: )([A-Za-z_.0-9]+)$", text, re.MULTILINE))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_page(module: str) -> None:
    if module == "gsparse.distributed":
        pytest.importorskip("distributed", reason="needs dask")
    listed = listed_names(module)
    # GsparseError is public in both modules, and listed on the page of one.
    on_other_page = set() if module == "gsparse.errors" else public_names("gsparse.errors")
    assert public_names(module) <= listed | on_other_page
    for name in listed:
        parent, _, attribute = f"{module}.{name}".rpartition(".")
        assert hasattr(importlib.import_module(parent), attribute), f"{name} is listed, but does not exist"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_imported_by_a_star(module: str) -> None:
    if module == "gsparse.distributed":
        pytest.importorskip("distributed", reason="needs dask")
    imported: dict[str, Any] = {}
    exec(f"from {module} import *", imported)
    assert public_names(module) <= imported.keys()


def test_every_module_guide_and_example_is_listed() -> None:
    listed = {page: (ROOT / page).read_text() for page in ("docs/api/index.rst", "examples/guides/index.rst")}
    assert toctree(listed["docs/api/index.rst"]) == set(MODULES)
    guides = {path.stem for path in (ROOT / "examples" / "guides").glob("*.py")}
    assert guides and toctree(listed["examples/guides/index.rst"]) == guides
    shown = re.findall(r"example-program:: (\S+)", (ROOT / "docs" / "examples.rst").read_text())
    assert sorted(shown) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def toctree(text: str) -> set[str]:
    """Return the entries of a page's only toctree."""
    return set(re.findall(r"^   (\S+)$", text.partition(".. toctree::")[2], re.MULTILINE))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_docstring_passes_numpydoc_validation(module: str) -> None:
    validate = pytest.importorskip("numpydoc.validate", reason="needs numpydoc: pip install '.[docs]'").validate
    if module == "gsparse.distributed":
        pytest.importorskip("distributed", reason="needs dask")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["numpydoc_validation"]
    assert settings["checks"][0] == "all"  # numpydoc then excludes the checks that follow
    violations = [
        (name, code, message)
        for name, entry in documented_entries(module)
        for code, message in validate(name)["errors"]
        if code not in settings["checks"] and not is_excused(code, entry)
    ]
    without_example = [
        name
        for name in listed_names(module)
        if callable(entry := attribute_of(f"{module}.{name}"))
        and entry.__module__.startswith("gsparse")
        and needs_example(entry)
        and "\n>>> " not in inspect.cleandoc(entry.__doc__ or "")
    ]
    assert (violations, without_example) == ([], [])


def attribute_of(name: str) -> Any:
    """Return the object that a dotted name refers to."""
    parent, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(parent), attribute)


def documented_entries(module: str) -> Iterator[tuple[str, Any]]:
    """Yield each name that must have a docstring on a page, with its object."""
    for listed in sorted(listed_names(module)):
        name = f"{module}.{listed}"
        entry = attribute_of(name)
        if callable(entry) and entry.__module__.startswith("gsparse"):
            yield name, entry
        if inspect.isclass(entry):
            yield from (
                (f"{name}.{member}", inspect.getattr_static(entry, member)) for member in documented_members(entry)
            )


def documented_members(cls: type) -> Iterator[str]:
    """Yield the public methods and properties of a class that gsparse, not SciPy, has to document."""
    template = (ROOT / "docs" / "_templates" / "autosummary" / "class.rst").read_text()
    hidden = re.search(r":exclude-members: (.*)", template)[1].split(", ")
    names = {name for base in cls.__mro__ if base.__module__.startswith("gsparse") for name in vars(base)}
    for name in sorted(names - set(hidden)):
        first, *inherited = (vars(base)[name] for base in cls.__mro__ if name in vars(base))
        function = getattr(first, "__func__", getattr(first, "fget", getattr(first, "func", first)))
        # An override without a docstring, or with the same one, is documented by the class that it overrides.
        is_documented_in_base = bool(inherited) and first.__doc__ in {None, *(other.__doc__ for other in inherited)}
        if not name.startswith("_") and inspect.isfunction(function) and not is_documented_in_base:
            yield name


def is_excused(code: str, entry: Any) -> bool:
    """Return whether an error PR01 concerns a result class: users read its attributes and do not construct it."""
    is_result = dataclasses.is_dataclass(entry) or getattr(entry, "__name__", "") in MADE_BY_FUNCTIONS
    return code == "PR01" and is_result and "Attributes\n" in (entry.__doc__ or "")


def needs_example(entry: Any) -> bool:
    """Return whether users call an entry: exceptions and result dataclasses need no example."""
    return not (inspect.isclass(entry) and (issubclass(entry, Exception) or dataclasses.is_dataclass(entry)))


class Links(HTMLParser):
    """Collect the targets of a page's links, and the page's own anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.anchors.update(attributes[name] or "" for name in ("id", "name") if name in attributes)
        target = attributes.get("href") or attributes.get("src")
        if target and not urlsplit(target).scheme and not target.startswith("//"):
            self.targets.append(target)


@pytest.mark.whole
def test_the_site_builds_without_warnings_or_broken_links(tmp_path: Path) -> None:
    for package in RENDERERS:
        pytest.importorskip(package, reason=f"needs {package}: pip install '.[docs]'")
    for folder in ("docs", "examples"):  # Sphinx writes generated pages beside their sources, so build a copy
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("_build", "generated"))
    shutil.copy(ROOT / "FIGURES.md", tmp_path)
    shutil.rmtree(tmp_path / "docs" / "guides", ignore_errors=True)
    site = tmp_path / "site"
    # test_examples runs the guides, so they are not executed here.
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-D", "plot_gallery=0", "docs", str(site)]
    completed = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr

    pages = {path.resolve(): Links(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    assert {f"api/generated/gsparse.linalg.{n}.html" for n in public_names("gsparse.linalg")} <= {
        path.relative_to(site.resolve()).as_posix() for path in pages
    }
    guide = " ".join(html.unescape(re.sub(r"<[^>]*>", "", (site / "user_guide.html").read_text())).split())
    texts = [text.replace("``", "") for row in HOST_OPERATIONS.items() for text in row]
    assert [text for text in texts if text not in guide] == []
    links = [(path, target) for path, page in pages.items() for target in page.targets]
    assert len(links) > len(pages)
    assert [link for link in links if not link_exists(*link, pages)] == []


def environment() -> dict[str, str]:
    """Return the environment in which another process imports this gsparse."""
    return {**os.environ, "PYTHONPATH": str(Path(gsparse.__file__).resolve().parents[1])}


def link_exists(page: Path, target: str, pages: dict[Path, Links]) -> bool:
    """Return whether a link's file exists, and its fragment is an anchor of that page."""
    parts = urlsplit(target)
    destination = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if destination not in pages:
        return destination.is_file()
    return parts.fragment in ("", "top") or unquote(parts.fragment) in pages[destination].anchors
