"""The rows of the documentation's tables, made from declarations in the code and from benchmark results."""

import argparse
import collections
import itertools
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from rope_array._command._check import add_check
from rope_array._registry import RECORDS
from rope_array.testing._call import plain_x, views_of
from rope_array.testing._capability_parts import PARTS
from rope_array.testing._checks import subjects
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._contract import ANGLES, ARITHMETIC
from rope_array.testing._factors import FACTORS, text_of
from rope_array.testing._find_target import resolve
from rope_array.testing._judge import Judge
from rope_array.testing._libraries import LIBRARIES, NOT_COMPILED
from rope_array.testing._named_values import AXES, BROADCAST_AXES, FREQUENCIES, TUPLES
from rope_array.testing._rules import RULES

Rows: TypeAlias = Iterator[tuple[str, ...]]

ROOT = Path(__file__).parents[1]
BACKENDS, RESULTS = ROOT / "backends", ROOT / "bench" / "results"
FLOATS = ("float16", "bfloat16", "float32", "float64")
OTHER_COLUMNS = (*FLOATS, "jit", "lazy")  # columns of their own, or lacking in all libraries but one


def check_rows() -> Rows:
    yield "subject", "check", "for", "requirement", "needs"
    for subject, some in subjects().items():
        for name, group in itertools.groupby(some, lambda check: check.name.partition("[")[0]):
            first, *others = group
            needs = [need for need in first.needs if need not in ("values", *FLOATS)]
            asked = ["`--thorough`"] if first.thorough else []
            yield (
                subject,
                f"`{name}`",
                ", ".join([*(["each dtype"] if others else []), *asked]),
                first.requirement.replace("|", "\\|"),
                ", ".join(f"`{need}`" for need in needs),
            )
            subject = ""  # once


def option_rows() -> Rows:
    """Yield the arguments of ``python -m rope_array check``, as its help has them."""
    commands = argparse.ArgumentParser().add_subparsers()
    add_check(commands)
    yield "option", "meaning"
    for action in commands.choices["check"]._actions:
        name = " ".join(filter(None, (", ".join(action.option_strings), action.metavar)))
        is_list = action.default == [] and "repeatable" not in action.help
        meaning = re.sub(r"(--\w+)", r"`\1`", action.help)  # else a dash is made of the hyphens
        yield f"`{name}`", f"{meaning}{'; repeatable' if is_list else ''}"


# ---- the factors of a call ----

# Values that a factor reads, apart from its levels.
_NAMED = {"scaling": RULES, "axes": AXES, "inv_freq": FREQUENCIES, "in_tuple": TUPLES}


def factor_rows() -> Rows:
    yield "factor", "meaning", "plain", "levels"
    for name, factor in FACTORS.items():
        levels = dict.fromkeys((*factor.levels, *_NAMED.get(name, ()), *_levels_of_numpy(name)))
        yield (
            f"`{name}`",
            factor.meaning or (f"the field `{name}`" if factor.is_field else ""),
            "" if factor.plain is None else f"`{text_of(factor.plain)}`",
            ", ".join(f"`{text_of(level)}`" for level in levels if level != factor.plain),
        )


def _levels_of_numpy(name: str) -> Iterator[str]:
    """Yield the levels that a library makes: the layouts of NumPy, which has all."""
    if name == "layout":
        judge = Judge(resolve("numpy"))
        yield from (layout for layout, _, _ in views_of(judge, plain_x(judge)))
        yield from BROADCAST_AXES


# ---- targets and claims ----


def target_rows() -> Rows:
    yield "target", *FLOATS, "configuration", "lacks"
    for name, lib in LIBRARIES.items():
        yield (
            f"`{name}`",
            *("yes" if dtype in lib.floats else _short(lib.gaps.get(dtype, "")) for dtype in FLOATS),
            lib.configuration,
            "; ".join(f"`{gap}`: {why}" for gap, why in lib.gaps.items() if gap not in OTHER_COLUMNS),
        )


def backend_rows() -> Rows:
    """Yield the backends in the order of dispatch, each with the first sentence of its module."""
    yield "backend", "serves"
    for record in RECORDS:
        path = BACKENDS / record.module.removeprefix("rope_array._backends.").replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        first = re.match(r'"""(.*?)\.(?=\s|")', source.read_text("utf-8"), re.DOTALL)[1]
        yield f"`{record.name}`", " ".join(first.split())
    yield "`array-api`", "any library with the Python Array API, by the functions of the standard"


def compiled_rows() -> Rows:
    yield "not compiled", "why"
    for name, why in NOT_COMPILED.items():
        yield f"`{name}`", why


def _short(reason: str) -> str:
    return "with ml_dtypes" if "ml_dtypes" in reason else "no"


