"""The targets of the benchmarks, judged by the numbers of a result.

`record` puts the verdicts into each result. A target is the largest of some numbers, and its limit.
"""

import json
from functools import partial
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
HEAD = ("benchmark", "target", "limit", "worst", "verdict")


# Of bench/calls.py: target, limit, the ratio, and words of the names of its cases.
CALLS = {
    "latency": (
        ("one array, in clones", 3, "one array / a copy", "PyTorch"),
        ("q and k, in clones", 5, "q and k / a copy", "PyTorch"),
        ("a recorded gradient, in clones", 9, "gradient recorded / a copy", "PyTorch"),
    ),
    "in-place": (
        ("in place, inference, in times of vLLM's operator", 1.0, "positions / vLLM", "inference"),
        ("in place, eager, in times of vLLM's operator", 1.0, "positions / vLLM", "eager"),
    ),
    "compiled": (
        ("forward, float32, in x * 2", 1.3, "ours / x * 2", "forward, float32"),
        ("forward, bfloat16, in x * 2", 1.6, "ours / x * 2", "forward, bfloat16"),
        ("forward and backward, in eager calls", 1.2, "ours / eager", "forward and backward"),
        ("forward and backward, in Llama's code compiled", 1.0, "ours / Llama", "forward and backward"),
        ("forward and backward, in Cohere's code compiled", 1.0, "ours / Cohere", "forward and backward"),
    ),
    "hf-models": (
        ("a decode step after patch, in steps before", 1.0, "after / before", "decode"),
        ("a train step after patch, in steps before", 1.0, "after / before", "train"),
    ),
    "attention-inputs": (
        ("norm and rotation, in steps", 1.0, "norm + rotation / unfused", "in place"),
        ("with the cache, in steps", 1.0, "norm + rotation + cache / unfused + cache", "in place"),
        (
            *("with the cache, in rotations with index_copy_", 0.85),
            *("norm + rotation + cache / rotation, index_copy_", "in place"),
        ),
        ("backward, in forwards", 2.0, "backward / forward", "gradient"),
        ("a decode step of Qwen3, eager, in steps before", 0.9, "after / before", "eager, decode"),
        ("a train step of Qwen3, eager, in steps before", 0.97, "after / before", "eager, train"),
        ("a decode step of Qwen3, compiled, in steps before", 1.0, "after / before", "compiled, decode"),
        ("a train step of Qwen3, compiled, in steps before", 1.0, "after / before", "compiled, train"),
    ),
    "key-shift": (("keys moved by slots, in steps", 0.6, "ours / in steps", "bfloat16"),),
    "jitted": (
        ("prefill, in the time of copy", 1.3, "ours / copy", "prefill"),
        ("decode, in the time of copy", 1.2, "ours / copy", "decode"),
        ("prefill, in the time of Equinox", 0.1, "ours / Equinox", "prefill"),
        ("prefill, in the time of textbook", 0.1, "ours / textbook", "prefill"),
    ),
}


def calls(bench, numbers):
    for target, limit, ratio, words in CALLS[bench]:
        chosen = {
            name: case["ratios"][ratio]
            for name, case in numbers.items()
            if ratio in case["ratios"] and {*words.split(", ")} <= {*name.split(", ")}
        }
        yield target, limit, chosen


def attention_inputs(numbers):
    """Judge the norm in place by its microseconds at one token, and by rotations from 16 tokens on."""
    cases = {name: case for name, case in numbers.items() if name.startswith("in place")}
    one = {name: case["ms"] for name, case in cases.items() if name.endswith(", 1")}
    many = {name: case["ratios"]["norm + rotation / rotation"] for name, case in cases.items()}
    norms = {name: round(1e3 * (ms["norm + rotation"] - ms["rotation"]), 2) for name, ms in one.items()}
    yield "the norm of one token, µs", 1.5, norms
    yield (
        "norm and rotation, from 16 tokens on, in rotations", 1.25,
        {name: many[name] for name in many.keys() - one},
    )  # fmt: skip
    yield from calls("attention-inputs", numbers)


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


def import_time(numbers):
    (ms,) = (case["ms"] for case in numbers.values())
    yield "import rope_array, ms", 30, {"": round(ms["import rope_array"] - ms["nothing"], 1)}


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
    **{bench: partial(calls, bench) for bench in CALLS},
    "attention-inputs": attention_inputs,
    "sweep": sweep,
    "sweep-avx2": sweep,
    "import-time": import_time,
    "exhaustive": exhaustive,
    "gpu": gpu,
}


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


def target_rows(run, keys=HEAD):
    """Return the cells of a table of a result's targets."""
    return [
        [str(({"benchmark": run["bench"]} | target).get(key, "")) for key in keys]
        for target in run["targets"]
    ]


def newest(bench):
    """Return the newest result of a benchmark, or None."""
    path = max(RESULTS.glob(f"????-??-??-{bench}.json"), default=None)
    return path and json.loads(path.read_text("utf-8"))
