"""A report as text: the verdict and its cause, the failures, the passes, and the rest in a line."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rope_array._command._output import WIDTH, wrapped

from ._capability_parts import parts_joined, whole_of
from ._cause import options_of
from ._checks import subjects
from ._claims import NOT_OF_NUMPY, shorten
from ._contract import ANGLES, ARITHMETIC
from ._factors import DTYPES
from ._outcome import EXPECTED, FAILED, INAPPLICABLE, PASSED, UNEXPECTED
from ._report import Report

# Failures shown without --verbose.
_MOST_FAILURES = 6
# The plain values of a report, as `Report.as_dict` returns them, and of one result.
_Plain = Mapping[str, Any]


def lines_of(report: Report | _Plain, command: Sequence[str] = (), *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of a report, or of its plain values: verdict, cause, failures, passes, the rest.

    `command` has the arguments of ``python -m rope_array`` to repeat with the claims that help.
    """
    plain = report.as_dict() if isinstance(report, Report) else report
    yield from _verdict(plain)
    for reason in plain["own"]["outdated"] if plain["own"] else ():
        yield from wrapped(f"But {reason}.", 2)
    yield from _advice(plain, command)
    if plain["declines"].get("bfloat16") == NOT_OF_NUMPY:
        dtypes = ",".join(name for name in DTYPES if name in {*plain["claimed"], "bfloat16"})
        yield f"bfloat16 was not tried: --claim dtypes={dtypes} tries it, by ml_dtypes."
    yield from _header(plain)
    yield from _calls(plain)
    yield from _failures(plain, verbose)
    yield from _to_repeat(plain, command)
    yield from _passes(plain, verbose)
    yield from _refused(plain, verbose)
    yield from _not_applicable(plain, verbose)
    if worst := plain["worst"]:
        yield "\nWorst error in lengths of the pair, by range of positions:"
        errors = (f"{name} {'infinite' if e is None else f'{e:.1e}'}" for name, e in worst.items())
        yield f"  {'   '.join(errors)}"


def _results(plain: _Plain, *outcomes: str) -> list[_Plain]:
    """Return the results with these outcomes."""
    return [result for result in plain["results"] if result["outcome"] in outcomes]


def _assignments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


# ---- the verdict, and how to repeat it ----


def _verdict(plain: _Plain) -> Iterator[str]:
    failures, left_out = _results(plain, FAILED, UNEXPECTED), len(_results(plain, INAPPLICABLE))
    judged = len(plain["results"]) - left_out
    if not judged:
        reason = plain["results"][0]["detail"] if plain["results"] else "no check"
        yield from wrapped(f"NOT JUDGED: {reason}", 2)
    elif failures:
        yield from wrapped(f"FAILED: {len(failures)} of {judged}. {_cause(plain, failures)}", 2)
    else:
        count = len(_results(plain, EXPECTED))
        expected = f"{count} failed as expected; " if count else ""
        summary = f"{expected}{left_out} do not apply; {plain['seconds']:.1f} s"
        yield f"PASSED: {len(_results(plain, PASSED))} of {judged} checks ({summary})."


def _cause(plain: _Plain, failures: Sequence[_Plain]) -> str:
    if all(result["outcome"] == UNEXPECTED for result in failures):
        return "They passed, and were expected to fail: remove their --expect."
    ended = [result["name"] for result in failures if result["ended"]]
    suffix = f" and {len(ended) - 3} more" if len(ended) > 3 else ""
    sentences = [f"The process ended in {', '.join(ended[:3])}{suffix}."] if ended else []
    required = all(result["name"].startswith("requires[") for result in failures)
    none = "It lacks what is required." if required else "No single cause was found."
    sentences += [plain["cause"] or none] if len(ended) < len(failures) else []
    return " ".join(sentences)


def _advice(plain: _Plain, command: Sequence[str]) -> Iterator[str]:
    """Yield the effect of the claims that help, and the command to paste."""
    if (advice := plain["advice"]) and command:
        everything = advice["explained"] == advice["failed"]
        gone = "all failures" if everything else f"{advice['explained']} failures"
        yield f"With these claims {gone} go away. Keep those that describe your code; else mend the code:\n"
        yield _pasted(_repeated(command, advice["claims"]))


def _pasted(arguments: Iterable[str]) -> str:
    return f"  {shlex.join(['python', '-m', 'rope_array', *arguments])}"


def _repeated(command: Sequence[str], claims: Mapping[str, Any]) -> list[str]:
    """Return the arguments of a command with claims, which replace its own of the same name."""
    new = [*options_of(claims)]
    replaced = {*map(_option_name, new)}
    options = zip(command[2::2], command[3::2], strict=True)
    kept = [option for option in options if _option_name(option) not in replaced]
    return [*command[:2], *itertools.chain(*kept, *new)]


def _option_name(option: tuple[str, str]) -> str:
    return f"{option[0]} {option[1].partition('=')[0] if option[0] == '--claim' else ''}"


