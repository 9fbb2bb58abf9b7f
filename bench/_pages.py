"""The tables of pages that results make: README.md, the documentation, bench/README.md.

    python bench/_pages.py        # writes all of them, and the plots, from the newest results

The prose of a page is in the page; a table is between its markers, `<!-- NAME -->` and `<!-- /NAME -->`.
tests/test_figures.py holds the pages to the results.
"""

import itertools
import sys
from collections import Counter

from _record import ROOT, fill, table
from _scoreboard_tables import calls_of, counts_table, errors_table, failures, short_table
from _speed_cases import COPY, INTO
from _targets import CALLS, JUDGES, newest, target_rows
from _targets import HEAD as HEAD_OF_TARGETS

HEAD = ("implementation", "median", "quartiles", "copies")
# Groups, sizes and directions of cases that pages leave out.
LESS = {
    *itertools.product(("prefill",), (32768, 131072), ("forward", "backward")),
    ("prefill", 1024, "backward"),
}
LESS |= {("decode", 8, "forward"), ("decode", 512, "forward")}
LESS |= {("other widths", size, "forward") for size in (8192, 32768)} | {("threads", 65536, "")}
# The tables of all cases: a title, and groups of cases.
GROUPS = {
    "One token of each sequence, µs": ("decode",),
    "2,048 tokens, 32 heads": ("prefill",),
    "2,048 tokens, fewer heads and other widths": ("heads", "width"),
    "65,536 tokens of one head, 32,768 of 8": ("one head", "long"),
    "All threads": ("threads",),
}
IN_README = (
    *("rope_array NumPy", "rope_array PyTorch", "rope_array JAX, jax.jit"),
    *("transformers Llama", "transformers Llama, torch.compile"),
    *("Llama, complex form", "ONNX Runtime, ai.onnx"),
)
# The cases of README's columns: half pairs, or interleaved pairs for peers without half pairs.
DECODE = ("decode 1 float32", "decode 1 float32 interleaved")
FLOAT32 = ("prefill 2048 float32 half", "prefill 2048 float32 interleaved")
BFLOAT16 = ("prefill 2048 bfloat16 half", "prefill 2048 bfloat16 interleaved")
# Words in names of rows that the page of speed leaves out, and that the tables of all cases do.
LEFT_OUT = ("core", "clone", "ai.onnx", "backend=numpy", "Rotation, out=", "JAX, Rotation")
LEFT_OUT_OF_ALL = (
    "clone",
    "allocating",
    "core, torch.compile",
    "com.microsoft",
    "backend=numpy",
    "Rotation, out=",
    "JAX, Rotation",
    "out=x",
)
SIZES = ("one token", "64 KiB", "4 MiB", "64 MiB")  # of bench/sweep.py
SLOW = 5  # ratio from which a kind of call is in the table of every call


# ---- rows and cells ----


def head_and_lines(rows):
    """Return the head of a table, and the cells of the rows that have times."""
    on_gpu = any("host" in row for row in rows.values())
    lines = [(shown(name), *cells(row)) for name, row in rows.items() if "seconds" in row]
    return (*HEAD, "TB/s", "host", "graph", "launches") if on_gpu else HEAD, lines


def cells(row):
    lower, middle, upper = map(duration, row["seconds"])
    yield from (middle, f"{lower} – {upper}", copies(row))
    if "host" in row:
        yield from (f"{row['TB/s']:.3g}", median(row, "host"), median(row, "graph"), row["launches"] or "")


def shown(name):
    """Return the name of a row as readers know the backend."""
    return name.replace(", core", ', backend="array-api"')


def median(row, key="seconds"):
    return duration(row[key][1]) if key in row else ""


def copies(row):
    return f"{row['copies'][1]:.2f}" if "copies" in row else ""


def duration(seconds):
    """Format seconds with three digits and a unit."""
    name, size = unit(seconds)
    return f"{digits(seconds / size)} {name}"


def unit(seconds):
    units = ("s", 1), ("ms", 1e-3), ("µs", 1e-6)
    return next((unit for unit in units if seconds >= unit[1]), units[-1])


