"""Sphinx configuration: `nox -s docs` builds the pages, with warnings as errors, and runs their examples."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for _tables

project = "rope_array"
author = "rope_array contributors"
copyright = author
version = release = version_of("rope-array")

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.doctest", "_tables"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
exclude_patterns = ["_build"]
nitpicky = False
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
# Docstrings describe the types; the annotations of arrays are Any.
autodoc_typehints = "none"
doctest_global_setup = """
import numpy as np
import rope_array as ra
from rope_array.testing import apply_definition, cos_sin, frequencies, rotation_matrix
np.set_printoptions(legacy=False)
"""
