"""The page docs/speed/gpu.md, from a result of `bench/gpu.py`, and the tables that it prints."""

from _gpu_cases import COPY
from _record import ROOT
from _speed_table import duration, why_not
from scoreboard import table

HEAD = ("implementation", "median", "quartiles", "copies", "TB/s", "host", "graph", "launches")
COMMAND = "python dev.py test -s gpu"
NOT_YET = f"""\
No GPU has been measured yet: `{COMMAND}` measures one, and writes its tables and its plot to this page."""
INTRODUCTION = f"""\
```text
{COMMAND}        # the same tables for your GPU
```

The table has the targets, and whether the measured calls meet them. *Worst* is the largest number of all
cases: a ratio of times, or launches. 64 MB are the bytes of q and k, read and written."""
COLUMNS = """\
The numbers are times divided by the time of a copy of q and k in the same round,
`torch.empty_like(x).copy_(x)`: the median of the rounds. q has 32 heads and k has 8 unless a column says
otherwise, a head has 128 features, and the arrays are (B, S, H, D) unless the title says heads first."""
DECODING = """\
Decoding rotates one token of each sequence, with positions (B, 1). *GPU* is the time of the kernels alone,
*graph* the time of a call in a replayed CUDA graph, *host* the time in which Python enqueues a call. An eager
call takes the longer of *GPU* and *host*."""
METHOD = """\
* **Rounds.** One process times all implementations once in each round, in random order. A table shows the
  median of the rounds. A ratio is the median of the quotients, each of two times of one round. The files in
  `bench/results` have the quartiles too.
* **Time on the GPU.** CUDA events enclose the calls of one timing, of 2 ms or more. The GPU sleeps until
  the host has enqueued all of them, so that it never waits for the host.
* **Beyond the L2.** Successive calls take other tensors: all of them have at least twice the bytes of the
  L2. The last result of each stays in memory, so that new results are written elsewhere. Decoding of few
  sequences has 256 sets of tensors, which the L2 can hold: the files say `"beyond_l2": false`.
* **Not timed.** Tables of cos and sin of other implementations, and of *Rotation*, are made before, and
  functions are compiled before. The other rows of rope_array compute exact angles in every call.
* **Backward.** The gradient of a rotation alone: its forward is done before.
* **Wrong results.** Each row is first compared with the array-api backend on the same GPU. If it is off by
  more than 5 % of the length of x (our rows: roundings), it is not timed.
* **Slower** means slower in three of four rounds or more."""


# ---- one case, for the terminal ----


def lines(case):
    """Yield a case's rows as cells."""
    for name, row in case["rows"].items():
        yield (name, *cells(row)) if "seconds" in row else (name, reason(row), *[""] * (len(HEAD) - 2))


def cells(row):
    lower, median, upper = row["seconds"]
    ratio = f"{row['copies'][1]:.3f}" if "copies" in row else ""
    graph = duration(row["graph"][1]) if "graph" in row else ""
    times = duration(median), f"{duration(lower)} – {duration(upper)}", ratio, f"{row['TB/s']:.3g}"
    return (*times, duration(row["host"][1]), graph, row["launches"] or "")


def reason(row):
    return why_not({kind: text for kind, text in row.items() if kind in ("failed", "wrong", "not served")})


# ---- docs/speed/gpu.md ----


def page(result):
    yield from ("# Speed on a GPU", "")
    if result is None:
        yield from (NOT_YET, "")
        return
    yield from (INTRODUCTION, "", *targets(result), "")
    yield from ("![A rotation's time in copies, by the number of tokens](gpu.svg)", "")
    yield from (COLUMNS, "")
    for title, cases in groups(result["numbers"]).items():
        yield from (f"## {title}", "", *in_copies(cases), "")
    yield from ("## Decode", "", DECODING, "", *decoding(result["numbers"]))
    yield from ("## Method", "", METHOD, "", *missing(result), *backends(result), made(result), "")