def digits(number):
    return f"{number:,.{max(0, 3 - len(str(int(number))))}f}"


def number(row, size, key="seconds"):
    return digits(row[key][1] / size) if key in row else ""


def reasons(*cases):
    """Yield a line for each reason why rows have no time."""
    names = {}
    for name, row in (item for rows in cases for item in rows.items()):
        if "seconds" not in row:
            ((outcome, reason),) = row.items()
            text = f"{outcome}: {reason}".replace("|", "\\|").replace("<", "\\<")
            names.setdefault(text, set()).add(name)
    for reason, peers in sorted(names.items()):
        yield f"* {'; '.join(shown(name) for name in sorted(peers))}: {reason.rstrip('.')}."


def not_timed(run):
    """Return the reasons why cells are empty."""
    cases = (case["rows"] or {name: {"failed": case["failed"]}} for name, case in run["numbers"].items())
    return ["Not timed, in all cases or in some:", "", *notes, ""] if (notes := [*reasons(*cases)]) else []


def by_case(title, cases, facts, cell):
    """Yield a table of `cell(row, rows)` with a column for each case; above it the `facts` that all share."""
    labels = [facts(case) for case in cases]
    common = [fact for fact in labels[0] if all(fact in label for label in labels)]
    columns = ["<br>".join(fact for fact in label if fact not in common) for label in labels]
    lines = [
        (shown(name), *(cell(case["rows"].get(name, {}), case["rows"]) for case in cases))
        for name in names(cases)
        if not any(word in name for word in LEFT_OUT_OF_ALL)
    ]
    yield from (f"## {title}", "")
    yield from (f"Each column: {', '.join(common)}.", "") if common else ()
    yield from (*table(("", *columns), [line for line in lines if any(line[1:])], columns), "")


def span(ratios):
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def made(run):
    name = run["bench"].partition("-")[0]
    command = "speed.py --gpu" if name == "gpu" else f"{name}.py"
    command = f"calls.py {run['bench']}" if run["bench"] in CALLS else command
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if version)
    when = f"on {run['date']}, commit {(run['commit'] or 'unknown')[:10]}"
    return f"Made by `python bench/{command}` {when}, {machine(run)}. Versions: {versions}."


def machine(run):
    facts = run["machine"]
    if "gpu" in facts:
        return f"{facts['gpu']['name']}, driver {facts['gpu'].get('driver', 'unknown')}"
    return f"{facts['cpu']} with {facts['cores']} cores, {facts['system'].split()[0]}"


# ---- speed on the CPU ----


def speed(run, kept=None, columns=6):
    """Return the first columns of the table of one token, and of 2,048 tokens in two dtypes."""
    cases = run["numbers"]
    head = ("one thread", "1 token, µs", "float32, ms", "copies", "bfloat16, ms", "copies")[:columns]
    kept = kept or (name for name in names(cases.values()) if not any(word in name for word in LEFT_OUT))
    lines = [row for name in kept if any((row := short_row(cases, name)[:columns])[1:])]
    return table(head, lines, head[1:])


def short_speed(run):
    """Return the table of speed in README.md and docs/index.md, and its caption."""
    return [
        *speed(run, IN_README, 5),
        "",
        f"{machine(run)}. Medians for (1, 32, tokens, 128):",
        "one token, then 2,048. *Copies*: so many copies into existing memory take as long in float32.",
        "rope_array computes exact angles in each call, the others are given cos and sin.",
    ]


def short_row(cases, name):
    decode, many, halves = (row_of(cases, places, name) for places in (DECODE, FLOAT32, BFLOAT16))
    label = labelled(cases, (*DECODE, *FLOAT32, *BFLOAT16), name)
    return label, number(decode, 1e-6), number(many, 1e-3), copies(many), number(halves, 1e-3), copies(halves)


def labelled(cases, places, name):
    """Return the name, with "interleaved" if the peer has no half pairs."""
    first = next((place for place in places if row_of(cases, [place], name)), "")
    return f"{name}, interleaved" if "interleaved" in first else name


def row_of(cases, places, name):
    """Return a name's numbers from the first case that has them, else an empty dictionary."""
    rows = (cases[place]["rows"].get(name, {}) for place in places if place in cases)
    return next((row for row in rows if "seconds" in row), {})


