"""The site has a page for every public name, and every guide and example, and its links lead somewhere."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import gsparse

ROOT = Path(__file__).resolve().parents[1]
MODULES = ["gsparse", "gsparse.linalg", "gsparse.distributed", "gsparse.plot", "gsparse.files", "gsparse.errors"]
RENDERERS = ("sphinx", "sphinx_gallery", "numpydoc", "pydata_sphinx_theme")


def public_names(module: str) -> set[str]:
    """Give what a module offers, dask's part of gsparse.distributed included."""
    found = importlib.import_module(module)
    lazy = dir(found) if "__dir__" in vars(found) else []
    return {*found.__all__, *lazy}


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
