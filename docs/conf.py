"""Sphinx settings: Markdown pages, warnings are errors (`make docs`)."""

from trivium import __version__

project = "Trivium"
author = "The Trivium authors"
copyright = "The Trivium authors, Apache-2.0"  # noqa: A001  (Sphinx's name)
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "Trivium"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
