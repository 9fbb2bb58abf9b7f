"""``python -m rope_array check``: run the suite on a target and print the results, for a bug report."""

from __future__ import annotations

import ast
import io
import itertools
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from ._causes import options_of
from ._checks import checks
from ._claims import CAPABILITIES, FIELDS
from ._contract import ANGLES, ARITHMETIC
from ._libraries import LIBRARIES, NOT_COMPILED, MissingLibrary
from ._names import names, resolve
from ._outcome import EXPECTED, FAILED, INAPPLICABLE, PASSED, UNEXPECTED
from ._own import BackendTarget
from ._parts import PART_NAMES
from ._run import Report, Result, check_expected, machine, own_version, run_checks
from ._target import Target, check_name

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
        elif name in CAPABILITIES or name in PART_NAMES:
            claims.setdefault("lacks", {})[name] = text
        elif name in ("dtypes", "fields", "requires"):
            claims[name] = tuple(filter(None, text.split(",")))
        elif name in ("furthest", "head_dim"):
            claims[name] = _value(text)
        elif name in _TEXT_CLAIMS:
            claims[name] = text
        else:
            known = (*FIELDS, *_TEXT_CLAIMS, "furthest", "head_dim", "dtypes", "fields", "requires")
            check_name("claim", name, (*known, *CAPABILITIES))
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
    target: str | None, *, as_json: bool, listing: bool, verbose: bool, backend: str | None,
    library: str | None, claims: Sequence[str], expected: Sequence[str],
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
            text = _text(report, _command_of(target, library, claims, expected), as_json, verbose)
    except (ValueError, ImportError, RuntimeError) as error:
        print(f"rope_array check: {error}", file=sys.stderr)
        return 2
    _print(text)
    return 0 if report.ok else 1


def _text(report: Report, command: Sequence[str], as_json: bool, verbose: bool) -> str:
    if as_json:
        return json.dumps(report.as_dict(), indent=1, default=str)
    return "\n".join(lines_of(report, command, verbose=verbose))


def _command_of(
    target: str, library: str | None, claims: Sequence[str], expected: Sequence[str]
) -> list[str]:
    """Return the arguments that repeat a command."""
    options = [("--library", library)] if library else []
    options += [("--claim", claim) for claim in claims] + [("--expect", one) for one in expected]
    return ["check", target, *itertools.chain(*options)]


def _print(text: str) -> None:
    """Print in any encoding; a closed pipe (`| head`) does not change the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- the report ----


def lines_of(report: Report, command: Sequence[str] = (), *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of a report: the verdict and its cause, the failures, the passes, the rest.

    Parameters
    ----------
    report
        The report.
    command
        The arguments of ``python -m rope_array`` that made it, to repeat them with the claims that help.
    verbose
        Whether to show every check, and every failure's detail.
    """
    yield from _verdict(report)
    yield from _advice(report, command)
    yield from _header(report)
    yield from _calls(report)
    yield from _failures(report, verbose)
    yield from _passes(report, verbose)
    yield from _not_applicable(report, verbose)
    if report.worst:
        yield "\nWorst error in lengths of the pair, by range of positions:"
        yield "  " + "   ".join(f"{name} {error:.1e}" for name, error in report.worst.items())


def _verdict(report: Report) -> Iterator[str]:
    failures = report.of(FAILED, UNEXPECTED)
    judged = len(report.results) - len(report.of(INAPPLICABLE))
    rest = f"{len(report.of(INAPPLICABLE))} do not apply; {report.seconds:.1f} s"
    known = f"{len(report.of(EXPECTED))} failed as expected; " if report.of(EXPECTED) else ""
    if not failures:
        yield f"PASSED: {len(report.of(PASSED))} of {judged} checks ({known}{rest})."
        return
    cause = report.cause or "No single cause was found."
    if len(report.of(UNEXPECTED)) == len(failures):
        cause = "They passed, and were expected to fail: remove their --expect."
    yield from _wrap(f"FAILED: {len(failures)} of {judged}. {cause}", 2)


def _advice(report: Report, command: Sequence[str]) -> Iterator[str]:
    """Yield the effect of the claims that help, and the command to paste."""
    cause = report.cause
    if cause is None or not cause.claims:
        return
    gone = "All failures" if cause.explained == cause.failed else f"{cause.explained} failures"
    if command:
        yield f"{gone} go away with these claims. Claim what you mean, and correct the other faults:\n"
        yield f"  {shlex.join(['python', '-m', 'rope_array', *_repeated(command, cause.claims)])}"


