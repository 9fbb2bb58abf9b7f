"""A report as JUnit XML, which continuous integration shows: a test case for each check."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from ._outcome import EXPECTED, FAILED, INAPPLICABLE, UNEXPECTED


def write_junit(path: Path, plain: Mapping[str, Any]) -> None:
    """Write the plain values of a report."""
    suite = _suite(plain["target"], plain["seconds"])
    properties = SubElement(suite, "properties")
    for name in ("target", "version", "library", "rope_array", "cause"):
        SubElement(properties, "property", name=name, value=_clean(plain[name] or ""))
    for result in plain["results"]:
        _add_case(suite, plain["target"], result)
    _write(path, suite)


def write_junit_error(path: Path, target: str, message: str) -> None:
    """Write that a target cannot be judged: one test case, with an error."""
    suite = _suite(target, 0.0)
    case = SubElement(suite, "testcase", classname=_clean(target), name="target", time="0.000")
    SubElement(case, "error", message=_clean(message), type="CannotJudge").text = _clean(message)
    _write(path, suite)


def _suite(target: str, seconds: float) -> Element:
    return Element(
        "testsuite",
        name=_clean(f"rope_array check {target}"),
        time=f"{seconds:.3f}",
        timestamp=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        hostname=_clean(platform.node() or "localhost"),
    )


def _add_case(suite: Element, target: str, result: Mapping[str, Any]) -> None:
    outcome, detail, required = result["outcome"], _clean(result["detail"]), _clean(result["requirement"])
    name, seconds = _clean(result["name"]), f"{result['seconds']:.3f}"
    case = SubElement(suite, "testcase", classname=_clean(target), name=name, time=seconds)
    if outcome in (FAILED, UNEXPECTED):
        failure = SubElement(case, "failure", message=detail, type=outcome)
        failure.text = f"required: {required}\nfound:    {detail}"
    elif outcome in (INAPPLICABLE, EXPECTED):
        SubElement(case, "skipped", message=detail if outcome == INAPPLICABLE else f"{outcome}: {detail}")
    SubElement(case, "system-out").text = f"required: {required}"


def _write(path: Path, suite: Element) -> None:
    tags = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: str(len([*suite.iter(tag)])) for name, tag in tags.items()}
    suite.attrib.update(counts)
    suites = Element("testsuites", {name: suite.get(name, "") for name in ("name", "time", *counts)})
    suites.append(suite)
    indent(suites)
    with path.open("wb") as file:
        ElementTree(suites).write(file, encoding="utf-8", xml_declaration=True)


def _clean(text: str) -> str:
    """Escape the characters that XML cannot hold."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
