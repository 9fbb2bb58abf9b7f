"""The pages and tables of a result of `bench/speed.py`: README.md, the documentation and the terminal."""

from collections import Counter

from _record import ROOT, replace_between
from _speed_cases import COPY
from _targets import COPY as A_COPY
from _targets import newest
from scoreboard import table

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
SIZES = ("one token", "64 KiB", "4 MiB", "64 MiB")  # of bench/sweep.py
SLOW = 4  # ratio from which a kind of call is in the table of every call
EVERY_CALL = """\
## Every call

A plain call rotates contiguous float32 by an array of integer positions into a new result. `bench/sweep.py`
compares it with the other kinds of calls on as many bytes: memory layouts, dtypes, positions, widths of
heads, specs and modes, each alone and in pairs. The table has the kinds that alone take the most times as
long as a plain call, with AVX-512, and with the instructions up to AVX2 of the same processor."""
REASONS = """\
* **Small calls.** A plain call for one token takes one or two microseconds. Whatever else a call does shows
  as a large ratio, and takes some microseconds at any size: reading lists and Python numbers, converting
  positions of other dtypes than int32, int64, float32 and float64, checking `max_position`, recording a
  gradient, entering `torch.vmap` or a compiled function.
* **`angles="float32"` and gradients of positions** take some operations of the library for each call: cos
  and sin, or tables and their gradient.
* **Heads of 2 features** are rotated one by one, without vectors.
* **Strided and transposed features** are copied in blocks, which takes less time than a copy in C order, its
  rotation and a copy back. Several arrays that share cache lines, such as heads in Fortran order, read these
  lines once for each array."""
TABLES = """\
This page has a table for each case; the page [Speed](../speed.md) explains how they were measured.
*Quartiles* are the lower and the upper quartile of the rounds. The files in `bench/results` also have the
minimum, and the time divided by the time of a copy into new memory."""
ALL_TABLES = """\
## All tables

[Every case](speed/tables.md) has a table of its own: other shapes, widths, dtypes and pairings, all threads.
All of them are for the CPU; [Speed on a GPU](speed/gpu.md) has a page of its own. `bench/README.md` lists the
targets of all benchmarks, also the targets that are missed.

```{toctree}
:hidden:

speed/tables
speed/gpu
```"""
README = """\
Medians for (1, 32, tokens, 128): one token, then 2,048. *Copies*: so many copies into existing memory take as
long in float32. rope_array computes exact angles in each call, the others have cos and sin. The processor
has AVX-512; [Speed](docs/speed.md#every-call) has calls with AVX2 too."""
IN_README = (
    *("rope_array NumPy", "rope_array PyTorch", "rope_array JAX, jax.jit"),
    *("transformers Llama", "transformers Llama, torch.compile"),
    *("Llama, complex form", "ONNX Runtime, ai.onnx"),
)
# The cases of README's columns: half pairs, or interleaved pairs for peers without half pairs.
DECODE = ("decode 1 float32", "decode 1 float32 interleaved")
FLOAT32 = ("prefill 2048 float32 half", "prefill 2048 float32 interleaved")
BFLOAT16 = ("prefill 2048 bfloat16 half", "prefill 2048 bfloat16 interleaved")
LEFT_OUT = ("core", "clone", "ai.onnx")  # words in names of rows that README leaves out

COMMAND = "python dev.py test -s gpu"
NOT_YET = f"""\
No GPU has been measured yet: `{COMMAND}` measures one, and writes its tables and its plot to this page."""
GPU_INTRODUCTION = f"""\
```text
{COMMAND}        # the same tables for your GPU
```

The table has the targets, and whether the measured calls meet them. *Worst* is the largest number of all
cases: a ratio of times, or launches. 64 MB are the bytes of q and k, read and written."""
COLUMNS = """\
The numbers are times divided by the time of a copy of q and k in the same round,
`torch.empty_like(x).copy_(x)`: the median of the rounds. q has 32 heads and k has 8 unless a column says
otherwise, a head has 128 features, and the arrays are (B, S, H, D) unless the title says heads first.

Decoding rotates one token of each sequence, with positions (B, 1). Its tables have three times: of the
kernels alone, of a call in a replayed CUDA graph, and of the host, in which Python enqueues a call. An eager
call takes the longer of the first and the last."""
GPU_METHOD = """\
* **Rounds.** As on the [CPU](../speed.md#method), with the wrong results: a result may be off by 5 % of the
  length of x, a result of ours by roundings alone.
* **Time on the GPU.** CUDA events enclose the calls of one timing, of 2 ms or more. The GPU sleeps until
  the host has enqueued all of them, so that it never waits for the host.
* **Beyond the L2.** Successive calls take other tensors: all of them have at least twice the bytes of the
  L2. The last result of each stays in memory, so that new results are written elsewhere. Decoding of few
  sequences has 256 sets of tensors, which the L2 can hold: the files say `"beyond_l2": false`.
* **Not timed.** Tables of cos and sin of other implementations, and of *Rotation*, are made before, and
  functions are compiled before. The other rows of rope_array compute exact angles in every call.
* **Backward.** The gradient of a rotation alone: its forward is done before.
* **Lower quartile.** A kernel is slower than another if it is slower in three of four rounds or more."""


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
    units = ("s", 1), ("ms", 1e-3), ("µs", 1e-6)
    unit, size = next((unit_and_size for unit_and_size in units if seconds >= unit_and_size[1]), units[-1])
    digits = max(0, 3 - len(str(int(seconds / size))))
    return f"{seconds / size:.{digits}f} {unit}"