def names(cases):
    """Return the names of all rows in order."""
    return list(dict.fromkeys(name for case in cases for name in case["rows"]))


def every_case(run):
    for title, groups in GROUPS.items():
        cases = [case for case in run["numbers"].values() if case["group"] in groups and is_shown(case)]
        cell = in_microseconds if "µs" in title else in_copies
        yield from by_case(title, cases, facts, cell) if cases else ()
    yield from not_timed(run)


def is_shown(case):
    size = case["shape"][2] if "shape" in case else max(case["batch"], case["tokens"])
    if case["dtype"] == "float16" or (case["group"], size, case.get("direction", "")) in LESS:
        return False
    if "shape" in case:  # docs/speed.md has half pairs of 2,048 tokens
        elsewhere = {("prefill", "half"), ("one head", "interleaved"), ("threads", "interleaved")}
        return (case["group"], case["pairing"]) not in elsewhere
    return case["group"] == "prefill" or case["pairing"] == "half"


def facts(case):
    shape = f"({', '.join(map(str, case['shape']))})"
    threads = (f"{case['threads']} threads",) if case["group"] == "threads" else ()
    return shape, case["dtype"], case["pairing"], *threads


def in_microseconds(row, rows):
    return number(row, 1e-6)


def every_call(*runs):
    """Return the kinds of calls of bench/sweep.py that differ from a plain call in one value."""
    kinds = {}  # of a library and a change, by size: the largest ratio of all runs
    for run in runs:
        for name, ratio in run["numbers"].items():
            library, size, *changes = name.split(", ")
            if len(changes) == 1:
                ratios = kinds.setdefault(f"{library}, {changes[0]}", {})
                ratios[size] = max(ratio, ratios.get(size, 0))
    largest = {kind: max(ratios.values()) for kind, ratios in kinds.items()}
    slow = sorted((kind for kind in kinds if largest[kind] >= SLOW), key=largest.get, reverse=True)
    rows = [(kind, *(f"{kinds[kind][size]:.1f}" for size in SIZES)) for kind in slow]
    return [*table(("kind of call", *SIZES), rows, SIZES), "", made(runs[0])]


# ---- speed on a GPU ----


def gpu_cases(run):
    """Prefill has a table for each pairing; other groups show half pairs."""
    groups = {}
    for case in filter(is_shown, run["numbers"].values()):
        pairing = f", {case['pairing']}" if case["group"] == "prefill" else ""
        groups.setdefault(case["group"].capitalize() + pairing, []).append(case)
    for title, cases in groups.items():
        yield from by_case(title, cases, gpu_facts, three if title == "Decode" else in_copies)


def gpu_notes(run):
    counts = Counter(case["backend"] for case in run["numbers"].values() if "backend" in case).items()
    served = ", ".join(f"{name} in {count} cases" for name, count in counts)
    yield from not_timed(run)
    yield from (f"The rows of rope_array were served by the backends: {served}.", "", made(run))


def all_targets(*runs):
    rows = [row for run in filter(None, runs) for row in target_rows(run)]
    return table(HEAD_OF_TARGETS, rows, HEAD_OF_TARGETS[2:4])


def gpu_facts(case):
    size = f"{case['batch']:,} sequences" if case["group"] == "decode" else f"{case['tokens']:,} tokens"
    heads = f"heads {'+'.join(map(str, case['heads']))}"
    return size, heads, f"width {case['head_dim']}", case["dtype"], case["pairing"], case["direction"]


def in_copies(row, rows):
    """Return a row's time in copies; of the copy, its time."""
    return median(row) if row in (rows.get(COPY), rows.get(INTO)) else copies(row)


def three(row, rows):
    """Return the microseconds of a row on the GPU, in a graph and on the host."""
    keys = ("seconds", "graph", "host") if "seconds" in row else ()
    return ", ".join(number(row, 1e-6, key) or "–" for key in keys)


# ---- models, engines, programs ----


STEPS = [*itertools.product(("decode", "train"), ("float32", "bfloat16"))]
HEAD_OF_STEPS = ("model", "decode, float32", "bfloat16", "training, float32", "bfloat16")


