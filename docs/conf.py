"""Sphinx configuration: `nox -s docs` builds the pages, with warnings as errors, and runs their examples."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).parent))  # for _tables and _labels

project = "rope_array"
author = "rope_array contributors"
copyright = author
version = release = version_of("rope-array")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx_copybutton",
    "_tables",
    "_labels",
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"rope_array {version}"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
exclude_patterns = ["_build"]
nitpicky = False
numpydoc_show_class_members = False
autodoc_member_order = "bysource"
# Docstrings describe the types; the annotations of arrays are Any.
autodoc_typehints = "none"
# PyTorch is not installed in the session `docs`. Tests run the examples of rope_array.torch and
# rope_array.hf: test_imports.py and test_hf_patch.py.
autodoc_mock_imports = ["torch"]
# The copy button of an example copies its code: no prompts, no output.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True
doctest_global_setup = """
import numpy as np
import rope_array as ra
from rope_array.testing import apply_definition, cos_sin, frequencies, rotation_matrix
np.set_printoptions(legacy=False)
"""


def _show_without_running(app, what, name, obj, options, lines):
    """Make code blocks of the examples that need PyTorch, which the doctest builder does not run."""
    if name.startswith(("rope_array.hf", "rope_array.torch")) and ".. rubric:: Examples" in lines:
        first = lines.index(".. rubric:: Examples") + 2
        last = lines.index("..", first)  # numpydoc's mark after the last section
        lines[first:last] = [".. code-block:: pycon", "", *(f"   {line}" for line in lines[first:last])]


def _skip_fields(app, what, name, obj, skip, options):
    """Skip the fields of named tuples, which the section "Attributes" lists."""
    return True if str(obj.__doc__).startswith("Alias for field number") else None


def _mark_light_pictures(app, doctree):
    """Mark pictures without colours for dark pages: narrow.css inverts them there."""
    for image in doctree.findall(nodes.image):
        picture = Path(app.srcdir, image["uri"]).read_text("utf-8")
        if "prefers-color-scheme: dark" not in picture:
            image["classes"].append("light-picture")


def setup(app):
    app.connect("autodoc-process-docstring", _show_without_running, priority=900)  # after numpydoc
    app.connect("autodoc-skip-member", _skip_fields)
    app.connect("doctree-read", _mark_light_pictures)
