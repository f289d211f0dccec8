"""README.md, CONTRIBUTING.md and the developer pages are short, and describe the repository as it is."""

from __future__ import annotations

import ast
import re
import runpy
import textwrap
import tomllib
from pathlib import Path

import pytest

from gsparse.formats.row_pattern import MAX_PATTERNS
from gsparse.kernels.cpu.jit import jitted
from gsparse.kernels.gpu import step_source
from gsparse.linalg.krylov.cg import PROGRAM
from tests.import_graph import LAYERS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
CHECK = (ROOT / ".ci" / "run").read_text()
WHOLE_CHECK = (ROOT / ".ci" / "whole").read_text()
DEVELOPER_PAGES = sorted((ROOT / "docs" / "developers").glob("*.rst"))

# A README is read in three minutes, or not at all.
_FEWEST_WORDS, _MOST_WORDS = 400, 600
_MOST_PICTURE_BYTES = 60_000


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of README in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def words_of(markdown: str) -> list[str]:
    """Return the words that a reader reads: no code, no pictures, no markup of tables, no targets of links."""
    text = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "", text)
    return [word for word in text.replace("|", " ").split() if re.search(r"\w", word)]


def test_words_are_counted_without_code_tables_and_links() -> None:
    text = "One [two](x.md) `no` three.\n\n| four | - |\n| --- | --- |\n\n```bash\nno no\n```\n![no](no.svg)\n"
    assert words_of(text) == ["One", "two", "three.", "four"]


def test_readme_is_short() -> None:
    assert _FEWEST_WORDS <= len(words_of(README)) <= _MOST_WORDS


def test_readme_begins_with_one_sentence_and_three_lines_of_code() -> None:
    title, sentence, _ = README.split("\n\n", 2)
    assert title == "# gsparse"
    assert re.fullmatch(r"[^.]+\.", sentence)
    (code,) = blocks("python")
    assert len(code.splitlines()) == 3


def test_readme_has_the_two_commands_that_both_checks_run() -> None:
    install, test = blocks("bash")
    assert "pip install ." in install and "examples/poisson_cg.py" in install
    assert "pip install -e" in test and "pytest" in test
    assert re.findall(r'^in_new_environment "\$work/\w+" (\d)$', CHECK, re.MULTILINE) == ["1", "2"]
    assert re.findall(r"readme_block (\d)\)", WHOLE_CHECK) == ["1", "2"]


def test_readme_has_one_picture_which_is_small() -> None:
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert "<img" not in README
    assert 0 < (ROOT / picture).stat().st_size < _MOST_PICTURE_BYTES


def test_pictures_show_the_figures_that_were_recorded(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'gsparse-gpu[plot]'")
    script = runpy.run_path(str(ROOT / "docs" / "draw_figures.py"))
    committed = (script["STATIC"] / "speed_over_cusparse.svg").read_text()
    assert len(script["speeds"]()) == 10
    for matrix, speed in script["speeds"]().items():
        assert f">{matrix}</text>" in committed and f">{speed:.2f}×</text>" in committed
    for name in script["PICTURES"]:
        script["draw"](name, tmp_path / "again.svg")
        pictures = script["STATIC"] / f"{name}.svg", tmp_path / "again.svg"
        texts = [re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text()) for picture in pictures]
        assert texts[0] == texts[1], f"{name}: run python docs/draw_figures.py"


# The speed-ups of README's table, in its order, and the words of FIGURES.md in which each is recorded.
RECORDED = {
    "1.7 (1.01 to 6.4)": ["1.74 from a million entries on (1.01 to 6.4, 15 matrices)"],
    "1.7 (worst 0.95)": ["32 matrices from applications", "1.58 (0.95)", "the means are 1.69"],
    "16 (12.3 µs, CuPy 195)": ["| CG, 7-point 20³ / 64³ | 5.9 / 12.3 | 213 / 195 | 36 / 16 times |"],
    "3.8 (193 µs, CuPy 741)": ["| CG, 7-point 200³, constant / variable | 193 / 295 | 741 / 753 | 3.8 / 2.6 |"],
    "3.7 (1.8 to 31)": ["2 threads, now | 3.74, 1.77 to 30.9"],
    "1.9 (0.78 to 16)": ["**1.88** (goal: 1.5), 1.72, **0.78 to 15.6**"],
}


