"""Time this library's backends, other implementations and copies, on the CPU or on an NVIDIA GPU.

    python bench/speed.py [--gpu] [--quick] [--only WORD ...] [--rows PATTERN ...] [--json PATH]

All rows of a case alternate on the same arrays: on the CPU in a process for one thread and in another for
all, on a GPU with q and k. A result that is wrong is not timed; a package that is missing has its reason.

A whole run writes bench/results/<date>-speed.json or -gpu.json after every case, and then the tables of its
pages and the plots in docs/. A run with `--quick` (small arrays or few cases, few rounds), `--only` (cases
whose name or group has every word) or `--rows` prints, and writes only the file of `--json`. `nox
-s bench` and `nox -s gpu` install the packages.
"""

import argparse
import datetime
import sys
import time

import _pages
import _speed_cpu
from _harness import is_chosen, parse, print_table, print_targets
from _record import RESULTS, record, write_json
from _speed_cases import ALL, cpu_cases, gpu_cases

CASES = {"speed": cpu_cases, "gpu": gpu_cases}
NOTE = (
    "seconds of one rotation, on a GPU of q and k and also on the host, and its ratio to copies of the same "
    "bytes, alternating on the same arrays; work that a model does once for a forward pass (a peer's tables "
    "and sessions, compiling) is done before the timing; our rows compute exact angles from positions in "
    "every call, Rotation rows before the timing"
)
PACKAGES = (
    *("numpy", "array-api-compat", "rope-array", "torch", "transformers", "rotary-embedding-torch"),
    *("jax", "equinox", "keras", "keras-hub", "onnx", "onnxruntime", "ml_dtypes", "triton", "cupy-cuda13x"),
    *("cupy-cuda12x", "flash-attn", "liger-kernel", "flashinfer-python", "vllm"),
)
NEEDED = (
    "bench/speed.py --gpu needs an NVIDIA GPU, its driver, and a CUDA build of PyTorch (2.6 or newer): {}; "
    "there, run `python dev.py test -s gpu`, or `python bench/speed.py --gpu` if the packages are installed"
)


def main():
    """Time the cases; print their tables and targets, and after a whole run write them."""
    options = arguments()
    bench = "gpu" if options.gpu else "speed"
    chosen = [c for c in CASES[bench](options.quick) if is_chosen(f"{c.name} {c.group}", options)]
    if not chosen:
        sys.exit(f"no case has the words {options.only}")
    is_complete = not (options.quick or options.only or options.rows != list(ALL))
    path = options.json or (RESULTS / f"{datetime.date.today()}-{bench}.json" if is_complete else None)
    cases, facts = on_gpu(chosen, options) if options.gpu else (_speed_cpu.results(chosen, options), dict)
    numbers, begun = {}, time.perf_counter()
    for name, case in cases:
        numbers[name] = case
        place, took = f"{len(numbers)}/{len(chosen)}", time.perf_counter() - begun
        print(f"{place} {name}: {took:.0f} s", file=sys.stderr)
        run = record(bench, numbers, NOTE, PACKAGES, **facts())
        if path:
            write_json(run, path)
    show(run)
    if is_complete:
        _pages.write(bench)
        _pages.draw(bench)


def on_gpu(chosen, options):
    """Return the results one by one, and more fields: the facts of the GPU, with its clocks by then."""
    try:
        import _speed_gpu

        device = _speed_gpu.Cuda()
    except (ImportError, OSError) as error:
        sys.exit(NEEDED.format(error))
    return _speed_gpu.results(chosen, device, options), lambda: {"gpu": device.facts()}


def show(run):
    """Print a table of each case with the reasons for rows without a time, and the targets."""
    for name, case in run["numbers"].items():
        print(f"\n{name}", case.get("failed", ""))
        print_table(*_pages.head_and_lines(case["rows"]))
        print("\n".join(_pages.reasons(case["rows"])))
    print_targets(run)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--gpu", action="store_true", help="on an NVIDIA GPU")
    add("--rows", nargs="+", metavar="PATTERN", default=list(ALL), help="only these rows")
    return parse(parser, "gpu" if "--gpu" in sys.argv else "speed")


if __name__ == "__main__":
    main()
