"""The site has a page for every public name, and every guide and example, and its links lead somewhere."""

from __future__ import annotations

import dataclasses
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

ROOT = Path(__file__).resolve().parents[1]
MODULES = ["gsparse", "gsparse.linalg", "gsparse.distributed", "gsparse.plot", "gsparse.files", "gsparse.errors"]
MADE_BY_FUNCTIONS = ("DistributedMatrix",)
RENDERERS = ("sphinx", "sphinx_gallery", "numpydoc", "pydata_sphinx_theme")


def public_names(module: str) -> set[str]:
    """Give what a module offers, dask's part of gsparse.distributed included."""
    found = importlib.import_module(module)
    lazy = dir(found) if "__dir__" in vars(found) else []
    return {name for name in (*found.__all__, *lazy) if name[0] != "_" and not ismodule(getattr(found, name))}


def listed_names(module: str) -> set[str]:
    """Give the names that a module's page lists: an indented word of a table, or a directive's."""
    text = (ROOT / "docs" / "api" / f"{module}.rst").read_text()
    return set(re.findall(r"^(?:   |\.\. data:: )([A-Za-z_.0-9]+)$", text, re.MULTILINE))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_page(module: str) -> None:
    if module == "gsparse.distributed":
        pytest.importorskip("distributed", reason="needs dask")
    listed = listed_names(module)
    elsewhere = set() if module == "gsparse.errors" else public_names("gsparse.errors")  # (GsparseError is in both)
    assert public_names(module) <= listed | elsewhere
    for name in listed:
        place, _, attribute = f"{module}.{name}".rpartition(".")
        assert hasattr(importlib.import_module(place), attribute), f"{name} is listed, but is not there"


def test_every_module_guide_and_example_is_listed() -> None:
    listed = {page: (ROOT / page).read_text() for page in ("docs/api/index.rst", "examples/guides/index.rst")}
    assert toctree(listed["docs/api/index.rst"]) == set(MODULES)
    guides = {path.stem for path in (ROOT / "examples" / "guides").glob("*.py")}
    assert guides and toctree(listed["examples/guides/index.rst"]) == guides
    shown = re.findall(r"literalinclude:: \.\./examples/(\S+)", (ROOT / "docs" / "examples.rst").read_text())
    assert sorted(shown) == sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def toctree(text: str) -> set[str]:
    """Give the entries of a page's only toctree."""
    return set(re.findall(r"^   (\S+)$", text.partition(".. toctree::")[2], re.MULTILINE))


@pytest.mark.parametrize("module", MODULES)
def test_every_docstring_of_a_page_passes_numpydocs_validation(module: str) -> None:
    validate = pytest.importorskip("numpydoc.validate", reason="needs numpydoc: pip install '.[docs]'").validate
    if module == "gsparse.distributed":
        pytest.importorskip("distributed", reason="needs dask")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["numpydoc_validation"]
    assert settings["checks"][0] == "all"  # (what follows is not asked for, as numpydoc reads it)
    wrong = [
        (name, code, said)
        for name, found in documented(module)
        for code, said in validate(name)["errors"]
        if code not in settings["checks"] and not excused(code, found)
    ]
    without_example = [
        name
        for name in listed_names(module)
        if callable(found := attribute_of(f"{module}.{name}"))
        and needs_example(found)
        and "\n>>> " not in inspect.cleandoc(found.__doc__ or "")
    ]
    assert (wrong, without_example) == ([], [])


def attribute_of(name: str) -> Any:
    """Give what a dotted name of a module means."""
    place, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(place), attribute)


def documented(module: str) -> Iterator[tuple[str, Any]]:
    """Give the names for which a page has docstrings, or should have, with what they mean."""
    for listed in sorted(listed_names(module)):
        name = f"{module}.{listed}"
        found = attribute_of(name)
        if callable(found):
            yield name, found
        if inspect.isclass(found):
            yield from ((f"{name}.{member}", inspect.getattr_static(found, member)) for member in members(found))


def members(cls: type) -> Iterator[str]:
    """Give the public methods and properties of a class for which gsparse, not SciPy, has words, or should have."""
    template = (ROOT / "docs" / "_templates" / "autosummary" / "class.rst").read_text()
    hidden = re.search(r":exclude-members: (.*)", template)[1].split(", ")
    names = {name for base in cls.__mro__ if base.__module__.startswith("gsparse") for name in vars(base)}
    for name in sorted(names - set(hidden)):
        first, *above = (vars(base)[name] for base in cls.__mro__ if name in vars(base))
        function = getattr(first, "__func__", getattr(first, "fget", getattr(first, "func", first)))
        # (what is overridden says what it does: without words of its own, or with the very same ones)
        is_told_above = bool(above) and first.__doc__ in {None, *(other.__doc__ for other in above)}
        if not name.startswith("_") and inspect.isfunction(function) and not is_told_above:
            yield name


def excused(code: str, found: Any) -> bool:
    """Tell whether what numpydoc misses is parameters of a constructor that users do not call: they get attributes."""
    is_result = dataclasses.is_dataclass(found) or getattr(found, "__name__", "") in MADE_BY_FUNCTIONS
    return code == "PR01" and is_result and "Attributes\n" in (found.__doc__ or "")


def needs_example(found: Any) -> bool:
    """Tell whether a page's entry is something that a user calls: no error, and nothing that only comes as a result."""
    return not (inspect.isclass(found) and (issubclass(found, Exception) or dataclasses.is_dataclass(found)))


class Links(HTMLParser):
    """Collects where a page's links lead, and its own anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.update(found[name] or "" for name in ("id", "name") if name in found)
        where = found.get("href") or found.get("src")
        if where and not urlsplit(where).scheme and not where.startswith("//"):
            self.targets.append(where)


def test_the_site_is_rendered_without_a_warning_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    for package in RENDERERS:
        pytest.importorskip(package, reason=f"needs {package}: pip install '.[docs]'")
    for folder in ("docs", "examples"):  # a copy: pages are made beside their sources
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("_build", "generated"))
    shutil.rmtree(tmp_path / "docs" / "guides", ignore_errors=True)
    site = tmp_path / "site"
    # (guides are run by test_examples: not again here)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-D", "plot_gallery=0", "docs", str(site)]
    found = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr

    pages = {path.resolve(): Links(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    assert {f"api/generated/gsparse.linalg.{n}.html" for n in public_names("gsparse.linalg")} <= {
        path.relative_to(site.resolve()).as_posix() for path in pages
    }
    links = [(path, target) for path, page in pages.items() for target in page.targets]
    assert len(links) > len(pages)
    assert [link for link in links if not leads_somewhere(*link, pages)] == []


def environment() -> dict[str, str]:
    """Give the environment in which a process elsewhere imports this gsparse."""
    return {**os.environ, "PYTHONPATH": str(Path(gsparse.__file__).resolve().parents[1])}


def leads_somewhere(page: Path, target: str, pages: dict[Path, Links]) -> bool:
    """Tell whether a page's link leads to a file, and its fragment to an anchor there."""
    parts = urlsplit(target)
    place = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if place not in pages:
        return place.is_file()
    return parts.fragment in ("", "top") or unquote(parts.fragment) in pages[place].anchors
