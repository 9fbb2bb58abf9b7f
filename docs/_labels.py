"""Labels of citations as docstrings have them: [1], not [R6ff8cf9c48f4-1].

numpydoc makes the labels of a page unique by a prefix. It removes the prefix only from docstrings whose
sections it finds by its own mark, which it does not find in pages of MyST.
"""

import re
from typing import Any

from docutils import nodes

PREFIX = re.compile(r"\bR[0-9a-f]{12}-(?=\w+\]?$)")


def remove_prefixes(app: Any, doctree: nodes.document, docname: str) -> None:
    for text in list(doctree.findall(nodes.Text)):
        if isinstance(text.parent, nodes.label) or text.startswith("[R"):
            text.parent.replace(text, nodes.Text(PREFIX.sub("", text)))


def setup(app: Any) -> dict[str, bool]:
    app.connect("doctree-resolved", remove_prefixes)
    return {"parallel_read_safe": True}
