"""Configure Sphinx, which renders the pages, the guides and the docstrings: python -m sphinx docs docs/_build."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import gsparse
from gsparse.matrix.host_operations import HOST_OPERATIONS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
THEORY = Path(__file__).resolve().parent / "theory"

project, author, copyright = "gsparse", "the gsparse developers", "the gsparse developers, BSD 3-Clause"
release = gsparse.__version__
extensions = ["sphinx.ext.autosummary", "myst_parser", "numpydoc", "sphinx_gallery.gen_gallery"]
suppress_warnings = ["myst.header"]  # FIGURES.md, a part of a page, begins with a heading of the second level.
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "py:obj"  # Makes `cg` in a docstring a link to the page of cg.
html_title = "gsparse"
autodoc_typehints = "none"  # The docstrings give types and shapes.
autodoc_inherit_docstrings = False  # Leaves out methods that have only SciPy's docstring.
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False  # The template of a class lists its members.

html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_toc_level": 2, "secondary_sidebar_items": ["page-toc"]}
html_show_sourcelink = False
# Pages without subpages need no list of them, and have more width for code and its output.
_ALONE = ("install", "guides/*_*", "user_guide", "examples", "multigrid", "benchmarks", "glossary")
html_sidebars: dict[str, list[str]] = {page: [] for page in _ALONE}
html_static_path, html_css_files = ["_static"], ["pages.css"]

sphinx_gallery_conf = {
    "examples_dirs": "../examples/guides",
    "gallery_dirs": "guides",
    "copyfile_regex": r"index\.rst",  # This page gives the order of the guides.
    "filename_pattern": r"\.py$",  # Runs all guides.
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,  # Hides the time that a page took to run, which says nothing about gsparse.
}


class HostOperations(SphinxDirective):
    """The directive ``.. host-operations::``: what SciPy computes on the host, from the table in the code."""

    def run(self) -> list[nodes.Node]:
        """Return a table with a row for each operation."""
        lines = [".. list-table::", "   :widths: 30 70", "   :header-rows: 1", "", "   * - Operation", "     - When"]
        for operation, when in HOST_OPERATIONS.items():
            lines += [f"   * - {operation}", f"     - {when}"]
        return self.parse_text_to_nodes("\n".join(lines))


class MultigridRobustness(SphinxDirective):
    """The directive ``.. multigrid-robustness::``: the table that ``asv_bench/measure_multigrid.py`` has recorded."""

    def run(self) -> list[nodes.Node]:
        """Return a table with a row for each problem."""
        recorded = json.loads((Path(__file__).parent / "_static" / "multigrid_robustness.json").read_text())
        columns = {
            "problem": "Problem",
            "rows": "Rows",
            "levels": "Levels",
            "complexity": "Complexity",
            "iterations": "Iterations",
            "iterations, strength of PyAMG": "Strength of PyAMG",
            "iterations of PyAMG": "PyAMG",
        }
        lines = [".. list-table::", "   :header-rows: 1", ""]
        for row in (columns, *recorded["rows"]):
            cells = ["none" if row[name] is None else str(row[name]) for name in columns]
            lines += [f"   {'  ' if place else '* '}- {cell}" for place, cell in enumerate(cells)]
        return self.parse_text_to_nodes("\n".join(lines))


class ExampleProgram(SphinxDirective):
    """The directive ``.. example-program:: poisson_cg.py --n 64``: what a program is for, prints and draws.

    The program runs when the pages are made, unless the gallery is switched off (``-D plot_gallery=0``).
    """

    required_arguments, final_argument_whitespace = 1, True

    def run(self) -> list[nodes.Node]:
        """Return the docstring of the program, its picture and output, and its source, which is folded."""
        name, *arguments = shlex.split(self.arguments[0])
        source = (EXAMPLES / name).read_text()
        described = (ast.get_docstring(ast.parse(source)) or "").replace("`", "``")
        # Indented lines of a docstring are commands and formulas.
        lines = [*re.sub(r"\n\n(?=    )", "\n\n.. code-block:: text\n\n", described).split("\n"), ""]
        if self.config.plot_gallery not in {"0", "False", False}:
            lines += self.results(name, arguments, can_draw="--plot" in source)
        lines += [".. admonition:: The program", "   :collapsible: closed", ""]
        lines += [f"   .. literalinclude:: ../examples/{name}", "      :language: python"]
        return self.parse_text_to_nodes("\n".join(lines))

    def results(self, name: str, arguments: list[str], *, can_draw: bool) -> list[str]:
        """Run the program, and return the lines that show its picture and its output."""
        picture = Path(self.env.srcdir) / "generated" / f"{name.removesuffix('.py')}.png"
        picture.parent.mkdir(exist_ok=True)
        drawing = ["--plot", str(picture)] if can_draw else []
        command = [sys.executable, str(EXAMPLES / name), *arguments, *drawing]
        environment = {**os.environ, "GSPARSE_QUIET": "1"}
        completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=EXAMPLES)
        if completed.returncode:
            error = completed.stderr.strip().rpartition("\n")[2]
            if "ModuleNotFoundError" not in error and "needs " not in error:
                logging.getLogger(__name__).warning(
                    "%s fails: %s", name, completed.stderr, location=self.get_location()
                )
            return [f"*It was not run when these pages were made:* {error}", ""]
        shown = shlex.join(["python", f"examples/{name}", *arguments])
        printed = [f"   {line}" for line in (f"$ {shown}", *completed.stdout.rstrip().split("\n"))]
        figure = [f".. image:: generated/{picture.name}", f"   :alt: Picture drawn by {name}", ""] if can_draw else []
        return [*figure, ".. code-block:: text", "", *printed, ""]


def setup(app: Sphinx) -> None:
    """Register the directives of this file, and draw the pictures of the theory pages."""
    app.add_directive("example-program", ExampleProgram)
    app.add_directive("host-operations", HostOperations)
    app.add_directive("multigrid-robustness", MultigridRobustness)
    sys.path.insert(0, str(THEORY))
    from draw import draw_all

    app.connect("builder-inited", lambda _: draw_all(THEORY))