def steps(run, prefix):
    """Return rows of the times of steps after `hf.patch`, divided by those before."""
    ratios = {
        name.removeprefix(prefix): case["ratios"]["after / before"]
        for name, case in run["numbers"].items()
        if name.startswith(prefix) and "after / before" in case["ratios"]
    }
    models = dict.fromkeys(name.rsplit(", ", 2)[0] for name in ratios)
    return [
        (name, *(f"{ratios[f'{name}, {dtype}, {step}']:.2f}" for step, dtype in STEPS)) for name in models
    ]


def patched_models(run, compiled):
    spans = []
    for step, dtype in STEPS:
        cases = [case for name, case in compiled["numbers"].items() if name.endswith(f"{dtype}, {step}")]
        spans.append(span([case["ratios"]["after / before"] for case in cases]) if cases else "")
    rows = [*steps(run, "moderate, "), ("all, compiled", *spans)]
    return table(HEAD_OF_STEPS, rows, HEAD_OF_STEPS[1:])


ENGINES = {
    "llama": "Llama",
    "llama3": "Llama, rule llama3",
    "linear": "Llama, linear × 4",
    "yarn": "Llama, YaRN × 16",
    "qwen3": "Qwen3",
    "gemma3": "Gemma 3, two ropes",
    "deepseek": "DeepSeek-V2, MLA",
    "phi3": "Phi-3, LongRoPE",
    "glm": "GLM, from transformers",
}


def engines(run):
    """Return errors of log-probabilities by shift and mode."""
    modes = {label: run["numbers"][name].values() for name, label in ENGINES.items()}
    return table(
        ("model", "vLLM", "`tables`", "`1`"), [(label, *map(errors, modes[label])) for label in modes], ()
    )


def engine_speed(run):
    """Return new tokens in a second of processor time, by mode."""
    head = ("8 layers of Qwen3, bfloat16", "vLLM", "`tables`", "`1`")
    rows = [
        (name.removeprefix("speed, "), *(f"{tokens:.1f}" for tokens in modes.values()))
        for name, modes in run["numbers"].items()
        if name.startswith("speed, ")
    ]
    return table(head, rows, head[1:])


def errors(engine):
    pairs = zip(engine["errors"], engine["other_tokens"], strict=True)
    return " / ".join(
        f"{size:.0e}".replace("e-0", "e-").replace("e+00", "") + "*" * other for size, other in pairs
    )


COUNTS = {"1": ("1",), "16": ("16",), "256 to 8,192": ("256", "2048", "8192")}
MANY_HEADS, FEW_HEADS = "32 + 8 heads of 128", "4 + 2 heads of 64"


def in_place(run):
    """Return our times in place over vLLM's, of both dtypes, by positions and by tables."""
    head = ("tokens", f"{MANY_HEADS}, half", "interleaved", f"{FEW_HEADS}, half", "interleaved")
    columns = [*itertools.product((MANY_HEADS, FEW_HEADS), ("half", "interleaved"))]
    rows = [
        (label, *(over_vllm(run, *column, counts) for column in columns)) for label, counts in COUNTS.items()
    ]
    return table(head, rows, head[1:])


def over_vllm(run, heads, pairing, counts):
    cases = itertools.product(("float32", "bfloat16"), counts)
    rows = [run["numbers"][f"{heads}, {dtype}, {pairing}, inference, {count}"] for dtype, count in cases]
    return span([row["ratios"][f"{source} / vLLM"] for row in rows for source in ("positions", "rotation")])


def key_shift(run):
    ratios = [case["ratios"]["ours / in steps"] for case in run["numbers"].values()]
    return [
        f"In 32 layers of tensors on the CPU, moving 1 to 4,096 slots takes {span(ratios)} of the time of",
        "`index_select`, a rotation and `index_copy_`.",
    ]


# A group of cases, and rows, for each table of attention's inputs.
THEIRS = ("unfused", "transformers", "transformers compiled")
TIMES = {
    "in-place": ("in place", "rotation", "norm + rotation", *THEIRS, "vLLM"),
    "cached": (
        *("in place", "rotation, index_copy_", "norm + rotation + cache", "unfused + cache"),
        "vLLM + cache",
    ),
    "gradients": ("gradient", "norm + rotation", *THEIRS),
}


