"""Tables of a result of `bench/speed.py`, for README.md, docs/speed.md and the terminal."""

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
The time of one rotation by this library and by other implementations, on the same arrays in one process.
Each round times all of them once, in random order; the table has the median of the rounds, the quartiles
and the minimum. *Copies* is the median, over rounds, of the time divided by the time of a copy of x's bytes
into existing memory in the same round; *allocating copies* is the same for a copy into new memory. A
rotation reads and writes as many bytes as a copy, so a copy is its lower bound if memory is the limit. An
untimed call precedes each timing, so that caches and the heap are in the state after a call of the same
row; calls of more than 0.1 s need none.

Work that a model does once for a forward pass is done before the timing: a peer's cos and sin if its
interface takes them, sessions, and compiling. Our rows compute exact angles from the positions in every
call, except *Rotation* rows, whose cos and sin are ready. *core* is the array-api backend, *backend=numpy*
NumPy's backend without compiled code; `out=` writes into existing memory. ONNX Runtime's inputs and outputs
are bound to existing memory.

One thread on one processor, except in the last section. x is standard normal. A result that is off by more
than 5 % of the length of x is not timed but called wrong. Arrays are contiguous, (B, H, S, D) or (B, S, H,
D) as in each implementation's models."""
README = """\
Medians on one thread, (1, 32, S, 128), half pairs by default: one token of float32, then S = 2,048.
*Copies* is the time in copies of the same bytes into existing memory, timed in the same rounds. Our rows
compute exact angles in every call, except Rotation; work that other implementations do once for all layers
is not timed. The system maps and zeroes the memory of new float32 arrays, 32 MiB, at each
call."""
# The cases of README's columns: half pairs, or interleaved pairs for peers without half pairs.
DECODE = ("decode 1 float32", "decode 1 float32 interleaved")
FLOAT32 = ("prefill 2048 float32 half", "prefill 2048 float32 interleaved")
BFLOAT16 = ("prefill 2048 bfloat16 half", "prefill 2048 bfloat16 interleaved")
LEFT_OUT = ("backend=", "core", "clone", "ai.onnx")  # words in names of rows that README leaves out


# ---- one case ----


def lines(case):
    """Yield a case's rows as cells."""
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
    """Format seconds with three digits and a unit."""
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
    """Return the name, with "interleaved" if the peer has no half pairs."""
    first = (place for place in places if "seconds" in rows_of(cases, place).get(name, {}))
    return f"{name}, interleaved" if "interleaved" in next(first, "") else name


def rows_of(cases, place):
    return cases[place]["rows"] if place in cases else {}


def row_of(cases, places, name):
    """Return a name's numbers from the first case that has them, else None."""
    rows = (rows_of(cases, place).get(name, {}) for place in places)
    return next((row for row in rows if "seconds" in row), None)


def names(cases):
    """Return the names of all rows in order, the copies first."""
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
    yield from ("", "## Work done before the timing", "", *ready(result), "")


def tables(found):
    for name, case in found.items():
        yield from (f"### {name[0].upper()}{name[1:]}", "", about(case), "")
        yield from timed_and_not(case) if case["rows"] else [case["failed"], ""]


def timed_and_not(case):
    """Yield a table of the rows with numbers, and a line for each reason why others have none."""
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
    """Return one table with a row for each number of tokens and a column for each name."""
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