def _to_repeat(plain: _Plain, command: Sequence[str]) -> Iterator[str]:
    """Yield the command that judges the first failed call that is shown as text."""
    call = next((result["call"] for result in _results(plain, FAILED) if result["call"]), "")
    if call and command:
        yield "\nTo repeat the first call that is shown as text, alone:\n"
        yield _pasted([*command, "--case", call])


# ---- the target, and its calls ----


def _header(plain: _Plain) -> Iterator[str]:
    machine = plain["machine"]
    version = f" ({plain['version']})" if plain["version"] else ""
    settings = f" ({plain['settings']})" if plain["settings"] else ""
    yield ""
    yield from wrapped(
        f"Checked: {plain['target']}{version}, with arrays of {plain['library']}{settings}; rope_array "
        f"{plain['rope_array']}, Python {machine['python']}, NumPy {machine['numpy']}, {machine['machine']}.",
        2,
    )
    if plain["claims"] and not plain["own"]:
        yield from wrapped(f"Claims: {_assignments(plain['claims'])}.", 2)
    declines = plain["declines"]  # declined parts of claimed capabilities, unless too many
    names = [name for name in declines if name != whole_of(name) and whole_of(name) not in declines]
    partly = ", ".join(parts_joined(names))
    if 0 < len(partly) <= WIDTH:
        yield from wrapped(f"Partly declined: {partly}; --verbose tells why.", 2)
    angles, arithmetic = plain["class"]["angles"], plain["class"]["arithmetic"]
    yield from wrapped(f"Judged by: {ANGLES[angles]}; {ARITHMETIC[arithmetic]}.", 2)
    if angles == "float64":
        yield "  (The default for other code; --claim angles=exact is the contract of rope_array.)"


def _calls(plain: _Plain) -> Iterator[str]:
    """Yield the number of calls that each backend served, and why a forced backend declined others."""
    if not (backend_facts := plain["own"]):
        return
    if backend_facts["backend"] is None:
        yield from wrapped(f"Calls by backend: {_served_by_all(backend_facts, plain['served'])}.", 2)
        return
    served, declined = sum(plain["served"].values()), sum(plain["declined"].values())
    by_tables = ", by tables of cos and sin" if backend_facts["by_tables"] else ""
    reasons = [f"{why} ({count:,})" for why, count in plain["declined"].items()]
    reasons[4:] = [f"{len(reasons) - 4} other reasons"] if len(reasons) > 4 else []
    why = f": {'; '.join(reasons)}" if reasons else ""
    yield from wrapped(
        f"Calls: {backend_facts['backend']} served {served:,}{by_tables}, and declined {declined:,}{why}.", 2
    )
    if backend_facts["fixed"]:
        fixed = _assignments(backend_facts["fixed"])
        yield f"It declines interleaved pairs, so every call that names no pairing has {fixed}."


def _served_by_all(backend_facts: _Plain, served: Mapping[str, int]) -> str:
    if backend_facts["compiled"] and not served:
        return "not counted, as the calls are compiled"
    backends = {**backend_facts["backends"], **dict.fromkeys(served, "")}
    counts = [f"{name} {served.get(name, 0):,}{f' ({why})' if why else ''}" for name, why in backends.items()]
    alone = "; --backend NAME judges one alone" if len(counts) > 1 else ""
    return f"{', '.join(counts)}{alone}"


# ---- the results ----


def _grouped(results: Iterable[tuple[str, _Plain]]) -> dict[str, list[_Plain]]:
    """Return the results of each key, in their order."""
    groups: dict[str, list[_Plain]] = {}
    for key, result in results:
        groups.setdefault(key, []).append(result)
    return groups


def _by_name(results: Iterable[_Plain]) -> dict[str, list[_Plain]]:
    return _grouped((result["name"].partition("[")[0], result) for result in results)


def _with_dtypes(name: str, results: Sequence[_Plain]) -> str:
    """Return a check's name with the dtypes of these results: "norm", "kind[float32, float64]"."""
    dtypes = [result["name"][len(name) + 1 : -1] for result in results]
    return f"{name}[{', '.join(dtypes)}]" if dtypes[0] else name


def _names(results: Iterable[_Plain]) -> str:
    return ", ".join(_with_dtypes(*group) for group in _by_name(results).items())


def _failures(plain: _Plain, verbose: bool) -> Iterator[str]:
    """Yield the failures: each cause with its checks, then the others, each kind with its finding."""
    failed = {result["name"]: result for result in _results(plain, FAILED, UNEXPECTED)}
    causes = [cause for cause in plain["causes"] if cause["checks"]]
    if failed:
        yield f"\nFailed ({len(failed)}):"
    for cause in causes:
        options = f" ({cause['options']})" if cause["options"] else ""
        yield from wrapped(f"  Cause: {cause['text']}{options}", 4)
        yield from _in_full([failed.pop(name) for name in cause["checks"]], verbose, cause["found"])
    groups = _unexplained_groups(failed, plain["unexplained"])
    if groups and causes:
        yield "  No cause found for:"
    in_full = len(groups) if verbose else _MOST_FAILURES
    for group in groups[:in_full]:
        yield from _in_full(group, verbose)
    if not_shown := [*itertools.chain(*groups[in_full:])]:
        yield from wrapped(f"  and, shown by --verbose: {_names(not_shown)}", 6)
    if expected := _results(plain, EXPECTED):
        yield f"\nFailed as expected ({len(expected)}):"
    for result in expected:
        yield from wrapped(f"  {result['name']}: {result['detail']}", 6)


