"""How Sphinx renders the guides (`examples/guides`) and the docstrings: python -m sphinx docs docs/_build."""

import gsparse

project, author, copyright = "gsparse", "the gsparse developers", "the gsparse developers, BSD 3-Clause"
release = gsparse.__version__
extensions = ["sphinx.ext.autosummary", "numpydoc", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "py:obj"  # `cg` in a docstring links to the page of cg
html_title = "gsparse"
autodoc_typehints = "none"  # the docstrings have types and shapes
autodoc_inherit_docstrings = False  # (SciPy's of what is as in SciPy)
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False  # the template of a class lists them

html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_toc_level": 2, "secondary_sidebar_items": ["page-toc"]}
html_show_sourcelink = False
html_sidebars = {"guides/*_*": [], "examples": []}  # room for code and what it prints
html_static_path, html_css_files = ["_static"], ["pages.css"]

sphinx_gallery_conf = {
    "examples_dirs": "../examples/guides",
    "gallery_dirs": "guides",
    "copyfile_regex": r"index\.rst",  # their order
    "filename_pattern": r"\.py$",  # all of them are run
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,  # the time a page took to make says nothing of what it shows
}
