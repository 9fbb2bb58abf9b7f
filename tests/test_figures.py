"""Pages have the figures of the newest results in bench/results, and each promised version was run."""

import itertools
import json
import re
import shutil
import tomllib

import _harness
import _pages
import _record
import _targets
import numpy as np
import pytest
from packaging.version import Version

ROOT = _record.ROOT
RESULTS = ROOT / "bench" / "results"
OTHERS = {"gpu-checks", "kill-matrix-numpy", "kill-matrix-torch", "kill-matrix-jax", "roformer"}


def passes(record):
    """Return the number of passed checks and tests, and of patched families; raise if any failed."""
    runs = [*record.get("checks", {}).values(), *record.get("tests", {}).values()]
    assert not sum(run["failed"] for run in runs)
    return sum(run["passed"] for run in runs) + list(record.get("families", {}).values()).count("patched")


def test_every_promised_version_was_run():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project, records = pyproject["project"], json.loads((RESULTS / "versions.json").read_text("utf-8"))
    path = ROOT / "tests" / "long" / "versions.toml"
    environments = tomllib.loads(path.read_text("utf-8")).keys() - {"files"}
    assert all(passes(records[name]) for name in environments)
    versions = [records[name]["versions"] for name in environments]
    on_gpu = json.loads(max(RESULTS.glob("*-gpu-checks.json")).read_text("utf-8"))["versions"]
    builds = json.loads((RESULTS / "release.json").read_text("utf-8"))["versions"]
    promised = {spec: versions for spec in project["dependencies"]}
    for spec in itertools.chain(*project["optional-dependencies"].values()):
        promised[spec] = [on_gpu] if spec.startswith("cupy") else versions
    for spec, run in [
        *promised.items(),
        *((spec, [builds]) for spec in pyproject["build-system"]["requires"]),
    ]:
        if not spec.startswith(project["name"]):
            package, bound = re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", spec).groups()
            assert any(Version(bound) == Version(v[package]) for v in run if package in v), spec
    pythons = {re.sub(r"\.\d+(?= |$)", "", v["python"], count=1) for v in versions}  # such as "3.14"
    classifiers = re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert pythons >= {*classifiers}
    assert len(classifiers) > 3
    is_free_threaded = any(python.endswith(" free-threaded") for python in pythons)
    assert is_free_threaded == any(text.endswith("Free Threading") for text in project["classifiers"])


def test_pages_have_the_tables_of_the_newest_results(tmp_path):
    for page in _pages.PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    _pages.write(root=tmp_path)
    written, committed = (
        {page: (root / page).read_text("utf-8") for page in _pages.PAGES} for root in (tmp_path, ROOT)
    )
    outdated = [page for page in _pages.PAGES if written[page] != committed[page]]
    assert outdated == [], "run `python bench/_pages.py`"


def test_a_page_is_written_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table -->\nold\n<!-- /table -->\nb\n", "utf-8")
    for _ in range(2):
        _record.fill(page, "table", ["new"])
        assert page.read_text("utf-8") == "a\n<!-- table -->\n\nnew\n\n<!-- /table -->\nb\n"
    with pytest.raises(ValueError, match="no markers of a table 'other'"):
        _record.fill(page, "other", ["new"])


def test_the_causes_on_the_scoreboard_count_every_failed_check():
    run = _targets.newest("scoreboard")
    lines = "\n".join(_pages.failures(run))
    for name, row in run["numbers"].items():
        counts = re.findall(rf"(?:\*\*|; ){re.escape(name)} \((\d+)\)", lines)
        assert sum(map(int, counts)) == row["counts"]["failed"], name


def test_each_result_is_on_a_page():
    """A result that no page has is deleted."""
    benches = {
        bench for sections in _pages.PAGES.values() for _, *needed in sections.values() for bench in needed
    }
    names = {path.stem[11:] for path in RESULTS.glob("????-??-??-*.json")}
    assert names <= benches | OTHERS


def test_the_strongest_peers_are_in_the_table_of_speed():
    """The fastest row of each other project, at one token and at 2,048."""
    for place in ("decode 1 float32", "prefill 2048 float32 half"):
        timed = _targets.newest("speed")["numbers"][place]["rows"]
        excluded = ("copy", "rope_array", "naive")
        times = {
            n: row["seconds"][1]
            for n, row in timed.items()
            if "seconds" in row and not n.startswith(excluded)
        }
        rivals = {name for name in times if times[name] < 1.05 * min(times.values())}
        assert rivals & {*_pages.IN_README}, rivals


def test_calls_alternate(monkeypatch):
    now, blocks = [0.0], []
    monkeypatch.setattr(_harness, "clock", lambda: now[0])

    def taking(seconds):
        return lambda: now.__setitem__(0, now[0] + seconds)

    fresh = _harness.Fresh(lambda: blocks.append(0) or taking(0.001), most=3)
    rows = {"slow": taking(0.02), "fast": taking(0.01), "fresh": fresh}
    times = _harness.alternate(rows, rounds=4, seconds=0.05)
    assert _harness.compare(times, [("slow", "fast"), ("slow", "absent")]) == {
        "ms": {"slow": 20.0, "fast": 10.0, "fresh": 1.0},
        "ratios": {"slow / fast": 2.0},
    }
    assert _harness.pace(fresh, 0.05)[0] == 3
    assert len(blocks) >= 4  # each block makes its calls anew
    with pytest.raises(SystemExit, match=r"the result of b is off by 0\.5 of"):
        _harness.check({"a": lambda: np.ones(2), "b": lambda: np.array([1.0, 0.5])}, [np.ones(2)], 0.1)
