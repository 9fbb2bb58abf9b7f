"""The targets of the benchmarks, judged by the numbers of a result.

`record` puts the verdicts into each result. A target is the largest of some numbers, and its limit.
"""

import json
from itertools import product
from pathlib import Path

RESULTS = Path(__file__).with_name("results")
LARGE = 64e6  # bytes that a call on a GPU reads and writes, from which its targets are judged
SHARED_HEADS = 32  # that share the angles of a token, from which exact angles are judged
COPY = "a copy"
# Calls of bench/sweep.py that may take more than ten times as long as a plain call, by words of their names:
# the section "Every call" of docs/speed.md explains them.
IF_SMALL = (
    *("a float", "a list", "a tuple of floats", "uint8 positions", "Llama3 with max_position"),
    *("forward and backward", "torch.compile", "vmap"),
)
EXPLAINED = (
    *({"float32 angles"}, {"gradient of positions"}, {"heads of 2"}, {"Fortran order", "a tuple of four"}),
    *({size, kind} for size in ("one token", "64 KiB") for kind in IF_SMALL),
)
HEAD = ["| benchmark | target | limit | worst | verdict |", "|---|---|---:|---:|---|"]


def ratios(numbers, step, peer, *words):
    """Return our times over another's, of the cases whose names have all words."""
    chosen = {name: row for name, row in numbers.items() if all(word in name for word in words)}
    return {name: row[step]["ratios"][peer] for name, row in chosen.items() if peer in row[step]["ratios"]}


def latency(numbers):
    for target, name, limit in (
        ("one array, in clones", "one array", 3),
        ("q and k, in clones", "q and k", 5),
        ("a recorded gradient, in clones", "gradient recorded", 9),
    ):
        yield target, limit, {name: numbers[f"PyTorch: {name} / x.clone()"]}


def sweep(numbers):
    calls = (name for name in numbers if not any(words <= {*name.split(", ")} for words in EXPLAINED))
    yield (
        "calls that docs/speed.md does not explain, in plain calls", 10,
        {name: numbers[name] for name in calls},
    )  # fmt: skip
    copies = {
        name: round(1 / ratio, 2) for name, ratio in numbers.items() if name.endswith(f"64 MiB, {COPY}")
    }
    yield "a plain call of 64 MiB, in copies", 1.15, copies


def in_place(numbers):
    for mode in ("inference", "eager"):
        keys = (key for key in numbers if f", {mode}, " in key)
        yield (
            f"in place, {mode}, in times of vLLM's operator", 1.0,
            {key: numbers[key]["positions / vLLM"] for key in keys if "positions / vLLM" in numbers[key]},
        )  # fmt: skip


def import_time(numbers):
    yield "import rope_array, ms", 30, {"": numbers["import rope_array, ms"]}


def compiled(numbers):
    step = "forward and backward"
    yield "forward, float32, in x * 2", 1.3, ratios(numbers, "forward", "x * 2", "float32")
    yield "forward, bfloat16, in x * 2", 1.6, ratios(numbers, "forward", "x * 2", "bfloat16")
    yield f"{step}, in eager calls", 1.2, ratios(numbers, step, "eager")
    for model in ("Llama", "Cohere"):
        yield f"{step}, in {model}'s code compiled", 1.0, ratios(numbers, step, model)


def jitted(numbers):
    for peer, setting, limit in (
        *(("copy", "prefill", 1.3), ("copy", "decode", 1.2)),
        *(("Equinox", "prefill", 0.1), ("textbook", "prefill", 0.1)),
    ):
        cases = {
            f"{name}, {step}": ratio
            for step in ("forward", "gradient")
            for name, ratio in ratios(numbers["rotation"], step, peer, setting).items()
        }
        yield f"{setting}, in the time of {peer}", limit, cases


def hf_models(numbers):
    for step in ("decode", "train"):
        cases = {
            name: row[step]["÷"][1]
            for models in numbers.values()
            for name, row in models.items()
            if "÷" in row.get(step, {})
        }
        yield f"a {step} step after patch, in steps before", 1.0, cases


