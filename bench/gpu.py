"""Time rotations on an NVIDIA GPU against a device copy and other implementations, and judge the targets.

    python bench/gpu.py [--quick] [--only WORD ...] [--seconds S] [--json PATH]
    python bench/gpu.py --tables [PATH]

All rows of a case alternate in one process, on the same tensors: this library by exact angles, by a
Rotation and in place; a copy of q and k; the kernels of flash-attention, Liger, FlashInfer and vLLM;
transformers eager and compiled. A package that is missing is listed with the reason. A result that is wrong
is not timed.

A whole run writes bench/results/<date>-gpu.json, docs/speed/gpu.md and docs/speed/gpu.svg. A run with
`--quick` (few cases and rounds) or `--only` (the cases whose name has every word) prints, and writes only
the file of `--json`. The file is written after every case, so that an interrupted run keeps its cases.
`--tables` writes the page and the plot of PATH, or of the newest result. `python dev.py test -s gpu`
installs the packages.
"""

import argparse
import datetime
import importlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for python -m bench.gpu too

import _gpu_table
from _blocks import print_table
from _gpu_cases import cases
from _gpu_device import Cuda, NoDeviceError
from _gpu_verdicts import line, verdicts
from _record import RESULTS, record

NOTE = (
    "seconds of one rotation of q and k on the GPU and on the host, and its ratio to a copy of the same "
    "tensors, alternating in one run; peers' tables are made before the timing; our rows compute exact "
    "angles from positions in every call, Rotation rows before the timing"
)
PACKAGES = (
    "numpy",
    "array-api-compat",
    "rope-array",
    "torch",
    "triton",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "flash-attn",
    "liger-kernel",
    "flashinfer-python",
    "vllm",
    "transformers",
)
# Modules of bench/peers.
PEERS = ("own", "flash_attention", "liger", "flashinfer", "vllm", "huggingface")
SECONDS, QUICK = 1.0, 0.2  # of timing for a case
ROUNDS, FEW = (7, 41), (3, 5)


def load(names=PEERS):
    """Return the modules whose packages are here, and the reasons why others are not."""
    modules = {name: importlib.import_module(f"peers.{name}") for name in names}
    reasons = {name: module.available() for name, module in modules.items()}
    missing = {name: reason for name, reason in reasons.items() if reason}
    return {name: module for name, module in modules.items() if name not in missing}, missing


def measure(chosen, device, modules, missing, options, tell=print):
    """Return the result of all cases; write it to the path of `options.json` after each case."""
    import _gpu_turns

    seconds, rounds = (
        options.seconds or (QUICK if options.quick else SECONDS),
        FEW if options.quick else ROUNDS,
    )
    numbers, result = {}, {}
    for place, case in enumerate(chosen, 1):
        begun = time.perf_counter()
        numbers[case.name] = _gpu_turns.run(case, device, modules, seconds, rounds)
        tell(f"{place}/{len(chosen)} {case.name}: {time.perf_counter() - begun:.1f} s")
        found = {"missing": missing, "verdicts": verdicts(numbers)}
        result = record("gpu", numbers, NOTE, PACKAGES, gpu=device.facts()) | found
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return result


def show(result):
    """Print a line for each row of each case, the missing packages, and the verdicts."""
    for name, case in result["numbers"].items():
        print(f"\n{name}: {case.get('failed') or 'rope_array by the backend ' + case['backend']}")
        print_table(_gpu_table.HEAD, list(_gpu_table.lines(case)))
    print(*(f"\nmissing: {name}: {reason}" for name, reason in result["missing"].items()))
    print(f"\non {result['machine']['gpu']}\nwith {result['versions']}, commit {result['commit']}\n")
    print(*map(line, result["verdicts"]), sep="\n")


def picked(options):
    """Return the cases whose names have every word of --only."""
    words = [word.lower() for word in options.only or ()]
    return [case for case in cases(options.quick) if all(word in case.name.lower() for word in words)]


def main():
    options = arguments()
    if options.tables is not None:
        write(options.tables if options.tables.name else newest())
        return
    try:
        device = Cuda()
    except NoDeviceError as error:
        sys.exit(str(error))
    if not (chosen := picked(options)):
        sys.exit(f"no case has the words {options.only}")
    whole = not (options.quick or options.only)
    if whole and not options.json:
        options.json = RESULTS / f"{datetime.date.today()}-gpu.json"
    result = measure(chosen, device, *load(), options, lambda text: print(text, file=sys.stderr))
    show(result)
    if whole:
        write(options.json)


def newest():
    """Return the path of the newest result, or None."""
    return max(RESULTS.glob("*-gpu.json"), default=None)


def write(path):
    """Write the page and the plot of a result; without a result, the page that says so."""
    result = json.loads(path.read_text("utf-8")) if path else None
    _gpu_table.write(result)
    if result:
        try:
            import _gpu_plot
        except ImportError as error:
            sys.exit(
                f"no plot: {error}; where matplotlib is installed, run `python bench/gpu.py --tables {path}`"
            )
        _gpu_plot.write(result)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few cases and few rounds")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="the cases whose name has all these")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help=f"of timing for a case (default: {SECONDS}; quick: {QUICK})",
    )
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the result here")
    parser.add_argument(
        "--tables", nargs="?", const=Path(), metavar="PATH", type=Path,
        help="write the page and the plot of PATH, or of the newest result",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    main()
