"""A likely cause of failures, and its claims as options of the command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Cause:
    """The likely cause of failures.

    Attributes
    ----------
    text
        The cause, in a few words.
    claims
        Fields of `Target` with which the failures go away; empty if the code has to change.
    explained, failed
        The number of failures that go away, of all.
    checks
        The names of the checks that it explains.
    facts
        The cause as data: ``{"positions": "pos converted to int16"}``, ``{"pairs": (31,), "num_pairs": 32}``,
        ``{"axis": "head", "first": 32}``, ``{"field": "base"}`` that is ignored, ``{"inverse": True}``,
        ``{"lacks": ["inverse"]}``, a claim, or the factors of a call.
    found
        The finding of the first of the checks once the causes before are mended; "" for the first cause.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array.testing import run_checks
    >>> def rotate(x, pos):
    ...     return ra.apply(x, pos, pairing="half")
    >>> run_checks(rotate, only=["definition"], dtypes=["float32"], layout="sd").cause.options
    '--claim pairing=half'
    """

    text: str
    claims: Mapping[str, Any] = field(default_factory=dict)
    explained: int = 0
    failed: int = 0
    checks: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    found: str = field(default="", repr=False)

    @property
    def options(self) -> str:
        """The claims as options of the command ``python -m rope_array check``."""
        return _options(self.claims)

    @property
    def withdrawn(self) -> Mapping[str, Any]:
        """The claims to lack a capability of the failed checks: true only if nobody makes these calls."""
        return {name: value for name, value in self.claims.items() if name in _WITHDRAWN}

    @property
    def stated(self) -> Mapping[str, Any]:
        """The other claims, which describe a convention or an accuracy."""
        return {name: value for name, value in self.claims.items() if name not in _WITHDRAWN}

    def __str__(self) -> str:
        advice = f"; try {_options(self.stated)}" if self.stated else ""
        if self.withdrawn:
            advice += f"; only if nobody calls it so, claim that it lacks this: {_options(self.withdrawn)}"
        return f"Likely cause{self.share}: {self.text}{advice}"

    @property
    def share(self) -> str:
        """The share of the failures that go away, if not all do: " of 3 of 17"."""
        return f" of {self.explained} of {self.failed}" if 0 < self.explained < self.failed else ""


# Claims that only leave out checks.
_WITHDRAWN = ("lacks", "fields", "dtypes")


def _options(claims: Mapping[str, Any]) -> str:
    return " ".join(shlex.join(option) for option in options_of(claims))


def options_of(claims: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the command-line options of claims, as (option, value)."""
    for name, value in claims.items():
        if name == "library":
            yield "--library", value
        elif name in ("fixed", "lacks"):
            yield from (("--claim", f"{key}={_claim_text(setting)}") for key, setting in value.items())
        else:
            yield "--claim", f"{name}={_claim_text(value)}"


def _claim_text(value: Any) -> str:
    """Return a claim's value as the command reads it, with double quotes, which a shell's quotes can hold."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def merged(claims: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return claims with more claims; the mappings `fixed` and `lacks` are joined."""
    joined = {name: {**claims.get(name, {}), **added[name]} for name in ("fixed", "lacks") if name in added}
    return {**claims, **added, **joined}


class Findings(NamedTuple):
    """The cause of all failures together, each by itself, and the other checks: see `Report`."""

    cause: Cause | None = None
    causes: tuple[Cause, ...] = ()
    unexplained: Mapping[str, tuple[str, ...]] = MappingProxyType({})
