"""``python -m rope_array check``: run the suite on a target and print what came of it, for a bug report."""

from __future__ import annotations

import ast
import io
import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from ._checks import checks
from ._claims import CAPABILITIES, FIELDS
from ._contract import ANGLES, ARITHMETIC
from ._libraries import LIBRARIES, NOT_COMPILED, MissingLibrary
from ._names import names, resolve
from ._run import (
    EXPECTED,
    FAILED,
    INAPPLICABLE,
    PASSED,
    UNEXPECTED,
    Report,
    Result,
    check_expected,
    machine,
    own_version,
    run_checks,
)
from ._target import Target

_WIDTH = 100


def claims_of(pairs: Sequence[str], library: str | None = None) -> dict[str, Any]:
    """Read claims given as NAME=VALUE: fields of `Target`, or of a rotary embedding that are built in.

    Raises
    ------
    ValueError
        A pair has no "=", is of no known name, or is given twice.
    """
    claims: dict[str, Any] = {} if library is None else {"library": library}
    for name, text in _pairs(pairs, "claim", "such as pairing=half or angles=float32"):
        if name in FIELDS:
            claims.setdefault("fixed", {})[name] = _value(text)
        elif name in CAPABILITIES:
            claims.setdefault("lacks", {})[name] = text
        elif name in ("dtypes", "fields"):
            claims[name] = tuple(filter(None, text.split(",")))
        elif name in ("furthest", "head_dim"):
            claims[name] = _value(text)
        elif name in _WORDS:
            claims[name] = text
        else:
            known = (*FIELDS, *_WORDS, "furthest", "head_dim", "dtypes", "fields")
            raise ValueError(
                f"unknown claim {name!r}; known: {', '.join(known)}, and as lacking, with a reason, the "
                "capabilities of `check --list`"
            )
    return claims


# Claims whose value is a word as it is.
_WORDS = ("name", "version", "layout", "positions", "angles", "arithmetic")


