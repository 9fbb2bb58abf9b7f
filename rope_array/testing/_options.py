"""Read a target, its claims and its expected failures from the options of the command and of the plugin."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ._capability_parts import PART_NAMES
from ._claims import CAPABILITIES
from ._factors import FIELDS
from ._find_target import resolve
from ._run import Prepared, prepare
from ._target import Target, check_name


class Options(NamedTuple):
    """The options of ``python -m rope_array check``: the target, its claims and checks, as plain values."""

    target: str
    backend: str | None = None
    library: str | None = None
    claims: Sequence[str] = ()
    expected: Sequence[str] = ()
    require: Sequence[str] = ()
    thorough: bool = False
    examples: int = 0
    seed: int | None = None
    cases: Sequence[str] = ()
    only: Sequence[str] = ()

    def resolve(self) -> Target:
        """Return the target; raise as `_find_target.resolve` does."""
        claims = claims_of(self.claims, self.library)
        required = (*claims.pop("requires", ()), *_names(self.require))
        return resolve(self.target, self.backend, required, **claims)

    def prepare(self, target: Target) -> Prepared:
        """Return the checks to run on a target; raise ValueError for options that contradict each other."""
        if self.seed is not None and not self.examples:
            raise ValueError(f"--seed {self.seed} is of random calls; give their number with --examples")
        if self.examples and self.cases:
            raise ValueError("--case runs the given calls alone; leave --examples out")
        if self.only and self.require:
            raise ValueError("--require judges by every check; leave --only out")
        expected = dict(_pairs(self.expected, "expected failure", "such as norm='a reason, and a link'"))
        only = _names(self.only)
        return prepare(target, expected, self.thorough, self.examples, self.seed or 0, self.cases, only)

    def repeated(self) -> list[str]:
        """Return the arguments of ``python -m rope_array`` that judge the same."""
        pairs = [("--library", self.library)] if self.library else []
        pairs += [("--claim", claim) for claim in self.claims]
        pairs += [("--require", names) for names in self.require]
        pairs += [("--expect", expectation) for expectation in self.expected]
        pairs += [("--backend", self.backend)] if self.backend else []
        return ["check", self.target, *(text for pair in pairs for text in pair)]


def _names(options: Sequence[str]) -> tuple[str, ...]:
    """Return the names in repeated options, each NAME[,NAME]."""
    return tuple(name.strip() for names in options for name in names.split(","))


def claims_of(pairs: Sequence[str], library: str | None = None) -> dict[str, Any]:
    """Parse claims written as NAME=VALUE: fields of `Target`, or fields of a rope that are built in."""
    claims: dict[str, Any] = {} if library is None else {"library": library}
    for name, text in _pairs(pairs, "claim", "such as pairing=half or angles=float32"):
        if name in FIELDS:
            claims.setdefault("fixed", {})[name] = _value(text)
        elif name in CAPABILITIES or name in PART_NAMES:
            claims.setdefault("lacks", {})[name] = text
        else:
            check_name("claim", name, (*FIELDS, *_READERS, *CAPABILITIES))
            claims[name] = _READERS[name](text)
    return claims


def _pairs(options: Sequence[str], option: str, example: str) -> Iterator[tuple[str, str]]:
    names: set[str] = set()
    for pair in options:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{option} {pair!r}: give NAME=VALUE, {example}")
        if name in names:
            raise ValueError(f"{option} {name} is repeated; give it once")
        names.add(name)
        yield name, text


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


# The claims that are fields of `Target`, each with the function that reads its value.
_READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("name", "version", "layout", "positions", "angles", "arithmetic", "arguments"), str),
    **dict.fromkeys(("furthest", "head_dim", "in_place"), _value),
    **dict.fromkeys(("dtypes", "fields", "requires"), lambda text: tuple(filter(None, text.split(",")))),
}
