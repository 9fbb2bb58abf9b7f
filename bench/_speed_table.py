"""Tables of a result of `bench/speed.py`: README.md's, docs/speed.md, and what the terminal shows."""

from _record import ROOT
from _speed_turns import ALLOCATING, INTO
from scoreboard import between_markers, table

MARKERS = ("<!-- speed: begin -->", "<!-- speed: end -->")
HEAD = ("row", "median", "quartiles", "least", "copies", "allocating copies")
GROUPS = {
    "latency": "Calls on a tiny array",
    "decode": "Decoding: one token of each sequence",
    "prefill": "Prefill of 2,048 tokens, 32 heads",
    "heads": "Fewer heads",
    "width": "Other widths of a head",
    "one head": "One head, arrays of 16 MiB and more",
    "long": "Prefill of 32,768 tokens, 8 heads",
    "growth": "From 1 token to 1,048,576, one head of 64",
    "threads": "All threads",
}
INTRODUCTION = """\
How long one rotation takes, ours and other implementations', on the same arrays in one process. All take
turns, in an order drawn anew for each round; the table has the median of the rounds, the quartiles and the
least. *Copies* is the median, over rounds, of the time divided by that of a copy of x's bytes into existing
memory in the same round; *allocating copies* is the same for a copy into new memory. A rotation reads and
writes what a copy does, so a copy is the least that it can take where memory is the limit. Each turn begins
with a call that is not timed, so that caches and the heap are as calls of its own leave them; those of more
than 0.1 s do without.

What a model does once for a forward pass is done before the timing: a peer's cos and sin where its interface
takes them, sessions, and compiling. Our rows make exact angles from the positions in every call, except those
with *Rotation*, for which that is done before too. *core* is the path written against the Array API alone,
*backend=numpy* the one of NumPy without compiled code; `out=` writes into existing memory. ONNX Runtime's
inputs and outputs are bound to existing memory.

One thread on one processor, but for the last section. x is standard normal. A result that is off by more than
5 % of the length of x is not timed but called wrong. Arrays are laid out as each implementation's models have
them, (B, H, S, D) or (B, S, H, D), contiguous."""
README = """\
Medians on one thread, (1, 32, S, 128), half pairs unless said: one token of float32, then S = 2,048.
*Copies* is the time in copies of the same bytes into existing memory, in turns with all others. Ours make
exact angles in every call, but for a Rotation; what others do once for all layers is ready."""
# The cases of README's columns, by the pairing that a peer has: half, or else interleaved.
DECODE = ("decode 1 float32", "decode 1 float32 interleaved")
FLOAT32 = ("prefill 2048 float32 half", "prefill 2048 float32 interleaved")
BFLOAT16 = ("prefill 2048 bfloat16 half", "prefill 2048 bfloat16 interleaved")
LEFT_OUT = ("backend=", "core", "clone", "ai.onnx")  # of README's rows, whoever's name has one of these


# ---- one case ----


def lines(case):
    """A case's rows as cells."""
    for name, row in case["rows"].items():
        if "seconds" in row:
            yield name, *cells_of(row)
        else:
            yield name, why_not(row), *[""] * (len(HEAD) - 2)


def cells_of(row):
    lower, median, upper = row["seconds"]
    ratios = (f"{row[key][1]:.2f}" if key in row else "" for key in HEAD[4:])
    return duration(median), f"{duration(lower)} – {duration(upper)}", duration(row["min"]), *ratios


def why_not(row):
    ((kind, reason),) = row.items()
    return f"{kind}: {reason}".replace("|", "\\|").replace("<", "\\<")


def duration(seconds):
    """Three digits and a unit."""
    units = ("s", 1), ("ms", 1e-3), ("µs", 1e-6)
    unit, size = next((each for each in units if seconds >= each[1]), units[-1])
    digits = max(0, 3 - len(str(int(seconds / size))))
    return f"{seconds / size:.{digits}f} {unit}"


# ---- README ----


def short_table(result):
    cases = result["numbers"]
    head = ("one thread", "1 token", "float32", "copies", "bfloat16", "copies")
    shown = (name for name in names(cases) if not any(word in name for word in LEFT_OUT))
    found = [row for name in shown if any((row := short_row(cases, name))[1:])]
    return [*table(head, found, head[1:]), "", f"{README} {machine(result)}."]


