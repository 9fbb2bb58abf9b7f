"""Tables of the documentation, made from declarations in rope_array.testing and from benchmark results."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._contract import ANGLES, ARITHMETIC
from rope_array.testing._libraries import LIBRARIES, NOT_COMPILED

FLOATS = ("float16", "bfloat16", "float32", "float64")
OTHER_COLUMNS = (*FLOATS, "jit", "lazy")  # columns of their own, or lacking in all libraries but one


def check_rows() -> Iterator[tuple[str, ...]]:
    yield "check", "for", "requirement", "needs"
    names = dict.fromkeys(each.name.partition("[")[0] for each in checks())
    for name in names:
        group = [each for each in checks() if each.name.partition("[")[0] == name]
        needs = [need for need in group[0].needs if need not in ("values", *FLOATS)]
        yield (
            f"`{name}`",
            "each dtype" if len(group) > 1 else "",
            group[0].requirement.replace("|", "\\|"),
            ", ".join(f"`{need}`" for need in needs),
        )


def target_rows() -> Iterator[tuple[str, ...]]:
    yield "target", *FLOATS, "configuration", "lacks"
    for name, lib in LIBRARIES.items():
        yield (
            f"`{name}`",
            *("yes" if dtype in lib.floats else _short(lib.gaps.get(dtype, "")) for dtype in FLOATS),
            lib.settings(),
            "; ".join(f"`{gap}`: {why}" for gap, why in lib.gaps.items() if gap not in OTHER_COLUMNS),
        )


def compiled_rows() -> Iterator[tuple[str, ...]]:
    yield "not compiled", "why"
    for name, why in NOT_COMPILED.items():
        yield f"`{name}`", why


def _short(reason: str) -> str:
    return "with ml_dtypes" if "ml_dtypes" in reason else "no"


def class_rows() -> Iterator[tuple[str, ...]]:
    yield "claim", "meaning"
    for claim, values in (("angles", ANGLES), ("arithmetic", ARITHMETIC)):
        for value, meaning in values.items():
            yield f"`{claim}={value}`", meaning


def capability_rows() -> Iterator[tuple[str, ...]]:
    yield "capability", "meaning"
    for name, meaning in CAPABILITIES.items():
        yield f"`{name}`", meaning


def remainder_rows() -> Iterator[tuple[str, ...]]:
    yield "library", "remainders", "largest error of cos", "of sin", "seconds"
    for label, row in _latest("exhaustive")["numbers"].items():
        errors = (f"{row[key]:.3e}" for key in ("max_error_cos", "max_error_sin"))
        yield label, f"{row['remainders']:,}", *errors, str(row["seconds"])


def example_rows() -> Iterator[tuple[str, ...]]:
    yield "library", "times the default number", "tests", "failed", "random examples", "seconds"
    for label, row in _latest("random-examples")["numbers"].items():
        yield label, *(f"{row[key]:,}" for key in ("times", "tests", "failed", "examples", "seconds"))


def origin_rows() -> Iterator[tuple[str, ...]]:
    yield "run", "date", "commit", "machine", "versions"
    for name in ("exhaustive", "random-examples"):
        result = _latest(name)
        machine = f"{result['machine']['cpu']}, {result['machine']['cores']} cores"
        versions = ", ".join(f"{package} {result['versions'][package]}" for package in ("python", "numpy"))
        yield name, result["date"], result["commit"][:10], machine, versions


def _latest(name: str) -> Any:
    results = Path(__file__).parents[1] / "bench" / "results"
    return json.loads(max(results.glob(f"*-{name}.json")).read_text("utf-8"))


TABLES = {
    "checks": check_rows,
    "targets": target_rows,
    "compiled": compiled_rows,
    "classes": class_rows,
    "capabilities": capability_rows,
    "remainders": remainder_rows,
    "examples": example_rows,
    "origins": origin_rows,
}


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


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("suite-table", SuiteTable)
    return {"parallel_read_safe": True}