def _pairs(given: Sequence[str], what: str, example: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{what} {pair!r}: give NAME=VALUE, {example}")
        if name in seen:
            raise ValueError(f"{what} {name} is given twice")
        seen.add(name)
        yield name, text


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def reasons_of(pairs: Sequence[str]) -> dict[str, str]:
    """Read expected failures given as NAME=REASON."""
    return dict(_pairs(pairs, "expected failure", "such as norm='a reason, and a link'"))


def prepared(name: str, backend: str | None, library: str | None, claims: Sequence[str]) -> Target:
    """Return the target of a command line.

    Raises
    ------
    ValueError
        The target or a claim is not known.
    MissingLibrary, ImportError
        What it needs is not there.
    """
    return resolve(name, backend, **claims_of(claims, library))


def run(
    target: str | None, *, as_json: bool, listing: bool, backend: str | None, library: str | None,
    claims: Sequence[str], expected: Sequence[str],
) -> int:  # fmt: skip
    """Run the command; return its exit status: 0 all well, 1 a failure, 2 the target cannot be judged."""
    if listing or target is None:
        _print(_listing())
        return 0 if listing else 2
    try:
        with redirect_stdout(sys.stderr):  # what the target prints is not the report
            judged = prepared(target, backend, library, claims)
            reasons = reasons_of(expected)
            check_expected(reasons)
            report = run_checks(judged, expected_failures=reasons)
    except (ValueError, ImportError, RuntimeError) as error:
        print(f"rope_array check: {error}", file=sys.stderr)
        return 2
    _print(json.dumps(report.as_dict(), indent=1, default=str) if as_json else "\n".join(table(report)))
    return 0 if report.ok else 1


def _print(text: str) -> None:
    """Print in whatever encoding there is; a reader that has seen enough does not change the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- the table ----


def table(report: Report) -> Iterator[str]:
    """Yield the lines of a report."""
    yield from _head(report)
    for name, results in _grouped(report.results).items():
        yield from _wrapped(f"  {name:<30}{_outcomes(name, results)}", 32)
    yield from _failures(report)
    yield from _declined(report)
    if report.worst:
        yield "\nWorst error in lengths of the pair, by range of positions:"
        yield "  " + "   ".join(f"{name} {error:.1e}" for name, error in report.worst.items())
    counts = [f"{len(report.of(outcome))} {outcome}" for outcome in (PASSED, FAILED, INAPPLICABLE)]
    counts += [f"{len(report.of(o))} {o}" for o in (EXPECTED, UNEXPECTED) if report.of(o)]
    yield f"\n{', '.join(counts)} in {report.seconds:.1f} s"


def _head(report: Report) -> Iterator[str]:
    target, here = report.target, machine()
    of_version = f" ({target.version})" if target.version else ""
    yield f"rope_array {own_version()}: conformance of {target.name}{of_version}"
    settings = target.arrays.settings()
    yield f"Arrays: {target.library} {target.arrays.version}{f' ({settings})' if settings else ''}"
    yield f"Python {here['python']}, NumPy {here['numpy']}, {here['machine']}"
    if claims := target.claims():
        yield from _wrapped(f"Claims: {', '.join(f'{name}={value}' for name, value in claims.items())}", 8)
    yield from _wrapped(f"Held to: {ANGLES[target.angles]}; {ARITHMETIC[target.arithmetic]}.", 9)
    if target.angles != "exact":
        yield "(The default for code that declares nothing is float64; --claim angles=exact is the contract.)"
    yield ""


def _grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.name.partition("[")[0], []).append(result)
    return groups


def _outcomes(name: str, results: Sequence[Result]) -> str:
    if len({result.outcome for result in results}) == 1:
        return _loud(results[0].outcome)
    found: dict[str, list[str]] = {}
    for result in results:
        found.setdefault(result.outcome, []).append(result.name[len(name) + 1 : -1])
    return "; ".join(f"{_loud(o)}: {', '.join(dtypes)}" for o, dtypes in found.items())


def _loud(outcome: str) -> str:
    return outcome.upper() if outcome in (FAILED, UNEXPECTED) else outcome


def _failures(report: Report) -> Iterator[str]:
    failures = report.of(FAILED, UNEXPECTED)
    requirements = {check.name: check.requirement for check in checks()}
    if failures:
        yield "\nFailed:"
    for result in failures:
        yield f"  {result.name}"
        yield from _wrapped(f"    required: {requirements[result.name]}", 14)
        yield from _wrapped(f"    found:    {result.detail}", 14)
    if report.of(EXPECTED):
        yield "\nFailed as expected:"
    for result in report.of(EXPECTED):
        yield from _wrapped(f"  {result.name}: {result.detail}", 6)


def _declined(report: Report) -> Iterator[str]:
    asked = {need for check in checks() for need in check.needs}
    declined = {name: why for name, why in report.target.declines.items() if name in asked}
    if declined:
        yield "\nNot applicable, as these are not claimed:"
    for name, why in declined.items():
        yield from _wrapped(f"  {name}: {why}", 6)
    refused = [r for r in report.of(INAPPLICABLE) if r.detail.startswith("NotImplementedError")]
    for result in refused:
        yield from _wrapped(f"  {result.name}: {result.detail}", 6)


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, break_long_words=False) or [text]


# ---- what there is ----


def _listing() -> str:
    lines = ["Targets (each with what its arrays cannot do):"]
    for name in names():
        lines += _wrapped(f"  {name:<28}{_gaps(name)}", 30)
    lines.append(f"  {'package.module:attribute':<28}a callable rotate(x, pos, **spec), or a Target")
    lines.append("\nChecks:")
    said: set[str] = set()
    for check in checks():
        name = check.name.partition("[")[0]
        if name not in said:
            lines += _wrapped(f"  {name:<30}{check.requirement}", 32)
        said.add(name)
    lines.append("\nCapabilities, which a check may need:")
    for name, meaning in CAPABILITIES.items():
        lines += _wrapped(f"  {name:<30}{meaning}", 32)
    return "\n".join(lines)


def _gaps(name: str) -> str:
    library, _, mode = name.rpartition(":")
    lib = LIBRARIES[library if mode in ("jit", "compile") else name]
    try:
        lib.check_present()
        gaps: Mapping[str, str] = lib.lacks
    except (MissingLibrary, ImportError):
        return "not here"
    gaps = {**gaps, **(NOT_COMPILED if lib.name != name else {})}
    return ", ".join(gap for gap in gaps if gap != "jit") or "-"
