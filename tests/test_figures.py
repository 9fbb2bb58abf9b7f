"""Each figure that a page quotes is in the newest result of its benchmark, in bench/results."""

import itertools
import json
import re
import tomllib

import docs_blocks
import pytest
from packaging.version import Version

DOCS = docs_blocks.DOCS
README = DOCS.parent / "README.md"
RESULTS = DOCS.parent / "bench" / "results"


def numbers(name):
    return json.loads(max(RESULTS.glob(f"????-??-??-{name}.json")).read_text("utf-8"))["numbers"]


def table(page, head):
    """Return the rows of the table of a page that begins with `head`, as lists of cells."""
    text = page.read_text("utf-8")
    lines = text[text.index(f"\n| {head} ") :].lstrip().partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]


def seconds(cell):
    number, unit = cell.split()
    return float(number) * {"ms": 1e-3, "µs": 1e-6}[unit]


def passes(record):
    """Return the number of passed checks and tests, and of patched families; raise if any failed."""
    runs = [*record.get("checks", {}).values(), *record.get("tests", {}).values()]
    assert not sum(run["failed"] for run in runs)
    return sum(run["passed"] for run in runs) + list(record.get("families", {}).values()).count("patched")


def test_every_promised_version_was_run():
    root = README.parent
    pyproject = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    project, records = pyproject["project"], json.loads((RESULTS / "versions.json").read_text("utf-8"))
    path = root / "tests" / "long" / "versions.toml"
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


def test_the_table_of_speed():
    cases, rows = numbers("speed"), table(README, "one thread")
    assert len(rows) >= 6
    for label, one_thread, many, copies, halves in rows:
        name = label.removesuffix(", interleaved")
        pairing = "half" if name == label else "interleaved"
        decode = "decode 1 float32" if name == label else "decode 1 float32 interleaved"
        places = decode, f"prefill 2048 float32 {pairing}", f"prefill 2048 bfloat16 {pairing}"
        timed_rows = [cases[place]["rows"][name] for place in places]
        assert copies == f"{timed_rows[1]['copies'][1]:.2f}", name
        for cell, row in zip((one_thread, many, halves), timed_rows, strict=True):
            assert bool(cell) == ("seconds" in row), name
            assert not cell or seconds(cell) == pytest.approx(row["seconds"][1], rel=5e-3), name


def test_the_strongest_peers_are_in_the_table_of_speed():
    """The fastest row of each other project, at one token and at 2,048."""
    shown = {name.removesuffix(", interleaved") for name, *_ in table(README, "one thread")}
    for place in ("decode 1 float32", "prefill 2048 float32 half"):
        timed = {n: row for n, row in numbers("speed")[place]["rows"].items() if "seconds" in row}
        excluded = ("copy", "rope_array", "naive")
        times = {n: row["seconds"][1] for n, row in timed.items() if not n.startswith(excluded)}
        rivals = {name for name in times if times[name] < 1.05 * min(times.values())}
        assert rivals & shown, rivals


def test_the_table_of_the_scoreboard():
    rows, judged = table(README, "implementation"), numbers("scoreboard")
    assert len(rows) >= 4
    for name, angles, failed, *errors in rows:
        assert judged[name]["class"]["angles"] == angles
        assert judged[name]["counts"]["failed"] == int(failed)
        for reach, cell in zip(("2^16", "2^20", "int32"), errors, strict=True):
            error = judged[name]["worst"].get(reach)
            assert (float(cell) == float(f"{error:.0e}")) if cell else error is None, (name, reach)


PATCHED = {
    "Llama, 4 layers of 512": "Llama, 4 × 512",
    "Llama, 2 layers of 1,024": "Llama, 2 × 1024",
    "GPT-NeoX, a quarter of the width": "GPT-NeoX, 4 × 512, a quarter of the width",
    "Cohere, interleaved": "Cohere, 4 × 512, interleaved",
    "Gemma 3, two ropes": "Gemma 3, 4 × 512, two ropes",
}
HUGGING_FACE, VLLM = (DOCS / "in-my-model" / f"{name}.md" for name in ("huggingface", "vllm"))


def test_times_of_patched_models():
    measured, rows = numbers("hf-models")["moderate sizes"], table(HUGGING_FACE, "model")
    assert {name for name, *_ in rows} == PATCHED.keys()
    for name, *cells in rows:
        steps = [(step, dtype) for step in ("decode", "train") for dtype in ("float32", "bfloat16")]
        ratios = [measured[f"{PATCHED[name]}, {dtype}"][step]["÷"][1] for step, dtype in steps]
        assert list(map(float, cells)) == pytest.approx(ratios, abs=0.0051), name


