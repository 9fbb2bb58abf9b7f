"""Tables of a result of `bench/speed.py`, for README.md, the documentation and the terminal."""

from _record import ROOT
from _speed_turns import ALLOCATING, INTO
from scoreboard import between_markers, table

MARKERS = ("<!-- speed: begin -->", "<!-- speed: end -->")
HEAD = ("implementation", "median", "quartiles", "copies")
GROWTH = (1, 64, 1024, 16384, 262144, 1048576)  # the tokens shown in the table of growth
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
IMPLEMENTATIONS = {  # names for readers of modules of bench/peers
    "own": "rope_array",
    "huggingface": "transformers Llama",
    "meta": "Llama, complex form",
    "naive": "naive NumPy",
    "onnx_runtime": "ONNX Runtime",
}
INTRODUCTION = """\
```text
python dev.py test -s bench      # the same tables for your machine
```

The table has the time of one rotation by this library and by other implementations, on the same arrays. A
rotation reads and writes as many bytes as a copy, so a copy is the measure for large arrays. *Copies* is the
time divided by the time of a copy of the same bytes into existing memory. It can be a little below 1, as the
[kernel](glossary.md#kernel) writes large results [past the caches](backends.md#the-kernel)."""
SUMMARY = """\
The times are medians on one thread, for arrays of (1, 32, tokens, 128): first one token of float32, then
2,048 tokens of float32 and of bfloat16. The [pairing](glossary.md#pairing) is half unless the row says
interleaved.

Rows of this library compute [exact angles](glossary.md#angle) in every call, except *Rotation*, whose cos
and sin are made before the timing. If another implementation takes cos and sin, they too are made before the
timing. `out=` writes into existing memory. All other rotations allocate the result, which has 32 MiB for
float32; the system maps and zeroes the pages of this memory in each call."""
METHOD = """\
* **Rounds.** One process times all implementations once in each round, in random order. The tables show
  the median of the rounds. *Copies* is the median of the quotients, each with the time of a copy in the
  same round.
* **Warm.** An untimed call of the same implementation comes before each timing, and fills the caches. Calls
  that take more than 0.1 s are timed without it.
* **Not timed.** Work that a model does once for a forward pass is done before the timing: making cos and sin,
  making a session, compiling. The list below has the details. Inputs and outputs of ONNX Runtime are bound
  to existing memory.
* **Arrays** are contiguous, (B, H, S, D) or (B, S, H, D) as in each implementation's models. x is
  standard normal.
* **Wrong results.** If the error of a result exceeds 5 % of the length of x, its row says "wrong" and has no
  time.
* **Threads.** One thread on one processor, except in tables whose title says all threads."""
TABLES = """\
This page has a table for each case; the page [Speed](../speed.md) explains how they were measured.
*Quartiles* are the lower and the upper quartile of the rounds. The files in `bench/results` also have the
minimum, and the time divided by the time of a copy into new memory."""
ALL_TABLES = """\
## All tables

[Every case](speed/tables.md) has a table of its own: other shapes, widths, dtypes and pairings, all threads.
All of them are for the CPU; [Speed on a GPU](speed/gpu.md) has a page of its own. `bench/README.md` lists the
targets of all benchmarks, those that are missed too.

```{toctree}
:hidden:

speed/tables
speed/gpu
```"""
README = """\
Medians for (1, 32, tokens, 128): one token, then 2,048. *Copies* is the time of float32 divided by that of
a copy into existing memory. rope_array computes exact angles in each call, the others have cos and sin."""
IN_README = (
    *("rope_array NumPy", "rope_array PyTorch", "rope_array JAX, jax.jit"),
    *("transformers Llama", "transformers Llama, torch.compile"),
    *("Llama, complex form", "ONNX Runtime, ai.onnx"),
)
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
            yield shown(name), *cells_of(row)
        else:
            yield shown(name), why_not(row), *[""] * (len(HEAD) - 2)


def shown(name):
    """Return the name of a row as readers know the backend."""
    return name.replace(", core", ', backend="array-api"').replace("backend=numpy", 'backend="numpy"')


def cells_of(row):
    lower, median, upper = row["seconds"]
    ratio = f"{row['copies'][1]:.2f}" if "copies" in row else ""
    return duration(median), f"{duration(lower)} – {duration(upper)}", ratio


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
    return [*summary(result, IN_README, columns=5), "", f"{README} {machine(result)}."]


def summary(result, kept=None, columns=6):
    """Return the first columns of the table of one token, and of 2,048 tokens in two dtypes."""
    cases = result["numbers"]
    head = ("one thread", "1 token", "float32", "copies", "bfloat16", "copies")[:columns]
    kept = kept or (name for name in names(cases) if not any(word in name for word in LEFT_OUT))
    found = [row for name in kept if any((row := short_row(cases, name)[:columns])[1:])]
    return table(head, found, head[1:])


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


# ---- docs/speed.md and docs/speed/tables.md ----


def page(result):
    yield from ("# Speed", "", INTRODUCTION, "", *summary(result), "", SUMMARY, "")
    yield from ("![A rotation's time in copies, by implementation](speed/prefill.svg)", "")
    yield from ("![Time by the number of tokens](speed/growth.svg)", "")
    yield from ("## Method", "", METHOD, "", made(result), "")
    yield from ("## Work done before the timing", "", *ready(result), "")
    yield from (ALL_TABLES, "")


def page_of_tables(result):
    yield from ("# Speed: all tables", "", TABLES, "")
    for group, title in GROUPS.items():
        found = {name: case for name, case in result["numbers"].items() if case["group"] == group}
        if found:
            yield from ("", f"## {title}", "")
            yield from growth(found) if group == "growth" else tables(found)


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
        yield f"* {'; '.join(shown(name) for name in sorted(others))}: {reason.rstrip('.')}."
    yield from [""] * bool(reasons)


def about(case):
    threads = f", {case['threads']} threads" if case.get("threads", 1) > 1 else ""
    return f"({', '.join(map(str, case['shape']))}), {case['dtype']}, {case['pairing']} pairs{threads}."


def growth(found):
    """Return one table with a row for each name and a column for each number of tokens."""
    cases = {case["shape"][2]: case["rows"] for case in found.values() if case["shape"][2] in GROWTH}
    head = ("tokens", *(f"{tokens:,}" for tokens in cases))
    lines = []
    for name in names(found):
        rows = (case.get(name, {}) for case in cases.values())
        times = [duration(row["seconds"][1]) if "seconds" in row else "" for row in rows]
        lines += [(shown(name), *times)] if any(times) else []
    return table(head, lines, head[1:])


def ready(result):
    for module, text in result["ready"].items():
        yield f"* **{IMPLEMENTATIONS.get(module, module.replace('_', '-'))}**: {text}"


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
    (root / "docs" / "speed" / "tables.md").write_text("\n".join(page_of_tables(result)), "utf-8")
    readme = root / "README.md"
    readme.write_text(between_markers(readme.read_text("utf-8"), short_table(result), MARKERS), "utf-8")
