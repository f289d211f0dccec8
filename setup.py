"""Make the page of the package on an index from README.md. All other metadata is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import setup

# Stands before the commands of README, which are for a folder with the sources.
_NOTE = """
Install this release with `python -m pip install gsparse-gpu`. The following commands are for the folder of an unpacked
source distribution, which also has the files that this page names.
"""
_HEADING = "## Start\n"


def index_page(readme: str) -> str:
    """Return README for an index, where neither pictures nor links to files of the repository can be seen.

    The description of a picture takes its place. A link to a file becomes its text with the path of the file.
    """
    without_pictures = re.sub(r"!\[([^]]*)\]\((?!https://)[^)]*\)", r"\1.", readme)
    without_links = re.sub(r"\[([^]]*)\]\((?!https://)([^)]*)\)", _text_and_path, without_pictures)
    return without_links.replace(_HEADING, _HEADING + _NOTE)


def _text_and_path(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if text in (path, Path(path).stem) else f"{text} (`{path}`)"


if __name__ == "__main__":
    setup(
        long_description=index_page(Path("README.md").read_text("utf-8")),
        long_description_content_type="text/markdown",
    )