def class_rows() -> Rows:
    yield "claim", "meaning"
    for claim, values in (("angles", ANGLES), ("arithmetic", ARITHMETIC)):
        for value, meaning in values.items():
            yield f"`{claim}={value}`", meaning


def capability_rows() -> Rows:
    yield "capability", "meaning"
    for name, meaning in CAPABILITIES.items():
        yield f"`{name}`", meaning


def part_rows() -> Rows:
    yield "capability", "parts"
    for name, labels in PARTS.items():
        yield f"`{name}`", ", ".join(f"`[{label}]`" for label in labels)


# ---- results ----


def remainder_rows() -> Rows:
    yield "library", "remainders", "largest error of cos", "of sin", "seconds"
    for label, row in _latest("exhaustive")["numbers"].items():
        errors = (f"{row[key]:.3e}" for key in ("max_error_cos", "max_error_sin"))
        yield label, f"{row['remainders']:,}", *errors, str(row["seconds"])


def origin_rows() -> Rows:
    yield "run", "date", "commit", "machine", "versions"
    result = _latest("exhaustive")
    machine = f"{result['machine']['cpu']}, {result['machine']['cores']} cores"
    versions = ", ".join(f"{package} {result['versions'][package]}" for package in ("python", "numpy"))
    yield "exhaustive", result["date"], result["commit"][:10], machine, versions


def environment_rows() -> Rows:
    """Yield the environments of the session `versions`."""
    yield "environment", "run", "system", "versions", "checks", "tests"
    for name, record in _environments().items():
        if "compiler" in record:
            continue
        versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
        passed = [sum(run["passed"] for run in record.get(key, {}).values()) for key in ("checks", "tests")]
        checks, tests = (f"{count:,}" if count else "" for count in passed)
        if patched := list(record.get("families", {}).values()).count("patched"):
            tests = f"{tests}, {patched} models patched".removeprefix(", ")
        yield name, record["date"], record["system"], versions, checks, tests


def processor_rows() -> Rows:
    """Yield the builds of the session `processors`."""
    yield "processor, compiler", "run", "program run by", "levels", "equal hashes"
    for name, record in _environments().items():
        if "compiler" not in record:
            continue
        tests = record.get("tests", {})
        levels = [run.removeprefix("calls, ") for run in tests if not run.endswith(("streamed", "array-api"))]
        equal = sum(run["passed"] for run in tests.values())
        every = sum(sum(run.values()) for run in tests.values())
        runner = record.get("emulator", "this processor" if tests else "compiled only")
        yield (
            name,
            record["date"],
            runner.partition(" (")[0],
            ", ".join(levels),
            f"{equal:,} of {every:,}" if tests else "",
        )


def family_rows() -> Rows:
    """Yield how many families `ra.hf.patch` patches, by version of transformers, and each that it refuses."""
    records = [record for record in _environments().values() if "families" in record]
    by_version = {record["versions"]["transformers"]: record["families"] for record in records}
    versions = sorted(by_version, key=lambda text: [int(number) for number in text.split(".")])
    yield "model type", *versions
    counts = [collections.Counter(by_version[version].values()) for version in versions]
    for verdict in ("patched", "not in this version"):
        yield verdict, *(f"{count[verdict]:,}" for count in counts)
    for family in sorted({family for families in by_version.values() for family in families}):
        verdicts = [by_version[version].get(family, "not in this version") for version in versions]
        if {*verdicts} - {"patched", "not in this version"}:
            yield f"`{family}`", *verdicts


def norm_rows() -> Rows:
    """Yield the families whose norm of q and k runs with the rotation, then the others with the reason."""
    norms = tomllib.loads((ROOT / "tests" / "hf" / "families.toml").read_text("utf-8"))["norms"]
    yield "model types", "norm of q and k"
    kept = {names: f"the model's: {reason}" for names, (reason, _) in norms["kept"].items()}
    for names, place in {norms["in_one_pass"]: "with the rotation", **kept}.items():
        yield ", ".join(f"`{name}`" for name in names.split()), place


def _environments() -> dict[str, Any]:
    return json.loads((RESULTS / "versions.json").read_text("utf-8"))


def _latest(name: str) -> Any:
    return json.loads(max(RESULTS.glob(f"*-{name}.json")).read_text("utf-8"))


TABLES = {
    "checks": check_rows,
    "options": option_rows,
    "factors": factor_rows,
    "targets": target_rows,
    "backends": backend_rows,
    "compiled": compiled_rows,
    "classes": class_rows,
    "capabilities": capability_rows,
    "parts": part_rows,
    "remainders": remainder_rows,
    "origins": origin_rows,
    "environments": environment_rows,
    "processors": processor_rows,
    "families": family_rows,
    "norms": norm_rows,
}