def attention(group, *columns):
    """Return a function of a run to the times of rows in cases of a group, in the unit of the first time."""

    def times(run):
        rows = []
        for name, case in run["numbers"].items():
            if name.startswith(group) and name.endswith((", 1", ", 2048")):
                _, dtype, tokens = name.split(", ")
                label, size = unit(case["ms"][columns[0]] / 1e3)
                numbers = (
                    digits(case["ms"][row] / 1e3 / size) if row in case["ms"] else "" for row in columns
                )
                rows.append((f"{int(tokens):,}, {dtype}, {label}", *numbers))
        return table(("tokens", *columns), rows, columns)

    return times


def jitted(run):
    """Return our times in programs of JAX over the array form's, and over a copy's."""
    near, alone = {}, {}
    for name, case in run["numbers"].items():
        if "ours / copy" not in case["ratios"]:
            near[name] = case["ratios"]["ours / array form"]
        elif "bfloat16" in name:
            alone[name] = case["ratios"]["ours / copy"]

    def spans(ratios):
        return [span([ratios[name] for name in ratios if size in name]) for size in ("prefill", "decode")]

    head = ("program", "in times of", "2,048 tokens of 32 heads", "one token")
    rows = [("next to another operation", 'that with `backend="array-api"`', *spans(near))]
    return table(head, [*rows, ("alone, bfloat16", "a copy", *spans(alone))], head[2:])


# ---- the pages: each table with its benchmarks, and a function of their newest results ----

PAGES = {
    "README.md": {"speed": (short_speed, "speed"), "scoreboard": (short_table, "scoreboard")},
    "docs/index.md": {"speed": (short_speed, "speed"), "scoreboard": (short_table, "scoreboard")},
    "bench/README.md": {"targets": (all_targets, *JUDGES)},
    "docs/speed.md": {
        "speed": (speed, "speed"),
        "every-call": (every_call, "sweep", "sweep-avx2"),
        "origin": (lambda run: [made(run)], "speed"),
    },
    "docs/speed/tables.md": {"cases": (every_case, "speed")},
    "docs/speed/gpu.md": {"cases": (gpu_cases, "gpu"), "notes": (gpu_notes, "gpu")},
    "docs/scoreboard.md": {
        "origin": (lambda run: [made(run)], "scoreboard"),
        "counts": (counts_table, "scoreboard"),
        "errors": (errors_table, "scoreboard"),
        "failures": (failures, "scoreboard"),
        "calls": (calls_of, "scoreboard"),
    },
    "docs/convert.md": {"key-shift": (key_shift, "key-shift")},
    "docs/backends.md": {"jitted": (jitted, "jitted")},
    "docs/in-my-model/attention.md": {
        **{name: (attention(*columns), "attention-inputs") for name, columns in TIMES.items()},
        "origin": (lambda run: [made(run)], "attention-inputs"),
    },
    "docs/in-my-model/huggingface.md": {"models": (patched_models, "hf-models", "hf-models-compiled")},
    "docs/in-my-model/vllm.md": {
        "engines": (engines, "vllm-engine"),
        "engine-speed": (engine_speed, "vllm-engine"),
        "in-place": (in_place, "in-place"),
    },
}


def write(*benches, root=ROOT, run=None):
    """Write the tables of some benchmarks, or all: of the newest results, or of one `run`."""
    for page, sections in PAGES.items():
        for name, (lines, *needed) in sections.items():
            if not benches or {*benches} & {*needed}:
                runs = [run] if run else map(newest, needed)
                fill(root / page, name, lines(*runs))


def draw(*benches):
    """Draw the plots of the newest results."""
    try:
        import _speed_plot
    except ImportError as error:
        sys.exit(f"no plots: {error}; `python bench/_pages.py` draws them where matplotlib is")
    for bench in benches:
        _speed_plot.write(bench, newest(bench))


if __name__ == "__main__":
    write()
    draw("speed", "gpu")