def reasons(rows):
    """Yield a line for each reason why rows have no time."""
    names = {}
    for name, row in rows.items():
        if "seconds" not in row:
            ((outcome, reason),) = row.items()
            text = f"{outcome}: {reason}".replace("|", "\\|").replace("<", "\\<")
            names.setdefault(text, []).append(name)
    for reason, peers in sorted(names.items()):
        yield f"* {'; '.join(shown(name) for name in sorted(peers))}: {reason.rstrip('.')}."


def by_tokens(columns, cell):
    """Return a table with a row for each implementation, and a column of rows for each heading."""
    head = ("tokens", *columns)
    names = dict.fromkeys(name for rows in columns.values() for name in rows)
    lines = [(shown(name), *(cell(rows.get(name, {})) for rows in columns.values())) for name in names]
    return table(head, [line for line in lines if any(line[1:])], head[1:])


def made(run):
    command = f"python bench/{'sweep' if run['bench'] == 'sweep' else 'speed'}.py" + " --gpu" * (
        run["bench"] == "gpu"
    )
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if version)
    commit = (run["commit"] or "unknown")[:10]
    when = f"on {run['date']}, commit {commit}"
    return f"Made by `{command}` {when}, {machine(run)}. Versions: {versions}."


def machine(run):
    facts = run["machine"]
    if "gpu" in facts:
        kept = ("memory, GB", "SMs", "L2, MiB", "driver", "CUDA of PyTorch")
        figures = (f"{key} {facts['gpu'][key]}" for key in kept if key in facts["gpu"])
        return ", ".join((facts["gpu"]["name"], *figures))
    return f"{facts['cpu']} with {facts['cores']} cores, {facts['system'].split()[0]}"


# ---- README ----


def summary(run, kept=None, columns=6):
    """Return the first columns of the table of one token, and of 2,048 tokens in two dtypes."""
    cases = run["numbers"]
    head = ("one thread", "1 token", "float32", "copies", "bfloat16", "copies")[:columns]
    kept = kept or (name for name in names(cases) if not any(word in name for word in LEFT_OUT))
    lines = [row for name in kept if any((row := short_row(cases, name)[:columns])[1:])]
    return table(head, lines, head[1:])


def short_row(cases, name):
    decode, many, halves = (row_of(cases, places, name) for places in (DECODE, FLOAT32, BFLOAT16))
    label = labelled(cases, (*DECODE, *FLOAT32, *BFLOAT16), name)
    return label, median(decode), median(many), copies(many), median(halves), copies(halves)


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
    return list(dict.fromkeys(name for case in cases.values() for name in case["rows"]))


# ---- docs/speed.md and docs/speed/tables.md ----


def page(run):
    yield from ("# Speed", "", INTRODUCTION, "", *summary(run), "", SUMMARY, "")
    yield from ("![A rotation's time in copies, by implementation](speed/prefill.svg)", "")
    yield from ("![Time by the number of tokens](speed/growth.svg)", "")
    yield from every_call()
    yield from ("## Method", "", METHOD, "", made(run), "")
    yield from ("## Work done before the timing", "")
    for module, text in run["ready"].items():
        yield f"* **{IMPLEMENTATIONS.get(module, module.replace('_', '-'))}**: {text}"
    yield from ("", ALL_TABLES, "")


def every_call():
    """Yield the section of bench/sweep.py: each kind of call that differs from a plain call in one value."""
    runs = [run for run in map(newest, ("sweep", "sweep-avx2")) if run]
    kinds = {}  # of a library and a change, by size: the ratios of both runs
    for run in runs:
        for name, ratio in run["numbers"].items():
            library, size, *changes = name.split(", ")
            if len(changes) == 1:
                kinds.setdefault(f"{library}, {changes[0]}", {}).setdefault(size, []).append(ratio)
    largest = {kind: max(map(max, sizes.values())) for kind, sizes in kinds.items()}
    shown = sorted((kind for kind in kinds if largest[kind] >= SLOW), key=largest.get, reverse=True)
    cells = {
        kind: [" / ".join(f"{r:.1f}" for r in kinds[kind].get(size, ())) for size in SIZES] for kind in shown
    }
    rows = [[kind, *row] for kind, row in cells.items()]
    lines = table(("kind of call, AVX-512 / AVX2", *SIZES), rows, SIZES)
    yield from (EVERY_CALL, "", *lines, "", REASONS, "", in_copies(runs), "", *map(made, runs[:1]), "")