def spans(text):
    """Return the pairs of numbers of phrases such as "0.97 to 1.00"."""
    return [tuple(map(float, pair)) for pair in re.findall(r"([\d.]*\d) to ([\d.]*\d)", text)]


def span(ratios):
    return round(min(ratios), 2), round(max(ratios), 2)


def test_times_of_compiled_patched_models():
    text = HUGGING_FACE.read_text("utf-8")
    decode, train = spans(text[text.index("Compiled models of float32 take") :][:160])
    models = numbers("hf-models-compiled")["moderate sizes"].values()
    assert decode == span([model["decode"]["÷"][1] for model in models])
    assert train == span([model["train"]["÷"][1] for model in models])


def in_place(shape, pairing, tokens):
    """Return the span of our times in place over vLLM's, of both dtypes and both kinds of calls."""
    cases = itertools.product(("float32", "bfloat16"), tokens)
    rows = [numbers("in-place")[f"{shape}, {dtype}, {pairing}, inference, {count}"] for dtype, count in cases]
    return span([row[f"{source} / vLLM"] for row in rows for source in ("positions", "rotation")])


def test_times_in_place():
    rows, many = {row[0]: row[1:] for row in table(VLLM, "tokens")}, [256, 2048, 8192]
    shapes = "32 + 8 heads of 128", "4 + 2 heads of 64"
    for label, tokens in (("1", [1]), ("16", [16]), ("256 to 8,192", many)):
        columns = itertools.product(shapes, ("half", "interleaved"))
        assert [spans(cell) for cell in rows[label]] == [[in_place(*column, tokens)] for column in columns]
    text = README.read_text("utf-8")
    ranges = spans(text[text.index("In place, rope_array takes") :].partition("\n\n")[0])
    assert ranges == [in_place(shapes[0], "half", tokens) for tokens in ([1], many)]


def test_the_slowest_kinds_of_calls():
    head, runs = "kind of call, AVX-512 / AVX2", [numbers(name) for name in ("sweep", "sweep-avx2")]
    for kind, *cells in table(DOCS / "speed.md", head):
        library, change = kind.split(", ")
        for size, cell in zip(("one token", "64 KiB", "4 MiB", "64 MiB"), cells, strict=True):
            name = f"{library}, {size}, {change}"
            assert cell == " / ".join(f"{run[name]:.1f}" for run in runs if name in run), kind


def test_times_of_jitted_programs():
    text = (DOCS / "backends.md").read_text("utf-8")
    measured = numbers("jitted")
    near = {name: row["forward"]["ratios"]["array form"] for name, row in measured["neighbours"].items()}
    ranges = spans(text[text.index("such a program took") :][:260])
    assert ranges == [span([near[name] for name in near if step in name]) for step in ("prefill", "decode")]
    rotations = [row for name, row in measured["rotation"].items() if "prefill, bfloat16" in name]
    copies = [row[direction]["ratios"]["copy"] for row in rotations for direction in ("forward", "gradient")]
    assert f"takes up to {max(copies):.2f} times as long as a copy" in text


def test_errors_of_engines():
    """The table has the models in the order of the result."""
    rows, measured = table(VLLM, "model"), numbers("vllm-engine")
    for (name, *cells), engine in zip(rows, measured.values(), strict=True):
        for place, engine_name in ((0, "stock"), (1, "rope_array")):
            errors = zip(engine[engine_name]["errors"], engine[engine_name]["other_tokens"], strict=True)
            expected = [(float(f"{error:.0e}"), tokens) for error, tokens in errors]
            shown = [(float(text.rstrip("*")), text.endswith("*")) for text in cells[place].split(" / ")]
            assert shown == expected, name
            assert int(cells[place + 2].replace(",", "")) == round(engine[engine_name]["tables"] / 1e6), name


def test_targets_are_told_with_their_verdicts():
    shown = {tuple(row) for row in table(RESULTS.parent / "README.md", "benchmark")}
    records = ((path, json.loads(path.read_text("utf-8"))) for path in sorted(RESULTS.glob("*.json")))
    targets = {
        path.stem[11:]: record["targets"]
        for path, record in records
        if "targets" in record and path.stem[11:] == record["bench"]
    }
    fields = ("target", "limit", "worst", "verdict")
    rows = {(name, *(str(row.get(key, "")) for key in fields)) for name in targets for row in targets[name]}
    assert shown == rows, "run `python bench/_targets.py`"
