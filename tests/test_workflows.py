"""The workflows of a public forge, and the metadata of a release. No test runs a workflow; linters read them."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_workflows_follow_the_schema_of_the_forge() -> None:
    if find_spec("check_jsonschema") is None:
        pytest.skip("needs check-jsonschema, which is in the dev extra")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_have_no_finding_of_zizmor() -> None:
    zizmor = shutil.which("zizmor", path=Path(sys.executable).parent)
    if zizmor is None:
        pytest.skip("needs zizmor, which is in the dev extra")
    done = subprocess.run([zizmor, "--offline", ".github"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_on_an_index_has_no_link_that_leads_nowhere() -> None:
    page = runpy.run_path(str(ROOT / "setup.py"))["index_page"]
    readme = (ROOT / "README.md").read_text("utf-8")
    text = page(readme)
    assert re.findall(r"\]\((?!https://)", readme) and not re.findall(r"\]\((?!https://)|!\[", text)
    assert text.index(f"pip install {PYPROJECT['project']['name']}`") < text.index("pip install .")
    assert page("[the guide](docs/guide.rst), [glossary](docs/glossary.rst), [site](https://a.example)") == (
        "the guide (`docs/guide.rst`), `docs/glossary.rst`, [site](https://a.example)"
    )
    assert page("![Speed](docs/a.svg)") == "Speed."


def test_the_source_distribution_lists_every_folder_of_the_repository() -> None:
    """`MANIFEST.in` lists what tests need. setuptools adds the package and the files that pyproject.toml names."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs the list of files of git")
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tops = {name.partition("/")[0] for name in done.stdout.splitlines()}
    listed = set((ROOT / "MANIFEST.in").read_text("utf-8").split())
    automatic = {"gsparse", "pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"}
    assert tops <= listed | automatic