def _repeated(command: Sequence[str], claims: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a command with claims, which replace its own of the same name."""
    new = [list(option) for option in options_of(claims)]
    replaced = {_option_key(option) for option in new}
    return [*command[:2], *itertools.chain(*_kept_options(command[2:], replaced), *new)]


def _kept_options(arguments: Sequence[str], replaced: set[str]) -> Iterator[list[str]]:
    options = [list(pair) for pair in zip(arguments[::2], arguments[1::2], strict=True)]
    yield from (option for option in options if _option_key(option) not in replaced)


def _option_key(option: Sequence[str]) -> str:
    return f"{option[0]} {option[1].partition('=')[0] if option[0] == '--claim' else ''}"


def _header(report: Report) -> Iterator[str]:
    target, here = report.target, machine()
    of_version = f" ({target.version})" if target.version else ""
    settings = target.arrays.settings()
    arrays = f"{target.library} {target.arrays.version}{f' ({settings})' if settings else ''}"
    yield ""
    yield from _wrap(
        f"Checked: {target.name}{of_version}, with arrays of {arrays}; rope_array {own_version()}, "
        f"Python {here['python']}, NumPy {here['numpy']}, {here['machine']}.", 2
    )  # fmt: skip
    if (claims := target.claims()) and not isinstance(target, BackendTarget):
        yield from _wrap(f"Claims: {', '.join(f'{name}={value}' for name, value in claims.items())}.", 2)
    yield from _wrap(f"Judged by: {ANGLES[target.angles]}; {ARITHMETIC[target.arithmetic]}.", 2)
    if target.angles == "float64":
        yield "  (The default for other code; --claim angles=exact is the contract of rope_array.)"


def _calls(report: Report) -> Iterator[str]:
    """Yield the number of calls that each backend served, and why a forced backend declined others."""
    target = report.target
    if not isinstance(target, BackendTarget):
        return
    if target.backend is None:
        yield from _wrap(f"Calls by backend: {_served_by_all(target, report.served)}.", 2)
        return
    served, declined = sum(report.served.values()), sum(report.declined.values())
    by_tables = ", by tables of cos and sin" if getattr(target.rotate, "by_tables", False) else ""
    yield from _wrap(
        f"Calls: {target.backend} served {served:,}{by_tables}, and declined {declined:,}"
        f"{_reasons(report.declined)}.", 2
    )  # fmt: skip
    if target.fixed:
        fixed = ", ".join(f"{name}={value}" for name, value in target.fixed.items())
        yield f"It declines interleaved pairs, so every call that names no pairing has {fixed}."


def _served_by_all(target: BackendTarget, served: Mapping[str, int]) -> str:
    if target.wraps and not served:
        return "not counted, as the calls are compiled"
    backends = {**target.backends, **{name: "" for name in served}}
    counts = [f"{name} {served.get(name, 0):,}{f' ({why})' if why else ''}" for name, why in backends.items()]
    alone = "; --backend NAME judges one alone" if len(counts) > 1 else ""
    return f"{', '.join(counts)}{alone}"


def _reasons(declined: Mapping[str, int]) -> str:
    """Return the most common reasons to decline, with their counts."""
    counts = [f"{why} ({count:,})" for why, count in itertools.islice(declined.items(), 4)]
    more = [f"{len(declined) - 4} other reasons"] if len(declined) > 4 else []
    return f": {'; '.join([*counts, *more])}" if counts else ""


_REQUIRED = "The target claims what is required of it."


def _failures(report: Report, verbose: bool) -> Iterator[str]:
    requirements = {check.name: check.requirement for check in checks()}
    groups = _group_by_name(report.of(FAILED, UNEXPECTED))
    in_full = len(groups) if verbose else _MOST_FAILURES
    if groups:
        yield f"\nFailed ({len(report.of(FAILED, UNEXPECTED))}):"
    for name, results in itertools.islice(groups.items(), in_full):
        yield from _wrap(f"  {_with_dtypes(name, results)}", 6)
        yield from _wrap(f"    required: {requirements.get(results[0].name, _REQUIRED)}", 14)
        for result in results if verbose else results[:1]:
            yield from _wrap(f"    found:    {result.detail}", 14)
    if rest := [_with_dtypes(*group) for group in itertools.islice(groups.items(), in_full, None)]:
        yield from _wrap(f"  and, shown by --verbose: {', '.join(rest)}", 6)
    if report.of(EXPECTED):
        yield f"\nFailed as expected ({len(report.of(EXPECTED))}):"
    for result in report.of(EXPECTED):
        yield from _wrap(f"  {result.name}: {result.detail}", 6)


def _passes(report: Report, verbose: bool) -> Iterator[str]:
    if not (passed := report.of(PASSED)):
        return
    yield f"\nPassed ({len(passed)}):"
    names = [_with_dtypes(name, results) for name, results in _group_by_name(passed).items()]
    if verbose:
        yield from (f"  {name}" for name in names)
    else:
        yield from _wrap(f"  {', '.join(names)}", 2)


def _group_by_name(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.name.partition("[")[0], []).append(result)
    return groups


def _with_dtypes(name: str, results: Sequence[Result]) -> str:
    """Return a check's name with the dtypes of these results: "norm", "kind[float32, float64]"."""
    dtypes = [result.name[len(name) + 1 : -1] for result in results]
    return f"{name}[{', '.join(dtypes)}]" if dtypes[0] else name


# Shown without --verbose.
_MOST_FAILURES = 6
_MOST_REASONS = 6


def _not_applicable(report: Report, verbose: bool) -> Iterator[str]:
    """Yield the checks that do not apply, by reason: the most common ones, or all if verbose."""
    left_out = report.of(INAPPLICABLE)
    if not left_out:
        return
    yield (
        f"\nNot applicable ({len(left_out)}), most for these reasons:"
        if not verbose
        else (f"\nNot applicable ({len(left_out)}):")
    )
    groups = _group_by_reason(report, left_out)
    for reason, results in groups if verbose else groups[:_MOST_REASONS]:
        yield from _wrap(f"  {len(results):>3}  {reason}", 7)
        if verbose:
            yield from _wrap(f"       {', '.join(result.name for result in results)}", 9)
    if not verbose and (rest := groups[_MOST_REASONS:]):
        number = sum(len(results) for _, results in rest)
        yield f"  {number:>3}  {len(rest)} other reasons; --verbose lists all"


def _group_by_reason(report: Report, results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """Return results by reason, the most common first; capabilities with one reason are in one line."""
    needs, declines = {check.name: check.needs for check in checks()}, report.target.declines
    groups: dict[str, list[Result]] = {}
    names: dict[str, dict[str, None]] = {}
    for result in results:
        lacking = next((need for need in needs[result.name] if need in declines), "")
        reason = declines.get(lacking, result.detail)
        groups.setdefault(reason, []).append(result)
        names.setdefault(reason, {}).update({lacking: None} if lacking else {})
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(f"{', '.join(names[why])}: {why}" if names[why] else why, some) for why, some in ranked]


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