def short_row(cases, name):
    timed = [row_of(cases, places, name) for places in (DECODE, FLOAT32, BFLOAT16)]
    times = [duration(row["seconds"][1]) if row else "" for row in timed]
    ratios = [f"{row['copies'][1]:.2f}" if row and "copies" in row else "" for row in timed]
    label = labelled(cases, (*DECODE, *FLOAT32, *BFLOAT16), name)
    return label, times[0], times[1], ratios[1], times[2], ratios[2]


def labelled(cases, places, name):
    """The name, with the pairing where that is the peer's only one and not half."""
    first = (place for place in places if "seconds" in rows_of(cases, place).get(name, {}))
    return f"{name}, interleaved" if "interleaved" in next(first, "") else name


def rows_of(cases, place):
    return cases[place]["rows"] if place in cases else {}


def row_of(cases, places, name):
    """A name's numbers in the first of some cases where it has any."""
    rows = (rows_of(cases, place).get(name, {}) for place in places)
    return next((row for row in rows if "seconds" in row), None)


def names(cases):
    """All rows' names, yardsticks first, in the order they come."""
    return list(
        dict.fromkeys([INTO, ALLOCATING, *(name for case in cases.values() for name in case["rows"])])
    )


# ---- docs/speed.md ----


def page(result):
    yield from ("# Speed", "", INTRODUCTION, "", made(result), "")
    yield from ("![A rotation's time in copies, by implementation](speed/prefill.svg)", "")
    yield from ("![Time by the number of tokens](speed/growth.svg)", "")
    for group, title in GROUPS.items():
        found = {name: case for name, case in result["numbers"].items() if case["group"] == group}
        if found:
            yield from ("", f"## {title}", "")
            yield from growth(found) if group == "growth" else tables(found)
    yield from ("", "## What is ready before the timing", "", *ready(result), "")


def tables(found):
    for name, case in found.items():
        yield from (f"### {name[0].upper()}{name[1:]}", "", about(case), "")
        yield from timed_and_not(case) if case["rows"] else [case["failed"], ""]


def timed_and_not(case):
    """The rows with numbers, and below them a line for each reason why others have none."""
    timed = {name: row for name, row in case["rows"].items() if "seconds" in row}
    yield from (*table(HEAD, lines({"rows": timed}), HEAD[1:]), "")
    reasons = {}
    for name in case["rows"].keys() - timed.keys():
        reasons.setdefault(why_not(case["rows"][name]), []).append(name)
    for reason, others in sorted(reasons.items()):
        yield f"* {'; '.join(sorted(others))}: {reason.rstrip('.')}."
    yield from [""] * bool(reasons)


def about(case):
    threads = f", {case['threads']} threads" if case.get("threads", 1) > 1 else ""
    return f"({', '.join(map(str, case['shape']))}), {case['dtype']}, {case['pairing']} pairs{threads}."


def growth(found):
    """One table: tokens down, names across."""
    across = [name for name in names(found) if any(name in case["rows"] for case in found.values())]
    down = []
    for case in found.values():
        rows = (case["rows"].get(name, {}) for name in across)
        times = (duration(row["seconds"][1]) if "seconds" in row else "" for row in rows)
        down.append((f"{case['shape'][2]:,}", *times))
    head = ("tokens", *across)
    return table(head, down, head)


def ready(result):
    for module, text in result["ready"].items():
        yield f"* **{module}**: {text}"


def made(result):
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items() if version)
    return (
        f"Made by `python bench/speed.py` on {result['date']}, commit {result['commit'][:10]}, "
        f"{machine(result)}. Versions: {versions}."
    )


def machine(result):
    machine = result["machine"]
    return f"{machine['cpu']} with {machine['cores']} cores, {machine['system'].split()[0]}"


def write(result, root=ROOT):
    (root / "docs" / "speed.md").write_text("\n".join(page(result)), "utf-8")
    readme = root / "README.md"
    readme.write_text(between_markers(readme.read_text("utf-8"), short_table(result), MARKERS), "utf-8")
