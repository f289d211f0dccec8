"""README.md, CONTRIBUTING.md and the pages for developers name files that exist, and the site links its pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DEVELOPER_PAGES = sorted((DOCS / "developers").glob("*.rst"))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_of_a_page_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text("utf-8"))
    assert [target for target in targets if not target.startswith("https://") and not (ROOT / target).exists()] == []


def files_named(text: str) -> set[str]:
    """Return the files and folders of the repository that a page names in code."""
    names = set(re.findall(r"`+([\w./-]+)`+", text))
    return {name for name in names if "/" in name and not name.startswith(("/", "-", "."))} | {
        name for name in names if re.fullmatch(r"\w+\.(py|md|toml)", name)
    }


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *DEVELOPER_PAGES], ids=lambda page: page.name)
def test_files_that_a_page_for_developers_names_exist(page: Path) -> None:
    # A name may be relative to the repository, to the package, or to one of its folders.
    places = [ROOT, ROOT / "gsparse", *(path for path in (ROOT / "gsparse").rglob("*") if path.is_dir())]
    names = sorted(files_named(page.read_text("utf-8")))
    assert [name for name in names if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("folder", ["", "developers", "theory"])
def test_the_index_of_a_folder_lists_its_pages(folder: str) -> None:
    index = (DOCS / folder / "index.rst").read_text("utf-8")
    listed = {Path(entry).name for entry in re.findall(r"^   ([\w/]+)$", index, re.MULTILINE)}
    assert {path.stem for path in (DOCS / folder).glob("*.rst")} - {"index"} <= listed