def test_every_figure_of_readme_is_recorded_with_its_command() -> None:
    section = README.partition("## Figures")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in section.splitlines() if row.startswith("| ")
    ]
    assert "higher is better" in section
    assert [speed_up for _, _, speed_up, _ in rows[2:]] == list(RECORDED)
    assert all(command == "the same" or command.count("`") == 2 for *_, command in rows[2:])
    figures = (ROOT / "FIGURES.md").read_text().replace("\n", " ")
    assert [words for texts in RECORDED.values() for words in texts if words not in figures] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_of_a_page_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    assert [target for target in targets if not target.startswith("https://") and not (ROOT / target).exists()] == []


def files_named(text: str) -> set[str]:
    """Return the files and folders of the repository that a page names in code."""
    names = set(re.findall(r"`+([\w./-]+)`+", text))
    return {name for name in names if "/" in name and not name.startswith(("/", "-", "."))} | {
        name for name in names if re.fullmatch(r"\w+\.(py|md|toml)", name)
    }


CHECKLISTS = {"storage format", "solver", "preconditioner", "dtype"}


def test_the_four_checklists_name_files_that_exist() -> None:
    sections = dict(re.findall(r"^## Add a ([\w ]+)\n(.*?)(?=^## |\Z)", CONTRIBUTING, re.MULTILINE | re.DOTALL))
    assert set(sections) == CHECKLISTS
    for title, section in sections.items():
        files = files_named(section)
        assert len(files) > 3, title
        assert [name for name in sorted(files) if not (ROOT / name).exists()] == [], title


@pytest.mark.parametrize("kind", ["solver", "preconditioner"])
def test_a_solver_or_a_preconditioner_takes_two_source_files(kind: str) -> None:
    section = CONTRIBUTING.partition(f"## Add a {kind}\n")[2].partition("\n## ")[0]
    new, exported = (
        re.search(rf"^{step}\. (.*?)(?=^{step + 1}\. )", section, re.MULTILINE | re.DOTALL) for step in (1, 2)
    )
    assert new and "A new file in" in new[1] and "`gsparse/linalg/registry.py`" in new[1]
    assert exported and files_named(exported[1]) == {"gsparse/linalg/__init__.py"}


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *DEVELOPER_PAGES], ids=lambda page: page.name)
def test_files_that_a_page_for_developers_names_exist(page: Path) -> None:
    # A name may be relative to the repository, to the package, or to one of its folders.
    places = [ROOT, ROOT / "gsparse", *(path for path in (ROOT / "gsparse").rglob("*") if path.is_dir())]
    names = sorted(files_named(page.read_text()))
    assert [name for name in names if not any((place / name).exists() for place in places)] == []


def test_the_table_lists_every_subpackage_from_the_top_layer_down() -> None:
    page = (ROOT / "docs" / "developers" / "architecture.rst").read_text()
    table = page.partition(".. list-table::")[2].partition("\n``__main__``")[0]
    private = {"__main__", "_interrupt", "_version"}
    assert re.findall(r"^   \* - ``(\w+)``$", table, re.MULTILINE) == [
        name for names in LAYERS for name in names if name not in private
    ]
    assert all(f"``{name}``" in page for name in private)


def test_the_generated_kernel_on_the_page_is_the_one_that_is_generated() -> None:
    page = (ROOT / "docs" / "developers" / "architecture.rst").read_text()
    (shown,) = re.findall(r"^\.\. code-block:: cpp\n\n(.*?\n   \}\n)$", page, re.MULTILINE | re.DOTALL)
    step = next(step for step in PROGRAM.steps if step.name == "start")
    assert textwrap.dedent(shown) == step_source._pass_function(PROGRAM, step).lstrip()
    (source,) = re.findall(r'^   Step\("start", each="(.*)", sums="(.*)"\)$', page, re.MULTILINE)
    assert source == (step.each, step.sums)


