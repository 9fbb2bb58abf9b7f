"""The directives for the tables of `_suite` and for the scaling rules."""

from typing import Any

from _suite import TABLES
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from rope_array._spec import scaling


class SuiteTable(SphinxDirective):
    """The directive `{suite-table} NAME`, with a name of TABLES."""

    required_arguments = 1

    def run(self) -> list[Any]:
        head, *rows = TABLES[self.arguments[0]]()
        lines = [head, tuple("---" for _ in head), *rows]
        content = StringList([f"| {' | '.join(row)} |" for row in lines], self.arguments[0])
        node = nodes.container()
        self.state.nested_parse(content, 0, node)
        return node.children


class ScalingRules(SphinxDirective):
    """The directive `scaling-rules`: the docstring of each rule."""

    def run(self) -> list[Any]:
        lines = [f".. autoclass:: {name}" for name in scaling.__all__]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, "scaling"), 0, node)
        return node.children


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("suite-table", SuiteTable)
    app.add_directive("scaling-rules", ScalingRules)
    return {"parallel_read_safe": True}