def targets(result):
    head = ("target", "verdict", "worst", "case")
    found = [
        (
            each["target"],
            each["verdict"],
            *((f"{each['worst']:.3g}", each["case"]) if each["cases"] else ("", "")),
        )
        for each in result["verdicts"]
    ]
    return table(head, found, ("worst",))


def groups(numbers):
    """Return the cases by title; a title has one direction, dtype and pairing."""
    found = {}
    for case in numbers.values():
        if case["group"] != "decode":
            title = ", ".join(case[key] for key in ("direction", "dtype", "pairing"))
            found.setdefault(f"{case['group'].capitalize()}: {title}", []).append(case)
    return found


def in_copies(cases):
    """Return a table with a row for each implementation and a column for each case."""
    return transposed(cases, label, lambda row: f"{row['copies'][1]:.2f}" if "copies" in row else "")


def label(case):
    """Return what differs between the cases of a title, and the time of the copy."""
    heads = "+".join(map(str, case["heads"]))
    parts = [f"{case['tokens']:,}"]
    parts += [f"heads {heads}"] * (case["group"] == "fewer heads")
    parts += [f"width {case['head_dim']}"] * (case["group"] == "other widths")
    copied = case["rows"].get(COPY, {})
    return ", ".join(parts) + (f" (copy {duration(copied['seconds'][1])})" if "seconds" in copied else "")


def transposed(cases, head, cell):
    names = dict.fromkeys(name for case in cases for name in case["rows"])
    columns = [{name: cell(row) for name, row in case["rows"].items()} for case in cases]
    heads = ("tokens", *map(head, cases))
    found = [(name, *(column.get(name, "") for column in columns)) for name in names]
    return table(heads, [row for row in found if any(row[1:])], heads[1:])


def decoding(numbers):
    found = [case for case in numbers.values() if case["group"] == "decode"]
    titles = dict.fromkeys((case["dtype"], case["pairing"]) for case in found)
    for dtype, pairing in titles:
        yield from (f"### {dtype}, {pairing}: GPU, graph, host", "")
        chosen = [case for case in found if (case["dtype"], case["pairing"]) == (dtype, pairing)]
        yield from (*transposed(chosen, lambda case: f"{case['batch']:,} sequences", three), "")


def three(row):
    """Return the times of a row on the GPU, in a graph and on the host."""
    if "seconds" not in row:
        return ""
    times = (row["seconds"][1], row["graph"][1] if "graph" in row else None, row["host"][1])
    return ", ".join("–" if each is None else duration(each) for each in times)


def missing(result):
    """Yield a list of the implementations that were not timed, with the reasons."""
    reasons = dict(result["missing"])
    for case in result["numbers"].values():
        for name, row in case["rows"].items():
            if "seconds" not in row:
                reasons.setdefault(name, reason(row))
    if reasons:
        yield from ("Not timed, in all cases or in some:", "")
        yield from (f"* {name}: {text.rstrip('.')}." for name, text in sorted(reasons.items()))
        yield ""


def backends(result):
    """Yield the backends that served our rows, with the number of cases."""
    names = [case["backend"] for case in result["numbers"].values() if "backend" in case]
    counts = (f"{name} in {names.count(name)} cases" for name in dict.fromkeys(names))
    yield from (f"The rows of rope_array were served by the backends: {', '.join(counts)}.", "")


def made(result):
    gpu = ", ".join(f"{key} {value}" if key != "name" else value for key, value in facts(result).items())
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items() if version)
    commit = (result["commit"] or "unknown")[:10]
    return f"Made by `python bench/gpu.py` on {result['date']}, commit {commit}, {gpu}. Versions: {versions}."


def facts(result):
    kept = ("name", "memory, GB", "SMs", "L2, MiB", "driver", "CUDA of PyTorch")
    return {key: result["machine"]["gpu"][key] for key in kept if key in result["machine"]["gpu"]}


def write(result, root=ROOT):
    (root / "docs" / "speed" / "gpu.md").write_text("\n".join(page(result)), "utf-8")