def exhaustive(numbers):
    keys = ("max_error_cos", "max_error_sin")
    yield (
        "errors of float32 cos and sin at every remainder", 9.5e-8,
        {name: max(row[key] for key in keys) for name, row in numbers.items()},
    )  # fmt: skip


def gpu(numbers):
    """Judge our row of each case: its launches, and its time over a copy's, kernels' and a Rotation's."""
    rows = {name: case["rows"].get("rope_array", {}) for name, case in numbers.items()}
    ours = {name: row for name, row in rows.items() if "seconds" in row}
    large = [name for name in ours if 2 * numbers[name]["bytes"] >= LARGE]

    def against(peer, names, quartile=1):
        ratios = {name: ours[name]["against"].get(peer) for name in names}
        return {name: ratio[quartile] for name, ratio in ratios.items() if ratio}

    for setting in product(("forward", "backward"), ("bfloat16", "float32"), ("half", "interleaved")):
        keys = ("direction", "dtype", "pairing")
        chosen = [name for name in large if tuple(numbers[name][key] for key in keys) == setting]
        yield f"{', '.join(setting)}, from 64 MB on, in times of a device copy", 1.1, against("copy", chosen)
    for kernel in ("flash-attn, Triton kernel", "Liger, Triton kernel"):
        # Slower means slower in three of four rounds.
        target = f"in times of {kernel.partition(',')[0]}'s kernel, lower quartile"
        yield target, 1, against(kernel, ours, quartile=0)
    launches = {name: row["launches"] for name, row in ours.items() if len(numbers[name]["heads"]) == 2}
    counted = {name: count for name, count in launches.items() if count}
    yield "launches for q and k, forward and backward", 1, counted
    chosen = [name for name in large if max(numbers[name]["heads"]) == SHARED_HEADS]
    target = f"exact angles with {SHARED_HEADS} heads, from 64 MB on, in times of Rotation"
    yield target, 1.01, against("rope_array, Rotation", chosen)


JUDGES = {
    "latency": latency, "sweep": sweep, "sweep-avx2": sweep, "in-place": in_place, "import-time": import_time,
    "compiled": compiled, "jitted": jitted, "hf-models": hf_models,
    "exhaustive": exhaustive, "gpu": gpu,
}  # fmt: skip


def judged(bench, numbers):
    """Return a benchmark's targets with their limits, worst numbers and verdicts."""
    if bench not in JUDGES:
        return {}
    verdicts = []
    for target, limit, cases in JUDGES[bench](numbers):
        verdict = {"target": target, "limit": limit, "verdict": "not measured"}
        if cases:
            case = max(cases, key=cases.get)
            verdict["verdict"] = "met" if cases[case] <= limit else "missed"
            verdict |= {"worst": cases[case], "case": case, "cases": len(cases)}
        verdicts.append(verdict)
    return {"targets": verdicts}


def lines(run):
    """Return a line for each target of a result."""
    return [
        f"{target['verdict']}: {target['target']}, limit {target['limit']}{worst(target)}"
        for target in run.get("targets", ())
    ]


def worst(target):
    """Return the worst number of a target as text, if one was measured."""
    return f"; worst {target['worst']} of {target['cases']} ({target['case']})" if "worst" in target else ""


def newest(bench):
    """Return the newest result of a benchmark, or None."""
    path = max(RESULTS.glob(f"????-??-??-{bench}.json"), default=None)
    return path and json.loads(path.read_text("utf-8"))


def table_of_targets():
    """Return the lines of the table of all targets, as the newest results have them."""
    runs = filter(None, map(newest, JUDGES))
    return HEAD + [
        f"| {run['bench']} | {row['target']} | {row['limit']} | {row.get('worst', '')} | {row['verdict']} |"
        for run in runs
        for row in run["targets"]
    ]