def test_the_page_of_checks_explains_every_step_of_both_checks() -> None:
    lines = (ROOT / "docs" / "developers" / "checks.rst").read_text().splitlines()
    steps = re.findall(r'^step "(.*)"$', CHECK, re.MULTILINE)
    assert steps[-1] == "done"
    assert [line for line in lines if line in steps] == steps[:-1]
    names = re.findall(r'^  "(\w+):.*"$', WHOLE_CHECK, re.MULTILINE)
    assert len(names) > 10
    assert set(names) == set(re.findall(r"^check_(\w+)\(\)", WHOLE_CHECK, re.MULTILINE))
    assert [line for line in lines if line in names] == names


def test_hooks_are_local_and_run_what_the_check_runs() -> None:
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.*)", config) == ["local"]
    static = CHECK.partition('step "format and lint"\n')[2].partition('step "system packages')[0]
    assert [entry for entry in re.findall(r"entry: (.*)", config) if entry not in static] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    assert {"ruff", "mypy", "import-linter", "pre-commit"} <= set(extras)


def test_the_documentation_links_its_pages() -> None:
    listed = {
        f"{folder}{entry}"
        for folder, page in (("", "index.rst"), ("developers/", "developers/index.rst"))
        for entry in re.findall(r"^   ([\w/]+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    }
    written = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").glob("*.rst")}
    written |= {f"developers/{path.stem}" for path in DEVELOPER_PAGES}
    assert written - {"index"} <= listed
    assert "README" not in (ROOT / "docs" / "index.rst").read_text()


# Pages for users, in which one fact must not be stated in two ways.
USER_PAGES = {
    page: " ".join((ROOT / page).read_text().split())
    for page in ("README.md", "CHANGELOG.md", "docs/install.rst", "docs/user_guide.rst", "docs/glossary.rst")
}
GUIDE = "examples/guides/how_gsparse_chooses.py"


def test_pages_name_the_versions_of_python_that_the_package_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert project["requires-python"] == f">={versions[0]}"
    named = {page: re.findall(r"Python (3\.\d+) to (3\.\d+)", text) for page, text in USER_PAGES.items()}
    assert {span for spans in named.values() for span in spans} == {(versions[0], versions[-1])}
    assert all(named[page] for page in ("README.md", "CHANGELOG.md", "docs/install.rst"))
    assert f"Python {versions[0]} or later" in CONTRIBUTING


def test_pages_agree_on_where_compiled_kernels_are_stored() -> None:
    for page in ("CHANGELOG.md", "docs/install.rst"):
        sentences = r"user's cache directory \(.*If that directory cannot be written, .* beside the package's sources\."
        assert re.search(sentences, USER_PAGES[page]), page
    docstring = " ".join((jitted.__doc__ or "").split())
    assert "in the user's cache directory, or beside the source if that directory cannot be written" in docstring


def test_pages_agree_on_which_formats_are_refused() -> None:
    limit = f"up to {MAX_PATTERNS:,}"
    guide = " ".join((ROOT / GUIDE).read_text().replace("\n# ", " ").split())
    for text in (USER_PAGES["docs/user_guide.rst"], guide):
        assert f"``row_pattern`` stores {limit} distinct rows" in text
        assert "All formats that can store the matrix are accepted, also if their products are slow." in text
    assert f"stores each distinct pattern once, {limit} of them" in USER_PAGES["docs/glossary.rst"]


def test_no_source_file_and_no_class_is_larger_than_contributing_allows() -> None:
    assert "a file at most 400" in CONTRIBUTING
    assert "a class at most 25 methods" in CONTRIBUTING
    files = sorted((ROOT / "gsparse").rglob("*.py"))
    assert [path.name for path in files if len(path.read_text().splitlines()) > 400] == []
    methods = [
        (path.name, node.name, sum(isinstance(part, ast.FunctionDef) for part in node.body))
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert [(file, name, count) for file, name, count in methods if count > 25] == []


def test_accepted_mutants_are_changes_of_lines_that_exist() -> None:
    accepted = tomllib.loads((ROOT / "tests" / "mutation" / "accepted.toml").read_text())
    for group in accepted["survivors"]:
        lines = {" ".join(line.split()) for line in (ROOT / group["module"]).read_text().splitlines()}
        changed = [line[2:] for line in group["changes"].splitlines() if line.startswith("- ")]
        assert changed and [line for line in changed if line not in lines] == [], group["module"]