def in_copies(runs):
    """Return a sentence with the times of float32 and bfloat16 by each instruction set, in copies."""

    def copies(kind):
        """Return a kind's times; the ratios of a sweep are to a plain call, which is float32."""
        numbers, call = [run["numbers"] for run in runs], "NumPy, 64 MiB, "
        return " and ".join(f"{of.get(call + kind, 1) / of[call + A_COPY]:.2f}" for of in numbers)

    return (
        f"A new result of 64 MiB by NumPy takes {copies('float32')} copies in float32, with AVX-512 and with "
        f"AVX2, and {copies('bfloat16')} in bfloat16."
    )


def page_of_tables(run):
    yield from ("# Speed: all tables", "", TABLES, "")
    for group, title in GROUPS.items():
        cases = {name: case for name, case in run["numbers"].items() if case["group"] == group}
        if cases:
            yield from ("", f"## {title}", "")
            yield from growth(cases) if group == "growth" else tables(cases)


def tables(cases):
    for name, case in cases.items():
        yield from (f"### {name[0].upper()}{name[1:]}", "", about(case), "")
        if case["rows"]:
            notes = list(reasons(case["rows"]))
            yield from (*table(*head_and_lines(case["rows"]), HEAD[1:]), "", *notes, *[""] * bool(notes))
        else:
            yield from (case["failed"], "")


def about(case):
    threads = f", {case['threads']} threads" if case.get("threads", 1) > 1 else ""
    return f"({', '.join(map(str, case['shape']))}), {case['dtype']}, {case['pairing']} pairs{threads}."


def growth(cases):
    shown_cases = (case for case in cases.values() if case["shape"][2] in GROWTH)
    return by_tokens({f"{case['shape'][2]:,}": case["rows"] for case in shown_cases}, median)


# ---- docs/speed/gpu.md ----


def gpu_page(run):
    yield from ("# Speed on a GPU", "")
    if run is None:
        yield from (NOT_YET, "")
        return
    yield from (GPU_INTRODUCTION, "", *targets(run), "")
    yield from ("![A rotation's time in copies, by the number of tokens](gpu.svg)", "")
    yield from (COLUMNS, "")
    cases = run["numbers"].values()
    for title, group in grouped(cases).items():
        cell = three if title.startswith("Decode") else copies
        yield from (f"## {title}", "", *by_tokens({label(case): case["rows"] for case in group}, cell), "")
    yield from ("## Method", "", GPU_METHOD, "")
    notes = list(reasons({name: row for case in cases for name, row in case["rows"].items()}))
    yield from ("Not timed, in all cases or in some:", "", *notes, "") if notes else ()
    counts = Counter(case["backend"] for case in cases if "backend" in case).items()
    served = ", ".join(f"{name} in {count} cases" for name, count in counts)
    yield from (f"The rows of rope_array were served by the backends: {served}.", "", made(run), "")


def targets(run):
    head = ("target", "limit", "worst", "verdict", "case")
    return table(head, [[str(target.get(key, "")) for key in head] for target in run["targets"]], head[1:3])


def grouped(cases):
    """Return the cases by title, which has one group, direction, dtype and pairing."""
    groups = {}
    for case in cases:
        title = ", ".join(case[key] for key in ("direction", "dtype", "pairing"))
        groups.setdefault(f"{case['group'].capitalize()}: {title}", []).append(case)
    return groups


def label(case):
    """Return the sizes that differ between the cases of a title, and the time of the copy."""
    if case["group"] == "decode":
        return f"{case['batch']:,} sequences"
    words = [f"{case['tokens']:,}"]
    words += [f"heads {'+'.join(map(str, case['heads']))}"] * (case["group"] == "fewer heads")
    words += [f"width {case['head_dim']}"] * (case["group"] == "other widths")
    copied = median(case["rows"].get(COPY, {}))
    return ", ".join(words) + (f" (copy {copied})" if copied else "")


def three(row):
    """Return the times of a row on the GPU, in a graph and on the host."""
    keys = ("seconds", "graph", "host") if "seconds" in row else ()
    return ", ".join(median(row, key) or "–" for key in keys)


def write(bench, run, root=ROOT):
    docs, readme = root / "docs", root / "README.md"
    if bench == "gpu":
        (docs / "speed" / "gpu.md").write_text("\n".join(gpu_page(run)), "utf-8")
        return
    (docs / "speed.md").write_text("\n".join(page(run)), "utf-8")
    (docs / "speed" / "tables.md").write_text("\n".join(page_of_tables(run)), "utf-8")
    short_table = [*summary(run, IN_README, columns=5), "", f"{README} {machine(run)}."]
    replace_between(MARKERS, short_table, readme)
