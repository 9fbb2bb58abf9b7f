"""``python -m rope_array check``: run the suite on a target and print the results, for a bug report."""

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
    """Parse claims written as NAME=VALUE: fields of `Target`, or fields of a rope that are built in.

    Raises
    ------
    ValueError
        A pair has no "=", has an unknown name, or repeats a name.
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
        elif name in _TEXT_CLAIMS:
            claims[name] = text
        else:
            known = (*FIELDS, *_TEXT_CLAIMS, "furthest", "head_dim", "dtypes", "fields")
            raise ValueError(
                f"unknown claim {name!r}; known: {', '.join(known)}, and CAPABILITY=REASON for a missing "
                "capability of `check --list`"
            )
    return claims


# Claims whose value stays a string.
_TEXT_CLAIMS = ("name", "version", "layout", "positions", "angles", "arithmetic")


def _pairs(options: Sequence[str], option: str, example: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for pair in options:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{option} {pair!r}: give NAME=VALUE, {example}")
        if name in seen:
            raise ValueError(f"{option} {name} is repeated; give it once")
        seen.add(name)
        yield name, text


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def reasons_of(pairs: Sequence[str]) -> dict[str, str]:
    """Parse expected failures written as NAME=REASON."""
    return dict(_pairs(pairs, "expected failure", "such as norm='a reason, and a link'"))


def target_of_options(name: str, backend: str | None, library: str | None, claims: Sequence[str]) -> Target:
    """Return the target that the command-line options describe; raise as `resolve` does."""
    return resolve(name, backend, **claims_of(claims, library))


def run(
    target: str | None, *, as_json: bool, listing: bool, backend: str | None, library: str | None,
    claims: Sequence[str], expected: Sequence[str],
) -> int:  # fmt: skip
    """Run the command; return its exit status: 0 if all passed, 1 on a failure, 2 if no check could run."""
    if listing or target is None:
        _print(_listing())
        return 0 if listing else 2
    try:
        with redirect_stdout(sys.stderr):  # keep prints of the target out of the report
            resolved = target_of_options(target, backend, library, claims)
            reasons = reasons_of(expected)
            check_expected(reasons)
            report = run_checks(resolved, expected_failures=reasons)
    except (ValueError, ImportError, RuntimeError) as error:
        print(f"rope_array check: {error}", file=sys.stderr)
        return 2
    _print(json.dumps(report.as_dict(), indent=1, default=str) if as_json else "\n".join(table(report)))
    return 0 if report.ok else 1


def _print(text: str) -> None:
    """Print in any encoding; a closed pipe (`| head`) does not change the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- the table ----


def table(report: Report) -> Iterator[str]:
    """Yield the lines of a report."""
    yield from _header(report)
    for name, results in _group_by_name(report.results).items():
        yield from _wrap(f"  {name:<30}{_outcomes(name, results)}", 32)
    yield from _failures(report)
    yield from _not_applicable(report)
    if report.worst:
        yield "\nWorst error in lengths of the pair, by range of positions:"
        yield "  " + "   ".join(f"{name} {error:.1e}" for name, error in report.worst.items())
    counts = [f"{len(report.of(outcome))} {outcome}" for outcome in (PASSED, FAILED, INAPPLICABLE)]
    counts += [f"{len(report.of(o))} {o}" for o in (EXPECTED, UNEXPECTED) if report.of(o)]
    yield f"\n{', '.join(counts)} in {report.seconds:.1f} s"


def _header(report: Report) -> Iterator[str]:
    target, here = report.target, machine()
    of_version = f" ({target.version})" if target.version else ""
    yield f"rope_array {own_version()}: conformance of {target.name}{of_version}"
    settings = target.arrays.settings()
    yield f"Arrays: {target.library} {target.arrays.version}{f' ({settings})' if settings else ''}"
    yield f"Python {here['python']}, NumPy {here['numpy']}, {here['machine']}"
    if claims := target.claims():
        yield from _wrap(f"Claims: {', '.join(f'{name}={value}' for name, value in claims.items())}", 8)
    yield from _wrap(f"Judged by: {ANGLES[target.angles]}; {ARITHMETIC[target.arithmetic]}.", 11)
    if target.angles != "exact":
        yield "(Without a claim, angles are judged as float64; --claim angles=exact is the contract.)"
    yield ""


def _group_by_name(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.name.partition("[")[0], []).append(result)
    return groups


def _outcomes(name: str, results: Sequence[Result]) -> str:
    if len({result.outcome for result in results}) == 1:
        return _shout_failures(results[0].outcome)
    found: dict[str, list[str]] = {}
    for result in results:
        found.setdefault(result.outcome, []).append(result.name[len(name) + 1 : -1])
    return "; ".join(f"{_shout_failures(o)}: {', '.join(dtypes)}" for o, dtypes in found.items())


def _shout_failures(outcome: str) -> str:
    return outcome.upper() if outcome in (FAILED, UNEXPECTED) else outcome


def _failures(report: Report) -> Iterator[str]:
    failures = report.of(FAILED, UNEXPECTED)
    requirements = {check.name: check.requirement for check in checks()}
    if failures:
        yield "\nFailed:"
    for result in failures:
        yield f"  {result.name}"
        yield from _wrap(f"    required: {requirements[result.name]}", 14)
        yield from _wrap(f"    found:    {result.detail}", 14)
    if report.of(EXPECTED):
        yield "\nFailed as expected:"
    for result in report.of(EXPECTED):
        yield from _wrap(f"  {result.name}: {result.detail}", 6)


def _not_applicable(report: Report) -> Iterator[str]:
    needed = {need for check in checks() for need in check.needs}
    declines = {name: why for name, why in report.target.declines.items() if name in needed}
    if declines:
        yield "\nNot applicable, as these are not claimed:"
    for name, why in declines.items():
        yield from _wrap(f"  {name}: {why}", 6)
    refused = [r for r in report.of(INAPPLICABLE) if r.detail.startswith("NotImplementedError")]
    for result in refused:
        yield from _wrap(f"  {result.name}: {result.detail}", 6)


def _wrap(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, break_long_words=False) or [text]


# ---- check --list ----


def _listing() -> str:
    lines = ["Targets (each with the capabilities that its arrays lack):"]
    for name in names():
        lines += _wrap(f"  {name:<28}{_gaps(name)}", 30)
    lines.append(f"  {'package.module:attribute':<28}a callable rotate(x, pos, **spec), or a Target")
    lines.append("\nChecks:")
    for name, requirement in {c.name.partition("[")[0]: c.requirement for c in checks()}.items():
        lines += _wrap(f"  {name:<30}{requirement}", 32)
    lines.append("\nCapabilities, which a check may need:")
    for name, meaning in CAPABILITIES.items():
        lines += _wrap(f"  {name:<30}{meaning}", 32)
    return "\n".join(lines)


def _gaps(name: str) -> str:
    library, _, mode = name.rpartition(":")
    lib = LIBRARIES[library if mode in ("jit", "compile") else name]
    try:
        lib.check_present()
        gaps: Mapping[str, str] = lib.lacks
    except (MissingLibrary, ImportError):
        return "not installed here"
    gaps = {**gaps, **(NOT_COMPILED if lib.name != name else {})}
    return ", ".join(gap for gap in gaps if gap != "jit") or "-"