def _unexplained_groups(
    failed: Mapping[str, _Plain], places: Mapping[str, Sequence[str]]
) -> list[list[_Plain]]:
    """Group the failures that no cause explains: by place, else by check, with all its dtypes."""
    place_of = {name: place for place, names in places.items() for name in names}
    groups = _grouped((place_of.get(name, name.partition("[")[0]), result) for name, result in failed.items())
    return sorted(groups.values(), key=lambda group: not group[0]["ended"])


def _in_full(results: Sequence[_Plain], verbose: bool, next_finding: str = "") -> Iterator[str]:
    """Yield the requirement and the finding of the first of like failures, or of all.

    `next_finding` is the first finding once other causes are mended, if it differs.
    """
    groups = [*_by_name(results).items()]
    for name, group in groups if verbose else groups[:1]:
        yield from wrapped(f"  {_with_dtypes(name, group)}", 6)
        yield from wrapped(f"    required: {group[0]['requirement']}", 14)
        for result in group if verbose else group[:1]:
            yield from wrapped(f"    found:    {result['detail']}", 14)
            if result is results[0] and next_finding not in ("", result["detail"]):
                yield from wrapped(f"    next:     with the causes above mended, {next_finding}", 14)
    if len(groups) > 1 and not verbose:
        yield from wrapped(f"    so too:   {', '.join(_with_dtypes(*group) for group in groups[1:])}", 14)


def _passes(plain: _Plain, verbose: bool) -> Iterator[str]:
    """Yield the passes: their number by subject, or all names."""
    if not (passed := _results(plain, PASSED)):
        return
    yield f"\nPassed ({len(passed)}):"
    if verbose:
        yield from (f"  {_with_dtypes(*group)}" for group in _by_name(passed).items())
        return
    names = {result["name"] for result in passed}
    counts = {word: len(names & {check.name for check in group}) for word, group in subjects().items()}
    counts["others"] = len(passed) - sum(counts.values())
    yield from wrapped(f"  {', '.join(f'{word} {count}' for word, count in counts.items() if count)}", 2)


def _refused(plain: _Plain, verbose: bool) -> Iterator[str]:
    """Yield the calls that no claim covers, and that the target refused: each error with its checks."""
    results = [result for result in _results(plain, PASSED, INAPPLICABLE) if result["refused"]]
    refusals = [(shorten(result["refused"]), result) for result in results]
    errors: dict[str, str] = {}  # the first call of each error, in which only numbers differ
    for text, _ in refusals:
        errors.setdefault(_error_of(text), text)
    groups = _grouped((_error_of(text), result) for text, result in refusals)
    if groups:
        checks = f"{len(refusals)} check{'s' * (len(refusals) > 1)}"
        yield f"\nRefused, and so not judged, in {checks} (--require CHECK insists on it):"
    for error, results in itertools.islice(groups.items(), None if verbose else _MOST_FAILURES):
        names = _names(results)
        yield from wrapped(f"  {errors[error]}", 4)
        yield from wrapped(f"    {names if verbose else shorten(names, 2 * WIDTH)}", 6)
    if len(groups) > _MOST_FAILURES and not verbose:
        yield f"  and {len(groups) - _MOST_FAILURES} other errors, shown by --verbose"


def _error_of(refusal: str) -> str:
    return re.sub(r"\d[\d,]*", "#", re.split("; (?:x|while) ", refusal)[0])


def _not_applicable(plain: _Plain, verbose: bool) -> Iterator[str]:
    """Yield the number of checks that do not apply; their reasons, the most common first, if verbose."""
    left_out = _results(plain, INAPPLICABLE)
    if left_out and not verbose:
        yield f"\n{len(left_out)} do not apply; --verbose lists them."
    if not left_out or not verbose:
        return
    yield f"\nNot applicable ({len(left_out)}):"
    declines = plain["declines"]
    lacking = {r["name"]: next((name for name in r["needs"] if name in declines), "") for r in left_out}
    groups = _grouped((declines.get(lacking[r["name"]], r["detail"]), r) for r in left_out)
    for reason, results in sorted(groups.items(), key=lambda group: -len(group[1])):
        capabilities = ", ".join(dict.fromkeys(filter(None, (lacking[r["name"]] for r in results))))
        yield from wrapped(f"  {len(results):>3}  {f'{capabilities}: ' if capabilities else ''}{reason}", 7)
        yield from wrapped(f"       {_names(results)}", 7)
