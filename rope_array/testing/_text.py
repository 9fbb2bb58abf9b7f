"""A report as text: the verdict and its cause, the failures, the passes, and the rest in a line."""

from __future__ import annotations

import itertools
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._causes import options_of
from ._checks import subjects
from ._claims import shorten
from ._contract import ANGLES, ARITHMETIC
from ._outcome import EXPECTED, FAILED, INAPPLICABLE, PASSED, UNEXPECTED
from ._parts import shown, whole_of
from ._run import Report

_WIDTH = 100
# Failures shown without --verbose.
_MOST_FAILURES = 6
# The plain values of a report, as `Report.as_dict` returns them, and of one result.
_Plain = Mapping[str, Any]


def lines_of(report: Report | _Plain, command: Sequence[str] = (), *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of a report: the verdict and its cause, the failures, the passes, the rest.

    Parameters
    ----------
    report
        The report, or its plain values.
    command
        The arguments of ``python -m rope_array`` that made it, to repeat them with the claims that help.
    verbose
        Whether to show every check, every failure's detail, and why checks do not apply.
    """
    plain = report.as_dict() if isinstance(report, Report) else report
    yield from _verdict(plain)
    yield from _advice(plain, command)
    yield from _header(plain)
    yield from _calls(plain)
    yield from _failures(plain, verbose)
    yield from _to_repeat(plain, command)
    yield from _passes(plain, verbose)
    yield from _refused(plain, verbose)
    yield from _not_applicable(plain, verbose)
    if worst := plain["worst"]:
        yield "\nWorst error in lengths of the pair, by range of positions:"
        shown = (f"{name} {'infinite' if e is None else f'{e:.1e}'}" for name, e in worst.items())
        yield f"  {'   '.join(shown)}"


def _of(plain: _Plain, *outcomes: str) -> list[_Plain]:
    """Return the results with these outcomes."""
    return [result for result in plain["results"] if result["outcome"] in outcomes]


def _verdict(plain: _Plain) -> Iterator[str]:
    failures, left_out = _of(plain, FAILED, UNEXPECTED), len(_of(plain, INAPPLICABLE))
    judged = len(plain["results"]) - left_out
    known = f"{len(_of(plain, EXPECTED))} failed as expected; " if _of(plain, EXPECTED) else ""
    if not judged:
        yield from _wrap(
            f"NOT JUDGED: {plain['results'][0]['detail'] if plain['results'] else 'no check'}", 2
        )
        return
    if not failures:
        rest = f"{known}{left_out} do not apply; {plain['seconds']:.1f} s"
        yield f"PASSED: {len(_of(plain, PASSED))} of {judged} checks ({rest})."
        return
    yield from _wrap(f"FAILED: {len(failures)} of {judged}. {_cause(plain, failures)}", 2)


def _cause(plain: _Plain, failures: Sequence[_Plain]) -> str:
    if all(result["outcome"] == UNEXPECTED for result in failures):
        return "They passed, and were expected to fail: remove their --expect."
    ended = [result["name"] for result in failures if result["ended"]]
    more = f" and {len(ended) - 3} more" if len(ended) > 3 else ""
    ends = [f"The process ended in {', '.join(ended[:3])}{more}."] if ended else []
    required = all(result["name"].startswith("requires[") for result in failures)
    none = "It lacks what is required." if required else "No single cause was found."
    found = [plain["cause"] or none] if len(ended) < len(failures) else []
    return " ".join([*ends, *found])


def _advice(plain: _Plain, command: Sequence[str]) -> Iterator[str]:
    """Yield the effect of the claims that help, and the command to paste."""
    if (advice := plain["advice"]) and command:
        everything = advice["explained"] == advice["failed"]
        gone = "all failures" if everything else f"{advice['explained']} failures"
        yield f"With these claims {gone} go away. Keep those that describe your code; else mend the code:\n"
        yield f"  {shlex.join(['python', '-m', 'rope_array', *_repeated(command, advice['claims'])])}"


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


def _header(plain: _Plain) -> Iterator[str]:
    here = plain["machine"]
    of_version = f" ({plain['version']})" if plain["version"] else ""
    settings = f" ({plain['settings']})" if plain["settings"] else ""
    yield ""
    yield from _wrap(
        f"Checked: {plain['target']}{of_version}, with arrays of {plain['library']}{settings}; rope_array "
        f"{plain['rope_array']}, Python {here['python']}, NumPy {here['numpy']}, {here['machine']}.", 2
    )  # fmt: skip
    if (claims := plain["claims"]) and not plain["own"]:
        yield from _wrap(f"Claims: {', '.join(f'{name}={value}' for name, value in claims.items())}.", 2)
    if parts := _declined_parts(plain["declines"]):
        yield from _wrap(f"Partly declined: {parts}; --verbose tells why.", 2)
    angles, arithmetic = plain["class"]["angles"], plain["class"]["arithmetic"]
    yield from _wrap(f"Judged by: {ANGLES[angles]}; {ARITHMETIC[arithmetic]}.", 2)
    if angles == "float64":
        yield "  (The default for other code; --claim angles=exact is the contract of rope_array.)"


def _declined_parts(declines: Mapping[str, str]) -> str:
    """Return the declined parts of capabilities of which others are claimed; "" if they are many."""
    parts = [name for name in declines if name != whole_of(name) and whole_of(name) not in declines]
    text = ", ".join(shown(parts))
    return text if len(text) <= _WIDTH else ""


def _calls(plain: _Plain) -> Iterator[str]:
    """Yield the number of calls that each backend served, and why a forced backend declined others."""
    own = plain["own"]
    if not own:
        return
    if own["backend"] is None:
        yield from _wrap(f"Calls by backend: {_served_by_all(own, plain['served'])}.", 2)
        return
    served, declined = sum(plain["served"].values()), sum(plain["declined"].values())
    by_tables = ", by tables of cos and sin" if own["by_tables"] else ""
    yield from _wrap(
        f"Calls: {own['backend']} served {served:,}{by_tables}, and declined {declined:,}"
        f"{_reasons(plain['declined'])}.", 2
    )  # fmt: skip
    if own["fixed"]:
        fixed = ", ".join(f"{name}={value}" for name, value in own["fixed"].items())
        yield f"It declines interleaved pairs, so every call that names no pairing has {fixed}."


def _served_by_all(own: _Plain, served: Mapping[str, int]) -> str:
    if own["compiled"] and not served:
        return "not counted, as the calls are compiled"
    backends = {**own["backends"], **{name: "" for name in served}}
    counts = [f"{name} {served.get(name, 0):,}{f' ({why})' if why else ''}" for name, why in backends.items()]
    alone = "; --backend NAME judges one alone" if len(counts) > 1 else ""
    return f"{', '.join(counts)}{alone}"


def _reasons(declined: Mapping[str, int]) -> str:
    """Return the most common reasons to decline, with their counts."""
    counts = [f"{why} ({count:,})" for why, count in itertools.islice(declined.items(), 4)]
    more = [f"{len(declined) - 4} other reasons"] if len(declined) > 4 else []
    return f": {'; '.join([*counts, *more])}" if counts else ""


def _failures(plain: _Plain, verbose: bool) -> Iterator[str]:
    """Yield the failures: each cause with its checks, then the others, each kind with its finding."""
    failed = {result["name"]: result for result in _of(plain, FAILED, UNEXPECTED)}
    if failed:
        yield f"\nFailed ({len(failed)}):"
    for cause in (each for each in plain["causes"] if each["checks"]):
        options = f" ({cause['options']})" if cause["options"] else ""
        yield from _wrap(f"  Cause: {cause['text']}{options}", 4)
        yield from _in_full([failed.pop(name) for name in cause["checks"]], verbose)
    groups = list(_alike(failed, plain["unexplained"]))
    if groups and any(each["checks"] for each in plain["causes"]):
        yield "  No cause found for:"
    in_full = len(groups) if verbose else _MOST_FAILURES
    for group in groups[:in_full]:
        yield from _in_full(group, verbose)
    if rest := [one for group in groups[in_full:] for one in group]:
        yield from _wrap(f"  and, shown by --verbose: {_names(rest)}", 6)
    if expected := _of(plain, EXPECTED):
        yield f"\nFailed as expected ({len(expected)}):"
    for result in expected:
        yield from _wrap(f"  {result['name']}: {result['detail']}", 6)


def _to_repeat(plain: _Plain, command: Sequence[str]) -> Iterator[str]:
    """Yield the command that judges the first failed call that is shown as text."""
    details = " ".join(result["detail"] for result in _of(plain, FAILED))
    case = re.search(r"--case ('[^']+'|[^\s']+)|wrong with ([^;']+);", details)
    if case and command:
        (text,) = shlex.split(case[1]) if case[1] else [case[2]]
        yield "\nTo repeat the first call that is shown as text, alone:\n"
        yield f"  {shlex.join(['python', '-m', 'rope_array', *command, '--case', text])}"


def _alike(failed: Mapping[str, _Plain], places: Mapping[str, Sequence[str]]) -> Iterator[list[_Plain]]:
    """Yield failures that no cause explains: those of one place, or of one check's dtypes, together."""
    groups: dict[str, list[_Plain]] = {}
    of_place = {name: place for place, some in places.items() for name in some}
    for name, result in failed.items():
        groups.setdefault(of_place.get(name, name.partition("[")[0]), []).append(result)
    yield from sorted(groups.values(), key=lambda group: not group[0]["ended"])


def _in_full(results: Sequence[_Plain], verbose: bool) -> Iterator[str]:
    """Yield the requirement and the finding of the first of like failures, or of all."""
    first, *others = _group_by_name(results).items()
    for name, some in (first, *(others if verbose else ())):
        yield from _wrap(f"  {_with_dtypes(name, some)}", 6)
        yield from _wrap(f"    required: {some[0]['requirement']}", 14)
        for result in some if verbose else some[:1]:
            yield from _wrap(f"    found:    {result['detail']}", 14)
    if others and not verbose:
        rest = [one for _, some in others for one in some]
        yield from _wrap(f"    so too:   {_names(rest)}", 14)


def _names(results: Sequence[_Plain]) -> str:
    return ", ".join(_with_dtypes(*group) for group in _group_by_name(results).items())


def _passes(plain: _Plain, verbose: bool) -> Iterator[str]:
    """Yield the passes: their number by subject, or all names."""
    if not (passed := _of(plain, PASSED)):
        return
    yield f"\nPassed ({len(passed)}):"
    if verbose:
        yield from (f"  {_with_dtypes(*group)}" for group in _group_by_name(passed).items())
        return
    names = {result["name"] for result in passed}
    counts = {word: len(names & {check.name for check in some}) for word, some in subjects().items()}
    counts["others"] = len(passed) - sum(counts.values())
    yield from _wrap(f"  {', '.join(f'{word} {count}' for word, count in counts.items() if count)}", 2)


_REFUSED = re.compile(r"refuses (?:every call|\d+ of \d+ calls): (.*)")


def _refused(plain: _Plain, verbose: bool) -> Iterator[str]:
    """Yield the calls that no claim covers, and that the target refused: each error with its checks."""
    groups: dict[str, list[tuple[str, _Plain]]] = {}
    for result in _of(plain, PASSED, INAPPLICABLE):
        if found := _REFUSED.match(result["detail"]):
            error = re.sub(r"\d[\d,]*", "#", re.split("; (?:x|while) ", found[1])[0])
            groups.setdefault(error, []).append((found[1], result))
    if not groups:
        return
    count = sum(map(len, groups.values()))
    checks = f"{count} check{'s' * (count > 1)}"
    yield f"\nRefused, and so not judged, in {checks} (--require CHECK insists on it):"
    for some in [*groups.values()][: None if verbose else _MOST_FAILURES]:
        names = _names([result for _, result in some])
        yield from _wrap(f"  {some[0][0]}", 4)
        yield from _wrap(f"    {names if verbose else shorten(names, 2 * _WIDTH)}", 6)
    if len(groups) > _MOST_FAILURES and not verbose:
        yield f"  and {len(groups) - _MOST_FAILURES} other errors, shown by --verbose"


def _group_by_name(results: Sequence[_Plain]) -> dict[str, list[_Plain]]:
    groups: dict[str, list[_Plain]] = {}
    for result in results:
        groups.setdefault(result["name"].partition("[")[0], []).append(result)
    return groups


def _with_dtypes(name: str, results: Sequence[_Plain]) -> str:
    """Return a check's name with the dtypes of these results: "norm", "kind[float32, float64]"."""
    dtypes = [result["name"][len(name) + 1 : -1] for result in results]
    return f"{name}[{', '.join(dtypes)}]" if dtypes[0] else name


def _not_applicable(plain: _Plain, verbose: bool) -> Iterator[str]:
    """Yield the number of checks that do not apply; their reasons, the most common first, if verbose."""
    left_out = _of(plain, INAPPLICABLE)
    if not left_out:
        return
    if not verbose:
        yield f"\n{len(left_out)} do not apply; --verbose lists them."
        return
    yield f"\nNot applicable ({len(left_out)}):"
    for reason, results in _group_by_reason(plain, left_out):
        yield from _wrap(f"  {len(results):>3}  {reason}", 7)
        yield from _wrap(f"       {_names(results)}", 7)


def _group_by_reason(plain: _Plain, results: Sequence[_Plain]) -> list[tuple[str, list[_Plain]]]:
    """Return results by reason, the most common first; capabilities with one reason are in one line."""
    declines = plain["declines"]
    groups: dict[str, list[_Plain]] = {}
    names: dict[str, dict[str, None]] = {}
    for result in results:
        lacking = next((need for need in result["needs"] if need in declines), "")
        reason = declines.get(lacking, result["detail"])
        groups.setdefault(reason, []).append(result)
        names.setdefault(reason, {}).update({lacking: None} if lacking else {})
    ranked = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(f"{', '.join(names[why])}: {why}" if names[why] else why, some) for why, some in ranked]


def _wrap(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, break_long_words=False) or [text]
